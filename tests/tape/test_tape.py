"""A tape of an agent: the same card and replies, in each dialect and binding, with new ids, and no secret on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.agent.builtin import reference_agent
from fleetsim.client import AgentClient
from fleetsim.client.results import SentTask
from fleetsim.model.call import PushConfig
from fleetsim.model.errors import AuthRefused, ConfigError, ConnectionLost, InternalError, TaskNotFound
from fleetsim.model.task import DataPart, FilePart, TaskState
from fleetsim.pytest_plugin.fleet import ALLOWED, Fleet, Member
from fleetsim.runtime.address import AddressPolicy
from fleetsim.tape.servers import TapeRecorder, TapeServer
from fleetsim.tape.tape import TASK_ID, Tape, made_ids, readdress
from fleetsim.testbed.faults import DropAfter, Match
from fleetsim.testbed.runtime import virtual_runtime

DIALECTS = ("1.0", "0.3", "0.1", "1.0+http", "0.3+http")
Player: TypeAlias = Callable[..., Member[TapeServer]]
RECORDER = "http://recorder:9001"
HEAD = b'{"tape":1,"url":"","recorded":""}'
TOKEN = "a-token-of-the-caller-0123456789"


def with_a_file() -> Agent:
    agent = reference_agent(name="real", allow_webhook=("recorder:9001",))

    @agent.skill("report")
    async def report(task: SkillContext) -> None:
        """Replies with a file."""
        await task.attach(FilePart(raw="AP8=", filename="report.bin", media_type="application/octet-stream"))

    return agent


@asynccontextmanager
async def recording(fleet: Fleet, out: Path, agent: Agent) -> AsyncIterator[TapeRecorder]:
    """A recorder before an agent at ``RECORDER``; leaving it writes the tape."""
    fleet.add(agent, "real")
    fleet.network.addresses["recorder"] = ("10.0.0.8",)
    runtime = virtual_runtime(1, fleet.network, name="recorder")
    recorder = TapeRecorder("http://real:9000", runtime, policy=AddressPolicy.allowing(*ALLOWED))
    fleet.network.mount(RECORDER, recorder.app)
    yield recorder
    write(out, recorder.tape.written(recorder.secrets)[0])


def write(out: Path, content: bytes) -> None:
    out.write_bytes(content)


def facts(sent: SentTask) -> tuple[Any, ...]:
    return sent.state, sent.text, sent.error, [part.part for part in sent.parts], sent.parts_total


async def story(client: AgentClient, push: PushConfig | None) -> list[Any]:
    """Replies after a wait, with a failure, a file and data; a question with its answer; a stream; a webhook."""
    told: list[Any] = [facts(await client.send_task(text)) for text in ("/slow 3", "/fail no disk", "/report")]
    told.append(facts(await client.send_task("/echo", parts=(DataPart(data={"b": 2, "a": [1]}),))))
    asked = await client.send_task("/ask", context_id="my-conversation")
    answered = await client.send_task("Ada", task_id=asked.id, context_id=asked.context_id, answers=asked.task)
    told += [facts(asked), facts(answered), asked.context_id, asked.id == answered.id]
    started = asyncio.get_running_loop().time()
    async for task in client.follow("/stream one two three"):
        told.append((task.state, task.text, round(asyncio.get_running_loop().time() - started, 2)))
    told.append(facts(await client.send_task("/slow 2", push=push)))
    await asyncio.sleep(60)
    return told


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_caller_cannot_tell_the_tape_from_the_agent(dialect: str, tmp_path: Path) -> None:
    async with Fleet(0, folder=tmp_path) as fleet:
        async with recording(fleet, tmp_path / "real.tape", with_a_file()):
            told, ids = await lived(fleet, RECORDER, dialect)
        taped = fleet.tape("real.tape", "taped")
        told_again, other_ids = await lived(fleet, taped.url, dialect)
    assert told_again == told
    assert ids
    assert not ids & other_ids
    assert taped.agent.misses == []


async def lived(fleet: Fleet, url: str, dialect: str) -> tuple[list[Any], set[str]]:
    """The story of a caller with its webhooks, and the ids of tasks and messages in these."""
    sink = fleet.sink()
    async with fleet.client(url, dialect=dialect) as client:
        told = [await story(client, sink.config(token=TOKEN)), sink.states]
    assert sink.arrivals
    assert all(arrival.headers["x-a2a-notification-token"] == TOKEN for arrival in sink.arrivals)
    return told, {*made_ids(sink.bodies, TASK_ID)}


async def test_a_tape_has_no_secret_of_the_caller(tmp_path: Path) -> None:
    key, shaped, odd = "key-of-the-caller-42", "sk-live-AbCd0123456789efgh", "Zq8vN2xLr7Tt4KmWb91Yc3Ds"
    async with Fleet(0, folder=tmp_path) as fleet:
        agent = reference_agent(name="real", api_key=key, allow_webhook=("recorder:9001",))
        async with recording(fleet, tmp_path / "real.tape", agent) as recorder:
            headers = {"x-api-key": key, "x-vault": "opened-by-word-7", "x-state": "completed"}
            async with fleet.client(RECORDER) as client:
                said = f"/echo {key} {shaped} opened-by-word-7 {odd}"
                await client.send_task(f"/echo {TOKEN}", headers=headers)
                sent = await client.send_task(said, headers=headers, push=fleet.sink().config(token=TOKEN))
                with pytest.raises(AuthRefused):
                    await client.send_task("without a key")
            doubts = recorder.tape.written(recorder.secrets)[1]
        taped = fleet.tape("real.tape", "taped")
        async with fleet.client(taped.url) as client:
            again = await client.send_task(said, headers=headers)
            with pytest.raises(AuthRefused):
                await client.send_task("without a key")
    text = (tmp_path / "real.tape").read_text()
    assert sent.text == said.removeprefix("/echo ")
    assert again.text == f"*** *** *** {odd}"
    assert [secret for secret in (key, shaped, TOKEN, "opened-by-word-7", "webhooks:8080") if secret in text] == []
    assert [line.partition(":")[2][:6] for line in doubts] == [f" {odd[:4]}…"]


@pytest.fixture
async def taped(tmp_path: Path) -> AsyncIterator[Player]:
    """Plays a tape of three requests, the second of them twice, with other replies."""
    replies = iter(["one", "two", "three", "four"])
    agent = Agent("real")

    @agent.skill("count")
    async def count(task: SkillContext) -> str:
        """Counts."""
        await asyncio.sleep(10)
        return next(replies)

    async with Fleet(0, folder=tmp_path) as fleet:
        async with recording(fleet, tmp_path / "real.tape", agent), fleet.client(RECORDER, dialect="0.3") as client:
            for text in ("What is open on 2026-03-02?", "next", "next"):
                await client.send_task(text, metadata={"skillHint": "count"})
        yield fleet.tape


async def said(member: Member[TapeServer], *texts: str, **options: Any) -> list[str]:
    async with member.client(dialect="0.3") as client:
        return [(await client.send_task(text, **options)).text for text in texts]


async def test_equal_requests_get_their_replies_in_order_and_then_the_last(
    taped: Player,
) -> None:
    texts = ("next", "what is  OPEN on 2027-11-30?", "next", "next")
    assert await said(taped("real.tape", "taped"), *texts) == ["two", "one", "three", "three"]


async def test_a_request_that_is_not_on_the_tape_fails_with_the_nearest(
    taped: Player,
) -> None:
    member = taped("real.tape", "taped")
    with pytest.raises(InternalError) as failed:
        await said(member, "What was open?")
    assert '"what is open on #?"' in str(failed.value)
    assert member.agent.misses == [str(failed.value)]
    with pytest.raises(InternalError):
        await said(member, "next", metadata={"skillHint": "other"})
    async with member.client(dialect="1.0") as client:  # a dialect that was not recorded
        with pytest.raises(InternalError):
            await client.send_task("next")


@pytest.mark.parametrize(
    ("matching", "expected"), [("order", ["one", "two", "three", "three"]), ("skill", ["one", "two", "three", "three"])]
)
async def test_texts_may_differ_if_only_the_order_or_the_skill_counts(
    matching: Any, expected: list[str], taped: Player
) -> None:
    member = taped("real.tape", "taped", matching=matching)
    assert await said(member, "a", "b", "c", "d") == expected
    if matching == "skill":
        with pytest.raises(InternalError):
            await said(member, "e", metadata={"skillHint": "other"})


async def test_a_read_shows_the_task_as_it_was_at_that_time(taped: Player) -> None:
    async with taped("real.tape", "taped").client(dialect="0.3") as client:
        sent = await client.send_task("next", wait=False)
        states = []
        for _ in range(3):
            await asyncio.sleep(4)
            states.append((await client.get(sent.id)).state)
    assert states == [TaskState.WORKING, TaskState.WORKING, TaskState.COMPLETED]


async def test_an_answer_is_found_in_each_conversation_that_began_alike(tmp_path: Path) -> None:
    async def answers(url: str, *names: str) -> list[str]:
        async with fleet.client(url) as client:
            asked = [(await client.send_task("/ask"), name) for name in names]
            told = [await client.send_task(name, task_id=one.id, answers=one.task) for one, name in reversed(asked)]
        return [one.text for one in told]

    async with Fleet(0, folder=tmp_path) as fleet:
        async with recording(fleet, tmp_path / "real.tape", with_a_file()):
            told = await answers(RECORDER, "Ada", "Grace")
        taped = fleet.tape("real.tape", "taped")
        assert await answers(taped.url, "Grace", "Ada") == [*reversed(told)]
        with pytest.raises(InternalError):
            await answers(taped.url, "Linus")


async def test_requests_about_an_unknown_task_are_refused_each_time(tmp_path: Path) -> None:
    async with Fleet(0, folder=tmp_path) as fleet:
        async with recording(fleet, tmp_path / "real.tape", with_a_file()), fleet.client(RECORDER) as client:
            with pytest.raises(TaskNotFound):
                await client.get("nobody-knows-it")
        async with fleet.tape("real.tape", "taped").client() as client:
            for name in ("nobody-knows-it", "another", "nobody-knows-it"):
                with pytest.raises(TaskNotFound):
                    await client.get(name)


async def test_a_webhook_that_its_receiver_refuses_is_sent_again(tmp_path: Path) -> None:
    counts = []
    async with Fleet(0, folder=tmp_path) as fleet:
        async with recording(fleet, tmp_path / "real.tape", with_a_file()):
            counts.append(await deliveries(fleet, RECORDER))
        counts.append(await deliveries(fleet, fleet.tape("real.tape", "taped").url))
    assert counts[0] == counts[1]
    assert len(counts[0]) > 2


async def deliveries(fleet: Fleet, url: str) -> list[str]:
    sink = fleet.sink()
    sink.answers(500)
    async with fleet.client(url) as client:
        await client.send_task("hello", push=sink.config(TOKEN))
    await asyncio.sleep(120)
    return sink.states


async def test_a_new_conversation_keeps_the_id_of_its_caller(tmp_path: Path) -> None:
    async with Fleet(0, folder=tmp_path) as fleet:
        async with recording(fleet, tmp_path / "real.tape", with_a_file()), fleet.client(RECORDER) as client:
            await client.send_task("hello")
        async with fleet.tape("real.tape", "taped").client() as client:
            assert (await client.send_task("hello", context_id="mine")).context_id == "mine"


async def test_a_caller_reads_its_own_webhook_and_not_the_recorder(tmp_path: Path) -> None:
    async def urls(url: str) -> bool:
        config = fleet.sink().config(TOKEN)
        async with fleet.client(url) as client:
            sent = await client.send_task("/slow 9", wait=False)
            made = await client.set_push(sent.id, config)
            return {made.config.url, *(push.config.url for push in await client.list_push(sent.id))} == {config.url}

    async with Fleet(0, folder=tmp_path) as fleet:
        async with recording(fleet, tmp_path / "real.tape", with_a_file()) as recorder:
            assert await urls(RECORDER)
        assert await urls(fleet.tape("real.tape", "taped").url)
    assert "recorder" not in str([row.replies for row in recorder.tape.rows if row.path == "/a2a"])


def test_a_card_leads_to_the_recorder_alone() -> None:
    card: dict[str, Any] = {
        "name": "quinn",
        "url": "https://quinn.example/a2a?x=1",
        "signatures": [{}],
        "skills": "odd",
    }
    rows = [{"protocolBinding": "GRPC", "url": "quinn.example:50051"}, {"url": "https://elsewhere.example/v1"}, 3]
    card["supportedInterfaces"] = rows
    assert readdress({"jsonrpc": "2.0", "id": 1, "result": card}, "http://here:1") == {
        "name": "quinn",
        "url": "http://here:1/a2a?x=1",
        "skills": "odd",
        "supportedInterfaces": [{"url": "http://here:1/v1"}],
    }
    assert readdress({"name": "no card"}, "http://here:1") is None


async def test_a_missing_reply_is_recorded_from_the_real_agent(tmp_path: Path) -> None:
    async with Fleet(0, folder=tmp_path) as fleet:
        async with recording(fleet, tmp_path / "real.tape", with_a_file()), fleet.client(RECORDER) as client:
            await client.send_task("known")
        tape = Tape.read((tmp_path / "real.tape").read_bytes(), "real.tape")
        runtime, policy = virtual_runtime(2, fleet.network, name="player"), AddressPolicy.allowing(*ALLOWED)
        live = TapeRecorder("http://real:9000", runtime, policy=policy, tape=tape)
        server = TapeServer(tape, runtime, policy=policy, live=live)
        fleet.network.mount("http://player:9001", server.app)
        before = len(fleet.network.seen)
        async with fleet.client("http://player:9001") as client:
            asked = await client.send_task("/ask")
            answered = await client.send_task("Ada", task_id=asked.id, context_id=asked.context_id, answers=asked.task)
            await client.send_task("known")
        calls = [seen for seen in [*fleet.network.seen][before:] if seen.url.startswith("http://real:9000")]
        write(tmp_path / "more.tape", tape.written()[0])
        more = fleet.tape("more.tape")
        async with fleet.client(more.url) as client:
            again = await client.send_task("/ask")
            last = await client.send_task("Ada", task_id=again.id, context_id=again.context_id, answers=again.task)
    assert all("known" not in str(seen) for seen in calls)
    assert (facts(again), facts(last)) == (facts(asked), facts(answered))


async def test_a_broken_stream_breaks_again(tmp_path: Path) -> None:
    async with Fleet(0, folder=tmp_path) as fleet:
        fleet.network.fault(DropAfter(bytes_passed=900), Match(origin="http://real:9000", rpc_method="message/stream"))
        async with recording(fleet, tmp_path / "real.tape", with_a_file()) as recorder:
            told = await streamed(fleet, RECORDER)
        fleet.network.heal()
        again = await streamed(fleet, fleet.tape("real.tape", "taped").url)
    assert [row.broke for row in recorder.tape.rows if row.frames is not None] != [""]
    assert again == told
    assert again[-1] == "lost"


async def streamed(fleet: Fleet, url: str) -> list[str]:
    told: list[str] = []
    async with fleet.client(url, dialect="0.3") as client:
        try:
            async for event in client.stream("/stream one two three four"):
                told.append(type(event).__name__)
        except ConnectionLost:
            return [*told, "lost"]
    return told


@pytest.mark.parametrize("line", [b"", b"{}", HEAD.replace(b"1", b"2"), HEAD + b'\n{"at":"x"}', HEAD + b"\n["])
def test_another_file_is_refused_with_the_line(line: bytes) -> None:
    with pytest.raises(ConfigError, match=rf"quinn\.tape:{line.count(10) + 1}: "):
        Tape.read(line, "quinn.tape")
