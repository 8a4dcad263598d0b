"""Agents whose streams are broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fleetsim.model.call import Operation
from fleetsim.model.task import INTERRUPTED, TERMINAL
from tests.broken.build import Catalogue, with_behaviour, with_limits
from tests.broken.editors import (
    LEGACY,
    STREAMS,
    about,
    answer_error,
    closes,
    drop_frame,
    edit_error,
    edit_frame,
    edit_frame_envelope,
    edit_frames,
    edit_headers,
    has_artifact,
    in_dialect,
    inside,
    is_delta,
    kind_of,
    member,
    over,
    renamed,
    state_of,
    without,
)
from tests.broken.services import Hurried, ProgressLost, Tied
from tests.broken.wire import Edit, Json

STREAM, SUBSCRIBE = Operation.STREAM, Operation.SUBSCRIBE
OLD = in_dialect("0.3", *STREAMS)
NEW = in_dialect("1.0", *STREAMS)
JOINS = about(SUBSCRIBE)


def _unclosed(event: Json) -> Json:
    return over(event, member("final", lambda _final: False))


def _one_more(event: Json, _seen: list[Json]) -> Iterable[Json]:
    return [event, over(event, dict)] if closes(event) else [event]


def _full_text(event: Json, said: list[Json]) -> Iterable[Json]:
    """Each delta becomes the whole text so far."""
    if is_delta(event):
        artifact = inside(event)["artifact"]
        for part in artifact.get("parts", []):
            if "text" in part:
                said.append((artifact["artifactId"], part["text"]))
                part["text"] = "".join(text for name, text in said if name == artifact["artifactId"])
    return [event]


def _status_first(event: Json, held: list[Json]) -> Iterable[Json]:
    """The final status comes before the artifact."""
    if has_artifact(event):
        held.append(event)
        return []
    return [event, *held] if closes(event) else [event]


def _snapshot_again(event: Json, seen: list[Json]) -> Iterable[Json]:
    """The task comes once more with the first move."""
    if kind_of(event) != "task" and len(seen) == 1:
        seen.append(event)
        return [seen[0], event]
    if kind_of(event) == "task":
        seen.append(event)
    return [event]


def _all_at_once(event: Json, held: list[Json]) -> Iterable[Json]:
    """No event is sent before the end."""
    held.append(event)
    if closes(event) or state_of(event) in TERMINAL | INTERRUPTED:
        told = list(held)
        held.clear()
        return told
    return [event] if not inside(event).keys() & {"status", "artifact"} else []


def _last_reader_only() -> Callable[[Json, list[Json]], Iterable[Json]]:
    """One queue for all readers of a task: a new reader takes the events of the others."""
    latest: dict[str, list[Json]] = {}

    def change(event: Json, mine: list[Json]) -> Iterable[Json]:
        body = inside(event)
        if kind_of(event) == "task":
            latest[str(body.get("id"))] = mine
        return [event] if latest.get(str(body.get("taskId", body.get("id"))), mine) is mine else []

    return change


def _is_task(event: Json) -> bool:
    return kind_of(event) == "task"


def _hangs_if_finished(event: Json, finished: list[Json]) -> Iterable[Json]:
    if kind_of(event) == "task" and state_of(event) in TERMINAL:
        finished.append(event)
    return [] if finished else [event]


catalogue = Catalogue()
add = catalogue.add

add(
    "S-01 stream-as-text: a stream is sent as text/plain",
    edit_headers(about(*STREAMS), lambda headers: {**headers, "content-type": "text/plain; charset=utf-8"}),
    also={"C-06 H-05 L-03 M-02 M-03 M-06 P-14 S-18 S-21": "a response that is not an event stream is not read as one"},
)
add("S-02 no-first-task: a stream does not begin with the task", drop_frame(_is_task, on=about(STREAM)))
add(
    "S-03 events-without-id: events do not carry the request's id",
    edit_frame_envelope(lambda envelope: {**envelope, "id": None} if "result" in envelope else envelope),
    also={"L-03": "legacy events carry the id too"},
)
add("S-04 missing-kind: events have no kind", edit_frame(without("kind"), on=OLD), incident="Quinn #40")
add(
    "S-05 two-wrapping-keys: a 1.0 event has two keys, one of them null",
    edit_frame(lambda event: {**event, "artifactUpdate": None} if kind_of(event) == "status-update" else event, on=NEW),
    incident="unset fields written out",
)
add(
    "S-06 snake-events: events are in snake case",
    edit_frame(lambda event: renamed(event, {"lastChunk": "last_chunk"})),
    incident="Quinn #42",
    also={"S-09": "lastChunk cannot be read", "S-10": "there is no lastChunk"},
)
add(
    "S-07 no-final: the last status says final: false",
    edit_frame(_unclosed, on=OLD),
    also={"S-10 S-24": "nothing is final"},
)
add(
    "S-08 event-after-end: another event follows the end",
    edit_frames(_one_more, on=about(*STREAMS)),
    also={"S-07": "there are two last ones", "S-10": "the last two are both statuses"},
)
add(
    "S-08 stream-stays-open: the stream stays open after the end",
    Edit(on=about(*STREAMS), hold_open_s=3600.0),
    also={"L-03 S-15 S-21 S-24 S-26 S-28": "readers wait for the end of the stream"},
)
add("S-09 full-text-deltas: each delta repeats the whole text", edit_frames(_full_text), incident="Quinn #22")
add(
    "S-10 no-closing-artifact: the whole artifact does not come before the end",
    drop_frame(has_artifact, on=OLD),
    incident="the public sample consumer",
)
add(
    "S-08 status-before-artifact: the final status comes before the artifact",
    edit_frames(_status_first, on=OLD),
    incident="the original agent's REST stream",
    also={"S-15 S-22 S-28": "readers stop at the final status"},
)
add(
    "S-11 nameless-artifact-events: artifacts in events have no artifactId",
    edit_frame(lambda event: over(event, member("artifact", without("artifactId")))),
)
add(
    "S-12 events-without-task: events do not say whose they are",
    edit_frame(lambda event: over(event, without("taskId", "contextId")), on=about(*STREAMS)),
)
add(
    "S-13 two-tasks: a stream has two task events",
    edit_frames(_snapshot_again, on=about(*STREAMS)),
    incident="a2a-sdk 0.3 clients raise",
    also={"T-07": "the second snapshot is of the past"},
)
add("S-14 producer-tied: the work dies with its reader", intercept=Tied, incident="Quinn #22")
add(
    "S-15 no-rejoin: a running task cannot be rejoined",
    answer_error(JOINS, -32004, "This operation is not supported", if_granted=True),
)
add(
    "S-16 no-snapshot: a late joiner gets only later events",
    drop_frame(_is_task, on=JOINS),
    incident="a2a-sdk 0.3.26",
)
add("S-17 progress-lost: progress is missing for a reader that rejoins", intercept=ProgressLost, incident="Quinn #22")
add("S-18 rejoin-unknown-invalid: rejoining an unknown task is -32602", edit_error(-32001, to=-32602, on=JOINS))
add(
    "S-19 refused-as-json: a refused 0.3 stream is plain JSON",
    settings=with_behaviour("0.3", stream_errors_as_events=False),
    incident="the original agent",
)
add(
    "S-20 finished-rejoined: 1.0 lets a finished task be subscribed to",
    settings=with_behaviour("1.0", finished_subscribe=None),
)
add(
    "S-21 finished-hangs: rejoining a finished task waits for ever",
    edit_frames(_hangs_if_finished, on=JOINS),
    Edit(on=JOINS, hold_open_s=3600.0),
    also={"S-15": "readers wait for the end of the stream"},
)
add(
    "S-22 last-reader-only: a second reader takes the events of the first",
    edit_frames(_last_reader_only()),
    incident="one queue for all",
)
add(
    "S-23 no-keepalive: a quiet stream is silent",
    settings=with_limits(stream_keepalive_s=10000000.0),
    incident="Workstacean #702",
)
add(
    "S-24 question-not-final: a question does not end the stream",
    edit_frame(lambda event: _unclosed(event) if state_of(event) == "input-required" else event, on=OLD),
)
add(
    "S-25 buffered: all events come at the end",
    edit_frames(_all_at_once, on=lambda asked: asked.operation is STREAM and asked.method not in LEGACY),
    also={"S-15 S-17": "nothing comes while the work goes on"},
)
add(
    "S-26 cancel-unheard: a cancel does not end open streams",
    drop_frame(lambda event: kind_of(event) == "status-update" and state_of(event) == "canceled"),
)
add(
    "S-27 stream-cacheable: a stream may be cached",
    edit_headers(
        about(*STREAMS), lambda headers: {name: value for name, value in headers.items() if name != "cache-control"}
    ),
)
add(
    "S-28 slow-reader-loses: a slow reader does not get the end", intercept=Hurried, incident="the original agent (U22)"
)
add(
    "S-29 first-piece-appended: the first piece of an artifact is appended to nothing",
    edit_frame(
        lambda event: over(event, lambda body: {**body, "append": True}) if is_delta(event) else event,
        on=about(*STREAMS),
    ),
    incident="the original agent",
)

MUTANTS = tuple(catalogue.mutants)
