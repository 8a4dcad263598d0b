"""Reading a card: its members and their bounds. Writing a card for callers of each dialect."""

from __future__ import annotations

from typing import Any

import pytest

from fleetsim.model.card import AgentCard, AgentExtension, AgentInterface, AgentSkill, Capabilities
from fleetsim.wire.cards import (
    ITEMS_MAX,
    is_current,
    major_minor,
    read_card,
    read_requirements,
    read_schemes,
    write_card,
    write_schemes,
)
from fleetsim.wire.reading import ID_CHARS_MAX, URL_CHARS_MAX, camel_case

pytestmark = pytest.mark.slow

FULL: dict[str, Any] = {
    "name": "scout",
    "description": "looks around",
    "version": "2.1",
    "supportedInterfaces": [
        {"url": "http://a/n", "protocolBinding": "JSONRPC", "protocolVersion": "1.0", "tenant": "blue"},
        {"url": "http://a/g", "transport": "GRPC"},
    ],
    "protocolVersion": "0.3.1",
    "url": "http://a/o",
    "preferredTransport": "HTTP+JSON",
    "additionalInterfaces": [{"url": "http://a/p", "transport": "GRPC"}],
    "capabilities": {
        "streaming": True,
        "pushNotifications": True,
        "stateTransitionHistory": True,
        "extendedAgentCard": True,
        "extensions": [
            {"uri": "http://x/1", "description": "cost", "required": True, "params": {"a": 1}},
            {"uri": "", "description": "no address"},
            "no extension",
            {"uri": "http://x/2"},
        ],
    },
    "skills": [
        {
            "id": "s",
            "name": "Scouting",
            "description": "d",
            "tags": ["t", 7],
            "examples": ["e"],
            "inputModes": ["i"],
            "outputModes": ["o"],
        },
        {"id": "s", "name": "again"},
        {"description": "nameless"},
        {"name": "by name"},
    ],
    "defaultInputModes": ["application/json"],
    "defaultOutputModes": ["text/html"],
    "provider": {"organization": "us", "url": "http://us"},
    "documentationUrl": "http://doc",
    "iconUrl": "http://icon",
    "securitySchemes": {"k": {"type": "http"}},
    "security": [{"k": []}],
}


def test_each_member_of_a_card_becomes_its_field() -> None:
    assert read_card(FULL) == AgentCard(
        name="scout",
        description="looks around",
        version="2.1",
        interfaces=(
            AgentInterface(url="http://a/n", protocol_version="1.0", tenant="blue"),
            AgentInterface(url="http://a/g", protocol_version="0.3.1", binding="GRPC"),
            AgentInterface(url="http://a/o", protocol_version="0.3.1", binding="HTTP+JSON"),
            AgentInterface(url="http://a/p", protocol_version="0.3.1", binding="GRPC"),
        ),
        capabilities=Capabilities(
            streaming=True,
            push_notifications=True,
            state_transition_history=True,
            extended_card=True,
            extensions=(
                AgentExtension(uri="http://x/1", description="cost", required=True, params={"a": 1}),
                AgentExtension(uri="http://x/2"),
            ),
        ),
        skills=(
            AgentSkill(
                skill_id="s",
                name="Scouting",
                description="d",
                tags=("t",),
                examples=("e",),
                input_modes=("i",),
                output_modes=("o",),
            ),
            AgentSkill(skill_id="by name", name="by name", description=""),
        ),
        default_input_modes=("application/json",),
        default_output_modes=("text/html",),
        provider_organization="us",
        provider_url="http://us",
        documentation_url="http://doc",
        icon_url="http://icon",
        security_schemes={"k": {"type": "http"}},
        security=({"k": []},),
    )


def test_a_member_that_is_absent_or_of_another_type_takes_its_default() -> None:
    bare = read_card({"name": "scout", "url": ""})
    assert bare == AgentCard(name="scout")
    mistyped = dict.fromkeys(FULL, 7) | {"name": "scout"}
    assert read_card(mistyped) == bare
    inner = {name: [{}] if isinstance(value, list) else {} for name, value in FULL.items()} | {"name": "scout"}
    assert read_card(inner) == AgentCard(name="scout", security=({},))
    yes = {"streaming": "yes", "pushNotifications": 1, "stateTransitionHistory": "on", "extendedAgentCard": 1}
    said = read_card({**inner, "capabilities": yes, "supportsAuthenticatedExtendedCard": "true"})
    assert said.capabilities == Capabilities()
    assert read_card({**inner, "supportsAuthenticatedExtendedCard": True}).capabilities.extended_card


@pytest.mark.parametrize("length", [URL_CHARS_MAX, URL_CHARS_MAX + 1])
def test_an_address_is_never_cut(length: int) -> None:
    url = "http://a/".ljust(length, "x")
    item = {"url": url, "transport": "JSONRPC"}
    for said in ({"url": url}, {"supportedInterfaces": [item]}, {"additionalInterfaces": [item], "url": ""}):
        found = [offered.url for offered in read_card({"name": "a", **said}).interfaces]
        assert found == ([url] if length == URL_CHARS_MAX else [])


def test_a_long_text_is_cut_at_its_bound() -> None:
    def first(**said: Any) -> AgentInterface:
        return read_card({"name": "a", "supportedInterfaces": [], **said}).interfaces[0]

    long = "1" * 100_000
    both = first(supportedInterfaces=[{"url": "u", "protocolBinding": long, "protocolVersion": long, "tenant": long}])
    assert [len(both.binding), len(both.protocol_version), len(both.tenant or "")] == [64, 64, ID_CHARS_MAX]
    assert len(first(supportedInterfaces=[{"url": "u", "transport": long}]).binding) == 64
    old = first(url="u", preferredTransport=long, protocolVersion=long)
    assert [len(old.binding), len(old.protocol_version)] == [64, 64]
    assert len(first(additionalInterfaces=[{"url": "u", "transport": long}]).binding) == 64
    skills = [{"id": long, "name": long}, {"name": "2" * 100_000}]
    one, two = read_card({"name": long, "skills": skills}).skills
    assert [len(one.skill_id), len(one.name), len(two.skill_id)] == [ID_CHARS_MAX, 65_536, ID_CHARS_MAX]
    (extension,) = read_card({"name": long, "capabilities": {"extensions": [{"uri": long}]}}).capabilities.extensions
    assert len(extension.uri) == URL_CHARS_MAX


def test_a_list_in_a_card_is_cut_after_a_thousand_items() -> None:
    many = range(ITEMS_MAX + 1)
    card = read_card(
        {
            "name": "a",
            "supportedInterfaces": [{"url": f"u{n}"} for n in many],
            "skills": [{"id": f"s{n}", "tags": ["t"] * len(many)} for n in many],
            "capabilities": {"extensions": [{"uri": f"x{n}"} for n in many]},
        }
    )
    counts = [len(card.interfaces), len(card.skills), len(card.skills[0].tags), len(card.capabilities.extensions)]
    assert counts == [1_000] * 4


def test_an_address_is_listed_once_for_each_binding_and_version() -> None:
    items = [
        {"url": "u", "protocolBinding": "jsonrpc", "protocolVersion": "1.0.3"},
        {"url": "u", "protocolVersion": "1.0"},
        {"url": "u", "protocolBinding": "GRPC", "protocolVersion": "1.0"},
        {"url": "u", "protocolVersion": "1.1"},
        {"url": "v", "protocolVersion": "1.0"},
    ]
    found = read_card({"name": "a", "supportedInterfaces": items}).interfaces
    assert [(item.url, item.binding, item.protocol_version) for item in found] == [
        ("u", "jsonrpc", "1.0.3"),
        ("u", "GRPC", "1.0"),
        ("u", "JSONRPC", "1.1"),
        ("v", "JSONRPC", "1.0"),
    ]


@pytest.mark.parametrize(
    ("version", "current", "short"),
    [
        ("1.0", True, "1.0"),
        (" 1.0.7 ", True, "1.0"),
        ("2", True, "2"),
        ("0.3.0", False, "0.3"),
        ("0", False, "0"),
        ("", False, ""),
        ("v1", False, "v1"),
        ("²", False, "²"),
        ("000000001.0", True, "000000001.0"),
        ("0000000001", False, "0000000001"),
        ("9" * 5_000, True, "9" * 5_000),
    ],
)
def test_a_version_is_compared_by_its_first_two_numbers(version: str, current: bool, short: str) -> None:
    assert is_current(AgentInterface(url="u", protocol_version=version)) is current
    assert major_minor(version) == short


OLD = AgentInterface(url="http://a/o", protocol_version="0.3")
NEW = AgentInterface(url="http://a/n", protocol_version="1.0.2", tenant="blue")
OLDER = {"protocolVersion", "url", "preferredTransport", "additionalInterfaces", "supportsAuthenticatedExtendedCard"}


@pytest.mark.parametrize(
    ("interfaces", "said", "older", "current"),
    [
        ((), {}, True, False),
        ((OLD,), {}, True, False),
        ((NEW,), {}, False, True),
        ((OLD, NEW), {}, True, True),
        ((OLD, NEW), {"older": False}, False, True),
        ((OLD, NEW), {"current": False}, True, False),
        ((OLD,), {"current": True}, True, True),
        ((NEW,), {"older": True}, True, True),
    ],
)
def test_a_card_has_the_shapes_of_its_interfaces_unless_the_caller_chooses(
    interfaces: tuple[AgentInterface, ...], said: dict[str, bool], older: bool, current: bool
) -> None:
    card = AgentCard(name="a", interfaces=interfaces, capabilities=Capabilities(extended_card=True))
    written = write_card(card, **said)
    assert ("supportedInterfaces" in written) is current
    assert ("supportsAuthenticatedExtendedCard" in written) is older
    assert ("stateTransitionHistory" in written["capabilities"]) is older
    assert ("extendedAgentCard" in written["capabilities"]) is current
    assert ("url" in written) is (older and OLD in interfaces)


def test_a_written_card_leaves_empty_members_out() -> None:
    whole = read_card(FULL)
    written = write_card(whole)
    assert read_card(written).skills == whole.skills
    assert written["provider"] == {"organization": "us", "url": "http://us"}
    assert (written["documentationUrl"], written["iconUrl"]) == ("http://doc", "http://icon")
    assert written["url"] == "http://a/g", "the first that is not 1.0's"
    assert written["protocolVersion"] == "0.3.1"
    assert written["preferredTransport"] == "GRPC"
    assert [item["url"] for item in written["additionalInterfaces"]] == ["http://a/g", "http://a/o", "http://a/p"]
    assert written["supportedInterfaces"][0] == {
        "url": "http://a/n",
        "protocolBinding": "JSONRPC",
        "protocolVersion": "1.0",
        "tenant": "blue",
    }
    assert "tenant" not in written["supportedInterfaces"][1]
    assert written["capabilities"] == {
        "streaming": True,
        "pushNotifications": True,
        "stateTransitionHistory": True,
        "extendedAgentCard": True,
        "extensions": [
            {"uri": "http://x/1", "description": "cost", "required": True, "params": {"a": 1}},
            {"uri": "http://x/2", "required": False},
        ],
    }
    bare = write_card(AgentCard(name="a", interfaces=(OLD,), skills=(AgentSkill(skill_id="s", name="n"),)))
    assert bare["skills"] == [{"id": "s", "name": "n", "description": "", "tags": []}]
    assert bare["capabilities"] == {"streaming": False, "pushNotifications": False, "stateTransitionHistory": False}
    assert {*bare} == OLDER | {
        *("name", "description", "version", "capabilities"),
        *("defaultInputModes", "defaultOutputModes", "skills"),
    }


@pytest.mark.parametrize(
    ("said", "written"), [("0", "0.0.0"), ("0.2", "0.2.0"), ("0.2.6", "0.2.6"), ("0.2.6.1", "0.2.6.1")]
)
def test_a_version_of_0_x_is_written_with_three_numbers(said: str, written: str) -> None:
    offered = AgentInterface(url="u", protocol_version=said)
    assert write_card(AgentCard(name="a", interfaces=(offered,)))["protocolVersion"] == written


@pytest.mark.parametrize(
    ("provider", "written"),
    [
        ({"provider_organization": "us"}, {"organization": "us", "url": ""}),
        ({"provider_url": "http://us"}, {"organization": "", "url": "http://us"}),
        ({}, None),
    ],
)
def test_a_provider_is_written_with_both_members_or_left_out(
    provider: dict[str, str], written: dict[str, str] | None
) -> None:
    assert write_card(AgentCard(name="a", **provider)).get("provider") == written  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "spelt"),
    [
        ("a_b", "aB"),
        ("a_1", "a1"),
        ("a_b_c2", "aBC2"),
        ("_a", "_a"),
        ("a_", "a_"),
        ("a__b", "a__b"),
        ("A_b", "A_b"),
        ("1_b", "1_b"),
        ("a_B", "a_B"),
    ],
)
def test_only_the_camel_case_of_protobuf_is_a_second_spelling(name: str, spelt: str) -> None:
    assert camel_case({name: [{name: 1}]}) == {spelt: [{spelt: 1}]}


def test_a_security_scheme_keeps_its_members_in_either_shape() -> None:
    key = {"type": "apiKey", "in": "header", "name": "X-Key"}
    bearer = {"type": "http", "scheme": "bearer", "location": "kept"}
    wrapped = write_schemes({"k": key, "b": bearer}, older=False, current=True)["securitySchemes"]
    assert wrapped == {
        "k": {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}},
        "b": {"httpAuthSecurityScheme": {"scheme": "bearer", "location": "kept"}},
    }
    assert read_schemes(wrapped) == {"k": key, "b": bearer}
    assert read_schemes({"k": {**key, **wrapped["k"]}}) == {"k": key}
    assert read_schemes({"k": {"type": 7, **wrapped["k"]}, "none": {}}) == {"k": {**key}}
    assert write_schemes({"odd": {"type": "own"}, "no": "scheme"}, older=True, current=True) == {
        "securitySchemes": {"odd": {"type": "own"}}
    }
    assert write_schemes({"no": "scheme"}, older=True, current=True) == {}


@pytest.mark.parametrize(
    ("card", "read"),
    [
        ({}, ()),
        ({"security": {"k": []}}, ()),
        ({"security": [], "securityRequirements": [{"schemes": {"k": {"list": ["a", 7]}}}]}, ({"k": ["a"]},)),
        ({"security": [{"k": ["a"]}], "securityRequirements": [{"schemes": {"j": {}}}]}, ({"k": ["a"]},)),
        ({"security": ["no", {"schemes": ["s"]}]}, ({"schemes": ["s"]},)),
        ({"securityRequirements": [{"schemes": {"k": {"list": "a"}, "j": "a"}}]}, ({"k": [], "j": []},)),
    ],
)
def test_security_requirements_are_read_in_either_shape(
    card: dict[str, Any], read: tuple[dict[str, list[str]], ...]
) -> None:
    assert read_requirements(card) == read
