"""The decision of allow-lists, and their part of agents.yaml."""

from __future__ import annotations

from typing import Any

import pytest

from fleetsim.fleet.access import AllowLists, Caller
from fleetsim.fleet.config import parse_fleet
from fleetsim.fleet.settings import AllowEntry, CallerEntry
from fleetsim.model.errors import ConfigError, UnknownTarget

QUINN = "agents:\n  - {name: quinn, url: 'http://quinn:8000/a2a'}\n"


def allows(*entries: tuple[str, ...]) -> CallerEntry:
    return CallerEntry(may=tuple(AllowEntry(agent=agent, skills=tuple(skills)) for agent, *skills in entries))


KEYS = {"ava": allows(("quinn", "echo"), ("all", "ping")), "none": allows(), "open": CallerEntry()}
CEREMONIES = {"c": allows(("quinn",), ("frank", "echo"))}


@pytest.mark.parametrize("denies", [False, True])
@pytest.mark.parametrize(
    ("caller", "agent", "skill", "answer"),
    [
        (Caller(), "quinn", "echo", True),
        (Caller("ava"), "quinn", "echo", True),
        (Caller("ava"), "quinn", "fail", False),
        (Caller("ava"), "frank", "echo", False),
        (Caller("ava"), "frank", "ping", True),
        (Caller("none"), "quinn", "echo", False),
        (Caller("open"), "quinn", "echo", None),
        (Caller("other"), "quinn", "echo", None),
        (Caller("system", "c"), "quinn", "fail", True),
        (Caller("system", "c"), "frank", "fail", False),
        (Caller("system", "d"), "quinn", "echo", None),
        (Caller("other", "c"), "quinn", "fail", True),
    ],
)
def test_a_list_decides_and_without_one_the_fleet(
    denies: bool, caller: Caller, agent: str, skill: str, answer: bool | None
) -> None:
    access = AllowLists(KEYS, CEREMONIES, denies).access(caller)
    assert (access is None or access.may(agent, skill)) is (not denies if answer is None else answer)


@pytest.mark.parametrize(
    ("owner", "ceremony", "agent", "skill", "answer"),
    [
        ("ava", "c", "quinn", "echo", True),
        ("ava", "c", "quinn", "fail", False),
        ("ava", "c", "frank", "echo", False),
        ("ava", "d", "quinn", "echo", True),
        ("ava", "d", "quinn", "fail", False),
        ("none", "c", "quinn", "echo", False),
    ],
)
def test_a_ceremony_of_an_agent_needs_both_lists(
    owner: str, ceremony: str, agent: str, skill: str, answer: bool
) -> None:
    access = AllowLists(KEYS, CEREMONIES).access(Caller(owner, ceremony))
    assert access is not None
    assert access.may(agent, skill) is answer


def test_a_key_without_a_list_gains_nothing_by_the_id_of_a_ceremony_with_one() -> None:
    lists = AllowLists({}, CEREMONIES, deny_by_default=True, holders=frozenset({"ava"}))
    access = lists.access(Caller("ava", "c"))
    assert access is not None
    assert not access.may("quinn", "echo")


def test_the_reason_for_a_ceremony_depends_on_its_own_list_alone() -> None:
    access = AllowLists(KEYS, CEREMONIES).access(Caller("ava", "c"))
    assert access is not None
    access.require("fail", ["quinn"])  # its owner's key forbids this, and the owner must not read it
    for of_key, target in ((False, "frank"), (True, "quinn")):
        with pytest.raises(UnknownTarget, match="may not use"):
            access.require("fail", [target], of_key=of_key)
    access.require("fail", ["all"])


@pytest.mark.parametrize(
    "wrong",
    [
        "keys: {ava: {may: [{skills: [x]}]}}",
        "keys: {ava: {may: [{agent: quinn, skills: []}]}}",
        "keys: {ava: {may: [{agent: quinn, skills: null}]}}",
        "keys: {ava: {may: false}}",
        "keys: {ava: {mya: []}}",
        "keys: {ava: null}",
        "ceremonies: {../x: {may: []}}",
    ],
)
def test_a_list_that_says_nothing_clear_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError):
        parse_fleet(QUINN + wrong, env={})


@pytest.mark.parametrize("written", ["[]", "null", ""])
def test_a_list_with_every_line_commented_out_allows_nothing(written: str) -> None:
    config = parse_fleet(f"{QUINN}keys: {{ava: {{may: {written}}}}}", env={})
    access = AllowLists.of(config).access(Caller("ava"))
    assert access is not None
    assert not access.may("quinn")


@pytest.mark.parametrize("part", ["keys", "ceremonies"])
def test_a_list_that_names_an_unknown_agent_is_a_warning_at_its_line(part: str) -> None:
    lines: dict[str, Any] = {"quin": 1, "quinn": 0, "all": 0}
    for name, count in lines.items():
        warnings = parse_fleet(f"{QUINN}{part}: {{x: {{may: [{{agent: {name}}}]}}}}", env={}).warnings
        assert len(warnings) == count
        assert not warnings or ("agents.yaml:3:" in warnings[0] and "quinn" in warnings[0])
