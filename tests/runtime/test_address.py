"""The address table, the allow list and the URL grammar (reference "Address policy", T-20 to T-22)."""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yarl
from hypothesis import given
from hypothesis import strategies as st

from fleetsim.model.errors import BlockedAddress, ConfigError
from fleetsim.runtime.address import (
    AddressPolicy,
    AllowEntry,
    blocked,
    parse_address,
    parse_webhook_url,
    private_reason,
)
from tests.runtime.addresses import ALLOWED, DENIED, RANGES_V4, RANGES_V6


def test_the_lists_have_the_size_in_the_reference() -> None:
    assert (len(set(DENIED)), len(set(ALLOWED))) == (62, 14)


@pytest.mark.parametrize("address", DENIED)
def test_an_address_off_the_open_internet_is_denied(address: str) -> None:
    assert not AddressPolicy().permits("name.example", 443, address)


@pytest.mark.parametrize("address", ALLOWED)
def test_a_public_address_is_allowed(address: str) -> None:
    assert AddressPolicy().permits("name.example", 443, address)


@pytest.mark.parametrize("text", RANGES_V4 + RANGES_V6)
def test_a_denied_range_ends_at_its_bounds(text: str) -> None:
    network = ipaddress.ip_network(text)
    first, last = network.network_address, network.broadcast_address
    policy = AddressPolicy()
    assert not policy.permits("x", 443, str(first))
    assert not policy.permits("x", 443, str(last))
    others = [ipaddress.ip_network(other) for other in RANGES_V4 + RANGES_V6 if other != text]
    for number in (int(first) - 1, int(last) + 1):
        if 0 <= number < 2**first.max_prefixlen:
            outside = type(first)(number)
            expected = not any(outside in other for other in others) and (first.version == 4 or number >> 125 == 1)
            assert policy.permits("x", 443, str(outside)) is expected


@pytest.mark.parametrize(
    "text", ["127.1", "0x7f.1", "2130706433", "", "localhost", "8.8.8.8 ", "fe80::1%eth0", "1.1.1.1%1"]
)
def test_a_malformed_address_is_denied(text: str) -> None:
    assert parse_address(text) is None
    assert not AddressPolicy().permits("name.example", 443, text)


@given(st.integers(0, 2**32 - 1))
def test_a_mapped_address_is_treated_as_the_one_inside(number: int) -> None:
    plain = str(ipaddress.IPv4Address(number))
    policy = AddressPolicy()
    assert policy.permits("x", 443, plain) == policy.permits("x", 443, f"::ffff:{plain}")


@given(st.integers(0, 2**128 - 1).filter(lambda n: n >> 125 != 1 and n >> 32 != 0xFFFF))
def test_ipv6_outside_the_global_unicast_block_is_denied(number: int) -> None:
    assert not AddressPolicy().permits("x", 443, str(ipaddress.IPv6Address(number)))


@pytest.mark.parametrize(
    ("port", "allowed"), [(80, True), (443, True), (8080, True), (8443, True), (22, False), (25, False), (9000, False)]
)
def test_only_web_ports_are_open_without_an_entry(port: int, allowed: bool) -> None:
    assert AddressPolicy().permits("x", port, "8.8.8.8") is allowed


def test_one_denied_address_among_others_refuses_all() -> None:
    policy = AddressPolicy()
    policy.require("name.example", 443, ("8.8.8.8", "1.1.1.1"))
    with pytest.raises(BlockedAddress, match=r"name\.example:443"):
        policy.require("name.example", 443, ("8.8.8.8", "127.0.0.1"))
    with pytest.raises(BlockedAddress):
        policy.require("name.example", 443, ())


def test_a_refusal_does_not_reveal_the_resolved_address() -> None:
    with pytest.raises(BlockedAddress) as caught:
        AddressPolicy().require("intranet.example", 443, ("10.1.2.3",))
    assert "10.1.2.3" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("url", ["https://hub.example", "https://HUB.example.:8443/fleet", "https://93.184.216.34"])
def test_people_elsewhere_can_open_an_https_address_that_is_not_local(url: str) -> None:
    assert private_reason(url) == ""
    host = url.removeprefix("https://").partition("/")[0]
    assert private_reason(f"http://{host}")
    for local in ("localhost:3000", "hub", "hub.local", "hub.internal.", "192.168.1.7", "[::1]", "[::ffff:10.0.0.1]"):
        assert private_reason(url.replace(host, local)), local


def test_own_listeners_are_refused_at_a_public_address() -> None:
    policy = AddressPolicy(own=frozenset({("8.8.4.4", 8080)}))
    assert not policy.permits("x", 8080, "8.8.4.4")
    assert policy.permits("x", 8443, "8.8.4.4")


@pytest.mark.parametrize(
    ("entry", "host", "port", "address", "allowed"),
    [
        ("127.0.0.1:9000", "127.0.0.1", 9000, "127.0.0.1", True),
        ("127.0.0.1:9000", "anything.example", 9000, "127.0.0.1", True),
        ("127.0.0.1:9000", "127.0.0.1", 9001, "127.0.0.1", False),
        ("127.0.0.1:9000", "127.0.0.2", 9000, "127.0.0.2", False),
        ("10.0.0.0/8:8080", "x", 8080, "10.9.9.9", True),
        ("10.0.0.0/8:8080", "x", 8080, "11.9.9.9", True),  # public anyway
        ("10.0.0.0/8:8080", "x", 8080, "192.168.0.1", False),
        ("[::1]:9000", "::1", 9000, "::1", True),
        ("[fd00::/8]:9000", "x", 9000, "fd12::1", True),
        ("localhost:9000", "localhost", 9000, "127.0.0.1", True),
        ("localhost:9000", "LOCALHOST.", 9000, "::1", True),
        ("localhost:9000", "localhost", 9000, "10.0.0.1", False),
        ("localhost:9000", "localhost", 9000, "8.8.8.8", False),
        ("localhost:9000", "other", 9000, "127.0.0.1", False),
        ("hooks.example:9000", "hooks.example", 9000, "8.8.8.8", True),
        ("hooks.example:9000", "hooks.example", 9000, "10.0.0.1", True),
        ("hooks.example:9000", "hooks.example", 9000, "169.254.169.254", False),
        ("hooks.example:9000", "hooks.example", 9000, "100.100.100.200", False),
        ("hooks.example:9000", "evil.example", 9000, "8.8.8.8", False),
        ("hooks.example=10.1.0.0/16:9000", "hooks.example", 9000, "10.1.2.3", True),
        ("hooks.example=10.1.0.0/16:9000", "hooks.example", 9000, "10.2.2.3", False),
        ("hooks.example=10.1.0.0/16:9000", "hooks.example", 9000, "8.8.8.8", False),
        ("localhost:*", "localhost", 1, "127.0.0.1", True),
        ("localhost:*", "localhost", 65535, "::1", True),
        ("localhost:*", "other", 9000, "127.0.0.1", False),
        ("hooks.example:*", "hooks.example", 9000, "169.254.169.254", False),
        ("[::1]:*", "::1", 40123, "::1", True),
        ("10.0.0.0/8:8000-8100", "x", 8000, "10.9.9.9", True),
        ("10.0.0.0/8:8000-8100", "x", 8100, "10.9.9.9", True),
        ("10.0.0.0/8:8000-8100", "x", 7999, "10.9.9.9", False),
        ("10.0.0.0/8:8000-8100", "x", 8101, "10.9.9.9", False),
        ("[::1]:9000-9000", "::1", 9000, "::1", True),
        ("hooks.example=10.1.0.0/16:*", "hooks.example", 5, "10.1.2.3", True),
    ],
)
def test_an_entry_allows_exactly_its_addresses_and_ports(
    entry: str, host: str, port: int, address: str, allowed: bool
) -> None:
    assert AddressPolicy.allowing(entry).permits(host, port, address) is allowed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        "host:0",
        "host:65536",
        "host:**",
        "host:1-",
        "host:-9",
        "host:9-8",
        "host:0-9",
        "host:9-65536",
        "host:1-2-3",
        "host:٣",
        ":80",
        "ho st:80",
        "a..b:80",
        "host=:80",
        "host=x:80",
        "-:80",
        "10.0.0.0/33:80",
    ],
)
def test_a_contradictory_entry_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError):
        AllowEntry.parse(text)


GOOD_URLS = [
    ("http://example.com", "example.com", 80),
    ("https://example.com/hook", "example.com", 443),
    ("HTTP://Example.COM:8080/a%20b?x=1&y=%2F", "example.com", 8080),
    ("https://[2606:4700:4700::1111]:8443/", "2606:4700:4700::1111", 8443),
    ("https://hooks.example./x", "hooks.example", 443),
    ("http://a_b.example/x;y=1,2", "a_b.example", 80),
    ("http://xn--bcher-kva.example/", "xn--bcher-kva.example", 80),
    ("http://127.0.0.1:9000/cb", "127.0.0.1", 9000),
]


@pytest.mark.parametrize(("url", "host", "port"), GOOD_URLS)
def test_a_plain_webhook_url_is_read(url: str, host: str, port: int) -> None:
    parsed = parse_webhook_url(url)
    assert (parsed.host, parsed.port, parsed.url) == (host, port, url)


BAD_URLS = [
    "", " ", "example.com", "//example.com/", "ftp://example.com/", "file:///etc/passwd", "http:example.com",
    "http:///x", "unix://x", "http+unix://x/", "javascript:alert(1)", "gopher://example.com/",
    "data:text/plain,x", "http://user@example.com/", "http://user:pw@example.com/", "http://@example.com/",
    "http://example.com@evil.example/", "http://example.com#@evil.example/", "http://example.com/#x",
    "http://example.com\\@evil.example/", "http://example.com\\.evil.example/", "http:\\\\example.com/",
    "http://exa mple.com/", "http://example.com/a b", "http://example.com/\t", "http://exam\tple.com/",
    "http://example.com/\n", "http://example.com\n.evil/", " http://example.com/", "http://example.com/ ",
    "http://127.0.0.1\x00.example.com/", "http://example.com/\x7f", "http://example.com%2eevil.example/",
    "http://%31%32%37.0.0.1/", "http://exa%00mple.com/", "http://example.com/%zz", "http://example.com/%",
    "http://[fe80::1%25eth0]/", "http://[fe80::1%eth0]/", "http://[::1/", "http://::1/", "http://[]/",
    "http://[127.0.0.1]/", "http://[v1.x]/", "http://[1::2::3]/", "http://example.com:0/",
    "http://example.com:65536/", "http://example.com:99999/", "http://example.com:-1/", "http://example.com:/",
    "http://example.com:8o/", "http://example.com:80:80/", "http://１２７.0.0.1/", "http://127。0。0。1/",
    "http://①②⑦.⓪.⓪.①/", "http://ﬀ.example/", "http://bücher.example/", "http://a..b.example/",
    "http://.example/", "http://-/", "http://" + "a" * 300 + "/", "http://example.com/" + "a" * 2048,
    "http://exam\u200bple.com/", "http://example.com/\u202e", "http://example.com/<x>", 'http://example.com/"',
    "http://example.com/{x}", "http://example.com/`", "http://example.com/^|", "http://127.0.0.188080",
    "http://127.1/", "http://0x7f.1/", "http://2130706433/", "http://0177.0.0.1/", "http://0/", "http://1.2.3.4./",
]  # fmt: skip


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_url_that_parsers_read_differently_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(BlockedAddress) as caught:
        parse_webhook_url(url)
    assert len(url) < 4 or url not in str(caught.value)


def test_the_allowed_schemes_can_be_narrowed() -> None:
    with pytest.raises(BlockedAddress, match="https"):
        parse_webhook_url("http://example.com/", schemes=("https",))
    assert parse_webhook_url("HTTPS://example.com/", schemes=("https",)).scheme == "https"


_TEXT = st.text(alphabet="htp:/.@#?%[]\\aZ019-_~ \t\n\x00é。", max_size=24)


@given(
    st.one_of(
        st.builds("http://{}{}".format, _TEXT, _TEXT), st.builds("http://{}:{}/".format, _TEXT, st.integers(-1, 70000))
    )
)
def test_a_url_that_passes_has_the_same_host_and_port_for_every_parser(url: str) -> None:
    try:
        parsed = parse_webhook_url(url)
    except BlockedAddress:
        return
    split, ours, theirs = urlsplit(url), httpx.URL(url), yarl.URL(url)
    hosts = {(split.hostname or "").rstrip("."), ours.host.rstrip("."), (theirs.host or "").rstrip("."), parsed.host}
    ports = {split.port or 80, ours.port or 80, theirs.port, parsed.port}
    assert (len(hosts), len(ports)) == (1, 1), (url, hosts, ports)


def test_an_address_at_its_length_limit_is_read_and_a_longer_one_is_refused() -> None:
    url = "http://hooks.example/" + "x" * 100
    assert parse_webhook_url(url, chars_max=len(url)).host == "hooks.example"
    with pytest.raises(BlockedAddress):
        parse_webhook_url(url, chars_max=len(url) - 1)


@pytest.mark.parametrize(
    ("host", "port", "shown"),
    [
        ("Hooks.Example.", 80, "hooks.example:80"),
        ("[::1]", 443, "[::1]:443"),
        ("::1", 443, "[::1]:443"),
        ("x" * 100, 1, "x" * 100 + ":1"),
        ("x" * 101, 1, "x" * 99 + "…:1"),
    ],
)
def test_a_refusal_names_host_and_port_and_the_entry_to_add(host: str, port: int, shown: str) -> None:
    refused = blocked(host, port)
    assert str(refused).startswith(f"{shown} ")
    assert f"--allow-webhook {shown}" in str(refused.hint)


def test_the_ports_hosts_and_networks_of_an_entry_are_read() -> None:
    both = AllowEntry.parse(" Hooks.Example.=10.0.0.0/8:1-65535 ")
    assert (both.ports, both.host, both.public) == (range(1, 65536), "hooks.example", False)
    assert [str(network) for network in both.networks] == ["10.0.0.0/8"]
    local = AllowEntry.parse("localhost:*")
    assert (local.ports, local.host, local.public) == (range(1, 65536), "localhost", False)
    assert [str(network) for network in local.networks] == ["127.0.0.0/8", "::1/128"]
    name = AllowEntry.parse("hooks.example:7")
    assert (name.ports, name.host, name.public) == (range(7, 8), "hooks.example", True)
    network = AllowEntry.parse("[fd00::1/8]:7")
    assert (network.host, network.public, str(network.networks[0])) == (None, False, "fd00::/8")


@pytest.mark.parametrize(
    ("address", "read"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("fe80::1%eth0", None),
        ("x", None),
        ("", None),
    ],
)
def test_an_address_is_read_with_a_mapped_one_unwrapped(address: str, read: str | None) -> None:
    found = parse_address(address)
    assert (None if found is None else str(found)) == read


@pytest.mark.parametrize(
    ("url", "said", "why"),
    [
        ("http://h/" + "x" * 2040, {}, "the webhook URL is longer than 2048 characters"),
        ("http://h/xx", {"chars_max": 10, "what": "it"}, "it is longer than 10 characters"),
        ("http://h/%4", {}, "the webhook URL is not a plain http(s)://HOST[:PORT]/PATH"),
        ("http://h/", {"schemes": ("https",)}, "the webhook URL must begin with https://"),
        ("ftp://h/", {}, "the webhook URL is not a plain http(s)://HOST[:PORT]/PATH"),
        ("http://h:0/", {}, "the webhook URL has no valid host and port"),
        ("http://h:65536/", {}, "the webhook URL has no valid host and port"),
        ("http://[::zz]/", {}, "the webhook URL is not a plain http(s)://HOST[:PORT]/PATH"),
        ("http://[1::2::3]/", {}, "the webhook URL has no valid host and port"),
        ("http://a..b/", {}, "the webhook URL has no valid host and port"),
        ("http://1.2.3/", {}, "the webhook URL has no valid host and port"),
        ("http://a.0x1f/", {}, "the webhook URL has no valid host and port"),
        ("http://1.2.3.4./", {}, "the webhook URL has no valid host and port"),
        ("http://a.7./", {}, "the webhook URL has no valid host and port"),
    ],
)
def test_a_url_is_refused_with_its_reason(url: str, said: dict[str, Any], why: str) -> None:
    with pytest.raises(BlockedAddress) as caught:
        parse_webhook_url(url, **said)
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port"),
    [
        ("HTTPS://[::1]/", "https", "::1", 443),
        ("http://[::1]:65535", "http", "::1", 65535),
        ("http://h:1?x", "http", "h", 1),
        ("http://1.2.3.4/", "http", "1.2.3.4", 80),
        ("http://h/".ljust(2048, "x"), "http", "h", 80),
        ("http://" + "x" * 253 + "/", "http", "x" * 253, 80),
    ],
)
def test_a_url_that_all_parsers_read_alike_is_read(url: str, scheme: str, host: str, port: int) -> None:
    read = parse_webhook_url(url)
    assert (read.url, read.scheme, read.host, read.port) == (url, scheme, host, port)
