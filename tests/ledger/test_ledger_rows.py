"""Every value round-trips through the ledger's rows."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fleetsim.events.request import Event
from fleetsim.ledger import CardSnapshot, EarlyWebhook, LedgerDamaged, RunRecord
from fleetsim.ledger.bodies import decoder, encode, micros, moment
from fleetsim.ledger.sqlite.sums import link, row_sum
from fleetsim.model import event, task
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate
from fleetsim.model.task import DataPart, FilePart, TextPart
from fleetsim.model.work import Answer, Outcome, Question
from fleetsim.request.records import AgentRoute, RequestRecord
from tests.ledger.ledgers import outcome, record
from tests.scale import scaled

pytestmark = pytest.mark.slow

whole = st.characters(exclude_categories=["Cs"])
texts = st.text(whole, max_size=12)
dates = st.integers(0, 2**52).map(lambda n: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=n))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    int: st.integers(-(2**60), 2**60),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    datetime: dates,
    Any: json_values,
    types.NoneType: st.none(),
}


UNIONS: dict[Any, tuple[type[Any], ...]] = {
    task.Part: (TextPart, DataPart, FilePart),
    event.TaskEvent: (Snapshot, StatusUpdate, ArtifactUpdate, DirectReply),
}


@cache
def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type that the ledger records, built from its annotations alone."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if origin in {typing.Union, types.UnionType}:
        return st.one_of([values(argument) for argument in inner])
    if origin is tuple:
        most = 1 if inner[0] is AgentRoute else 3  # a route has routes
        return st.lists(values(inner[0]), max_size=most).map(tuple)
    if origin is Mapping:
        return st.dictionaries(texts, values(inner[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    if kind in UNIONS:
        return st.one_of([values(member) for member in UNIONS[kind]])
    hints = {
        name: hint
        for name, hint in typing.get_type_hints(kind).items()
        if typing.get_origin(hint) is not typing.ClassVar
    }
    return st.deferred(lambda: st.builds(kind, **{name: values(hint) for name, hint in hints.items()}))


@pytest.mark.parametrize(
    "kind", [RequestRecord, Outcome, Question, Answer, RunRecord, CardSnapshot, EarlyWebhook, Event]
)
def test_every_value_of_every_recorded_kind_round_trips(kind: type[Any]) -> None:
    @settings(max_examples=scaled(100), deadline=None)
    @given(values(kind))
    def comes_back(value: Any) -> None:
        assert decoder(kind)(encode(value)) == value

    comes_back()


@given(dates)
def test_dates_keep_every_microsecond(at: datetime) -> None:
    assert moment(micros(at)) == at


def test_a_date_is_the_same_moment_in_any_zone() -> None:
    at = datetime(2026, 6, 1, 12, tzinfo=timezone(timedelta(hours=-7)))
    assert moment(micros(at)) == at
    assert moment(micros(at)).tzinfo is UTC


def test_a_row_of_an_older_fleetsim_may_lack_fields_and_have_unknown_ones() -> None:
    text = encode(record("c-1")).replace('"answers":0', '"forgotten":1')
    assert decoder(RequestRecord)(text) == record("c-1")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"correlation_id":1}', "\x00"])
def test_invalid_text_is_damage_and_is_not_repeated_in_the_error(text: str) -> None:
    with pytest.raises(LedgerDamaged) as refused:
        decoder(Outcome)(text)
    assert refused.value.__cause__ is None
    assert "correlation_id" not in str(refused.value)


@given(st.lists(texts | st.integers() | st.none(), min_size=1, max_size=4), st.data())
def test_every_change_of_one_column_changes_the_sum(columns: list[Any], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(columns) - 1))
    other = data.draw(texts | st.integers() | st.none())
    changed = [*columns[:at], other, *columns[at + 1 :]]
    if [str(c) if c is not None else None for c in changed] != [str(c) if c is not None else None for c in columns]:
        assert row_sum("t", *changed) != row_sum("t", *columns)
    assert row_sum("u", *columns) != row_sum("t", *columns)


def test_a_chain_depends_on_every_link_before_it() -> None:
    first = link(b"", encode(outcome("c-1")))
    altered = link(b"", encode(replace(outcome("c-1"), text="altered")))
    assert link(first, "next") != link(altered, "next")


def test_the_former_name_of_the_other_dialect_is_read() -> None:
    body = encode(replace(record("c-1"), other_taken=True))
    older = body.replace('"other_taken":true', '"turned":true')
    assert older != body
    assert decoder(RequestRecord)(older) == decoder(RequestRecord)(body) == replace(record("c-1"), other_taken=True)


def test_the_address_of_old_work_is_that_of_its_agent_or_of_its_send() -> None:
    older = replace(record("c-1"), url="", rpc_url="http://b")
    assert older.sent_to == "http://b"
    assert replace(older, url="http://a").sent_to == "http://a"
