"""The channels of agents.yaml: accepted and refused entries, and addresses and secrets that no error repeats."""

from __future__ import annotations

from typing import Any

import pytest

from fleetsim.channels.channel import Channel, Destination, SinkKind
from fleetsim.fleet.config import parse_fleet
from fleetsim.fleet.settings import FleetConfig, difference
from fleetsim.model.errors import ConfigError
from fleetsim.runtime.webhook import write_secret

HEAD = "agents: []\nchannels:\n"
URL = "https://chat.example/hooks/canary"
SECRET = write_secret(b"s" * 32)


def parse(text: str, **env: str) -> FleetConfig:
    return parse_fleet(HEAD + text, env=env)


def sinks(*lines: str, **env: str) -> tuple[Destination, ...]:
    text = "  ops:\n    sinks:\n" + "".join(f"      - {{{line}}}\n" for line in lines)
    return parse(text, **env).channels["ops"].sinks


def refusal(text: str, **env: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, **env)
    return f"{caught.value} | {caught.value.hint}"


def refused(line: str, **env: str) -> str:
    return refusal(f"  ops:\n    sinks:\n      - {{{line}}}\n", **env)


def test_every_kind_of_sink_is_read_with_all_its_keys() -> None:
    found = sinks(
        "kind: log",
        f"kind: discord, url: '{URL}'",
        "kind: slack, url: 'http://127.0.0.1:8065/hooks/x', internal: true",
        f"kind: webhook, url: '{URL}', secretEnv: OPS_HOOK",
        "kind: command, argv: [/usr/bin/page, --now], timeoutMs: 1500",
        "kind: desktop, person: ann@ops",
        OPS_HOOK=f" {SECRET}\n",
    )
    assert found == (
        Destination(kind=SinkKind.LOG),
        Destination(kind=SinkKind.DISCORD, url=URL),
        Destination(kind=SinkKind.SLACK, url="http://127.0.0.1:8065/hooks/x", internal=True),
        Destination(kind=SinkKind.WEBHOOK, url=URL, secret=b"s" * 32),
        Destination(kind=SinkKind.COMMAND, argv=("/usr/bin/page", "--now"), timeout_s=1.5),
        Destination(kind=SinkKind.DESKTOP, person="ann@ops"),
    )


def test_sinks_up_to_their_limits_are_read() -> None:
    found = sinks(
        *[f"kind: discord, url: '{URL}{n}'" for n in range(7)],
        f"kind: command, argv: [{', '.join(['page'] * 32)}], timeoutMs: 60000",
    )
    assert len(found) == 8
    assert (len(found[7].argv), found[7].timeout_s) == (32, 60.0)
    assert sinks("kind: command, argv: [page]")[0].timeout_s == 10.0


@pytest.mark.parametrize("host", ["8.8.8.8", "[2606:4700::1111]", "chat.example:8443"])
def test_a_public_address_is_accepted(host: str) -> None:
    assert sinks(f"kind: slack, url: 'https://{host}/x'")[0].url == f"https://{host}/x"


@pytest.mark.parametrize("host", ["localhost", "10.1.2.3", "[::1]"])
def test_a_private_address_is_accepted_if_it_is_marked_as_internal(host: str) -> None:
    assert sinks(f"kind: slack, url: 'http://{host}/x', internal: true")[0].internal


def test_a_channel_has_the_id_of_the_seeds_and_may_list_agents() -> None:
    config = parse("  1469080556720623699:\n    agents: [quinn]\n    sinks: [{kind: log}]\n")
    channel = Channel(channel_id="1469080556720623699", sinks=(Destination(kind=SinkKind.LOG),), agents=("quinn",))
    assert config.channels == {"1469080556720623699": channel}


def test_an_address_comes_from_the_environment_and_a_sink_given_twice_counts_once() -> None:
    line = "kind: discord, url: '${CHAT_URL}'"
    assert sinks(line, line, CHAT_URL=URL) == (Destination(kind=SinkKind.DISCORD, url=URL),)
    assert "CHAT_URL" in refused(line)


def test_channels_with_every_line_commented_out_are_empty() -> None:
    assert parse_fleet("agents: []\nchannels:\n  # ops:\n", env={}).channels == {}
    assert parse_fleet("agents: []\n", env={}).channels == {}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"kind: discord, ulr: '{URL}'", "5:25: unknown key 'ulr' (did you mean 'url'?)"),
        (f"kind: discrod, url: '{URL}'", "kind must be 'log', 'discord', 'slack', 'webhook', 'command', 'desktop'"),
        (f"url: '{URL}'", "item 1 of 'sinks' has no kind"),
        ("kind: slack", "5:9: 'url' is missing"),
        ("kind: log, url: 'https://chat.example/x'", "5:21: unknown key 'url'"),
        (
            "kind: slack, url: 'http://chat.example/x'",
            "5:28: 'url' must begin with https:// | internal: true takes http",
        ),
        ("kind: slack, url: 'https://u:p@chat.example/x'", "'url' is not a plain http(s)://HOST[:PORT]/PATH"),
        ("kind: slack, url: 'https://localhost/x'", "'url' is not a public address | internal: true takes"),
        (f"kind: slack, url: '{URL}', internal: 'yes'", "'internal' must be true or false"),
        ("kind: slack, url: 'https://10.1.2.3/x'", "'url' is not a public address"),
        ("kind: slack, url: 'https://[::1]/x'", "'url' is not a public address"),
        (f"kind: webhook, url: '{URL}'", "'secretEnv' is missing"),
        (f"kind: webhook, url: '{URL}', secretEnv: HOOK", "variable HOOK does not hold a signing secret | whsec_ and"),
        (f"kind: webhook, url: '{URL}', secretEnv: '{SECRET}'", "must be the name of an environment variable"),
        ("kind: command, argv: []", "'argv' must not be empty"),
        ("kind: command, argv: [./page]", "5:32: the program is an absolute path, or a name that is looked up on PATH"),
        ("kind: command, argv: 'page --now'", "'argv' must be a list"),
        ('kind: command, argv: ["page", "a\\0b"]', "item 2 of 'argv' must be 1 to 1,000 characters, none of them NUL"),
        ("kind: command, argv: [page], timeoutMs: 60001", "'timeoutMs' must be at most 60000, not 60001"),
        ("kind: command, argv: [page], timeoutMs: 0", "'timeoutMs' must be more than 0"),
        (f"kind: command, argv: [{', '.join(['page'] * 33)}]", "'argv' must have at most 32 items, not 33"),
        ("kind: command, argv: [bin/page]", "the program is an absolute path"),
        ("kind: command, argv: [page], shell: true", "unknown key 'shell'"),
    ],
)
def test_a_wrong_sink_is_reported_with_its_place_and_the_expected_value(line: str, said: str) -> None:
    assert said in refused(line)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("  'a b':\n    sinks: [{kind: log}]\n", "'a b' must be 1 to 128 ASCII letters"),
        ("  ops:\n    agnets: [x]\n    sinks: [{kind: log}]\n", "4:5: unknown key 'agnets' (did you mean 'agents'?)"),
        ("  ops:\n    sinks: []\n", "4:12: 'sinks' must not be empty"),
        (f"  ops:\n    sinks: [{', '.join(['{kind: log}'] * 9)}]\n", "4:12: 'sinks' must have at most 8 items, not 9"),
        ("  ops:\n    agents: [quinn]\n", "'sinks' is missing"),
        ("  ops:\n", "'ops' must be a mapping"),
    ],
)
def test_a_wrong_channel_is_reported_with_its_place_and_the_expected_value(text: str, said: str) -> None:
    assert said in refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        f"  ops: {URL}\n",
        f"  ops:\n    sinks: [{{kind: {URL}}}]\n",
        f"  ops:\n    sinks: [{{kind: log, url: '{URL}'}}]\n",
        "  ops:\n    sinks: [{kind: slack, url: 'http://chat.example/hooks/canary'}]\n",
        "  ops:\n    sinks: [{kind: slack, url: 'https://chat.example/hooks/canary#x'}]\n",
        f"  ops:\n    sinks: [{{kind: slack, url: '{URL}', internal: '{URL}'}}]\n",
        f"  ops:\n    sinks: [{{kind: webhook, url: '{URL}', secretEnv: whsec_canary}}]\n",
        f"  ops:\n    sinks: [{{kind: webhook, url: '{URL}', secretEnv: HOOK}}]\n",
    ],
)
def test_no_address_and_no_secret_is_repeated_in_an_error(text: str) -> None:
    assert "canary" not in refusal(text, HOOK="whsec_canary")


def test_a_possible_credential_is_in_no_value_that_is_shown() -> None:
    found = parse(
        f"  ops:\n    sinks: [{{kind: webhook, url: '{URL}', secretEnv: HOOK}}, "
        "{kind: command, argv: [/usr/bin/page, --token=canary]}]\n",
        HOOK=write_secret(b"canary" * 5),
    )
    assert "canary" not in repr(found)
    assert [sink.shown for sink in found.channels["ops"].sinks] == ["webhook chat.example", "command /usr/bin/page"]
    assert Destination(kind=SinkKind.DESKTOP).shown == "desktop"


def test_the_variable_of_a_signing_secret_is_not_filled_in_anywhere() -> None:
    line = "kind: webhook, url: 'https://chat.example/${HOOK}', secretEnv: HOOK"
    assert "HOOK" in refused(line, HOOK=SECRET)


@pytest.mark.parametrize(
    ("owner", "agents", "refused"),
    [("system", (), False), ("quinn", ("quinn",), False), ("quinn", ("ava",), True), ("operator", (), True)],
)
def test_ceremonies_of_an_agent_may_use_only_channels_that_list_it(
    owner: str, agents: tuple[str, ...], refused: bool
) -> None:
    channel = Channel(channel_id="ops", sinks=(), agents=agents)
    assert bool(channel.refusal(owner)) is refused


def test_questions_need_channels_that_exist() -> None:
    text = "  ops: {sinks: [{kind: log}]}\nfleet: {question_channels: [ops], question_link: '%s'}\n"
    settings = parse(text % "https://hub.example/inbox/{questionId}?of={correlationId}").settings
    assert settings.question_channels == ("ops",)
    assert settings.question_link == "https://hub.example/inbox/{questionId}?of={correlationId}"
    said = refusal("  ops: {sinks: [{kind: log}]}\nfleet: {question_channels: [ops, opps]}\n")
    assert "4:34: " in said
    assert "'ops'" in said


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("https://u:p@hub.example/", "is not a plain http(s)://HOST[:PORT]/PATH"),
        ("https://hub.example/?api_key=canary", "must hold no credential: everybody on the channel reads it"),
        ("https://hub.example/#token=canary", "is not a plain http(s)://HOST[:PORT]/PATH"),
        ("javascript:alert(1)", "is not a plain http(s)://HOST[:PORT]/PATH"),
        ("https://hub.example/{question}", "takes {questionId} and {correlationId} alone"),
        ("https://hub.example/{questionId.__class__}", "takes {questionId} and {correlationId} alone"),
        ("https://hub.example/{questionId", "takes {questionId} and {correlationId} alone"),
        ("https://hub.example/questionId}", "takes {questionId} and {correlationId} alone"),
    ],
)
def test_a_public_link_on_a_channel_contains_no_credential(link: str, said: str) -> None:
    found = refusal(f"fleet:\n  question_link: '{link}'\n")
    assert f"4:18: 'question_link' {said}" in found
    assert "canary" not in found


def test_a_change_of_channels_is_named_and_an_equal_file_is_no_change() -> None:
    def config(**more: Any) -> FleetConfig:
        return FleetConfig(agents=(), channels={"ops": Channel(channel_id="ops", sinks=(), **more)})

    assert difference(config(), config(agents=("quinn",))).settings == ("channels",)
    assert difference(config(), config()).settings == ()


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("{}", "item 1 of 'sinks' has no kind (one of "),
        ("{knd: log}", "item 1 of 'sinks' has no kind (is 'knd' meant to be it? one of "),
    ],
)
def test_a_sink_without_its_kind_is_an_error_that_lists_the_kinds(written: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(f"  ops:\n    sinks: [{written}]\n")
    told = str(raised.value)
    assert says in told
    kinds = told.rpartition("one of ")[2].rstrip(")").split(", ")
    assert sorted(kinds) == sorted(SinkKind)
