"""The editors that broken agents are made of, one for each place where something leaves an agent or reaches it.

Each takes a function from the present value to the new one; None removes the value. They work on
the JSON of every dialect: an event is looked at through ``kind_of`` and ``inside``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fleetsim.agent import settings
from fleetsim.check.raw_dialect import WRAPPERS, state_word
from fleetsim.model.call import Operation
from fleetsim.model.task import TERMINAL
from fleetsim.wire.json import dump
from tests.broken.wire import Edit, FrameEdit, Headers, HttpRequest, HttpResponse, Json

JsonEdit = Callable[[Json], Json | None]

LEGACY = frozenset({"tasks/send", "tasks/sendSubscribe", "tasks/pushNotification/set", "tasks/pushNotification/get"})
SENDS = (Operation.SEND, Operation.STREAM)
STREAMS = (Operation.STREAM, Operation.SUBSCRIBE)


# -- events, in every dialect ----------------------------------------------------------------------

CARD_PATHS = tuple(below + path for below in ("", "/a2a") for path in settings.CARD_PATHS)


def inside(event: Json) -> Json:
    """The event without the wrapper of 1.0."""
    if isinstance(event, dict) and len(event) == 1 and next(iter(event)) in WRAPPERS:
        return next(iter(event.values()))
    return event


def kind_of(event: Json) -> str:
    """task, status-update, artifact-update or message, however the dialect says it."""
    if not isinstance(event, dict):
        return ""
    if len(event) == 1 and (wrapped := WRAPPERS.get(next(iter(event)))):
        return wrapped
    if "kind" in event:
        return str(event["kind"])
    return "artifact-update" if "artifact" in event else "status-update" if "status" in event else ""


def state_of(event: Json) -> str:
    """The state of a task or status update in 0.3's spelling; empty for other events."""
    return state_word(inside(event))


def closes(event: Json) -> bool:
    """Whether it is the final status of a finished task."""
    return kind_of(event) == "status-update" and state_of(event) in TERMINAL


def has_artifact(event: Json) -> bool:
    """Whether it carries the whole of an artifact, as before the final status."""
    body = inside(event)
    return kind_of(event) == "artifact-update" and bool(body.get("lastChunk", False)) and not body.get("append", False)


def is_delta(event: Json) -> bool:
    """Whether it carries a piece of an artifact, the first or a later one."""
    return kind_of(event) == "artifact-update" and inside(event).get("lastChunk") is False


def each_object(value: Json, change: Callable[[dict[str, Any]], None]) -> Json:
    """Call ``change`` on every JSON object in there, the innermost first; returns ``value``."""
    if isinstance(value, dict):
        for item in value.values():
            each_object(item, change)
        change(value)
    elif isinstance(value, list):
        for item in value:
            each_object(item, change)
    return value


def renamed(value: Json, names: dict[str, str]) -> Json:
    """The same JSON with some keys spelled otherwise, at any depth."""
    if isinstance(value, dict):
        return {names.get(key, key): renamed(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, names) for item in value]
    return value


def without(*names: str) -> Callable[[Json], Json]:
    """An edit that drops members of an object."""
    return lambda value: {k: item for k, item in value.items() if k not in names} if isinstance(value, dict) else value


def member(name: str, to: Callable[[Json], Json]) -> Callable[[Json], Json]:
    """An edit of one member of an object, in place, where it is there."""

    def change(value: Json) -> Json:
        if isinstance(value, dict) and name in value:
            value[name] = to(value[name])
        return value

    return change


def over(event: Json, to: Callable[[Json], Json]) -> Json:
    """The event with its content edited, in the wrapper that it has."""
    return to(event) if inside(event) is event else {name: to(body) for name, body in event.items()}


# -- what is asked ---------------------------------------------------------------------------------


def about(*operations: Operation) -> Callable[[HttpRequest], bool]:
    """Requests for one of these operations, over JSON-RPC."""
    return lambda asked: asked.operation in operations


def in_dialect(dialect: str, *operations: Operation) -> Callable[[HttpRequest], bool]:
    """Requests for these operations in 1.0 or 0.3, by method name; names that 0.1 and 0.3 share count as 0.3's."""
    wanted = about(*operations)

    def fits(asked: HttpRequest) -> bool:
        return wanted(asked) and ("/" not in asked.method) == (dialect == "1.0") and asked.method not in LEGACY

    return fits


def at(*paths: str) -> Callable[[HttpRequest], bool]:
    """Requests to these paths."""
    return lambda asked: asked.path in paths


def edit_params(*operations: Operation, to: Callable[[Json], Json]) -> Edit:
    """Change the parameters before the agent reads them."""
    return Edit(on=about(*operations), request=member("params", to))


def edit_request(on: Callable[[HttpRequest], bool], to: JsonEdit) -> Edit:
    """Change the whole JSON body before the agent reads it."""
    return Edit(on=on, request=to)


# -- what is answered ------------------------------------------------------------------------------


def edit_card(to: JsonEdit, *, paths: Iterable[str] = CARD_PATHS, signed: bool = False) -> Edit:
    """Change the card; None is 404. Its signature goes, unless it is ``signed`` before the change."""

    def change(_asked: HttpRequest, answer: HttpResponse) -> None:
        card = answer.json
        if answer.status != 200 or card is None:
            return
        edited = to(card if signed else {name: card[name] for name in card if name != "signatures"})
        answer.say(edited) if edited is not None else answer.say({"detail": "Not Found"}, status=404)

    return Edit(on=at(*paths), answer=change)


def edit_reply(*operations: Operation, to: JsonEdit, dialect: str | None = None) -> Edit:
    """Change the ``result`` of answers to these operations."""

    def change(_asked: HttpRequest, answer: HttpResponse) -> None:
        envelope = answer.json
        if isinstance(envelope, dict) and "result" in envelope:
            answer.say({**envelope, "result": to(envelope["result"])})

    return Edit(on=in_dialect(dialect, *operations) if dialect else about(*operations), answer=change)


def edit_envelope(on: Callable[[HttpRequest], bool], to: JsonEdit) -> Edit:
    """Change whole JSON-RPC answers."""

    def change(_asked: HttpRequest, answer: HttpResponse) -> None:
        if isinstance(answer.json, dict):
            answer.say(to(answer.json))

    return Edit(on=on, answer=change)


def edit_error(
    code: int, *, to: int, message: str | None = None, on: Callable[[HttpRequest], bool] = lambda _asked: True
) -> Edit:
    """Answer another JSON-RPC code, or message, where the agent answers ``code``; in error frames of a stream too."""

    def swap(envelope: Json) -> Json:
        error = envelope.get("error") if isinstance(envelope, dict) else None
        if isinstance(error, dict) and error.get("code") == code:
            return {**envelope, "error": {**error, "code": to, "message": message or error.get("message")}}
        return envelope

    def change(_asked: HttpRequest, answer: HttpResponse) -> None:
        before = answer.json
        if (after := swap(before)) is not before:
            answer.say(after)

    def frames(_asked: HttpRequest) -> FrameEdit:
        return lambda envelope: [swap(envelope)]

    return Edit(on=on, answer=change, frames=frames)


def answer_error(on: Callable[[HttpRequest], bool], code: int, message: str, *, if_granted: bool = False) -> Edit:
    """Answer every such request with this JSON-RPC error, as plain JSON or as a stream's only event. With
    ``if_granted`` only those that would have been granted; other refusals stay as they are."""

    def error(asked: HttpRequest) -> Json:
        return {"jsonrpc": "2.0", "id": asked.call.get("id"), "error": {"code": code, "message": message}}

    def frames(asked: HttpRequest) -> FrameEdit:
        told: list[bool] = []

        def first(envelope: Json) -> Iterable[Json]:
            if told or (if_granted and "error" in envelope):
                return [] if told else [envelope]
            told.append(True)
            return [error(asked)]

        return first

    def whole(asked: HttpRequest, answer: HttpResponse) -> None:
        if not if_granted or "result" in (answer.json or {}):
            answer.say(error(asked), status=200)

    return Edit(on=on, answer=whole, frames=frames)


def answer_as(on: Callable[[HttpRequest], bool], to: Callable[[HttpRequest, HttpResponse], None]) -> Edit:
    """Change an answer in place: status, headers, bytes."""
    return Edit(on=on, answer=to)


def answer_if(
    on: Callable[[HttpRequest], bool],
    value: Json,
    *,
    status: int,
    if_so: Callable[[HttpResponse], bool] = lambda _answer: True,
) -> Edit:
    """Answer such requests with this JSON, where the agent's own answer is as ``if_so`` says."""
    return Edit(on=on, answer=lambda _asked, answer: answer.say(value, status=status) if if_so(answer) else None)


def grant(on: Callable[[HttpRequest], bool], code: int) -> Edit:
    """Answer requests that are refused with ``code`` as if they had been done, with their own parameters."""

    def change(asked: HttpRequest, answer: HttpResponse) -> None:
        if answer.error_code == code:
            answer.say({"jsonrpc": "2.0", "id": asked.call.get("id"), "result": dict(asked.params)})

    return Edit(on=on, answer=change)


def edit_headers(on: Callable[[HttpRequest], bool], to: Callable[[Headers], Headers]) -> Edit:
    """Change the headers of answers and streams."""

    def change(_asked: HttpRequest, answer: HttpResponse) -> None:
        answer.headers = to(answer.headers)

    return Edit(on=on, answer=change, stream_headers=to)


def answer_instead(on: Callable[[HttpRequest], bool], value: Json, *, status: int = 200) -> Edit:
    """Answer matching requests with this JSON, without the agent. They match by verb and path alone."""
    return Edit(on=on, instead=lambda _asked: HttpResponse(status, {"content-type": "application/json"}, dump(value)))


# -- streams ---------------------------------------------------------------------------------------


def edit_frame(to: JsonEdit, *, on: Callable[[HttpRequest], bool] = lambda _asked: True) -> Edit:
    """Change every event of every stream; None drops it."""
    return edit_frames(lambda event, _seen: [] if (new := to(event)) is None else [new], on=on)


def drop_frame(which: Callable[[Json], bool], *, on: Callable[[HttpRequest], bool] = lambda _asked: True) -> Edit:
    """Leave events out."""
    return edit_frame(lambda event: None if which(event) else event, on=on)


def edit_frames(
    change: Callable[[Json, list[Json]], Iterable[Json]], *, on: Callable[[HttpRequest], bool] = lambda _asked: True
) -> Edit:
    """Change events. ``change`` is given each and a list that is its stream's own, to remember what went by."""

    def frames(_asked: HttpRequest) -> FrameEdit:
        seen: list[Json] = []

        def one(envelope: Json) -> Iterable[Json]:
            if isinstance(envelope, dict) and "jsonrpc" in envelope:
                if "result" not in envelope:
                    return [envelope]
                return [{**envelope, "result": event} for event in change(envelope["result"], seen)]
            return change(envelope, seen)

        return one

    return Edit(on=on, frames=frames)


def edit_frame_envelope(to: JsonEdit, *, on: Callable[[HttpRequest], bool] = lambda _asked: True) -> Edit:
    """Change the JSON-RPC envelope of every frame."""

    def frames(_asked: HttpRequest) -> FrameEdit:
        return lambda envelope: [] if (new := to(envelope)) is None else [new]

    return Edit(on=on, frames=frames)


def edit_everything(change: Callable[[dict[str, Any]], None]) -> Edit:
    """Change every object of every answer to a call and of every event, in place; webhooks are left alone."""

    def answer(asked: HttpRequest, found: HttpResponse) -> None:
        value = found.json
        if asked.operation is not None and isinstance(value, dict):
            found.say(each_object(value, change))

    def frames(_asked: HttpRequest) -> FrameEdit:
        return lambda envelope: [each_object(envelope, change)]

    return Edit(answer=answer, frames=frames)
