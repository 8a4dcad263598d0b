"""One rule for the ids that people choose: ceremonies, correlation ids and the command line agree."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fleetsim.api.bodies import RequestBody
from fleetsim.ceremony.file import parse_ceremony
from fleetsim.model.errors import ConfigError
from fleetsim.model.work import plain_id
from fleetsim.runtime.yaml import load

GOOD = ["a", "A1", "_x", "_", "0_x", "quinn.daily-digest", "a..b", "trailing.", "a-", "x" * 128]
BAD = ["", ".", "..", ".hidden", "-x", "a b", "a/b", "a\\b", "a\n", "\na", "a\x00", "é", "１２３", "a١", "x" * 129]


def as_ceremony(text: str) -> bool:
    escaped = "".join(f"\\U{ord(c):08x}" for c in text)
    file = f'id: "{escaped}"\nname: n\nschedule: "0 0 * * *"\nskill: s\ntargets: [a]\n'
    try:
        return parse_ceremony(load(file, "c.yaml")).ceremony_id == text
    except ConfigError as error:
        return "'id' must be 1 to 128 ASCII letters" not in str(error)


def as_correlation_id(text: str) -> bool:
    try:
        return RequestBody.model_validate({"text": "x", "correlationId": text}).correlation_id == text
    except ValidationError as error:
        return "must be 1 to 128 ASCII letters" not in str(error)


def as_plain_id(text: str) -> bool:
    try:
        return plain_id(text) == text
    except ValueError:
        return False


@pytest.mark.parametrize("text", GOOD, ids=ascii)
def test_an_id_in_the_documented_form_is_accepted_everywhere(text: str) -> None:
    assert (as_ceremony(text), as_correlation_id(text), as_plain_id(text)) == (True, True, True)


@pytest.mark.parametrize("text", BAD, ids=ascii)
def test_an_id_that_could_be_a_path_is_refused_everywhere(text: str) -> None:
    assert (as_ceremony(text), as_correlation_id(text), as_plain_id(text)) == (False, False, False)
