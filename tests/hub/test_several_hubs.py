"""Two hubs on one real PostgreSQL: either serves any request, and one takes over from the other. ``make pg``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import asyncpg
import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.channels.channel import Channel, Destination, SinkKind
from fleetsim.channels.links import AnswerLinks
from fleetsim.cli.dashboard import OwnSource
from fleetsim.client.hub_client import HubClient
from fleetsim.dashboard.feed import HubFeed
from fleetsim.dashboard.view import ViewBuilder
from fleetsim.fleet.settings import AgentEntry, FleetConfig, FleetSettings, RetryPolicy, SkillEntry
from fleetsim.health.webhooks import PushState
from fleetsim.hub.hub import Hub
from fleetsim.hub.keys import HubKeys
from fleetsim.hub.server import running_hub
from fleetsim.ledger.place import Place
from fleetsim.ledger.postgres.ledger import open_postgres
from fleetsim.model.errors import FleetsimError, HttpRefused
from fleetsim.model.work import SkillRequest
from fleetsim.request.limits import Limit
from fleetsim.runtime.ports import Limits, Request, Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.server import listen
from tests.postgres import Server

pytestmark = [pytest.mark.pg, pytest.mark.sockets]

SOON_S = 20.0


def agent_of(calls: list[str], hubs: tuple[str, ...]) -> Agent:
    agent = Agent("quinn", allow_webhook=[hub.removeprefix("http://") for hub in hubs], streaming=False)

    @agent.skill("echo")
    async def echo(task: SkillContext) -> str:
        calls.append(task.text)
        return f"you said {task.text}"

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        calls.append(task.text)
        return f"going with {await task.ask('which branch?')}"

    @agent.skill("ponder")
    async def ponder(task: SkillContext) -> str:
        calls.append(task.text)
        await asyncio.sleep(600)
        return "at last"

    return agent


@dataclass
class Pair:
    """Two hubs, of which each gives agents the other's address for webhooks. ``leave`` stops the first."""

    hubs: tuple[Hub, Hub]
    remote: tuple[HubClient, HubClient]
    calls: list[str]
    database: asyncpg.Connection
    leave: Callable[[], Any]

    async def until(self, holds: Callable[[], Any]) -> Any:
        async with asyncio.timeout(SOON_S):
            while not (result := await holds()):  # noqa: ASYNC110 - the other hub has no event here
                await asyncio.sleep(0.02)
            return result

    async def asked(self, at: int) -> dict[str, Any]:
        """The open question, as one hub lists it."""
        (question,) = await self.until(lambda: self._questions(at))
        return dict(question)

    async def _questions(self, at: int) -> list[Any]:
        return list((await self.remote[at].get("/inbox"))["questions"])

    async def ended(self, at: int, cid: str) -> dict[str, Any]:
        async with asyncio.timeout(SOON_S):
            while (row := await self.remote[at].task(cid, wait_s=5))["open"]:
                pass
        return dict(row)

    async def outcomes(self) -> int:
        return int(await self.database.fetchval("SELECT count(*) FROM outcomes"))


@asynccontextmanager
async def pair(
    server: Server,
    schema: str,
    *,
    lease_s: float = 30.0,
    poll_s: float = 30.0,
    agent: Callable[..., Agent] = agent_of,
    others: tuple[AgentEntry, ...] = (),
    push: Literal["auto", "set"] = "auto",
) -> AsyncIterator[Pair]:
    """``others`` are agents beside quinn. ``poll_s``: after a hub has left, webhooks at its address do not arrive, and
    polls must find the end."""
    place = Place.read(server.url(schema), password=True)
    async with AsyncExitStack() as stack:
        runtime: Runtime = await stack.enter_async_context(running_runtime(seed=1))
        keys = HubKeys.fresh(runtime.ids)
        listeners = [stack.enter_context(listen("127.0.0.1", 0)) for _ in range(2)]
        urls = tuple(f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners)
        calls: list[str] = []
        agent_url = await stack.enter_async_context(agent(calls, urls).serving())
        hubs: list[Hub] = []
        stacks: list[AsyncExitStack] = []
        for number, listener in enumerate(listeners):
            settings = FleetSettings(base_url=urls[1 - number], poll_interval_s=poll_s, lease_s=lease_s)
            quinn = AgentEntry(name="quinn", url=f"{agent_url}/a2a", push=push)
            config = FleetConfig(agents=(quinn, *others), settings=settings)
            ledger = open_postgres(place, name=f"hub {number}", lease_s=lease_s)
            of_hub = await stack.enter_async_context(AsyncExitStack())
            stacks.append(of_hub)
            hubs.append(
                await of_hub.enter_async_context(
                    running_hub(config, runtime, ledger, opens_ledger=True, keys=keys, listener=listener)
                )
            )
        remote = [HubClient(url, api_key=keys.api_key, runtime=runtime) for url in urls]
        database = await asyncpg.connect(server.url().partition("?")[0], server_settings={"search_path": schema})
        stack.push_async_callback(database.close)
        yield Pair((hubs[0], hubs[1]), (remote[0], remote[1]), calls, database, stacks[0].aclose)


async def test_a_webhook_at_the_other_hub_ends_the_request(server: Server) -> None:
    async with pair(server, "webhook") as fleet:
        (cid,) = await fleet.remote[0].submit({"text": "hi", "skill": "echo"})
        for at in (0, 1):
            row = await fleet.ended(at, cid)
            assert (row["state"], row["text"]) == ("completed", "you said hi")
        assert await fleet.outcomes() == 1
        assert fleet.hubs[1].webhooks.states["quinn"] is PushState.WORKING


async def test_the_first_webhook_of_a_task_is_taken_at_the_other_hub_however_slow_the_record_of_the_task_is(
    server: Server,
) -> None:
    async with pair(server, "first", push="set") as fleet:
        await fleet.database.execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_sleep(1); RETURN NEW; END $$;"
            "CREATE TRIGGER slow BEFORE UPDATE ON requests FOR EACH ROW"
            " WHEN (OLD.task_id IS NULL AND NEW.task_id IS NOT NULL) EXECUTE FUNCTION slow()"
        )
        await fleet.remote[0].submit({"text": "hi", "skill": "ponder"})
        other = fleet.hubs[1].webhooks
        await fleet.until(lambda: asyncio.sleep(0, other.states.get("quinn") is PushState.WORKING))
        assert other.counts(fleet.hubs[1].runtime.clock.now(), 60)["refused"] == 0


async def test_another_hub_keeps_the_pause_and_the_fallback_of_a_request_that_it_takes_over(server: Server) -> None:
    entry = SkillEntry(name="echo", retry=RetryPolicy(attempts=1, waits=(5.0,)), fallback=("quinn",))
    gone = AgentEntry(name="gone", url="http://127.0.0.1:9/a2a", skills=(entry,))
    async with pair(server, "policy", others=(gone,)) as fleet:
        (cid,) = await fleet.remote[0].submit({"text": "hi", "skill": "echo", "targets": ["gone"]})
        await asyncio.sleep(1)
        await fleet.leave()
        row = await fleet.ended(1, cid)
        assert (row["agent"], row["text"], row["durationMs"] > 3_500) == ("quinn", "you said hi", True)
        assert fleet.calls == ["hi"]
        assert await fleet.database.fetchval("SELECT agent FROM requests") == "quinn"


async def test_two_hubs_at_once_admit_exactly_as_many_requests_as_a_limit_has_and_a_take_over_settles_them(
    server: Server,
) -> None:
    async with pair(server, "limits", lease_s=5.0) as fleet:
        for hub in fleet.hubs:
            hub.fleet.limits.limits = {"few": Limit(requests=7), "money": Limit(usd=10.0, reserve=1.0)}
        sends = [fleet.remote[n % 2].submit({"text": f"{n}", "skill": "ponder"}) for n in range(40)]
        told = await asyncio.gather(*sends, return_exceptions=True)
        refused = [error.status for error in told if isinstance(error, HttpRefused)]
        assert refused == [429] * 33
        assert await fleet.database.fetchval("SELECT count(*) FROM requests") == 7
        ids = [answer[0] for answer in told if not isinstance(answer, BaseException)]
        await fleet.leave()
        for cid in ids:
            await fleet.remote[1].cancel(cid)
            await fleet.ended(1, cid)
        few, money = await fleet.remote[1].limits()
        assert (few.used, few.left, money.used, money.reserved) == (7, 0, 7, 0)


async def test_a_limit_asks_once_for_the_requests_of_two_hubs_and_a_take_over_keeps_question_and_requests(
    server: Server,
) -> None:
    async with pair(server, "room", lease_s=5.0) as fleet:
        for hub in fleet.hubs:
            hub.fleet.limits.limits = {"few": Limit(requests=1, at_limit="ask")}
        sends = [fleet.remote[n % 2].submit({"text": f"{n}", "skill": "echo"}) for n in range(6)]
        ids = [cid for (cid,) in await asyncio.gather(*sends)]
        question = await fleet.asked(1)
        await asyncio.sleep(6)
        assert await fleet.database.fetchval("SELECT count(*) FROM questions") == 1
        await fleet.leave()
        assert await fleet.asked(1) == question
        await fleet.remote[1].answer(question["questionId"], "5")
        for cid in ids:
            assert (await fleet.ended(1, cid))["state"] == "completed"
        (few,) = await fleet.remote[1].limits()
        assert (few.used, few.most, sorted(fleet.calls)) == (6, 6, list("012345"))
        assert await fleet.database.fetchval("SELECT count(*) FROM questions") == 1


async def test_a_question_is_listed_and_answered_once_at_the_other_hub(server: Server) -> None:
    async with pair(server, "answer") as fleet:
        (cid,) = await fleet.remote[0].submit({"text": "go", "skill": "ask"})
        question = await fleet.asked(1)
        assert question == await fleet.asked(0)
        shown = await fleet.remote[1].task(cid)
        assert (shown["questionId"], shown["state"]) == (question["questionId"], "input-required")
        await fleet.remote[1].answer(question["questionId"], "main")
        with pytest.raises(FleetsimError):
            await fleet.remote[0].answer(question["questionId"], "other")
        assert (await fleet.ended(1, cid))["text"] == "going with main"
        assert fleet.calls == ["go"]
        assert await fleet.outcomes() == 1


async def test_a_link_of_one_hub_decides_once_at_both_and_each_says_who(server: Server) -> None:
    async with pair(server, "link") as fleet:
        ops = Channel(channel_id="ops", sinks=(Destination(kind=SinkKind.DESKTOP, person="ann"),))
        for hub in fleet.hubs:
            hub.channels.apply({"ops": ops}, link_base="https://hub.example")
        (cid,) = await fleet.remote[0].submit({"text": "go", "skill": "ask"})
        question = await fleet.asked(1)
        path = AnswerLinks(fleet.hubs[0].keys.callback, current=1).link("", question["questionId"], "ann")
        transport = fleet.remote[0].runtime.transport
        urls = [remote.url + path for remote in fleet.remote]
        pages = [await transport.exchange(Request(method="GET", url=url)) for url in urls]
        assert [(page.status, b"which branch?" in page.body) for page in pages] == [(200, True)] * 2
        forms = [Request(method="POST", url=url, body=b"decision=answer&text=main") for url in urls]
        said = await asyncio.gather(*map(transport.exchange, forms))
        assert sorted(reply.status for reply in said) == [200, 409]
        assert all(b"ann answered this question" in reply.body for reply in said)
        assert (await fleet.ended(1, cid))["text"] == "going with main"
        assert fleet.calls == ["go"]


async def test_a_cancel_at_the_other_hub_reaches_the_owner(server: Server) -> None:
    async with pair(server, "cancel") as fleet:
        (cid,) = await fleet.remote[0].submit({"text": "long", "skill": "ponder"})
        (row,) = (await fleet.remote[1].tasks())["open"]
        assert row["correlationId"] == cid
        await fleet.remote[1].cancel(cid)
        assert (await fleet.ended(1, cid))["state"] == "canceled"


async def test_both_hubs_have_the_same_health_and_the_same_events_in_one_order(server: Server) -> None:
    async with pair(server, "events") as fleet:

        async def submit(at: int) -> None:
            for number in range(10):
                await fleet.remote[at].submit({"text": f"{at}.{number}", "skill": "echo"})

        await asyncio.gather(submit(0), submit(1))

        async def counted() -> bool:
            totals = [(await client.get("/health"))["totalOutcomes"] for client in fleet.remote]
            return totals == [20, 20]

        await fleet.until(counted)
        streams = []
        for remote in fleet.remote:
            seen: list[tuple[int, str]] = []
            async with asyncio.timeout(SOON_S):
                async for event in remote.events(after=0):
                    if not event["topic"].startswith("hub."):
                        seen.append((event["seq"], event["topic"]))
                    if sum(topic.startswith("autonomous.outcome") for _, topic in seen) == 20:
                        break
            streams.append(seen)
        async with asyncio.timeout(SOON_S):
            journals = [await remote.get("/journal") for remote in fleet.remote]
        assert journals[0][:20] == journals[1][:20], "a hub that joined later has the whole journal too"
        first, second = streams
        assert [seq for seq, _ in first] == sorted({seq for seq, _ in first})
        both = min(len(first), len(second))
        assert first[:both] == second[:both]


async def test_each_hub_lists_all_hubs_with_their_work_and_leases(server: Server) -> None:
    async with pair(server, "members") as fleet:
        await fleet.remote[0].submit({"text": "long", "skill": "ponder"})
        for at in (0, 1):
            rows = (await fleet.remote[at].get("/health"))["hubs"]
            assert [(row["name"], row["owned"], row["here"]) for row in rows] == [
                ("hub 0", 1, at == 0),
                ("hub 1", 0, at == 1),
            ]
            assert all(0 <= row["leaseAgeS"] < row["leaseS"] == 30 for row in rows)


async def test_the_screen_of_each_hub_has_the_events_and_the_hubs_of_the_fleet(server: Server) -> None:
    async with pair(server, "screen") as fleet:
        for at in (0, 1):
            waiting = {(await client.submit({"text": "hi", "skill": "echo"}))[0] for client in fleet.remote}
            source, builder = OwnSource(fleet.hubs[at]), ViewBuilder()
            async with asyncio.timeout(SOON_S):
                async for batch in HubFeed(lambda source=source: source):  # type: ignore[misc]
                    builder.fold_all(batch)
                    view = builder.snapshot(fleet.hubs[at].runtime.clock.now())
                    if waiting <= {row.correlation_id for row in view.recent}:
                        break
            own = (await source.state()).hubs
            attached = (await fleet.remote[at].state()).hubs
            assert [(row["name"], row["here"]) for row in own] == [("hub 0", at == 0), ("hub 1", at == 1)]
            assert [{**row, "leaseAgeS": 0} for row in own] == [{**row, "leaseAgeS": 0} for row in attached]
            assert [(row.name, row.here) for row in view.hubs] == [("hub 0", at == 0), ("hub 1", at == 1)]


async def test_a_hub_with_an_unresponsive_ledger_is_not_ready_until_it_responds(server: Server) -> None:
    async with pair(server, "silent") as fleet:
        request = Request(method="GET", url=f"{fleet.hubs[0].url}/readyz", limits=Limits(total_s=8))
        ready = fleet.hubs[0].runtime.transport.exchange
        async with fleet.database.transaction():
            await fleet.database.execute("LOCK TABLE hubs IN ACCESS EXCLUSIVE MODE")
            reply = await ready(request)
            assert (reply.status, bool(json.loads(reply.body)["reason"])) == (503, True)

        async def is_ready() -> bool:
            return (await ready(request)).status == 200

        await fleet.until(is_ready)


async def test_a_hub_that_stops_passes_its_requests_on(server: Server) -> None:
    async with pair(server, "leaves", poll_s=1.0) as fleet:
        (cid,) = await fleet.remote[0].submit({"text": "go", "skill": "ask"})
        question = await fleet.asked(0)
        await fleet.leave()
        assert (await fleet.asked(1))["questionId"] == question["questionId"]
        await fleet.until(lambda: owned(fleet, 1, cid))
        await fleet.remote[1].answer(question["questionId"], "main")
        assert (await fleet.ended(1, cid))["text"] == "going with main"
        assert fleet.calls == ["go"]


async def owned(fleet: Pair, at: int, cid: str) -> bool:
    return cid in fleet.hubs[at].tracker.open_tracks


async def test_a_hub_that_lost_its_lease_drops_its_requests_and_joins_again(server: Server) -> None:
    async with pair(server, "lost", lease_s=6.0) as fleet:
        (cid,) = await fleet.remote[0].submit({"text": "go", "skill": "ask"})
        question = await fleet.asked(1)
        await fleet.database.execute("UPDATE hubs SET ended_at = clock_timestamp() WHERE name = 'hub 0'")
        async with asyncio.timeout(SOON_S):
            async for event in fleet.remote[1].events(after=0):
                if event["topic"] == "hub.lease_lost":
                    break

        async def with_one_hub() -> bool:  # the other one, or the same with its new number
            return [await owned(fleet, at, cid) for at in (0, 1)].count(True) == 1

        await fleet.until(with_one_hub)
        await fleet.remote[0].answer(question["questionId"], "main")
        assert (await fleet.ended(0, cid))["text"] == "going with main"
        (other,) = await fleet.remote[0].submit({"text": "again", "skill": "echo"})
        assert (await fleet.ended(1, other))["text"] == "you said again"
        assert fleet.calls == ["go", "again"]
        assert await fleet.outcomes() == 2


async def test_hubs_renew_their_leases_while_no_connection_for_reads_is_free(server: Server) -> None:
    async with pair(server, "no_readers", lease_s=2.0) as fleet:
        living = "SELECT array_agg(hub ORDER BY hub) FROM hubs WHERE ended_at IS NULL"
        before, now = await fleet.database.fetchval(living), await fleet.database.fetchval("SELECT clock_timestamp()")
        other = await asyncpg.connect(server.url().replace("/postgres?", "/template1?").partition("?")[0])
        await other.execute("ALTER DATABASE postgres ALLOW_CONNECTIONS false")
        try:
            await fleet.database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fleetsim'"
                " AND query LIKE 'SELECT%' AND query NOT LIKE '%set_config%'"
            )
            lapsed = "SELECT min(renewed_at) > $1::timestamptz + interval '4 s' FROM hubs WHERE ended_at IS NULL"
            await fleet.until(lambda: fleet.database.fetchval(lapsed, now))
        finally:
            await other.execute("ALTER DATABASE postgres ALLOW_CONNECTIONS true")
            await other.close()
        assert await fleet.database.fetchval(living) == before
        (cid,) = await fleet.remote[0].submit({"text": "hi", "skill": "echo"})
        assert (await fleet.ended(1, cid))["text"] == "you said hi"


async def test_health_shows_the_oldest_open_transaction_of_the_database(server: Server) -> None:
    async with pair(server, "snapshots") as fleet, fleet.database.transaction(isolation="repeatable_read"):
        await fleet.database.fetchval("SELECT count(*) FROM requests")

        async def grown() -> bool:
            state = (await fleet.remote[1].get("/health"))["database"]
            assert (state["isolation"], state["standbys"], state["synchronous"]) == ("read committed", 0, "")
            assert 0 < state["connectionsFree"] < 50
            return bool(state["oldestSnapshotS"] > 0.2)

        assert await fleet.until(grown)


async def test_a_hub_whose_lease_lapses_while_it_starts_joins_again(server: Server) -> None:
    place = Place.read(server.url("slow_start"), password=True)
    async with running_runtime(seed=1) as runtime, agent_of([], ()).serving() as url:
        ledger = open_postgres(place, name="hub 0", lease_s=1.0)
        async with ledger:
            database = await asyncpg.connect(
                server.url().partition("?")[0], server_settings={"search_path": "slow_start"}
            )
            await database.execute("UPDATE hubs SET ended_at = clock_timestamp()")  # as the hub that takes over does
            await database.close()
            config = FleetConfig(agents=(AgentEntry(name="quinn", url=f"{url}/a2a"),))
            async with Hub(config, runtime, ledger, keys=HubKeys.fresh(runtime.ids), url="http://127.0.0.1:1") as hub:
                (cid,) = await hub.submit(
                    SkillRequest(correlation_id="one", skill="echo", text="hi", targets=("quinn",))
                )
                assert (await hub.tracker.wait(cid)).text == "you said hi"
                assert [row["here"] for row in await hub.hub_rows()] == [True]


async def test_a_hub_whose_ledger_refuses_writes_at_the_start_waits(server: Server) -> None:
    place = Place.read(server.url("stuck_start"), password=True)
    async with running_runtime(seed=1) as runtime, open_postgres(place, name="hub 0", lease_s=6.0) as ledger:
        settings = {"search_path": "stuck_start"}
        database = await asyncpg.connect(server.url().partition("?")[0], server_settings=settings)
        transaction = database.transaction()
        await transaction.start()
        await database.execute("LOCK TABLE hubs IN EXCLUSIVE MODE")  # it can be read

        async def go_on() -> None:
            while not ledger.refusal:  # noqa: ASYNC110 - a ledger has no event for it
                await asyncio.sleep(0.02)
            await transaction.rollback()

        freeing, keys = asyncio.create_task(go_on()), HubKeys.fresh(runtime.ids)
        async with (
            asyncio.timeout(SOON_S),
            Hub(FleetConfig(agents=()), runtime, ledger, keys=keys, url="http://127.0.0.1:1") as hub,
        ):
            assert [row["here"] for row in await hub.hub_rows()] == [True]
        await freeing
        await database.close()
