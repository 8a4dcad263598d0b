"""Delivery of notices on virtual time: order, retries, limits, and independence of the sinks."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleetsim.channels.channel import Channel, Destination, SinkKind
from fleetsim.channels.delivery import Channels
from fleetsim.channels.notice import Notice, NoticeKind
from fleetsim.events.fleet import NoticeDelivered, NoticeFailed
from fleetsim.events.log import EventLog
from fleetsim.events.request import Level
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.errors import UnknownTarget
from fleetsim.runtime.ports import Program, ProgramResult, Proxy, Runtime, TlsFiles, WayOut
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.webhook import verify
from fleetsim.testbed.loop import START
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import MemoryPrograms
from tests.runtime.authority import Authority
from tests.runtime.proxies import connect_proxy
from tests.runtime.rawserver import Peer, raw_server

CHAT = "https://chat.example"
CANARY = "canary-path"
SLACK = Destination(kind=SinkKind.SLACK, url=f"{CHAT}/hooks/{CANARY}")
PAGE = Destination(kind=SinkKind.COMMAND, argv=("/usr/bin/page", "--token=canary-argument"), timeout_s=3)
LOG = Destination(kind=SinkKind.LOG)


@dataclass
class Chat:
    """A receiver of chat webhooks: it records each message with its time, and numbers its responses."""

    answer: Callable[[int], int] = lambda n: 200
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    at: list[float] = field(default_factory=list)

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{rest:path}", self._take, methods=["POST"])])

    async def _take(self, request: Request) -> Response:
        self.at.append(asyncio.get_running_loop().time())
        self.bodies.append(await request.body())
        self.headers.append(dict(request.headers))
        return Response(status_code=self.answer(len(self.at)))

    @property
    def texts(self) -> list[str]:
        return [json.loads(body)["text"] for body in self.bodies]


def channel(*sinks: Destination, channel_id: str = "ops", agents: tuple[str, ...] = ()) -> Channel:
    return Channel(channel_id=channel_id, sinks=sinks, agents=agents)


def noticed(headline: str = "news", **more: Any) -> Notice:
    return Notice(kind="run", at=START, tone=NoticeKind.GOOD, headline=headline, correlation_id="c-1", **more)


@dataclass
class Bench:
    channels: Channels
    events: EventLog
    chat: Chat
    programs: MemoryPrograms
    network: MemoryNetwork

    def told(self) -> list[tuple[str, str, str]]:
        found = self.events.recent()
        return [
            (type(e).__name__, e.sink, getattr(e, "reason", ""))
            for e in found
            if isinstance(e, NoticeDelivered | NoticeFailed)
        ]


@asynccontextmanager
async def bench(
    runtime: Runtime, network: MemoryNetwork, *channels: Channel, answer: Callable[[int], int] = lambda n: 200
) -> AsyncIterator[Bench]:
    chat = Chat(answer)
    network.mount(CHAT, chat.app())
    events = EventLog(runtime.clock)
    assert isinstance(runtime.programs, MemoryPrograms)
    async with network, Channels(runtime, events, {c.channel_id: c for c in channels}) as made:
        yield Bench(made, events, chat, runtime.programs, network)


async def test_every_sink_of_a_channel_gets_a_notice_once(runtime: Runtime, network: MemoryNetwork) -> None:
    async with bench(runtime, network, channel(SLACK, PAGE)) as b:
        b.channels.send("ops", noticed(text="all well"))
        await asyncio.sleep(1)
        assert b.chat.texts == ["`✓ news`\n```\nall well\n```"]
        assert [run.stdin for run in b.programs.runs] == ["✓ news\n\nall well\n".encode()]
        assert sorted(b.told()) == [
            ("NoticeDelivered", "command /usr/bin/page", ""),
            ("NoticeDelivered", "slack chat.example", ""),
        ]
        assert {event.correlation_id for event in b.events.recent()} == {"c-1"}


async def test_a_command_gets_its_configured_arguments_and_none_of_our_environment(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    async with bench(runtime, network, channel(PAGE)) as b:
        b.channels.send("ops", noticed("$(reboot) ; `reboot`"))
        await asyncio.sleep(1)
        (run,) = b.programs.runs
        assert (run.argv, run.seconds, run.passed) == (PAGE.argv, 3, ())


async def test_a_notification_goes_to_the_desktop(runtime: Runtime, network: MemoryNetwork) -> None:
    async with bench(runtime, network, channel(Destination(kind=SinkKind.DESKTOP))) as b:
        b.channels.send("ops", noticed(text="all well"))
        await asyncio.sleep(1)
        (run,) = b.programs.runs
        assert run.argv[-2:] == ("✓ news", "all well")


async def test_the_log_has_a_line_for_each_notice(
    runtime: Runtime, network: MemoryNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with bench(runtime, network, channel(LOG)) as b:
        b.channels.send("ops", noticed(text="all\nwell"))
        await asyncio.sleep(1)
    assert "channel ops: ✓ news | all well" in [record.getMessage() for record in caplog.records]


async def test_a_signed_webhook_verifies_and_every_attempt_has_the_same_id(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    hook = Destination(kind=SinkKind.WEBHOOK, url=f"{CHAT}/in", secret=b"s" * 32)
    async with bench(runtime, network, channel(hook), answer=lambda n: 503 if n == 1 else 200) as b:
        b.channels.send("ops", noticed())
        await asyncio.sleep(10)
        now = runtime.clock.now().timestamp()
        ids = [
            verify(headers.items(), b"s" * 32, now, body)
            for headers, body in zip(b.chat.headers, b.chat.bodies, strict=True)
        ]
        assert len(ids) == 2
        assert ids[0] is not None
        assert len(set(ids)) == 1
        assert json.loads(b.chat.bodies[0])["data"]["channel"] == "ops"


async def test_an_unreachable_chat_gets_the_notices_later_and_in_order(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    async with bench(runtime, network, channel(SLACK), answer=lambda n: 500 if n <= 2 else 200) as b:
        for n in range(3):
            b.channels.send("ops", noticed(f"news {n}"))
        await asyncio.sleep(60)
        assert b.chat.texts == [f"`✓ news {n}`" for n in (0, 0, 0, 1, 2)]
        (row,) = b.channels.rows()[0].sinks
        assert (row.delivered, row.failed, row.failing_since) == (3, 0, None)


async def test_a_failing_sink_is_shown_and_delays_no_other(runtime: Runtime, network: MemoryNetwork) -> None:
    async with bench(runtime, network, channel(SLACK, PAGE), answer=lambda n: 403) as b:
        b.channels.send("ops", noticed())
        await asyncio.sleep(1)
        assert len(b.programs.runs) == 1
        first, second = b.channels.rows()[0].sinks
        assert (first.sink, first.failed, first.last_error) == ("slack chat.example", 1, "HTTP 403")
        assert first.failing_since == first.last_at is not None
        assert (second.delivered, second.failed) == (1, 0)
        failed = [event for event in b.events.recent() if isinstance(event, NoticeFailed)]
        assert [(e.level, e.channel, e.attempts, e.reason) for e in failed] == [(Level.WARN, "ops", 1, "HTTP 403")]


async def test_a_sink_that_works_again_is_not_shown_as_failing(runtime: Runtime, network: MemoryNetwork) -> None:
    async with bench(runtime, network, channel(PAGE)) as b:
        b.programs.result = ProgramResult(status=1, reason="ended with 1")
        b.channels.send("ops", noticed())
        await asyncio.sleep(1)
        (row,) = b.channels.rows()[0].sinks
        assert (row.failed, row.last_error, row.failing_since is None) == (1, "ended with 1", False)
        began = row.failing_since
        b.channels.send("ops", noticed())
        await asyncio.sleep(1)
        (row,) = b.channels.rows()[0].sinks
        assert (row.failed, row.failing_since) == (2, began)
        b.programs.result = ProgramResult(status=0)
        b.channels.send("ops", noticed())
        await asyncio.sleep(1)
        (row,) = b.channels.rows()[0].sinks
        assert (row.delivered, row.failed, row.failing_since) == (1, 2, None)


@pytest.mark.parametrize(
    "sink", [SLACK, PAGE, LOG, Destination(kind=SinkKind.DESKTOP)], ids=lambda sink: sink.kind.value
)
async def test_a_notice_delivered_at_once_took_one_attempt(
    runtime: Runtime, network: MemoryNetwork, sink: Destination
) -> None:
    async with bench(runtime, network, channel(sink)) as b:
        (row,) = b.channels.rows()[0].sinks
        assert (row.delivered, row.failed, row.left_out, row.waiting, row.last_at) == (0, 0, 0, 0, None)
        b.channels.send("ops", noticed())
        await asyncio.sleep(1)
        assert [(e.channel, e.attempts) for e in b.events.recent() if isinstance(e, NoticeDelivered)] == [("ops", 1)]
        (row,) = b.channels.rows()[0].sinks
        assert (row.delivered, row.failed, row.left_out, row.waiting) == (1, 0, 0, 0)
        assert row.last_at is not None


async def test_an_unexpected_error_is_one_failed_attempt(
    runtime: Runtime, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(programs: MemoryPrograms, program: Program) -> ProgramResult:
        raise LookupError("of our own making")

    monkeypatch.setattr(MemoryPrograms, "run", broken)
    async with bench(runtime, network, channel(PAGE)) as b:
        b.channels.send("ops", noticed())
        await asyncio.sleep(1)
        failed = [event for event in b.events.recent() if isinstance(event, NoticeFailed)]
        assert [(e.attempts, e.reason) for e in failed] == [(1, "LookupError")]


async def test_a_failed_command_is_not_run_again(runtime: Runtime, network: MemoryNetwork) -> None:
    async with bench(runtime, network, channel(PAGE)) as b:
        b.programs.result = ProgramResult(status=1, reason="ended with 1")
        b.channels.send("ops", noticed())
        await asyncio.sleep(60)
        assert len(b.programs.runs) == 1


async def test_five_notices_leave_at_once_then_one_every_two_seconds_and_past_a_hundred_the_oldest_is_dropped(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    async with bench(runtime, network, channel(SLACK)) as b:
        for n in range(110):
            b.channels.send("ops", noticed(f"news {n}"))
        await asyncio.sleep(1)
        assert len(b.chat.at) == 5
        (row,) = b.channels.rows()[0].sinks
        assert (row.left_out, row.waiting) == (10, 95)
        await asyncio.sleep(6)
        assert len(b.chat.at) == 8
        await asyncio.sleep(200)
        assert b.chat.texts == [f"`✓ news {n}`" for n in range(10, 110)]


async def test_notices_behind_a_dropped_one_under_way_are_delivered(runtime: Runtime, network: MemoryNetwork) -> None:
    async with bench(runtime, network, channel(PAGE)) as b:
        b.programs.took_s = 1.0
        b.channels.send("ops", noticed("news 0"))
        await asyncio.sleep(0.5)
        for n in range(1, 101):
            b.channels.send("ops", noticed(f"news {n}"))
        (row,) = b.channels.rows()[0].sinks
        assert (row.left_out, row.waiting) == (1, 100)
        await asyncio.sleep(200)
        assert [run.stdin for run in b.programs.runs] == [f"✓ news {n}\n".encode() for n in range(101)]


async def test_a_hub_that_lost_its_lease_stops_a_notice_that_it_tries_again_and_sends_the_rest(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    chat, events = Chat(lambda n: 503 if n == 1 else 200), EventLog(runtime.clock)
    network.mount(CHAT, chat.app())
    async with (
        network,
        open_ledger(None, clock=runtime.clock, storage="inline") as ledger,
        Channels(runtime, events, {"ops": channel(SLACK)}, ledger=ledger) as channels,
    ):
        await channels.keep("ops", noticed("a question"), subject="q-1", until=START + timedelta(days=1))
        await asyncio.sleep(0.5)
        channels.send("ops", noticed("the rest"))
        channels.drop_kept()
        await asyncio.sleep(600)
    assert chat.texts == ["`✓ a question`", "`✓ the rest`"]


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.5", "169.254.169.254", "::1"])
async def test_a_name_with_a_private_address_is_called_only_if_configured_as_internal(
    runtime: Runtime, network: MemoryNetwork, address: str
) -> None:
    inner = Destination(kind=SinkKind.SLACK, url=SLACK.url, internal=True)
    async with bench(runtime, network, channel(SLACK), channel(inner, channel_id="inner")) as b:
        network.addresses["chat.example"] = (address,)
        b.channels.send("ops", noticed("outside"))
        b.channels.send("inner", noticed("inside"))
        await asyncio.sleep(60)
        local = address in {"127.0.0.1", "10.0.0.5", "::1"}
        assert b.chat.texts == (["`✓ inside`"] if local else [])
        failed = {e.channel: e.reason for e in b.events.recent() if isinstance(e, NoticeFailed)}
        assert "ops" in failed
        assert ("inner" in failed) is not local


async def test_a_redirect_of_a_sink_is_not_followed(runtime: Runtime, network: MemoryNetwork) -> None:
    async with bench(runtime, network, channel(SLACK), answer=lambda n: 307) as b:
        b.channels.send("ops", noticed())
        await asyncio.sleep(60)
        assert [reason for _, _, reason in b.told()] == ["HTTP 307"]


async def test_a_notice_for_an_unknown_channel_is_dropped(runtime: Runtime, network: MemoryNetwork) -> None:
    async with bench(runtime, network, channel(SLACK)) as b:
        b.channels.send("1469080556720623699", noticed())
        await asyncio.sleep(1)
        assert b.told() == []


async def test_an_agent_cannot_use_a_channel_that_does_not_list_it(runtime: Runtime, network: MemoryNetwork) -> None:
    async with bench(runtime, network, channel(SLACK, agents=("quinn",))) as b:
        b.channels.send("ops", noticed("from ava"), owner="ava")
        b.channels.send("ops", noticed("from quinn"), owner="quinn")
        await asyncio.sleep(1)
        assert b.chat.texts == ["`✓ from quinn`"]
        assert b.told()[0][:2] == ("NoticeFailed", "")
        assert [event.attempts for event in b.events.recent() if isinstance(event, NoticeFailed)] == [0]


async def test_a_change_of_the_file_applies_to_the_next_notice(runtime: Runtime, network: MemoryNetwork) -> None:
    async with bench(runtime, network, channel(SLACK)) as b:
        b.channels.send("ops", noticed("one"))
        await asyncio.sleep(1)
        b.channels.apply({"ops": channel(SLACK, PAGE), "new": channel(LOG, channel_id="new")})
        b.channels.send("ops", noticed("two"))
        await asyncio.sleep(1)
        assert [row.delivered for row in b.channels.rows()[0].sinks] == [2, 1]
        b.channels.apply({})
        b.channels.send("ops", noticed("three"))
        await asyncio.sleep(60)
        assert len(b.chat.at) == 2
        assert b.channels.rows() == ()


async def test_a_change_of_the_file_does_not_touch_the_queue_of_a_sink_that_stays(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    async with bench(runtime, network, channel(PAGE, LOG)) as b:
        b.programs.took_s = 1.0
        b.channels.send("ops", noticed("one"))
        b.channels.send("ops", noticed("two"))
        await asyncio.sleep(0.5)
        b.channels.apply({"ops": channel(PAGE), "new": channel(LOG, channel_id="new")})
        await asyncio.sleep(5)
        assert [run.stdin for run in b.programs.runs] == ["✓ one\n".encode(), "✓ two\n".encode()]
        assert [row.delivered for row in b.channels.rows()[0].sinks] == [2]


async def test_notices_for_a_removed_sink_are_not_sent(runtime: Runtime, network: MemoryNetwork) -> None:
    async with bench(runtime, network, channel(SLACK), answer=lambda n: 500) as b:
        b.channels.send("ops", noticed())
        await asyncio.sleep(0.5)
        b.channels.apply({})
        await asyncio.sleep(60)
        assert len(b.chat.at) == 1


async def test_a_test_reports_the_result_of_one_attempt_for_each_sink(runtime: Runtime, network: MemoryNetwork) -> None:
    async with bench(runtime, network, channel(SLACK, PAGE), answer=lambda n: 500) as b:
        results = await b.channels.test("ops")
        assert [(r.sink, r.attempts, r.reason) for r in results] == [
            ("slack chat.example", 1, "HTTP 500"),
            ("command /usr/bin/page", 1, ""),
        ]
        assert b"test of channel ops" in b.programs.runs[0].stdin
        b.programs.took_s = 600
        slow = (await b.channels.test("ops"))[1]
        assert (slow.sink, slow.attempts, slow.reason) == ("command /usr/bin/page", 1, "no end within 12 s")


async def test_a_test_of_an_unknown_channel_names_the_nearest(runtime: Runtime, network: MemoryNetwork) -> None:
    async with bench(runtime, network, channel(LOG)) as b:
        with pytest.raises(UnknownTarget, match="ops"):
            await b.channels.test("opps")


async def test_leaving_waits_a_moment_for_notices_under_way_and_logs_the_lost_ones(
    runtime: Runtime, network: MemoryNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(runtime, network, channel(PAGE)) as b:
        b.programs.took_s = 1.0
        b.channels.send("ops", noticed("soon"))
        b.programs.took_s = 2.0
    assert "not delivered" not in caplog.text
    began = asyncio.get_running_loop().time()
    async with Channels(runtime, EventLog(runtime.clock), {"ops": channel(PAGE)}) as channels:
        b.programs.took_s = 600.0
        channels.send("ops", noticed("late"))
        channels.send("ops", noticed("later"))
    assert asyncio.get_running_loop().time() - began == pytest.approx(3.0, abs=0.1)
    assert "2 notices" in caplog.text
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_interrupted_leaving_leaves_no_notice_under_way(
    runtime: Runtime, network: MemoryNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(runtime, network) as b:
        b.programs.took_s = 600.0

        async def leave() -> None:
            async with Channels(runtime, EventLog(runtime.clock), {"ops": channel(PAGE)}) as channels:
                channels.send("ops", noticed("late"))

        leaving = asyncio.create_task(leave())
        await asyncio.sleep(1)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert leaving.cancelled()
        assert "1 notices" in caplog.text
        assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("channels:")] == []


async def test_no_address_and_no_argument_is_in_a_log_an_event_or_a_row(
    runtime: Runtime, network: MemoryNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hook = Destination(kind=SinkKind.WEBHOOK, url=f"{CHAT}/{CANARY}", secret=b"canary-secret-canary-secret-")
    async with bench(runtime, network, channel(SLACK, hook, PAGE, LOG), answer=lambda n: 500) as b:
        b.channels.send("ops", noticed())
        await b.channels.test("ops")
        await asyncio.sleep(60)
        assert len(b.chat.at) == 10
        assert "canary" not in f"{b.events.recent()} {b.channels.rows()}"
    assert "canary" not in caplog.text


@pytest.mark.sockets
async def test_an_external_channel_uses_the_fleets_proxy_and_an_internal_one_does_not() -> None:
    async with running_runtime() as runtime, connect_proxy({}, answer=b"HTTP/1.1 502 Bad Gateway\r\n\r\n") as proxy:
        events = EventLog(runtime.clock)
        inside = Destination(kind=SinkKind.SLACK, url=f"{proxy.url}/hook", internal=True)
        both = {"ops": channel(SLACK), "inside": channel(inside, channel_id="inside")}
        async with Channels(runtime, events, both, WayOut(proxy=Proxy(url=proxy.url))) as channels:
            for name in both:
                await channels.test(name)
        assert sorted(head.split("\r\n")[0] for head in proxy.asked) == [
            "CONNECT chat.example:443 HTTP/1.1",
            "POST /hook HTTP/1.1",
        ]


@pytest.mark.sockets
async def test_a_channel_with_a_private_certificate_is_trusted_by_the_fleets_authorities(tmp_path: Path) -> None:
    async def take(peer: Peer) -> None:
        await peer.reply()

    authority = Authority(tmp_path)
    async with running_runtime() as runtime, raw_server(take, tls=authority.server()) as server:
        inside = {"ops": channel(Destination(kind=SinkKind.SLACK, url=f"{server.url}/hook", internal=True))}
        for ca, arrived in {"": 0, authority.ca: 1}.items():
            way = WayOut(tls=TlsFiles(ca=ca))
            async with Channels(runtime, EventLog(runtime.clock), inside, way) as channels:
                await channels.test("ops")
            assert len(server.requests) == arrived
