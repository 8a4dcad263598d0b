"""The dialect of a request, and the choice of dialect and address from a card."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.model.call import ListTasks, Operation, SendMessage
from fleetsim.model.card import AgentCard, AgentInterface
from fleetsim.model.errors import ConfigError, HttpRefused, MethodNotFound, UnsupportedOperation, VersionNotSupported
from fleetsim.wire import choice
from fleetsim.wire.choice import choose, refuses_way
from fleetsim.wire.dialect import DIALECTS, dialect, error_dialect, for_request, write_card_for

KIND = {"message": {"role": "user", "parts": [{"kind": "text", "text": "x"}]}}
TYPE = {"message": {"role": "user", "parts": [{"type": "text", "text": "x"}]}}
BARE = {"message": {"role": "user", "parts": [{"text": "x"}]}}


@pytest.mark.parametrize(
    ("method", "params", "header", "name"),
    [
        ("message/send", KIND, None, "0.3"),
        ("message/send", KIND, "1.0", "0.3"),
        ("message/send", KIND, "9.9", "0.3"),
        ("message/stream", KIND, None, "0.3"),
        ("message/sendStream", KIND, None, "0.3"),
        ("tasks/get", {"id": "t"}, None, "0.3"),
        ("tasks/cancel", {"id": "t"}, None, "0.3"),
        ("tasks/resubscribe", {"id": "t"}, None, "0.3"),
        ("tasks/pushNotificationConfig/list", {"id": "t"}, None, "0.3"),
        ("tasks/pushNotification/set", {"taskId": "t", "pushNotificationConfig": {}}, None, "0.3"),
        ("tasks/pushNotification/set", {"id": "t", "pushNotificationConfig": {}}, None, "0.1"),
        ("tasks/pushNotification/get", {"id": "t"}, None, "0.1"),
        ("tasks/send", KIND, None, "0.3"),
        ("tasks/send", BARE, None, "0.3"),
        ("tasks/send", {}, None, "0.3"),
        ("tasks/send", {"message": {"parts": "x"}}, None, "0.3"),
        ("tasks/send", TYPE, None, "0.1"),
        ("tasks/send", {"id": "t", **KIND}, None, "0.1"),
        ("tasks/sendSubscribe", TYPE, None, "0.1"),
        ("SendMessage", {}, "1.0", "1.0"),
        ("SendMessage", {}, " 1.0 ", "1.0"),
        ("SendMessage", {}, "1", "1.0"),
        ("SendMessage", {}, "1.0.1", "1.0"),
        ("SendMessage", {}, "1.7", "1.0"),
        ("ListTasks", {}, "1.0", "1.0"),
    ],
)
def test_the_method_name_decides_the_dialect(
    method: str, params: dict[str, Any], header: str | None, name: str
) -> None:
    assert for_request(method, params, header).name == name


@pytest.mark.parametrize("header", [None, "", "0.3", "2.0", "10.0", "1.x", "one", "1.0, 1.0", "１.0", "01.0"])
def test_a_1_0_name_with_another_version_is_refused(header: str | None) -> None:
    with pytest.raises(VersionNotSupported):
        for_request("GetTask", {}, header)


@pytest.mark.parametrize("method", ["", "message/Send", "sendMessage", "tasks/list", "tasks/get ", "x" * 200])
def test_an_unknown_method_is_not_found(method: str) -> None:
    with pytest.raises(MethodNotFound):
        for_request(method, {}, "1.0")


@pytest.mark.parametrize(
    ("method", "header", "name"),
    [
        ("SendMessage", None, "1.0"),
        ("nonsense", "1.0", "1.0"),
        ("nonsense", None, "0.3"),
        (None, None, "0.3"),
        ("tasks/get", "9", "0.3"),
    ],
)
def test_an_error_is_written_in_the_dialect_that_the_caller_most_likely_speaks(
    method: str | None, header: str | None, name: str
) -> None:
    assert error_dialect(method, header) == name


def test_every_method_name_leads_back_to_its_operation() -> None:
    for spoken in DIALECTS.values():
        for operation, names in spoken.methods.items():
            assert spoken.method(operation) == names[0]
            assert {spoken.operation(name) for name in names} == {operation}


def test_the_ten_methods_of_the_seed_guide_belong_to_0_3() -> None:
    promised = {
        "message/send",
        "message/stream",
        "message/sendStream",
        "tasks/get",
        "tasks/cancel",
        "tasks/resubscribe",
        "tasks/pushNotificationConfig/set",
        "tasks/pushNotificationConfig/get",
        "tasks/pushNotificationConfig/list",
        "tasks/pushNotificationConfig/delete",
    }
    assert all(for_request(method, {}, None).name == "0.3" for method in promised)


@pytest.mark.parametrize("name", ["0.3", "0.1"])
def test_an_operation_that_the_dialect_lacks_is_refused_before_sending(name: str) -> None:
    with pytest.raises(UnsupportedOperation):
        dialect(name).encode_call(ListTasks())


def test_only_1_0_sends_the_version_header() -> None:
    assert dialect("1.0").headers(Operation.GET)["A2A-Version"] == "1.0"
    assert "A2A-Version" not in dialect("0.3").headers(Operation.GET)
    assert dialect("0.3").headers(Operation.STREAM)["Accept"] == "text/event-stream"


def test_an_unknown_dialect_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"1\.0, 0\.3, 0\.1"):
        dialect("0.4")


def card(*interfaces: tuple[str, str] | tuple[str, str, str]) -> AgentCard:
    made = [
        AgentInterface(url=item[0], protocol_version=item[1], binding=item[2] if len(item) > 2 else "JSONRPC")
        for item in interfaces
    ]
    return AgentCard(name="a", interfaces=tuple(made))


@pytest.mark.parametrize(
    ("offered", "configured", "name", "url", "warned"),
    [
        ((), "http://h:1", "0.3", "http://h:1/a2a", 0),
        ((), "http://h:1/", "0.3", "http://h:1/a2a", 0),
        ((), "http://h:1/rpc", "0.3", "http://h:1/rpc", 0),
        ((("http://h:1/x", "0.3.0"),), "http://h:1", "0.3", "http://h:1/x", 0),
        ((("http://h:1/x", "0.3.0"),), "http://h:1/a2a", "0.3", "http://h:1/a2a", 0),
        ((("http://h:1", "1.0"),), "http://h:1", "1.0", "http://h:1/", 0),
        ((("http://h:1/x", "0.2.6"),), "http://h:1", "0.3", "http://h:1/x", 0),
        ((("http://h:1/x", ""),), "http://h:1", "0.3", "http://h:1/x", 0),
        ((("http://h:1/o", "0.3"), ("http://h:1/n", "1.0")), "http://h:1", "0.3", "http://h:1/o", 0),
        ((("http://h:1/g", "1.0", "HTTP+JSON"), ("http://h:1/j", "1.0")), "http://h:1", "1.0+http", "http://h:1/g", 0),
        ((("http://h:1/v1", "", "http+json"),), "http://h:1", "0.3+http", "http://h:1/v1", 0),
        ((("http://h:1/g", "2.0", "HTTP+JSON"), ("http://h:1/j", "1.0")), "http://h:1", "1.0", "http://h:1/j", 0),
        ((("http://h:1/n", "1.0"), ("http://h:1/o", "0.3")), "http://h:1/o", "0.3", "http://h:1/o", 0),
        ((("http://h:1/n", "1.0.1"), ("http://h:1/o/", "1.3")), "http://h:1/o", "1.0", "http://h:1/o", 0),
        ((("http://h:1/n", "1.0"), ("http://h:1/", "0.3")), "http://h:1/", "1.0", "http://h:1/n", 0),
        ((("http://h:1/g", "1.0", "GRPC"), ("http://h:1/j", "0.3")), "http://h:1", "0.3", "http://h:1/j", 0),
        ((("http://h:1/g", "1.0", "GRPC"),), "http://h:1", "0.3", "", 1),
        ((("http://h:1/j", "2.0"),), "http://h:1", "0.3", "", 1),
        ((("http://h:1/j", "2.0"), ("http://h:1/k", "1.0", "jsonrpc")), "http://h:1", "1.0", "http://h:1/k", 0),
        ((("http://evil/x", "1.0"),), "http://h:1", "1.0", "http://h:1/x", 1),
        ((("http://evil/x", "1.0"),), "http://h:1/a2a", "1.0", "http://h:1/a2a", 1),
        ((("https://h:1/x", "0.3"),), "http://h:1", "0.3", "http://h:1/x", 1),
        ((("HTTP://H:1/x", "0.3"),), "http://h:1", "0.3", "http://h:1/x", 0),
        ((("http://h/x", "0.3"),), "http://h:80", "0.3", "http://h:80/x", 0),
        ((("http://h./x", "0.3"),), "http://h", "0.3", "http://h/x", 0),
        ((("/x", "0.3"),), "http://h:1", "0.3", "http://h:1/x", 1),
        ((("{BASE_URL}/x", "0.3"),), "http://h:1", "0.3", "http://h:1/x", 1),
        ((("${BASE_URL}/x", "0.3"),), "http://h:1", "0.3", "http://h:1/x", 1),
        ((("x", "0.3"),), "http://h:1", "0.3", "http://h:1/x", 1),
        ((("//evil/x", "0.3"),), "http://h:1", "0.3", "http://h:1/x", 2),
        ((("ftp://h:1/x", "0.3"),), "http://h:1", "0.3", "http://h:1/a2a", 1),
        ((("http://h:1/a b", "0.3"),), "http://h:1", "0.3", "http://h:1/a2a", 1),
        ((("http://[::1]:1/x", "0.3"),), "http://[::1]:1", "0.3", "http://[::1]:1/x", 0),
        ((("http://h:1/x?key=1#f", "0.3"),), "http://h:1", "0.3", "http://h:1/x?key=1", 0),
        ((("http://h:1/x?<b>", "0.3"),), "http://h:1", "0.3", "http://h:1/x", 1),
        ((("http://h:1/x?key=1", "0.3"),), "http://h:1/x", "0.3", "http://h:1/x?key=1", 0),
        ((("http://h:1/x?key=1", "0.3"),), "http://h:1/y?v=2", "0.3", "http://h:1/y?v=2", 0),
        ((("http://h:1/b/v1/message:stream", "0.3"),), "http://h:1", "0.3+http", "http://h:1/b", 1),
        ((("http://h:1/v1/card", "0.3"),), "http://h:1", "0.3+http", "http://h:1/", 1),
    ],
)
def test_the_cards_first_interface_is_called_at_the_configured_address(
    offered: tuple[Any, ...], configured: str, name: str, url: str, warned: int
) -> None:
    found = choose(card(*offered), configured)
    assert (found.dialect_name, found.url, len(found.warnings)) == (name, url, warned)


@pytest.mark.parametrize("offered", [("http://h:1/g", "1.0", "GRPC"), ("http://h:1/g", "2.0", "HTTP+JSON")])
def test_without_a_common_interface_only_a_configured_dialect_works(offered: tuple[str, ...]) -> None:
    alone = choose(card(offered), "http://h:1")
    assert (offered[2] in alone.no_way, alone.others, alone.url) == (True, (), "")
    pinned = choose(card(offered), "http://h:1", rpc_url="http://h:1/rpc")
    assert (pinned.url, pinned.no_way) == ("http://h:1/rpc", "")
    assert (choose(card(offered), "http://h:1", dialect_name="0.3").no_way) == ""
    assert choose(card(offered, ("http://h:1/j", "0.3")), "http://h:1").no_way == ""


def test_a_configured_dialect_overrules_the_card() -> None:
    both = card(("http://h:1/n", "1.0"), ("http://h:1/o", "0.3"))
    assert choose(both, "http://h:1", dialect_name="0.3").url == "http://h:1/o"
    bound = card(("http://h:1/n", "1.0"), ("http://h:1/o", "0.3", "HTTP+JSON"))
    assert choose(bound, "http://h:1", dialect_name="1.0+http").url == "http://h:1/o"
    assert choose(bound, "http://h:1", dialect_name="0.3").url == "http://h:1/n"
    legacy = choose(both, "http://h:1/", dialect_name="0.1")
    assert (legacy.dialect_name, legacy.tenant) == ("0.1", None)


def test_the_tenant_of_the_chosen_interface_is_sent() -> None:
    offered = AgentInterface(url="http://h/x", protocol_version="1.0", tenant="blue")
    assert choose(AgentCard(name="a", interfaces=(offered,)), "http://h").tenant == "blue"


HOSTILE = [
    "http://evil.example/a2a",
    "http://h:1@evil.example/a2a",
    "http://evil.example:1/a2a",
    "http://h:2/a2a",
    "https://h:1/a2a",
    "http://h.:1/a2a",
    "http://h:1.evil.example/a2a",
    "http://h%00.evil.example/a2a",
    "http://ⓗ:1/a2a",
    "http://xn--h-7ga:1/a2a",
    "http://[::1]:1/a2a",
    "http://h:01/a2a",
    "http://h:/a2a",
    "http://h:99999/a2a",
    "http://h:-1/a2a",
    "//evil.example/a2a",
    "\\\\evil.example\\a2a",
    "http:\\\\evil.example\\a2a",
    "http:/evil.example",
    "http:evil.example",
    "http:///evil.example",
    "http://h:1\\@evil.example/a2a",
    "http://h:1/\\@evil.example",
    "http://h:1/#@evil.example/",
    "http://h:1?@evil.example/",
    "http://h:1/a2a\r\nHost: evil.example",
    "http://h:1/a2a\tx",
    " http://evil.example/",
    "http://evil.example\u2028/",
    "javascript:alert(1)",
    "file:///etc/passwd",
    "http://",
    "http://[/",
    "http://[::1/",
    "http://h:1//evil.example/a2a",
    "http://h:1/../../evil",
    "http://user:pw@h:1/a2a",
    "http://user:pw@evil.example/a2a",
    "HTTP://EVIL.EXAMPLE/",
    "http://127.1/a2a",
    "http://2130706433/",
]


def origin(url: str) -> tuple[str, str | None, int | None]:
    found = urlsplit(url)
    return found.scheme, found.hostname, found.port


@pytest.mark.parametrize("advertised", HOSTILE)
@pytest.mark.parametrize("configured", ["http://h:1", "http://h:1/rpc"])
def test_no_card_moves_a_call_off_the_configured_origin(advertised: str, configured: str) -> None:
    found = choose(card((advertised, "1.0"), (advertised, "0.3")), configured)
    assert origin(found.url) == ("http", "h", 1)
    assert found.url.startswith("http://h:1/")
    assert not any(character in found.url for character in "\\\r\n\t@# ")
    assert all("pw" not in warning and "\n" not in warning for warning in found.warnings)


@given(
    st.text(max_size=60)
    | st.text(max_size=30).map("http://{}".format)
    | st.text(max_size=30).map("http://h:1/{}".format)
)
def test_no_text_in_a_card_changes_the_address_or_breaks_the_choice(advertised: str) -> None:
    found = choose(card((advertised, "1.0")), "http://h:1")
    assert found.url.startswith("http://h:1/")
    assert origin(found.url) == ("http", "h", 1)


@pytest.mark.parametrize(
    "configured", ["", "h:1", "ftp://h", "http://", "http://h:99999", "http://u:pw@h/", "http://[::1"]
)
def test_an_unusable_configured_address_is_a_configuration_error_that_does_not_repeat_it(configured: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(card(), configured)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "below"),
    [
        ("http://a/x", True),
        ("http://a/x/", True),
        ("http://elsewhere/x/y", True),
        ("http://a/xy", False),
        ("http://a/", False),
        ("http://a/x/../y", False),
        ("http://a/x/%2e%2e/y", False),
        ("http://a/x/./y", False),
        ("http://a/x/y z", False),
        ("http://a/x/\u00e4", False),
        ("ftp://a/x", False),
        ("http://a:x/x", False),
        ("/x", False),
    ],
)
def test_only_a_plain_path_lies_below_another(url: str, below: bool) -> None:
    assert choice.lies_below(url, "/x") is below
    assert choice.is_mounted("http://a/x", url) is below


@pytest.mark.parametrize("configured", ["http://a", "http://a/", "a/x", ""])
def test_an_origin_without_a_path_is_not_a_mount(configured: str) -> None:
    assert not choice.is_mounted(configured, "http://a/x/card")
    assert not choice.is_mounted("http://a/x", "")


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ([{"type": "text", "text": "x"}], "0.1"),
        ([{"kind": "text", "text": "x"}, {"type": "text", "text": "y"}], "0.1"),
        ([{"kind": "text", "text": "x"}], "0.3"),
        (["type"], "0.3"),
        ([], "0.3"),
        ("type", "0.3"),
    ],
)
def test_one_part_with_a_type_makes_a_shared_method_name_0_1(parts: object, name: str) -> None:
    assert for_request("tasks/send", {"message": {"parts": parts}}, None).name == name


def test_a_send_is_the_same_call_under_its_alias() -> None:
    plain = dialect("0.3").decode_call("message/send", KIND)
    alias = dialect("0.3").decode_call("tasks/send", KIND)
    assert isinstance(plain, SendMessage)
    assert plain == alias


@pytest.mark.parametrize(
    ("offered", "configured", "warned"),
    [
        ("https://h/x", "https://h:443", 0),
        ("https://h:443/x", "https://h", 0),
        ("http://h:80/x", "http://h", 0),
        ("https://h/x", "https://h:80", 1),
        ("http://h/x", "http://h:443", 1),
        ("http://h:1/x", "http://h:1", 0),
        ("http://h:0/x", "http://h", 1),
    ],
)
def test_a_missing_port_is_the_default_of_its_scheme(offered: str, configured: str, warned: int) -> None:
    assert len(choose(card((offered, "1.0")), configured).warnings) == warned


def test_port_0_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError):
        choose(card(), "http://h:0/a2a")


@pytest.mark.parametrize(("version", "spoken", "other"), [("1.0", "1.0", "0.3"), ("0.3", "0.3", "1.0")])
def test_the_other_dialect_can_be_tried_and_its_warning_gives_the_reason(version: str, spoken: str, other: str) -> None:
    offered = AgentInterface(url="http://h/x", protocol_version=version, tenant="blue")
    first = choose(AgentCard(name="a", interfaces=(offered,)), "http://h")
    assert (first.dialect_name, first.instead_of, first.warnings) == (spoken, "", ())
    second = first.speaking(other)
    assert (second.dialect_name, second.instead_of, second.url) == (other, spoken, "http://h/x")
    assert second.tenant == ("blue" if other == "1.0" else None)
    (told,) = second.warnings
    assert f"called in {other};" in told
    third = second.speaking(spoken)
    assert (third.dialect_name, third.instead_of) == (spoken, other), "and back, should that be refused too"


def test_a_configured_dialect_has_no_other_to_try() -> None:
    said = choose(card(("http://h/x", "1.0")), "http://h", dialect_name="1.0")
    assert said.speaking("0.3") is said


MOUNTED = {"configured_url": "http://h/m?key=1", "found_at": "http://h/m/.well-known/agent-card.json"}


@pytest.mark.parametrize(
    ("offered", "more", "url", "warned"),
    [
        ([("http://h/m/rpc", "1.0")], {}, "http://h/m/rpc?key=1", 0),
        ([("http://h/m", "1.0")], {}, "http://h/m?key=1", 0),
        ([("http://h/else", "1.0"), ("http://h/m/rpc", "0.3")], {}, "http://h/m/rpc?key=1", 0),
        ([("http://h/else", "1.0")], {}, "http://h/m?key=1", 1),
        ([("http://evil/m/rpc", "1.0")], {}, "http://h/m/rpc?key=1", 1),
        ([("http://evil/else", "1.0")], {}, "http://h/m?key=1", 1),
        ([], {}, "http://h/m?key=1", 0),
        ([("http://h/m/rpc", "1.0")], {"found_at": "http://h/.well-known/agent-card.json"}, "http://h/m?key=1", 0),
        ([("http://h/m/rpc", "1.0")], {"found_at": ""}, "http://h/m?key=1", 0),
        ([("http://h/m/rpc", "1.0")], {"rpc_url": "http://h/own"}, "http://h/own", 0),
        ([("http://h/else", "1.0")], {"rpc_url": "http://h/own"}, "http://h/own", 0),
        ([("http://evil/x", "1.0")], {"rpc_url": "http://h/own"}, "http://h/own", 1),
    ],
)
def test_a_card_found_below_the_configured_path_may_name_an_address_there(
    offered: list[tuple[str, str]], more: dict[str, str], url: str, warned: int
) -> None:
    found = choose(card(*offered), **{**MOUNTED, **more})
    assert (found.url, len(found.warnings)) == (url, warned)


@pytest.mark.parametrize(
    ("rpc_url", "name"), [("http://h/old", "0.3"), ("http://h/new/", "1.0"), ("http://h/other", "1.0"), ("", "1.0")]
)
def test_a_pinned_endpoint_speaks_the_dialect_of_that_path_in_the_card(rpc_url: str, name: str) -> None:
    both = card(("http://h/new", "1.0"), ("http://h/old", "0.3"))
    assert choose(both, "http://h/", rpc_url=rpc_url).dialect_name == name


@pytest.mark.parametrize(
    ("header", "current"),
    [
        ("1.0", True),
        (" 1.2.3 ", True),
        ("1", True),
        ("1.1234567", False),
        ("1.0.0.0", False),
        ("0.3", False),
        ("", False),
    ],
)
def test_a_card_is_written_in_the_shapes_of_the_version_header(header: str, current: bool) -> None:
    both = card(("http://h/n", "1.0"), ("http://h/o", "0.3"))
    assert ("url" in write_card_for(both, header)) is not current
    assert "url" in write_card_for(both, None)
    assert "url" in write_card_for(card(("http://h/o", "0.3")), header), "there is nothing of 1.0 to serve"


def test_a_relative_address_is_resolved_against_the_cards_address() -> None:
    """RFC 3986 section 5.2."""
    found_at = "http://h:1/agents/one/.well-known/agent-card.json"
    assert choose(card(("../rpc", "0.3")), "http://h:1", found_at=found_at).url == "http://h:1/agents/one/rpc"
    below = choose(card(("../rpc", "0.3")), "http://h:1/agents/one", found_at=found_at)
    assert (below.url, len(below.warnings)) == ("http://h:1/agents/one/rpc", 1)


def test_the_other_dialect_has_the_same_binding() -> None:
    first = choose(card(("http://h/x", "1.0", "HTTP+JSON")), "http://h")
    (other,) = first.others
    assert (first.dialect_name, other.dialect_name) == ("1.0+http", "0.3+http")


@pytest.mark.parametrize(
    ("url", "elsewhere"), [("https://e.example/a2a", "https://e.example/a2a"), ("http://h/x", ""), ("/x", "")]
)
def test_a_warning_names_the_other_origin_of_a_card(url: str, elsewhere: str) -> None:
    doubt = choose(card((url, "1.0")), "http://h").doubt
    assert (elsewhere in doubt, bool(doubt)) == (True, bool(elsewhere))


def test_a_card_without_an_address_is_called_at_a_guess() -> None:
    guess = choose(card(), "http://h", found_at="http://h/.well-known/agent-card.json")
    assert (guess.url, len(guess.warnings)) == ("http://h/a2a", 1)
    assert "/a2a" in guess.doubt
    named = choose(card(), "http://h/rpc", found_at="http://h/.well-known/agent-card.json")
    assert (named.url, named.doubt) == ("http://h/rpc", "")


REST, RPC, ELSEWHERE = ("http://h/rest", "1.0", "HTTP+JSON"), ("http://h/rpc", "0.3"), ("http://e/rpc", "0.3")


@pytest.mark.parametrize(
    ("offered", "configured", "ways"),
    [
        ([REST, RPC], "http://h", [("1.0+http", "http://h/rest"), ("0.3", "http://h/rpc")]),
        ([RPC, REST], "http://h", [("0.3", "http://h/rpc"), ("1.0+http", "http://h/rest"), ("1.0", "http://h/rpc")]),
        ([REST, ELSEWHERE], "http://h", [("1.0+http", "http://h/rest"), ("0.3+http", "http://h/rest")]),
        ([RPC, RPC], "http://h", [("0.3", "http://h/rpc"), ("1.0", "http://h/rpc")]),
        ([RPC, REST], "http://h/rpc", [("0.3", "http://h/rpc"), ("1.0", "http://h/rpc")]),
    ],
)
def test_the_cards_interfaces_follow_each_other_at_addresses_that_it_names(
    offered: list[Any], configured: str, ways: list[tuple[str, str]]
) -> None:
    chosen = choose(card(*offered), configured)
    assert [(way.dialect_name, way.url) for way in (chosen, *chosen.others)] == ways


@pytest.mark.parametrize(("status", "elsewhere"), [(404, True), (405, True), (501, True), (500, False), (403, False)])
def test_a_missing_address_leads_to_the_next_one_alone(status: int, elsewhere: bool) -> None:
    refused = HttpRefused("no", status=status)
    assert refuses_way(refused, elsewhere=True) is elsewhere
    assert not refuses_way(refused, elsewhere=False)
