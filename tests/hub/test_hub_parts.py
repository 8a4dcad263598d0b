"""Files and data through a whole hub: every channel and dialect, over a restart, within limits, never lost silently."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.events.wire import payload
from fleetsim.model.errors import ConfigError
from fleetsim.model.limits import PARTS_BYTES_MAX, TooMuch
from fleetsim.model.parts import content_of
from fleetsim.model.task import DataPart, FilePart, TextPart
from fleetsim.model.work import Outcome, SkillRequest
from tests.hub.local_hub import LocalHub, ready_hub

BYTES = bytes(range(256)) * 20
RAW = base64.b64encode(BYTES).decode()
DATA = {
    "who": "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}",
    "fa": "می\u200cخواهم",
    "x": ["\U0001d4b3", None, 2**53 + 1, 0.5],
}
FILE_ROW = {"kind": "file", "name": "re\u200dport.pdf", "mimeType": "application/pdf", "bytes": RAW}
DATA_ROW = {"kind": "data", "data": DATA}
AWAY = "https://files.example/big.iso"


def filer(**options: Any) -> Agent:
    """Returns its input: the text with an addition, each file and each piece of data in an artifact."""
    agent = Agent("filer", **options)

    @agent.skill("copy")
    async def copy(task: SkillContext) -> str:
        await asyncio.sleep(5)
        given = [part for part in task.message.parts if not isinstance(part, TextPart)]
        for at, part in enumerate(given):
            await task.attach(part, name=f"copy {at}")
        note = task.metadata.get("note")
        return f"{len(given)} copied{f', {note}' if note else ''}"

    @agent.skill("point")
    async def point(task: SkillContext) -> str:
        await task.attach(FilePart(uri=AWAY, filename="big.iso", media_type="application/x-iso9660-image"))
        return "it is over there"

    @agent.skill("priced")
    async def priced(task: SkillContext) -> str:
        task.use(10, 5, cost_usd=0.25)
        return "it was dear"

    @agent.skill("ask")
    async def ask(task: SkillContext) -> str:
        await task.attach(DataPart(data={"choose": ["a", "b"]}), name="choices")
        answer = await task.ask_message("which?")
        given = [part for part in answer.parts if not isinstance(part, TextPart)]
        await task.attach(*given, name="given")
        return f"got {answer.text or 'no word'}"

    return agent


async def done(t: LocalHub, **body: Any) -> tuple[Outcome, Any]:
    """The outcome of a request to the filer, and the API's row of it."""
    (cid,) = await t.remote.submit({"targets": ["filer"], **body})
    outcome = await t.hub.tracker.wait(cid)
    return outcome, await t.remote.task(cid)


def content(row: dict[str, Any]) -> Any:
    return content_of(row["bytes"]) if row["kind"] == "file" else row["data"]


@pytest.mark.parametrize("channel", ["stream", "push", "poll"])
@pytest.mark.parametrize("wire", ["1.0", "0.3", "0.1"])
async def test_a_file_and_data_are_sent_and_returned_whole(wire: str, channel: str) -> None:
    agent = filer(streaming=channel == "stream", push_notifications=channel == "push")
    async with ready_hub(agent, entries={"filer": {"wire": wire}}) as t:
        outcome, row = await done(t, skill="copy", text="here", parts=[FILE_ROW, DATA_ROW], metadata={"note": "\u200c"})
        assert (outcome.success, outcome.text) == (True, "2 copied, \u200c"), outcome.reason
        assert [content(part) for part in row["parts"]] == [BYTES, DATA]
        assert row["partsTotal"] == 2
        file, data = row["parts"]
        assert (file["name"], file["mimeType"], file["sizeBytes"]) == ("re\u200dport.pdf", "application/pdf", 5120)
        assert (file["index"], file["artifactName"], data["artifactName"]) == (1, "copy 0", "copy 1")
        kept = await t.hub.ledger.outcome(outcome.correlation_id)
        assert kept == outcome


async def test_our_own_metadata_wins_over_a_callers() -> None:
    async with ready_hub(filer()) as t:
        outcome, _ = await done(t, skill="copy", text="x", metadata={"skillHint": "point", "correlationId": "fake"})
        assert outcome.text == "0 copied"


async def test_an_accepted_request_is_sent_whole_after_a_restart_and_its_result_stays() -> None:
    async with ready_hub(filer(), poll_interval_s=1) as t:
        t.network.down("http://filer.example:8000")
        body = {"targets": ["filer"], "skill": "copy", "parts": [FILE_ROW, DATA_ROW], "metadata": {"note": "kept"}}
        (cid,) = await t.remote.submit(body)
        await t.restart()
        t.network.up("http://filer.example:8000")
        outcome = await t.hub.tracker.wait(cid)
        assert outcome.text == "2 copied, kept", outcome.reason
        await t.restart()
        row = await t.remote.task(cid)
        assert [content(part) for part in row["parts"]] == [BYTES, DATA]


async def test_events_and_lists_name_the_parts_without_their_content() -> None:
    async with ready_hub(filer()) as t:
        outcome, _ = await done(t, skill="copy", text="here", parts=[FILE_ROW, DATA_ROW])
        listed = [
            {"index": 1, "kind": "file", "name": "re\u200dport.pdf", "mimeType": "application/pdf", "sizeBytes": 5120},
            {
                "index": 2,
                "kind": "data",
                "name": "copy 1",
                "sizeBytes": len(json.dumps(DATA, separators=(",", ":"))),
            },
        ]
        (told,) = t.events("autonomous.outcome.")
        assert (payload(told)["parts"], payload(told)["partsTotal"]) == (listed, 2)
        (asked,) = t.events("agent.skill.request")
        assert [(part["kind"], part["sizeBytes"]) for part in payload(asked)["parts"]] == [
            ("file", 5120),
            ("data", listed[1]["sizeBytes"]),
        ]
        (recent,) = (await t.remote.get("/tasks"))["recent"]
        assert recent["parts"] == listed
        (kept,) = await t.hub.ledger.outcomes(since=outcome.started_at)
        assert [(part.raw, part.data) for part in kept.parts] == [(None, None)] * 2


async def test_a_file_by_address_is_listed_and_not_fetched() -> None:
    async with ready_hub(filer()) as t:
        _, row = await done(t, skill="point", text="where?")
        (part,) = row["parts"]
        assert (part["uri"], part["sizeBytes"], part.get("bytes")) == (AWAY, None, None)
        assert not [request for request in t.network.seen if "files.example" in request.url]


async def test_payloads_of_extensions_are_not_data_for_the_user() -> None:
    async with ready_hub(filer()) as t:
        outcome, row = await done(t, skill="priced", text="how much?")
        assert (outcome.cost_usd, row["parts"], row["partsTotal"]) == (0.25, [], 0)


@pytest.mark.parametrize("wire", ["1.0", "0.3", "0.1"])
@pytest.mark.parametrize("door", ["inbox", "follow-up"])
async def test_an_answer_may_be_a_file(wire: str, door: str) -> None:
    async with ready_hub(filer(), entries={"filer": {"wire": wire}}) as t:
        (cid,) = await t.remote.submit({"targets": ["filer"], "skill": "ask", "text": "go"})
        row = await t.remote.task(cid, wait_s=30)
        if door == "inbox":
            await t.remote.post(f"/inbox/{row['questionId']}/answer", {"parts": [FILE_ROW]})
        else:
            body = {"targets": ["filer"], "taskId": row["taskId"], "parts": [FILE_ROW]}
            assert await t.remote.submit(body) == (cid,)
        outcome = await t.hub.tracker.wait(cid)
        assert outcome.text == "got no word"
        assert [part.size_bytes for part in outcome.parts if part.kind == "file"] == [len(BYTES)]


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"kind": "file", "name": "x"}, "parts.0.file"),
        ({"kind": "file", "bytes": "QQ==", "uri": "https://a.example/"}, "parts.0.file"),
        ({"kind": "file", "bytes": "not base64!"}, "parts.0.file.bytes"),
        ({"kind": "file", "bytes": "QQ==", "path": "/etc/passwd"}, "path"),
        ({"kind": "data"}, "parts.0.data.data"),
        ({"kind": "image", "data": 1}, "parts.0"),
        ({"data": 1}, "parts.0"),
        ("x", "parts.0"),
    ],
)
async def test_an_invalid_part_is_refused_in_one_line(part: Any, says: str) -> None:
    async with ready_hub(filer()) as t:
        body = {"targets": ["filer"], "text": "x", "parts": [part]}
        with pytest.raises(ConfigError, match=says):
            await t.remote.submit(body)
        assert (await t.http("POST", "/api/requests", json.dumps(body).encode())).status == 400
        assert t.hub.tracker.tracks() == ()


@pytest.mark.slow
async def test_a_message_over_a_limit_is_refused_before_it_is_accepted() -> None:
    async with ready_hub(filer()) as t:
        raw = base64.b64encode(bytes(PARTS_BYTES_MAX + 1)).decode()
        request = SkillRequest(correlation_id="c-1", targets=("filer",), parts=(FilePart(raw=raw),))
        with pytest.raises(TooMuch, match="parts_bytes_max") as refused:
            await t.hub.submit(request)
        assert refused.value.blame == "caller"
        assert await t.hub.ledger.request("c-1") is None
        row = {"kind": "file", "bytes": raw}
        with pytest.raises(TooMuch, match="parts_bytes_max"):
            await t.remote.submit({"targets": ["filer"], "parts": [row]})
        reply = await t.http("POST", "/api/requests", json.dumps({"targets": ["filer"], "parts": [row]}).encode())
        assert reply.status == 413
