"""The pytest plugin: ``pytest --fleetsim-agent URL`` makes one test of every row of the checklist. Fixtures: ``fleet``,
which also plays scenarios, ``reference_agent``, ``webhook_sink`` and ``virtual_clock``. Loaded by every pytest in the
environment, so it imports nothing until it is used.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fleetsim.agent import Agent
    from fleetsim.pytest_plugin.fleet import Fleet, Member, VirtualTime, WebhookSink


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fleetsim", "hold an A2A agent to the fleet's checklist")
    group.addoption("--fleetsim-agent", metavar="URL", help="check the agent at URL: one test per row")
    group.addoption(
        "--fleetsim-app",
        metavar="MODULE:ATTR",
        help="run this ASGI agent from this folder and check it; --fleetsim-agent may then give a path, as /a2a",
    )
    group.addoption("--fleetsim-seed", metavar="N", type=int, help="the seed of the check, the fixtures and scenarios")
    group.addoption("--fleetsim-api-key-env", metavar="VAR", help="send the key in this variable as X-API-Key")
    group.addoption("--fleetsim-bearer-env", metavar="VAR", help="send the token in this variable as a bearer token")
    group.addoption("--fleetsim-auth", metavar="{…}", help="send a credential in another form: auth of agents.yaml")
    group.addoption("--fleetsim-other-key-env", metavar="VAR", help="a second caller's key or token, of the same kind")
    group.addoption(
        "--fleetsim-skill",
        metavar="KIND=SKILL[=TEXT]",
        action="append",
        default=[],
        help="how to get what the check needs: KIND is quick, slow, ask, fail or stream (repeatable)",
    )
    group.addoption(
        "--fleetsim-webhook-listen", metavar="HOST:PORT", help="listen here for the agent's webhooks (port 0: any)"
    )
    group.addoption(
        "--fleetsim-only",
        metavar="PATTERN",
        action="append",
        default=[],
        help="only rows whose id or section fits (repeatable), e.g. 'S-*'",
    )
    group.addoption(
        "--fleetsim-allow-side-effects", action="store_true", help="probe what costs or leaves traces as well"
    )
    group.addoption("--fleetsim-baseline", metavar="FILE", help="accepted failures, of fleetsim check --write-baseline")
    group.addoption("--fleetsim-strict", action="store_true", help="let rows that are SHOULD fail too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fleetsim: a row of the A2A checklist (pytest --fleetsim-agent URL)")


def _asked(config: pytest.Config) -> bool:
    return bool(config.getoption("--fleetsim-agent") or config.getoption("--fleetsim-app"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the rows' tests, before others deselect by name or mark."""
    if _asked(config):
        from fleetsim.pytest_plugin.rows import collected

        items.extend(collected(session))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Run the check once, ahead of the tests that tell what it found."""
    if _asked(session.config) and not session.config.option.collectonly:
        from fleetsim.pytest_plugin.rows import run_ahead

        run_ahead(session)
    return (yield)


@pytest.fixture
def virtual_clock(request: pytest.FixtureRequest) -> VirtualTime:
    """Virtual time: ``virtual_clock.run(story)`` runs an async function in which an hour passes at once."""
    from fleetsim.pytest_plugin.fleet import VirtualTime

    return VirtualTime(request.config.getoption("--fleetsim-seed") or 0)


@pytest.fixture
def fleet(request: pytest.FixtureRequest) -> Fleet:
    """An empty fleet in memory: ``fleet.add(agent)`` puts one in, ``fleet.client(url)`` calls it; ``fleet.sim(file)``
    plays a scenario.
    """
    from fleetsim.pytest_plugin.fleet import Fleet

    seed = request.config.getoption("--fleetsim-seed")
    made = Fleet(seed or 0, folder=request.path.parent, scenario_seed=seed)
    if "virtual_clock" in request.fixturenames:
        request.getfixturevalue("virtual_clock").after.append(made.aclose)
    return made


@pytest.fixture
def reference_agent(fleet: Fleet) -> Member[Agent]:
    """The reference agent, in the fleet: ``reference_agent.url`` and ``reference_agent.client()``."""
    from fleetsim.agent.builtin import reference_agent as made

    return fleet.add(made())


@pytest.fixture
def webhook_sink(fleet: Fleet) -> WebhookSink:
    """A webhook address that the fleet's agents may call, and what came to it."""
    return fleet.sink()
