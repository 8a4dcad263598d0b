"""Agents whose streams are broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fleetsim.check.broken.build import Catalogue, with_behaviour, with_limits
from fleetsim.check.broken.editors import (
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
    state_of,
    without,
)
from fleetsim.check.broken.services import Hurried, ProgressLost, Tied
from fleetsim.check.broken.wire import Asked, Edit, Headers, Json
from fleetsim.model.call import Operation
from fleetsim.model.task import INTERRUPTED, TERMINAL

STREAM, SUBSCRIBE = Operation.STREAM, Operation.SUBSCRIBE
OLD = in_dialect("0.3", *STREAMS)
NEW = in_dialect("1.0", *STREAMS)
JOINS = about(SUBSCRIBE)

Events = Callable[[Json], Iterable[Json]]


def _as_json(headers: Headers) -> Headers:
    return {**headers, "content-type": "text/plain; charset=utf-8"}


def _cached(headers: Headers) -> Headers:
    return {name: value for name, value in headers.items() if name != "cache-control"}


def _null_id(envelope: Json) -> Json:
    return {**envelope, "id": None} if "result" in envelope else envelope


def _two_keys(event: Json) -> Json:
    return {**event, "artifactUpdate": None} if kind_of(event) == "status-update" else event


def _snake_event(event: Json) -> Json:
    body = inside(event)
    if kind_of(event) == "artifact-update":
        body["last_chunk"] = body.pop("lastChunk", False)
    return event


def _without_inside(*names: str) -> Callable[[Json], Json]:
    def change(event: Json) -> Json:
        body = inside(event)
        for name in names:
            body.pop(name, None)
        return event

    return change


def _unclosed(event: Json) -> Json:
    body = inside(event)
    if "final" in body:
        body["final"] = False
    return event


def _question_goes_on(event: Json) -> Json:
    return _unclosed(event) if state_of(event) == "input-required" else event


def _one_more() -> Events:
    def change(event: Json) -> Iterable[Json]:
        yield event
        if closes(event):
            again = {**inside(event)}
            yield {"statusUpdate": again} if event is not inside(event) else again

    return change


def _full_text() -> Events:
    """Each delta becomes everything said so far."""
    said: dict[str, str] = {}

    def change(event: Json) -> Iterable[Json]:
        if is_delta(event):
            artifact = inside(event)["artifact"]
            for part in artifact.get("parts", []):
                if "text" in part:
                    said[artifact["artifactId"]] = said.get(artifact["artifactId"], "") + part["text"]
                    part["text"] = said[artifact["artifactId"]]
        return [event]

    return change


def _appended(event: Json) -> Json:
    if is_delta(event):
        inside(event)["append"] = True
    return event


def _status_first() -> Events:
    """The final status comes before the artifact."""
    held: list[Json] = []

    def change(event: Json) -> Iterable[Json]:
        if has_artifact(event):
            held.append(event)
            return []
        if closes(event):
            return [event, *held]
        return [event]

    return change


def _nameless(event: Json) -> Json:
    artifact = inside(event).get("artifact")
    if isinstance(artifact, dict):
        artifact.pop("artifactId", None)
    return event


def _snapshot_again() -> Events:
    """The task comes once more with the first move."""
    seen: list[Json] = []

    def change(event: Json) -> Iterable[Json]:
        if kind_of(event) == "task":
            seen.append(event)
            return [event]
        if len(seen) == 1:
            seen.append(event)
            return [seen[0], event]
        return [event]

    return change


def _streams_alone(asked: Asked) -> bool:
    return asked.operation is STREAM and asked.method not in LEGACY


def _all_at_once() -> Events:
    """Nothing is told before the end."""
    held: list[Json] = []

    def change(event: Json) -> Iterable[Json]:
        held.append(event)
        body = inside(event)
        if closes(event) or state_of(event) in TERMINAL | INTERRUPTED:
            told = list(held)
            held.clear()
            return told
        return [] if "status" in body or "artifact" in body else [event]

    return change


def _last_reader_only() -> Callable[[], Events]:
    """One queue for all readers of a task: whoever joins takes the events from who was there."""
    latest: dict[str, object] = {}

    def make() -> Events:
        me = object()

        def change(event: Json) -> Iterable[Json]:
            body = inside(event)
            if kind_of(event) == "task":
                latest[str(body.get("id"))] = me
                return [event]
            return [event] if latest.get(str(body.get("taskId", body.get("id"))), me) is me else []

        return change

    return make


def _is_task(event: Json) -> bool:
    return kind_of(event) == "task"


def _is_end(*states: str) -> Callable[[Json], bool]:
    return lambda event: kind_of(event) == "status-update" and state_of(event) in states


def _hangs_if_finished() -> Events:
    finished: list[bool] = []

    def change(event: Json) -> Iterable[Json]:
        if kind_of(event) == "task" and state_of(event) in TERMINAL:
            finished.append(True)
        return [] if finished else [event]

    return change


catalogue = Catalogue()
add = catalogue.add

add(
    "stream-as-text",
    "S-01",
    "a stream is sent as text/plain",
    edit_headers(about(*STREAMS), _as_json),
    also={"C-06 H-05 L-03 M-02 M-03 M-06 P-14 S-18 S-21": "what is no event stream is not read as one"},
)
add(
    "no-first-task",
    "S-02",
    "a stream does not begin with the task",
    drop_frame(_is_task, on=about(STREAM)),
)
add(
    "events-without-id",
    "S-03",
    "events do not carry the request's id",
    edit_frame_envelope(_null_id),
    also={"L-03": "legacy events carry the id too"},
)
add("missing-kind", "S-04", "events have no kind", edit_frame(without("kind"), on=OLD), incident="Quinn #40")
add(
    "two-wrapping-keys",
    "S-05",
    "a 1.0 event has two keys, one of them null",
    edit_frame(_two_keys, on=NEW),
    incident="unset fields written out",
)
add(
    "snake-events",
    "S-06",
    "events are in snake case",
    edit_frame(_snake_event),
    incident="Quinn #42",
    also={"S-09": "lastChunk cannot be read", "S-10": "there is no lastChunk"},
)
add(
    "no-final",
    "S-07",
    "the last status says final: false",
    edit_frame(_unclosed, on=OLD),
    also={"S-10 S-24": "nothing is final"},
)
add(
    "event-after-end",
    "S-08",
    "another event follows the end",
    edit_frames(_one_more, on=about(*STREAMS)),
    also={"S-07": "there are two last ones", "S-10": "the last two are both statuses"},
)
add(
    "stream-stays-open",
    "S-08",
    "the stream stays open after the end",
    Edit(on=about(*STREAMS), hold_open_s=3600.0),
    also={"L-03 S-15 S-21 S-24 S-26 S-28": "readers wait for the end of the stream"},
)
add("full-text-deltas", "S-09", "each delta repeats the whole text", edit_frames(_full_text), incident="Quinn #22")
add(
    "no-closing-artifact",
    "S-10",
    "the whole artifact does not come before the end",
    drop_frame(has_artifact, on=OLD),
    incident="the public sample consumer",
)
add(
    "status-before-artifact",
    "S-08",
    "the final status comes before the artifact",
    edit_frames(_status_first, on=OLD),
    incident="the original agent's REST stream",
    also={"S-15 S-22 S-28": "readers stop at the final status"},
)
add("nameless-artifact-events", "S-11", "artifacts in events have no artifactId", edit_frame(_nameless))
add(
    "events-without-task",
    "S-12",
    "events do not say whose they are",
    edit_frame(_without_inside("taskId", "contextId"), on=about(*STREAMS)),
)
add(
    "two-tasks",
    "S-13",
    "a stream has two task events",
    edit_frames(_snapshot_again, on=about(*STREAMS)),
    incident="a2a-sdk 0.3 clients raise",
    also={"T-07": "the second snapshot is of the past"},
)
add(
    "producer-tied",
    "S-14",
    "the work dies with its reader",
    intercept=Tied,
    incident="Quinn #22",
)
add(
    "no-rejoin",
    "S-15",
    "a running task cannot be rejoined",
    answer_error(JOINS, -32004, "This operation is not supported", if_granted=True),
)
add(
    "no-snapshot",
    "S-16",
    "a late joiner is told only what follows",
    drop_frame(_is_task, on=JOINS),
    incident="a2a-sdk 0.3.26",
)
add("progress-lost", "S-17", "what a tool said is gone for who rejoins", intercept=ProgressLost, incident="Quinn #22")
add("rejoin-unknown-invalid", "S-18", "rejoining an unknown task is -32602", edit_error(-32001, to=-32602, on=JOINS))
add(
    "refused-as-json",
    "S-19",
    "a refused 0.3 stream is plain JSON",
    settings=with_behaviour("0.3", stream_errors_as_events=False),
    incident="the original agent",
)
add(
    "finished-rejoined",
    "S-20",
    "1.0 lets a finished task be subscribed to",
    settings=with_behaviour("1.0", finished_subscribe=None),
)
add(
    "finished-hangs",
    "S-21",
    "rejoining a finished task waits for ever",
    edit_frames(_hangs_if_finished, on=JOINS),
    Edit(on=JOINS, hold_open_s=3600.0),
    also={"S-15": "readers wait for the end of the stream"},
)
add(
    "last-reader-only",
    "S-22",
    "a second reader takes the events of the first",
    edit_frames(_last_reader_only()),
    incident="one queue for all",
)
add(
    "no-keepalive",
    "S-23",
    "a quiet stream is silent",
    settings=with_limits(stream_keepalive_s=1e7),
    incident="Workstacean #702",
)
add(
    "question-not-final",
    "S-24",
    "a question does not end the stream",
    edit_frame(_question_goes_on, on=OLD),
)
add(
    "buffered",
    "S-25",
    "all events come at the end",
    edit_frames(_all_at_once, on=_streams_alone),
    also={"S-15 S-17": "nothing comes while the work goes on"},
)
add("cancel-unheard", "S-26", "a cancel does not end open streams", drop_frame(_is_end("canceled")))
add("stream-cacheable", "S-27", "a stream may be cached", edit_headers(about(*STREAMS), _cached))
add(
    "slow-reader-loses",
    "S-28",
    "a slow reader does not get the end",
    intercept=Hurried,
    incident="the original agent (U22)",
)
add(
    "first-piece-appended",
    "S-29",
    "the first piece of an artifact is appended to nothing",
    edit_frame(_appended, on=about(*STREAMS)),
    incident="the original agent",
)

MUTANTS = tuple(catalogue.mutants)
