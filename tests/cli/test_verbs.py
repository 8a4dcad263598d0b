"""The verbs from a second process, and the output of each kind of problem."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from contextlib import nullcontext

import pytest

from fleetsim import __version__
from fleetsim.agent import Agent, SkillContext
from tests.cli.world import Shell, answering

pytestmark = pytest.mark.sockets


def yaml_for(url: str, *more: str) -> str:
    lines = ["fleet: { poll_interval_s: 1 }", "agents:", f"  - name: scout\n    url: {url}/a2a", *more]
    return "\n".join(lines) + "\n"


async def test_the_verbs_work_from_a_second_process(shell: Shell, agent: str) -> None:
    import asyncio

    shell.write("agents.yaml", yaml_for(agent))
    shell.write(
        "ceremonies/scout.hello.yaml",
        'id: scout.hello\nname: Hello\nschedule: "0 0 1 1 *"\nskill: echo\ntargets: [scout]\n',
    )
    with shell.up() as hub:
        done = await shell.arun("send", "scout", "hello", "--skill", "echo")
        assert (done.returncode, done.stdout) == (0, "hello\n")
        assert "completed" in done.stderr

        asked = await shell.arun("send", "scout", "hi", "--skill", "ask", "--exit-status")
        assert asked.returncode == 7
        assert "Who shall I greet?" in asked.stdout
        assert "fleetsim inbox reply q-" in asked.stderr
        (question,) = (await asyncio.to_thread(shell.json, "inbox", "list"))["questions"]
        assert (await shell.arun("inbox", "reply", question["questionId"], "Ada")).returncode == 0
        again = await shell.arun("inbox", "reply", question["questionId"], "Bob")
        assert again.returncode == 2
        assert "not open any more" in again.stderr
        got = await shell.arun("task", "get", question["correlationId"], "--wait")
        assert "Hello Ada" in got.stdout

        later = await shell.arun("send", "scout", "60", "--skill", "slow", "--async", "-o", "json")
        cid = json.loads(later.stdout)["correlationId"]
        assert (await shell.arun("task", "cancel", cid)).returncode == 0
        ended = await shell.arun("task", "get", cid, "--wait", "--exit-status")
        assert ended.returncode == 1
        assert "canceled" in ended.stdout

        slow = await shell.arun("send", "scout", "60", "--skill", "slow", "--async", "-o", "json")
        cid = json.loads(slow.stdout)["correlationId"]
        listed = await shell.arun("inbox", "list")
        assert f"fleetsim inbox veto {cid}" in listed.stderr
        assert (await shell.arun("inbox", "veto", cid)).returncode == 0
        assert "canceled" in (await shell.arun("task", "get", cid, "--wait")).stdout
        too_late = await shell.arun("inbox", "veto", cid)
        assert too_late.returncode != 0
        assert "no open veto window" in too_late.stderr

        fired = await shell.arun("ceremony", "run", "scout.hello", "--wait")
        assert fired.returncode == 0, fired.stderr
        assert "success" in fired.stdout
        assert "scout.hello" in (await shell.arun("ceremony", "list")).stdout

        health = await asyncio.to_thread(shell.json, "health")
        (row,) = health["agents"]
        assert row["agentName"] == "scout"
        assert row["totalOutcomes"] == 5
        fine = await shell.arun("health", "--fail-if", "lost > 0", "--fail-if", "scout/sleep.lost > 0")
        assert (fine.returncode, "scout/sleep.lost > 0" in fine.stderr) == (0, True)
        failed = await shell.arun("-q", "health", "--fail-if", "scout.canceled >= 2", "--fail-if", "lost > 0")
        assert (failed.returncode, "scout.canceled >= 2" in failed.stderr) == (1, True)
        assert (await shell.arun("health", "--fail-if", "scuot.lost > 0")).returncode == 2
        assert (await shell.arun("send", "scout", "no", "--skill", "fail", "--exit-status")).returncode == 1
        hub.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(hub.wait, 12) == 0
    wrong = await shell.arun("health", "--fail-if", "scout.latency > 2m")
    assert wrong.returncode == 2
    assert "'latency'" in wrong.stderr
    after = await shell.arun("health")
    assert after.returncode == 3
    assert "fleetsim up" in after.stderr


async def test_the_card_and_the_check_accept_an_agent_by_its_name_in_agents_yaml(shell: Shell, agent: str) -> None:
    shell.write("agents.yaml", yaml_for(agent))
    card = await asyncio.to_thread(shell.json, "card", "scout")
    assert card["rpcUrl"].startswith(agent)
    done = await shell.arun("check", "scout", "--only", "C-01*")
    assert done.returncode == 0, done.stdout + done.stderr
    for verb in ("card", "check"):
        unknown = await shell.arun(verb, "scuot")
        assert (unknown.returncode, "scout" in unknown.stderr) == (2, True)


NEED_A_HUB = (
    ("health",),
    ("task", "list"),
    ("task", "get", "abcdef"),
    ("task", "cancel", "abcdef"),
    ("inbox", "list"),
    ("inbox", "reply", "q-abcdef", "yes"),
    ("channel", "list"),
    ("channel", "test", "people"),
    ("ceremony", "run", "daily"),
    ("ceremony", "run", "daily", "--wait"),
    ("ceremony", "history"),
    ("events",),
    ("record", "--out", "x.jsonl"),
    ("mcp", "--admin"),
    ("sim", "init", "--from-hub"),
)


@pytest.mark.parametrize("verb", NEED_A_HUB, ids=" ".join)
def test_a_missing_hub_is_exit_3_at_every_verb_that_needs_one(shell: Shell, verb: tuple[str, ...]) -> None:
    done = shell.run(*verb)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr


async def test_an_agent_is_called_directly_by_its_address(shell: Shell, agent: str) -> None:
    plain = await shell.arun("send", agent, "hello")
    assert (plain.returncode, plain.stdout) == (0, "hello\n")
    streamed = await shell.arun("send", agent, "/stream one two three", "--stream")
    assert (streamed.returncode, streamed.stdout) == (0, "one two three\n")
    piped = await shell.arun("send", agent, "-", stdin="from a pipe")
    assert piped.stdout == "from a pipe\n"
    card = await shell.arun("card", agent)
    assert "dialect: 1.0" in card.stdout
    talk = await shell.arun("chat", agent, "--skill", "ask", stdin="hi\nAda\n")
    assert talk.stdout == "Who shall I greet?\nHello Ada\n"
    unnamed = await shell.arun("chat", agent, stdin="hi\n/ask\nAda\n")
    assert unnamed.stdout == "hi\nWho shall I greet?\nHello Ada\n", "no skill chat there: the agent chooses"


def greeter() -> Agent:
    """The README's first agent."""
    agent = Agent("greeter", description="Says hello")

    @agent.skill("greet", description="Greets whoever is named")
    async def greet(task: SkillContext) -> str:
        name = task.text or await task.ask("Whom shall I greet?")
        return f"Hello {name}"

    return agent


async def test_the_first_command_that_up_prints_works_on_our_own_agents(shell: Shell, agent: str) -> None:
    async with greeter().serving() as url:
        shell.write("agents.yaml", yaml_for(agent, f"  - name: greeter\n    url: {url}/a2a"))
        for run in ("up", "without"):
            with shell.up() if run == "up" else nullcontext():
                echoed = await shell.arun("send", "scout", "hello")
                assert (echoed.returncode, echoed.stdout) == (0, "hello\n"), echoed.stderr
                greeted = await shell.arun("send", "greeter", "Ada")
                assert (greeted.returncode, greeted.stdout) == (0, "Hello Ada\n"), greeted.stderr
                asked = await shell.arun("send", "greeter", "/greet", "--exit-status")
                assert (asked.returncode, asked.stdout) == (7, "Whom shall I greet?\n"), asked.stderr
        by_url = await shell.arun("send", url, "Ada")
        assert (by_url.returncode, by_url.stdout) == (0, "Hello Ada\n"), by_url.stderr


async def test_the_help_names_the_agents_own_skills(shell: Shell, agent: str) -> None:
    card = json.loads((await shell.arun("-o", "json", "card", agent)).stdout)
    told = (await shell.arun("agent", "--help")).stdout
    assert [skill["id"] for skill in card["skills"] if skill["id"] not in told] == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("agents:\n  - name: a\n    urll: http://x/a2a\n", "urll"),
        ("agents: [\n", "agents.yaml:"),
        ("agents:\n  - name: a\n    url: ftp://x/a2a\n", "url"),
        ("agents:\n  - name: a\n    url: http://x\n  - name: a\n    url: http://y\n", "a"),
        ("agents:\n  - &x {name: a, url: http://x}\n  - *x\n", "agents.yaml:"),
        ("agents:\n  - name: a\n    url: ${NOT_SET_URL}\n", "NOT_SET_URL"),
    ],
)
def test_a_broken_agents_yaml_is_reported_with_its_place(shell: Shell, text: str, told: str) -> None:
    shell.write("agents.yaml", text)
    done = shell.run("up", "--headless")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", [("up", "--headless"), ("send", "scout", "hi"), ("chat", "scout")], ids=lambda v: v[0])
def test_a_missing_agents_yaml_is_reported_with_the_next_step(shell: Shell, verb: tuple[str, ...]) -> None:
    done = shell.run(*verb)
    assert done.returncode == 2
    assert "fleetsim init URL" in done.stderr
    assert "--config" in done.stderr
    elsewhere = shell.run("--config", "sub/fleet.yaml", *verb)
    assert elsewhere.returncode == 2
    assert "fleetsim --config sub/fleet.yaml init URL" in elsewhere.stderr
    assert not (shell.home / "state" / "ledger.db").exists()


def test_without_a_hub_and_a_fleet_the_steps_to_both_are_printed(shell: Shell) -> None:
    done = shell.run("health")
    assert done.returncode == 3
    assert "fleetsim init URL" in done.stderr
    assert "fleetsim up" in done.stderr


def test_a_mistyped_verb_names_the_nearest(shell: Shell) -> None:
    done = shell.run("helth")
    assert done.returncode == 2
    assert "'health'" in done.stderr


def card(url: str, **capabilities: bool) -> bytes:
    text = {
        "name": "odd",
        "description": "",
        "url": f"{url}/a2a",
        "version": "1",
        "protocolVersion": "0.3.0",
        "capabilities": capabilities,
        "skills": [{"id": "chat", "name": "chat", "description": "", "tags": []}],
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
    }
    return json.dumps(text).encode()


HTML = b"<html><head><title>Bad Gateway</title></head><body>\x1b]52;c;aGk=\x07</body></html>"
NO_KIND = b'data: {"jsonrpc":"2.0","id":1,"result":{"odd":true}}\n\n' * 25


@pytest.mark.parametrize(
    ("case", "code", "told"),
    [
        ("gateway", 3, "Bad Gateway"),  # reports itself that the agent was not reached
        ("page", 1, "Bad Gateway"),
        ("wrong key", 4, "401"),
        ("no kind", 1, "events"),
        ("not json", 1, "JSON"),
    ],
)
async def test_a_failing_agent_gets_one_clear_line_and_the_right_exit_code(
    shell: Shell, case: str, code: int, told: str
) -> None:
    base: list[str] = []

    def handle(method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        if method == "GET":
            return 200, "application/json", card(base[0], streaming=case == "no kind")
        if case in {"gateway", "page"}:
            return (502 if case == "gateway" else 500), "text/html", HTML
        if case == "wrong key":
            return 401, "application/json", b'{"error":{"message":"no"}}'
        if case == "no kind":
            return 200, "text/event-stream", NO_KIND
        return 200, "text/plain", b"hello"

    async with answering(handle) as url:
        base.append(url)
        done = await shell.arun("send", url, "hi", *(["--stream"] if case == "no kind" else []))
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, done.stderr
    assert told in lines[0], lines
    assert done.returncode == code
    assert "\x1b" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


async def test_chat_with_an_agent_without_a_card_uses_the_dialect_in_agents_yaml(shell: Shell) -> None:
    asked: list[dict[str, object]] = []

    def handle(method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        if method == "GET":
            return 404, "text/plain", b"no card here"
        asked.append(json.loads(body))
        said = {"kind": "message", "messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": "hello"}]}
        return 200, "application/json", json.dumps({"jsonrpc": "2.0", "id": asked[-1]["id"], "result": said}).encode()

    async with answering(handle) as url:
        shell.write("agents.yaml", f'agents:\n  - name: bare\n    url: {url}/a2a\n    wire: "0.3"\n')
        talk = await shell.arun("chat", "bare", stdin="hi\n")
    assert (talk.returncode, talk.stdout) == (0, "hello\n"), talk.stderr
    assert [call["method"] for call in asked] == ["message/send"]
    assert "skillHint" not in json.dumps(asked), "without a card nobody knows that it has a skill chat"


def test_a_dead_agent_is_unreachable(shell: Shell) -> None:
    done = shell.run("send", "http://127.0.0.1:9", "hi")
    assert done.returncode == 3
    assert "refused" in done.stderr


async def test_a_dead_agent_and_an_unknown_skill_leave_the_rest_of_the_fleet_working(shell: Shell, agent: str) -> None:
    shell.write("agents.yaml", yaml_for(agent, "  - name: dead\n    url: http://127.0.0.1:9/a2a\n    skills: [echo]"))
    with shell.up():
        unknown = await shell.arun("send", "scout", "hi", "--skill", "nothing")
        assert unknown.returncode == 2
        assert "does not offer" in unknown.stderr
        nobody = await shell.arun("send", "scoot", "hi")
        assert nobody.returncode == 2
        assert "scout" in nobody.stderr
        dead = await shell.arun("send", "dead", "hi", "--skill", "echo")
        assert dead.returncode == 3
        assert "undeliverable" in dead.stderr
        fine = await shell.arun("send", "scout", "hi", "--skill", "echo")
        assert (fine.returncode, fine.stdout) == (0, "hi\n")


@pytest.mark.parametrize("more", [(), ("--stream",)])
async def test_a_hub_that_stops_is_reported_as_such_to_a_waiting_verb(shell: Shell, more: tuple[str, ...]) -> None:
    begun, agent = asyncio.Event(), Agent("slow")

    @agent.skill("wait")
    async def wait(task: SkillContext) -> None:
        await task.say("a word")
        begun.set()
        await asyncio.Event().wait()

    async with agent.serving() as url:
        shell.write("agents.yaml", f"agents:\n  - name: slow\n    url: {url}\n")
        with shell.up() as hub:
            asked = asyncio.create_task(shell.arun("send", "slow", "go", *more))
            await begun.wait()
            hub.kill()
            done = await asked
    assert done.returncode == 3, done.stderr
    error, hint = done.stderr.splitlines()[-2:]
    cid = error.rpartition(" ")[2]
    assert f"fleetsim task get {cid}" in hint


async def test_a_demo_without_a_terminal_ends_by_itself_with_a_table(shell: Shell) -> None:
    done = await asyncio.to_thread(shell.run, "demo", timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    agents = {"quinn", "protopen", "flaky", "herald", "archivist"}
    head, *lines = done.stdout.splitlines()
    rows, remarks = lines[: len(agents)], lines[len(agents) :]
    assert head.startswith("HEALTH")
    assert {
        re.split(r"\s{2,}", row)[1] for row in rows
    } == agents  # the health word may be two words: then this column has too few
    strange = [line for line in remarks if line and line.replace(":", " ").split()[0] not in agents]
    assert strange == [], "the table, the line about an agent, and nothing else"
    # A busy machine may keep the process from running, and the hub reports that. Every ten seconds there is progress.
    others = (" WARNING fleetsim.runtime.watchdog: ", "waiting for ")
    said = [line for line in done.stderr.splitlines() if not any(other in line for other in others)]
    assert len(said) <= 2, done.stderr


def test_a_damaged_ledger_is_refused_and_salvaged_on_request(shell: Shell) -> None:
    shell.write("agents.yaml", "agents: []\n")
    with shell.up():
        pass
    ledger = shell.home / "state" / "ledger.db"
    data = bytearray(ledger.read_bytes())
    for at in range(8_192, min(len(data), 24_576)):
        data[at] ^= 0x5A
    ledger.write_bytes(data)
    refused = shell.run("up", "--headless", "--port", "0")
    assert refused.returncode == 2
    assert "damaged" in refused.stderr
    assert "--salvage" in refused.stderr
    with shell.up("--salvage"):
        pass
    assert list((shell.home / "state").glob("ledger.db.damaged-*"))


def test_a_second_hub_on_one_ledger_is_refused_with_the_firsts_pid(shell: Shell) -> None:
    shell.write("agents.yaml", "agents: []\n")
    with shell.up() as first:
        second = shell.run("up", "--headless", "--port", "0")
        assert second.returncode == 2
        assert str(first.pid) in second.stderr


GOOD = 'id: {id}\nname: n\nschedule: "0 0 1 1 *"\nskill: {skill}\ntargets: {targets}\n'


async def test_problems_of_ceremonies_are_shown_at_up_in_the_list_and_when_fired(shell: Shell, agent: str) -> None:
    shell.write("agents.yaml", yaml_for(agent))
    shell.write("ceremonies/good.yaml", GOOD.format(id="good", skill="echo", targets="[scout]"))
    with shell.up():
        fine = await shell.arun("ceremony", "list", "--strict")
        assert (fine.returncode, fine.stderr) == (0, "")
    shell.write("ceremonies/empty.yaml", GOOD.format(id="sweep", skill="echo", targets="[]"))
    shell.write("ceremonies/typo.yaml", GOOD.format(id="typo", skill="echo", targets="[scuot]"))
    shell.write("ceremonies/skill.yaml", GOOD.format(id="_skill", skill="sing", targets="[scout]"))
    empty = "ceremonies/empty.yaml:5:10: 'targets' must name at least one agent, or [all]"
    typo = "unknown agent “scuot” (did you mean “scout”?)"
    sing = "agent “scout” does not offer the skill “sing”"
    with shell.up() as hub:
        listed = await shell.arun("ceremony", "list")
        while sing not in listed.stderr:  # once the card has been read
            listed = await shell.arun("ceremony", "list")
        assert listed.returncode == 0
        assert f"not in force: {empty}" in listed.stderr
        assert f"warning: typo: {typo}" in listed.stderr
        assert "good" in listed.stdout
        strict = await shell.arun("ceremony", "list", "--strict", "-o", "json")
        assert strict.returncode == 6
        told = json.loads(strict.stdout)
        assert [(e["ceremonyId"], e["kept"]) for e in told["errors"]] == [("sweep", False)]
        assert {row["id"]: bool(row["warnings"]) for row in told["ceremonies"]} == {
            "good": False,
            "typo": True,
            "_skill": True,
        }
        validated = await shell.arun("ceremony", "validate")
        assert f"warning: typo: {typo}" in validated.stderr
        assert sing in validated.stderr
        examined = (await shell.arun("doctor", "--offline")).stdout
        assert [text for text in (empty, typo, sing) if text not in examined] == []
        broken = await shell.arun("ceremony", "run", "sweep")
        assert broken.returncode == 2
        assert empty in broken.stderr
        unknown = await shell.arun("ceremony", "run", "typo")
        assert unknown.returncode == 2
        assert typo in unknown.stderr
        nothing = await shell.arun("ceremony", "run", "god")
        assert "did you mean “good”?" in nothing.stderr
        hub.send_signal(signal.SIGTERM)
    assert empty in shell.said
    assert typo in shell.said


def test_without_a_hub_ceremonies_are_listed_from_the_files(shell: Shell) -> None:
    assert "agents.yaml" in shell.run("ceremony", "list").stderr
    shell.write("agents.yaml", yaml_for("http://127.0.0.1:9", "    apiKeyEnv: NOT_SET_HERE"))
    shell.write("ceremonies/good.yaml", GOOD.format(id="good", skill="sing", targets="[scout]"))
    fine = shell.run("ceremony", "list", "--strict")
    assert fine.returncode == 0, fine.stderr
    assert "01-01T00:00:00.000Z" in fine.stdout
    shell.write("ceremonies/typo.yaml", GOOD.format(id="typo", skill="sing", targets="[scuot]"))
    shell.write("ceremonies/empty.yaml", GOOD.format(id="sweep", skill="echo", targets="[]"))
    assert shell.run("ceremony", "list").returncode == 0
    wrong = shell.run("ceremony", "list", "--strict", "-o", "json")
    assert wrong.returncode == 6
    assert "warning: typo: " in wrong.stderr
    assert "ceremonies/empty.yaml:5:10" in wrong.stderr
    assert [row["id"] for row in json.loads(wrong.stdout)["ceremonies"]] == ["good", "typo"]
    assert "warning: typo: " in shell.run("ceremony", "validate").stderr
    assert "scuot" in shell.run("doctor", "--offline").stdout


@pytest.mark.parametrize("words", [("--version",), ("-v",), ("--quiet", "--version")])
def test_the_version_has_the_same_words_everywhere(shell: Shell, words: tuple[str, ...]) -> None:
    done = shell.run(*words)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"fleetsim {__version__}\n", "")
