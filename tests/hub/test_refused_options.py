"""An option of ours that an agent refuses is left out, and the request succeeds. And our own profiles, as printed."""

from __future__ import annotations

import asyncio
import json
import shlex
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.agent.builtin import PROFILES, profile_agent
from fleetsim.cli.agent import first_command
from fleetsim.client import AgentClient
from fleetsim.events.wire import payload
from fleetsim.fleet.auth import AuthEntry
from fleetsim.model.errors import AuthRefused, Blame
from fleetsim.model.work import Cause, OutcomeKind, SkillRequest
from fleetsim.runtime.ports import Request as Sent
from fleetsim.testbed.faults import EditChunk, Match, Status
from tests.hub.local_hub import LocalHub, ready_hub

QUINN = "http://quinn.example:8000"


def error(code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}


def with_webhook(request: Sent) -> bool:
    return b"ushNotification" in request.body


def worker(ran: list[str], **options: Any) -> Agent:
    agent = Agent("quinn", **options)

    @agent.skill("work")
    async def work(task: SkillContext) -> str:
        ran.append(task.text)
        await asyncio.sleep(3)
        return "done"

    return agent


async def ask(t: LocalHub, cid: str) -> None:
    await t.hub.submit(SkillRequest(correlation_id=cid, text=cid, skill="work", targets=("quinn",)))


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("dialect", ["1.0", "0.3"])
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (200, error(-32602, "no private addresses")),
        (200, error(-32003, "not here")),
        (200, error(-32004, "not possible")),
        (200, error(-32603, "push-notification callback url is not allowed")),
        (500, {"error": "no webhook today"}),
        (400, error(-32000, "the webhook must use https")),
        (400, {"error": "pushNotificationConfig: private address"}),
        (403, {"error": "the callback URL is not on the list"}),
        (422, {"detail": "push notifications are off"}),
    ],
)
async def test_a_refused_webhook_is_left_out_and_the_work_done_once(
    status: int, said: dict[str, Any], dialect: str, streaming: bool
) -> None:
    ran: list[str] = []
    async with ready_hub(worker(ran, dialects=(dialect,), streaming=streaming), poll_interval_s=5.0) as t:
        fault = Status(status=status, body=json.dumps(said).encode())
        t.network.fault(fault, Match(origin=QUINN, where=with_webhook))
        for cid in ("c-1", "c-2"):
            await ask(t, cid)
            outcome = await t.hub.tracker.wait(cid)
            assert (outcome.kind, outcome.text) == (OutcomeKind.COMPLETED, "done")
        assert ran == ["c-1", "c-2"]
        assert [payload(told)["refused"] for told in t.events("agent.push.degraded")] == [True]
        assert [seen for seen in t.network.seen if with_webhook(seen.request) and b"c-2" in seen.request.body] == []


async def test_five_refused_webhooks_at_once_are_one_warning() -> None:
    ran: list[str] = []
    async with ready_hub(worker(ran), poll_interval_s=5.0) as t:
        t.network.fault(
            Status(status=200, body=json.dumps(error(-32602, "no")).encode()), Match(origin=QUINN, where=with_webhook)
        )
        for n in range(5):
            await ask(t, f"c-{n}")
        assert [(await t.hub.tracker.wait(f"c-{n}")).success for n in range(5)] == [True] * 5
        assert len(ran) == 5
        assert len(t.events("agent.push.degraded")) == 1


@pytest.mark.parametrize("status", [400, 413, 429, 502])
async def test_a_status_without_a_word_about_webhooks_or_with_possible_work_is_not_sent_again_without_it(
    status: int,
) -> None:
    ran: list[str] = []
    async with ready_hub(worker(ran), poll_interval_s=5.0, retry_waits_s=(1.0,)) as t:
        said = b'{"error": "no webhook today"}' if status >= 429 else b'{"error": "too long"}'
        t.network.fault(Status(status=status, body=said), Match(origin=QUINN, where=with_webhook))
        await ask(t, "c-1")
        assert not (await t.hub.tracker.wait("c-1")).success
        assert ran == []


async def test_a_refusal_is_remembered_over_another_read_of_the_card_and_not_over_a_changed_card() -> None:
    ran: list[str] = []
    async with ready_hub(worker(ran), poll_interval_s=5.0) as t:
        fault = t.network.fault(
            Status(status=200, body=json.dumps(error(-32003, "no")).encode()), Match(origin=QUINN, where=with_webhook)
        )
        for cid, hits in (("c-1", 1), ("c-2", 1)):
            await ask(t, cid)
            await t.hub.tracker.wait(cid)
            assert fault.hits == hits
            await t.hub.broker.refresh("quinn")
            await asyncio.sleep(0.1)

        def newer(chunk: bytes) -> bytes:
            return json.dumps({**json.loads(chunk), "version": "2.0.0"}).encode()

        t.network.fault(EditChunk(edit=newer), Match(origin=QUINN, path="*/.well-known/*"))
        await t.hub.broker.refresh("quinn")
        await asyncio.sleep(0.1)
        await ask(t, "c-3")
        await t.hub.tracker.wait("c-3")
        assert fault.hits == 2


@pytest.mark.parametrize("profile", PROFILES)
async def test_the_first_command_that_every_profile_prints_works_through_the_hub(profile: str) -> None:
    text = shlex.split(first_command(profile, "http://127.0.0.1:9000"))[-1]
    agent = profile_agent(profile)
    legacy = agent.settings.dialects == ("0.1",)
    async with ready_hub(agent, entries={profile: {"wire": "0.1"} if legacy else {}}) as t:
        await t.hub.submit(SkillRequest(correlation_id="c-1", text=text, targets=(profile,)))
        await asyncio.sleep(90)
        outcome = await t.ledger.outcome("c-1")
        asked = [question.correlation_id for question in t.hub.tracker.questions()]
        assert (outcome.kind if outcome else asked) in (OutcomeKind.COMPLETED, ["c-1"])
        assert t.events("agent.push.degraded") == []
        assert not (legacy and [seen for seen in t.network.seen if with_webhook(seen.request)])


@pytest.mark.parametrize("dialect", ["1.0", "0.3", "0.1"])
@pytest.mark.parametrize(
    ("key", "why"),
    [
        (None, "wants a credential and none is configured (HTTP 401 to POST /a2a)"),
        ("wrong", "refused the credential (HTTP 401 to POST /a2a)"),
    ],
)
async def test_a_401_without_a_configured_credential_is_reported_as_such_at_every_door(
    key: str | None, why: str, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    entry: dict[str, Any] = {"wire": dialect}
    if key is not None:
        monkeypatch.setenv("QUINN_KEY", key)
        entry["auth"] = AuthEntry(scheme="apiKey", credentials_env="QUINN_KEY")
    agent = worker(ran, dialects=(dialect,), api_key="right")
    async with ready_hub(agent, entries={"quinn": entry}) as t:
        with pytest.raises(AuthRefused) as by_url:
            await AgentClient(QUINN, runtime=t.runtime, dialect=dialect).send_task("hi")
        assert by_url.value.why.startswith("wants a credential and none is configured")
        (cid,) = await t.remote.submit({"text": "hi", "targets": ["quinn"]})
        outcome = await t.hub.tracker.wait(cid)
        assert (outcome.cause, outcome.blame) == (Cause.CREDENTIAL_REFUSED, Blame.CALLER)
        assert outcome.reason.startswith(f"the agent {why}: ")
        assert "in the header “X-API-Key”" in outcome.reason, "the card's words for the scheme"
        assert "WWW-Authenticate: ApiKey" in outcome.reason
        assert (await t.remote.task(cid))["reason"] == outcome.reason
        await asyncio.sleep(0.1)
        (row,) = (await t.remote.get("/health"))["agents"]
        assert (row["health"], f"the agent {row['why']}") == ("down", outcome.reason)
        assert ran == []
