"""The link in a question's notice: its page shows the question and takes one decision, whoever opened it before."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.applications import Starlette
from starlette.requests import Request as Received
from starlette.responses import Response
from starlette.routing import Route

from fleetsim.agent import Agent, SkillContext
from fleetsim.channels.channel import Channel, Destination, SinkKind
from fleetsim.channels.links import AnswerLinks, without_link
from fleetsim.events.fleet import ActionTaken
from fleetsim.events.request import QuestionAnswered, VetoWindowMoved
from fleetsim.model.task import DataPart, FilePart
from fleetsim.model.work import Answer, OutcomeKind, SkillRequest
from fleetsim.runtime.inbound import CHARGE_ADDRESS
from fleetsim.runtime.ports import Limits, ProgramResult, Reply, Request
from fleetsim.testbed.asgi import App
from fleetsim.testbed.runtime import MemoryPrograms
from tests.hub.local_hub import HUB, KEYS, LocalHub, local_hub, worker
from tests.hub.test_hub_channels import told
from tests.hub.test_people import PEOPLE_YAML, found
from tests.hub.test_question_notices import asked

BASE = "https://hub.example"
CHAT = "https://chat.example"
PAGER = Destination(kind=SinkKind.COMMAND, argv=("/usr/bin/page",))
OF_ANN = Destination(kind=SinkKind.COMMAND, argv=("/usr/bin/mail",), person="ann")
HOSTILE = "<script>alert(1)</script>\u202eevil\x1b[2J</pre><form action=https://evil.example>"
NEEDS_DATA = {"schema": {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "integer"}}}}


def public(*sinks: Destination, **settings: Any) -> dict[str, Any]:
    """The options of a hub at a public address, with one channel for questions."""
    channels = [Channel(channel_id="ops", sinks=sinks or (PAGER, OF_ANN))]
    return {"base_url": BASE, "channels": channels, "question_channels": ("ops",), **settings}


def links(t: LocalHub) -> list[str]:
    """The links in the notices that programs got: first the channel's, then Ann's."""
    return re.findall(rf"^{BASE}\S+$", "".join(told(t)), re.MULTILINE)


async def fetch(t: LocalHub, method: str, url: str, body: bytes = b"") -> Reply:
    """One exchange as a browser makes it, without a key; of a form it sends Origin: null."""
    headers = {"content-type": "application/x-www-form-urlencoded", "origin": "null"} if method == "POST" else {}
    limits = Limits(total_s=90.0, first_byte_s=90.0)
    sent = Request(method=method, url=url, headers=headers, body=body, limits=limits)
    return await t.runtime.transport.exchange(sent)


async def decide(t: LocalHub, url: str, decision: str, text: str = "") -> tuple[int, str]:
    reply = await fetch(t, "POST", url, urlencode({"decision": decision, "text": text}).encode())
    return reply.status, heading(reply)


def deciders(t: LocalHub, kind: type[QuestionAnswered | VetoWindowMoved]) -> list[tuple[str, str | None]]:
    return [(event.decision, event.decided_by) for event in t.hub.events.recent(limit=999) if isinstance(event, kind)]


def heading(reply: Reply) -> str:
    found = re.search("<h1>(.*)</h1>", reply.body.decode())
    assert found is not None
    return found[1]


def asking(skill_id: str = "ask", **options: Any) -> Agent:
    agent = Agent("quinn")

    @agent.skill(skill_id, **options)
    async def ask(task: SkillContext) -> str:
        await task.attach(DataPart(data={"note": HOSTILE, **NEEDS_DATA}), FilePart(raw="aGk=", filename=HOSTILE))
        message = await task.ask_message(HOSTILE)
        return json.dumps([part.data for part in message.parts if isinstance(part, DataPart)]) + message.text

    return agent


@pytest.mark.parametrize(("at", "by"), [(0, "channel ops"), (1, "ann")])
async def test_the_link_answers_once_in_the_name_of_its_person_or_channel(at: int, by: str) -> None:
    async with local_hub(worker(), **public()) as t:
        await asked(t)
        url = links(t)[at]
        page = (await fetch(t, "GET", url)).body.decode()
        assert "which branch?" in page
        assert f"Recorded as <strong>{by}</strong>" in page
        who = "Somebody on channel ops" if at == 0 else "ann"
        assert await decide(t, url, "answer", "main") == (
            200,
            f"{who} answered this question on 2026-01-01 at 00:01 UTC.",
        )
        assert (await t.hub.tracker.wait("c-1")).text == "going with main"
        assert deciders(t, QuestionAnswered) == [("answer", by)]
        assert [(e.by, e.action) for e in t.events("audit.") if isinstance(e, ActionTaken)] == [(by, "answer")]
        for other in links(t):
            assert await decide(t, other, "reject") == (
                409,
                f"{who} answered this question on 2026-01-01 at 00:01 UTC.",
            )
            replayed = await fetch(t, "GET", other)
            assert (replayed.status, "which branch?" in replayed.body.decode()) == (410, False)
        assert len(deciders(t, QuestionAnswered)) == 1


async def test_a_reject_by_link_cancels_the_task() -> None:
    async with local_hub(worker(), **public()) as t:
        await asked(t)
        status, said = await decide(t, links(t)[1], "reject")
        assert (status, said[:12]) == (200, "ann rejected")
        outcome = await t.hub.tracker.wait("c-1")
        assert outcome.kind is OutcomeKind.CANCELED


async def test_a_veto_by_link_needs_an_open_window_and_is_recorded() -> None:
    async with local_hub(asking("deploy", hitl="veto"), **public()) as t:
        await t.hub.submit(SkillRequest(correlation_id="c-1", text="go", skill="deploy", targets=("quinn",)))
        await asyncio.sleep(10)
        assert 'value="veto"' in (await fetch(t, "GET", links(t)[1])).body.decode()
        assert (await decide(t, links(t)[1], "veto"))[0] == 200
        await t.hub.tracker.wait("c-1")
        assert deciders(t, VetoWindowMoved)[-1] == ("vetoed", "ann")
    async with local_hub(worker(), **public()) as t:
        await asked(t)
        assert 'value="veto"' not in (await fetch(t, "GET", links(t)[1])).body.decode()
        assert (await decide(t, links(t)[1], "veto"))[0] == 409
        assert len(t.hub.tracker.questions()) == 1


async def test_prefetches_decide_nothing_and_the_page_runs_nothing_of_the_agents() -> None:
    async with local_hub(asking(), **public()) as t:
        await asked(t)
        for method in ("HEAD", "GET", "GET"):
            reply = await fetch(t, method, links(t)[0])
            assert reply.status == 200
        assert len(t.hub.tracker.questions()) == 1
        page = reply.body.decode()
        assert re.findall("<script|<form[^>]*>", page) == ['<form method="post" autocomplete="off">']
        assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;\N{REPLACEMENT CHARACTER}evil") == 4
        assert not re.search("[\u202e\x1b]", page)
        (saved,) = re.findall('<a download="([^"<>]*)" href="data:application/octet-stream;base64,aGk=">', page)
        assert saved.startswith("&lt;script&gt;")
        assert "&quot;amount&quot;: null" in page, "the form begins with the names of the data"
        headers = reply.headers
        assert (headers["referrer-policy"], headers["cache-control"]) == ("no-referrer", "no-store")
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "script" not in policy
        assert {"form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"} <= set(policy.split("; "))


async def test_an_answer_that_does_not_fit_keeps_the_question_open_and_the_text_in_the_form() -> None:
    async with local_hub(asking(), **public()) as t:
        await asked(t)
        url = links(t)[0]
        for text, status in (("", 422), ('{"amount": "much"}', 422), ('{"amount": ', 400), ("x" * 2**18, 413)):
            body = urlencode({"decision": "answer", "text": text}).encode()
            reply = await fetch(t, "POST", url, body)
            assert reply.status == status
            assert 'role="alert"' in reply.body.decode()
            assert text[:100].replace('"', "&quot;") in reply.body.decode() or status == 413
        for body in (b"", b"decision=approve&text=x", b"a=1&" * 50, b"\xff%ff"):
            assert (await fetch(t, "POST", url, body)).status in {400, 422}
        assert len(t.hub.tracker.questions()) == 1
        assert (await decide(t, url, "answer", '{"amount": 7}'))[0] == 200
        assert (await t.hub.tracker.wait("c-1")).text == '[{"amount": 7}]'


async def test_of_two_people_at_once_one_decides_and_the_other_sees_who() -> None:
    async with local_hub(worker(), **public()) as t:
        await asked(t)
        both = await asyncio.gather(decide(t, links(t)[0], "answer", "main"), decide(t, links(t)[1], "reject"))
        assert sorted(status for status, _ in both) == [200, 409]
        assert len({said for _, said in both}) == 1, "both see the one decision"
        assert len(deciders(t, QuestionAnswered)) == 1


async def test_an_expired_question_and_one_that_its_agent_left_say_so_in_one_sentence() -> None:
    async with local_hub(worker(), **public(question_ttl_s=7_200.0)) as t:
        await asked(t)
        await asyncio.sleep(8_000)
        assert len(links(t)) == 2 * 2, "the question and its reminder, and not the note that it expired"
        for url in links(t):
            reply = await fetch(t, "GET", url)
            assert (reply.status, heading(reply)) == (410, "Nobody answered this question in time.")
        await t.hub.submit(SkillRequest(correlation_id="c-2", text="go", skill="ask", targets=("quinn",)))
        await asyncio.sleep(10)
        await t.hub.tracker.cancel("c-2")
        await asyncio.sleep(60)
        reply = await fetch(t, "GET", links(t)[-1])
        assert (reply.status, heading(reply)) == (410, "This question has ended without an answer.")


async def test_every_wrong_link_gets_the_same_answer_and_is_charged_to_its_address() -> None:
    charged: list[float] = []

    def charge(work_s: float) -> float:
        charged.append(work_s)
        return 0.0

    def door(app: Any) -> App:
        async def charging(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "extensions": {CHARGE_ADDRESS: charge}}, receive, send)

        return charging

    async with local_hub(worker(), door=door, **public()) as t:
        question_id = await asked(t)
        url = links(t)[0]
        other_key = AnswerLinks({1: b"x" * 32}, current=1).link(BASE, question_id, "channel ops")
        made = AnswerLinks(KEYS.callback, current=1)
        nobody, unknown = (made.link(BASE, *claims) for claims in ((question_id, "bob"), ("q-0", "channel dev")))
        guesses = [url[:-1], url + "0", url[:-32] + "0" * 32, url.replace("/q-", "/q_"), f"{BASE}/answer/", url + "/x"]
        guesses += [other_key, nobody, unknown, f"{BASE}/answer/%ed%a0%80.{'0' * 32}", f"{BASE}/answer/{'a' * 4_000}"]
        for method in ("GET", "POST"):
            charged.clear()
            seen = {(reply.status, reply.body) for guess in guesses for reply in [await fetch(t, method, guess)]}
            assert len(seen) == 1
            assert next(iter(seen))[0] == 404
            assert len(charged) == len(guesses)
            assert all(charged)
        assert len(t.hub.tracker.questions()) == 1
        assert (await fetch(t, "GET", url)).status == 200


async def test_a_forwarded_link_decides_in_the_name_on_its_page_until_its_sink_is_removed() -> None:
    async with local_hub(worker(), **public()) as t:
        await asked(t)
        of_channel, of_ann = links(t)
        t.hub.channels.apply({"ops": Channel(channel_id="ops", sinks=(PAGER,))}, link_base=BASE)
        assert (await fetch(t, "GET", of_ann)).status == 404
        assert "do not pass it on" not in (await fetch(t, "GET", of_channel)).body.decode()
        t.hub.channels.apply({"ops": Channel(channel_id="ops", sinks=(OF_ANN,))}, link_base=BASE)
        assert (await fetch(t, "GET", of_channel)).status == 404
        assert "do not pass it on" in (await fetch(t, "GET", of_ann)).body.decode()


async def test_a_person_who_may_only_read_decides_by_no_link() -> None:
    async with local_hub(worker(), **public()) as t:
        await asked(t)
        t.hub.people = await found(PEOPLE_YAML.replace("vera", "ann"))
        assert (await decide(t, links(t)[1], "answer", "main"))[0] == 404
        assert (await decide(t, links(t)[0], "answer", "main"))[0] == 200


async def test_a_link_works_after_a_restart_and_below_the_path_of_a_proxy() -> None:
    behind: dict[str, Any] = {**public(), "base_url": f"{BASE}/fleet/"}
    async with local_hub(worker(), **behind) as t:
        await asked(t)
        url = links(t)[0]
        assert url.startswith(f"{BASE}/fleet/answer/q-")
        await t.restart()
        arrives = url.replace(f"{BASE}/fleet", HUB)  # the proxy removes its own path
        page = (await fetch(t, "GET", arrives)).body.decode()
        assert "action=" not in page, "the form goes to the address of the page"
        assert (await decide(t, arrives, "answer", "main"))[0] == 200


@pytest.mark.parametrize(
    "settings",
    [{"base_url": "http://hub.example"}, {"base_url": None}, {"question_link": "https://wiki.example/{questionId}"}],
)
async def test_without_a_public_address_or_with_a_fixed_link_no_link_answers(settings: Mapping[str, Any]) -> None:
    async with local_hub(worker(), **{**public(), **settings}) as t:
        question_id = await asked(t)
        assert links(t) == []
        url = AnswerLinks(KEYS.callback, current=1).link("http://hub.example:8080", question_id, "ann")
        assert (await fetch(t, "GET", url)).status == 404


async def test_every_kind_of_sink_but_the_log_gets_the_link_and_nobody_else_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not the ledger, the journal, a log, or any page of the API: their readers are not those of the channel."""
    caplog.set_level(logging.DEBUG)
    bodies: list[str] = []

    async def take(request: Received) -> Response:
        bodies.append((await request.body()).decode())
        return Response()

    def chat(kind: SinkKind) -> Destination:
        secret = b"s" * 32 if kind is SinkKind.WEBHOOK else b""
        return Destination(kind=kind, url=f"{CHAT}/in", secret=secret)

    chats = [chat(kind) for kind in (SinkKind.SLACK, SinkKind.DISCORD, SinkKind.WEBHOOK)]
    plain = [Destination(kind=kind) for kind in (SinkKind.LOG, SinkKind.DESKTOP)]
    async with local_hub(worker(), **public(*chats, *plain, PAGER, question_ttl_s=600.0)) as t:
        t.network.addresses["chat.example"] = ("93.184.216.34",)
        t.network.mount(CHAT, Starlette(routes=[Route("/in", take, methods=["POST"])]))
        question_id = await asked(t)
        (url,) = links(t)
        secret, programs = url.rpartition(".")[2], t.runtime.programs
        assert isinstance(programs, MemoryPrograms)
        assert [secret in body for body in bodies] == [True] * 3
        assert any("notify-send" in run.argv[0] and secret in run.argv[-1] for run in programs.runs)
        programs.result = ProgramResult(status=1, reason=f"ended with 1: cannot send {url[:-4]}")
        await asyncio.sleep(300)  # the reminder has the link, too
        assert [secret in body for body in bodies] == [True] * 6
        kept = [str(await t.ledger.notices(question_id)), str(await t.ledger.events(limit=10_000)), caplog.text]
        for path in ("/api/state", "/api/inbox", "/api/channels", "/api/journal", "/metrics", "/api/wire?agent=quinn"):
            kept.append((await t.http("GET", path)).body.decode())
        assert "ended with 1: cannot send " in kept[1], "the reason of the failure is kept"
        assert [secret[:20] in text for text in kept] == [False] * len(kept)


def test_the_secret_of_a_link_is_removed_though_its_end_is_cut() -> None:
    url = AnswerLinks(KEYS.callback, current=1).link(BASE, "q-1", "ann")
    for text in (url, url[:-9], url[len(BASE) :], f'{{"link": "{url}"}} refused'):
        assert url[-32:-9] not in without_link(text, url)


async def test_an_answer_by_command_and_one_by_link_are_decided_in_one_place() -> None:
    async with local_hub(worker(), **public()) as t:
        question_id = await asked(t)
        await t.hub.tracker.answer(Answer(question_id=question_id, text="main", by="<b>bob"))
        status, said = await decide(t, links(t)[0], "answer", "other")
        assert (status, said[:22]) == (409, "&lt;b&gt;bob answered ")
