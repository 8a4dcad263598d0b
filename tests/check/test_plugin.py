"""The pytest plugin as a user has it: separate sessions, some in a process each, and a real agent on a socket."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fleetsim.agent import Agent, AgentLimits
from fleetsim.agent.builtin import reference_agent
from fleetsim.check.sections import REQUIREMENTS
from fleetsim.cli.main import Exit
from tests.broken.build import breaks
from tests.broken.catalogue import mutant
from tests.broken.editors import edit_card
from tests.sim.scenes import MINE

pytest_plugins = ("pytester",)
TOP = Path(__file__).parents[2]
pytestmark = pytest.mark.sockets
QUIET = (
    "-q",
    "--strict-markers",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:randomly",
    "-p",
    "no:schemathesis",  # these two take longer to import than pytest itself
    "-p",
    "no:hypothesispytest",
    "-o",
    "asyncio_default_fixture_loop_scope=function",
)


@contextmanager
def served(agent: Agent) -> Iterator[str]:
    """An agent on a socket, on a loop of its own."""
    url: list[str] = []
    up, down = threading.Event(), threading.Event()

    async def serve() -> None:
        async with agent.serving() as at:
            url.append(at)
            up.set()
            await asyncio.to_thread(down.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert up.wait(20)
        yield url[0]
    finally:
        down.set()
        thread.join(20)


def healthy(**options: object) -> Agent:
    return reference_agent(limits=AgentLimits(drain_s=0.2, stop_s=0.2), **options)


def run(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    """A session within ours: starting Python and importing every module takes most of a session in its own process."""
    return pytester.runpytest_inprocess(*QUIET, *words)


def start(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    """A session in a process of its own, as a user starts one."""
    return pytester.runpytest_subprocess(*QUIET, *words)


def test_every_row_is_a_test(pytester: pytest.Pytester) -> None:
    with served(healthy()) as url:
        told = run(pytester, "--fleetsim-agent", url, "--collect-only")
    assert [line for line in told.outlines if "::" in line] == [f"fleetsim::{row}" for row in REQUIREMENTS]


def test_a_healthy_agent_passes_and_untested_rows_are_skipped_with_their_reason(
    pytester: pytest.Pytester,
) -> None:
    with served(healthy()) as url:
        told = start(pytester, "--fleetsim-agent", url, "--fleetsim-only", "C-0[1-4]", "--fleetsim-only", "P-15", "-rs")
    told.assert_outcomes(passed=4, skipped=1)
    told.stdout.fnmatch_lines(["*not tested: no webhook listener*"])
    told.stdout.fnmatch_lines(["fleetsim: reference speaks A2A *"])


def test_an_agent_without_a_shared_dialect_ends_pytest(pytester: pytest.Pytester) -> None:
    def by_grpc(card: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in card.items() if name not in {"url", "additionalInterfaces"}}
        entries = [{**entry, "protocolBinding": "GRPC"} for entry in card["supportedInterfaces"]]
        return {**kept, "preferredTransport": "GRPC", "supportedInterfaces": entries}

    with served(breaks(edit_card(by_grpc))(healthy())) as url:
        told = run(pytester, "--fleetsim-agent", url, "--fleetsim-only", "C-0[1-4]")
    assert told.ret == Exit.NOTHING_RAN


def test_deliveries_are_tested_with_a_listener(pytester: pytest.Pytester, free_port: int) -> None:
    place = f"127.0.0.1:{free_port}"
    with served(healthy(allow_webhook=(place,))) as url:
        words = ("--fleetsim-webhook-listen", place, "--fleetsim-only", "P-26")
        told = run(pytester, "--fleetsim-agent", url, *words, "-rs")
    told.assert_outcomes(passed=1)


def test_a_broken_promise_fails_with_its_evidence_and_remedy(pytester: pytest.Pytester) -> None:
    with served(mutant("missing-kind").make(healthy())) as url:
        told = run(pytester, "--fleetsim-agent", url, "--fleetsim-only", "S-0[34]")
    told.assert_outcomes(passed=1, failed=1)
    row = REQUIREMENTS["S-04"]
    told.stdout.fnmatch_lines_random(
        [f"MUST S-04: {row.title}", f"Fix: {row.remedy}", "*in A2A 0.3:*", "*<- HTTP 200*"]
    )
    assert "Traceback" not in told.stdout.str()


def test_a_should_row_warns_and_fails_only_in_strict_mode(pytester: pytest.Pytester) -> None:
    with served(mutant("card-uncached").make(healthy())) as url:
        words = ("--fleetsim-agent", url, "--fleetsim-only", "C-10")
        run(pytester, *words).assert_outcomes(xfailed=1)
        run(pytester, *words, "--fleetsim-strict").assert_outcomes(failed=1)


def test_rows_can_be_chosen_by_name_and_mark(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_mine(): pass")
    with served(healthy()) as url:
        run(pytester, "--fleetsim-agent", url, "-k", "E-13 or E-14").assert_outcomes(
            passed=2, deselected=len(REQUIREMENTS) - 1
        )
        run(pytester, "--fleetsim-agent", url, "-m", "not fleetsim").assert_outcomes(
            passed=1, deselected=len(REQUIREMENTS)
        )


def test_credentials_come_from_the_environment(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_AGENT_KEY", "very secret key")
    with served(mutant("card-incomplete").make(healthy(api_key="very secret key"))) as url:
        words = ("--fleetsim-agent", url, "--fleetsim-only", "E-13", "--fleetsim-only", "C-04")
        told = run(pytester, *words, "--fleetsim-api-key-env", "MY_AGENT_KEY")
        refused = run(pytester, *words)
        unset = run(pytester, *words, "--fleetsim-api-key-env", "NOT_SET")
    told.assert_outcomes(passed=1, failed=1)
    assert "very secret key" not in told.stdout.str() + told.stderr.str()
    assert (refused.ret, unset.ret) == (3, 3)
    assert "wants a credential" in refused.stdout.str() + refused.stderr.str()
    assert "NOT_SET is not set" in unset.stdout.str() + unset.stderr.str()


def test_skills_and_a_second_caller_can_be_named(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "key-of-one")
    monkeypatch.setenv("TWO", "key-of-two")
    words = ("--fleetsim-api-key-env", "ONE", "--fleetsim-other-key-env", "TWO", "--fleetsim-only", "A-06")
    hint = ("--fleetsim-skill", "fail=echo=hello", "--fleetsim-only", "T-21")
    with served(healthy(api_keys={"one": "key-of-one", "two": "key-of-two"})) as url:
        told = run(pytester, "--fleetsim-agent", url, *words, *hint)
        wrong = run(pytester, "--fleetsim-agent", url, *words, "--fleetsim-skill", "slow")
    told.assert_outcomes(passed=1, failed=1)  # echo does not fail, so the row about failures does
    assert wrong.ret == 3
    assert "names no skill" in wrong.stdout.str() + wrong.stderr.str()


APP = """
from fleetsim.agent import Agent

agent = Agent("mine", allow_webhook=("PLACE",))


@agent.skill("echo")
async def echo(task):
    return task.text


app = agent.app()
"""


def test_the_users_own_application_is_run_and_observed_by_the_check(pytester: pytest.Pytester, free_port: int) -> None:
    place = f"127.0.0.1:{free_port}"
    pytester.makepyfile(my_agent=APP.replace("PLACE", place))
    words = ("--fleetsim-app", "my_agent:app", "--fleetsim-only", "C-04", "--fleetsim-only", "H-07")
    start(pytester, *words, "--fleetsim-webhook-listen", place, "-rs").assert_outcomes(passed=2)
    elsewhere = start(pytester, *words, "--fleetsim-agent", "http://127.0.0.1:9")
    assert elsewhere.ret == 3
    assert "a path, as /a2a" in elsewhere.stdout.str() + elsewhere.stderr.str()


def test_an_agent_that_cannot_be_run_ends_the_run_with_the_reason(pytester: pytest.Pytester) -> None:
    told = run(pytester, "--fleetsim-app", "nowhere:app")
    assert told.ret == 3
    assert "fleetsim cannot check nowhere:app" in told.stdout.str() + told.stderr.str()


def test_an_unreachable_agent_ends_the_run_with_the_reason(pytester: pytest.Pytester) -> None:
    told = start(pytester, "--fleetsim-agent", "http://127.0.0.1:9")
    assert told.ret == 3
    assert "fleetsim cannot check http://127.0.0.1:9" in told.stdout.str() + told.stderr.str()


def test_a_pattern_without_a_match_is_a_usage_error(pytester: pytest.Pytester) -> None:
    told = run(pytester, "--fleetsim-agent", "http://127.0.0.1:9", "--fleetsim-only", "Q-*")
    assert told.ret == pytest.ExitCode.USAGE_ERROR


def test_the_tests_on_the_page_pass(pytester: pytest.Pytester) -> None:
    page = (TOP / "docs/howto/pytest.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    pytester.makepyfile("\n\n".join(blocks))
    (pytester.mkdir("scenarios") / "our-day.yaml").write_text(MINE)
    start(pytester).assert_outcomes(passed=5)


def test_fixtures_give_a_fleet_on_virtual_time(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from fleetsim.agent import Agent

        def test_my_own_agent(fleet, webhook_sink, virtual_clock):
            agent = Agent("greeter")

            @agent.skill("greet")
            async def greet(task):
                return f"Hello {task.text}"

            member, began = fleet.add(agent), fleet.now()

            async def story():
                async with member.client() as client:
                    return (await client.send_task("Ada", push=webhook_sink.config(token="t"))).text

            assert virtual_clock.run(story) == "Hello Ada"
            assert webhook_sink.arrivals[0].headers["authorization"] == "Bearer t"
            assert webhook_sink.states == ["working", "completed"]
            assert (fleet.now() - began).total_seconds() < 5
        """
    )
    run(pytester, "--fleetsim-seed", "7").assert_outcomes(passed=1)


def test_an_unused_plugin_changes_and_imports_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_there():
            ours = {name for name in sys.modules if name.startswith("fleetsim")}
            assert ours == {"fleetsim", "fleetsim.pytest_plugin", "fleetsim.pytest_plugin.plugin"}
            assert not {"httpx", "httptools", "starlette", "uvicorn", "textual"} & set(sys.modules)
        """
    )
    start(pytester).assert_outcomes(passed=1)


def test_importing_the_plugin_is_quick() -> None:
    timed = "t = time.process_time(); import fleetsim.pytest_plugin.plugin; print(time.process_time() - t)"
    code = f"import pytest, time; {timed}"
    best = min(float(subprocess.check_output([sys.executable, "-c", code], timeout=30)) for _ in range(3))
    assert best < 0.1


def test_a_scenario_is_played_from_the_tests_folder_and_fails_with_its_report(pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("deeper")
    (folder / "mine.yaml").write_text(MINE)
    (folder / "strict.yaml").write_text(MINE + "  - quinn.success_rate >= 99%\n")
    (folder / "wrong.yaml").write_text(MINE.replace("duration", "durations"))
    code = """
        def test_as_expected(fleet):
            report = fleet.sim("mine.yaml", seed=3)
            assert report.seed == 3
            assert report.figures["quinn"]["outcomes"] > 5

        def test_broken(fleet):
            fleet.sim("strict.yaml")

        def test_looked_at(fleet):
            report = fleet.sim("strict.yaml", check=False)
            assert report.result == "unexpected"
            assert report.seed == 7

        def test_wrong(fleet):
            fleet.sim("wrong.yaml")

        def test_unknown(fleet):
            fleet.sim("quiet-dai")
    """
    (folder / "test_sim.py").write_text(textwrap.dedent(code))
    told = start(pytester, "--fleetsim-seed", "7")
    told.assert_outcomes(passed=2, failed=3)
    told.stdout.fnmatch_lines(
        [
            "mine, seed 7: *",
            "*quinn.success_rate >= 99%*",
            "*fleetsim sim deeper/strict.yaml --seed 7 *",
            "deeper/wrong.yaml:3:1: *",
            "*quiet-day*",
        ]
    )
    assert "Traceback" not in told.stdout.str()


def test_a_failure_of_the_baseline_is_expected(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("accepted.yaml").write_text("accepted: {S-04: 'next release'}\n")
    with served(mutant("missing-kind").make(healthy())) as url:
        words = ("--fleetsim-agent", url, "--fleetsim-only", "S-0[34]", "--fleetsim-baseline")
        run(pytester, *words, "accepted.yaml").assert_outcomes(passed=1, xfailed=1)
        assert run(pytester, *words, "missing.yaml").ret == 3
