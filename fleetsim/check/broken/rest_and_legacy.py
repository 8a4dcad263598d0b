"""Agents whose REST aliases or legacy dialect are broken."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fleetsim.check.broken.build import Catalogue
from fleetsim.check.broken.editors import (
    answer_as,
    answer_instead,
    each_object,
    edit_error,
    edit_frame_envelope,
    without,
)
from fleetsim.check.broken.senders import edit_webhook
from fleetsim.check.broken.services import LegacyDeaf
from fleetsim.check.broken.wire import Answer, Asked, Edit, FrameEdit, Headers, Json
from fleetsim.wire.json import dump
from fleetsim.wire.sse import frame


def _path(pattern: str) -> Callable[[Asked], bool]:
    wanted = re.compile(pattern)
    return lambda asked: wanted.fullmatch(asked.path) is not None


def _method(*names: str) -> Callable[[Asked], bool]:
    return lambda asked: asked.method in names


def _empty(_asked: Asked, answer: Answer) -> None:
    if answer.status < 300:
        answer.say({})


def _found_nothing(_asked: Asked, answer: Answer) -> None:
    if answer.status == 404:
        answer.say(None, status=200)


def _taken_for_an_id(asked: Asked) -> Answer:
    detail = {"detail": f"Task not found: {asked.path.rpartition('/')[2]}"}
    return Answer(404, {"content-type": "application/json"}, dump(detail))


def _registers(_asked: Asked, answer: Answer) -> None:
    if answer.status == 400:
        answer.say({"id": "default"}, status=200)


def _stream_as_text(headers: Headers) -> Headers:
    return {**headers, "content-type": "application/json"}


def _enveloped(event: Json) -> Json:
    return {"jsonrpc": "2.0", "id": None, "result": event}


def _another_id(_asked: Asked, answer: Answer) -> None:
    envelope = answer.json
    if isinstance(envelope, dict) and isinstance(envelope.get("result"), dict):
        answer.say({**envelope, "result": {**envelope["result"], "id": "task-1"}})


def _modern(found: dict[str, Any]) -> None:
    if "type" in found and ("text" in found or "data" in found):
        found["kind"] = found.pop("type")


def _modern_parts(_asked: Asked, answer: Answer) -> None:
    answer.say(each_object(answer.json, _modern))


def _unnamed(_asked: Asked) -> FrameEdit:
    return lambda envelope: [frame(dump(envelope).decode())]


def _taken(asked: Asked, answer: Answer) -> None:
    envelope = answer.json
    if isinstance(envelope, dict) and envelope.get("error", {}).get("code") == -32602:
        answer.say({"jsonrpc": "2.0", "id": envelope.get("id"), "result": dict(asked.params)})


def _nothing(_asked: Asked, answer: Answer) -> None:
    envelope = answer.json
    if isinstance(envelope, dict) and "result" in envelope:
        answer.say({**envelope, "result": None})


def _legacy_body(body: Json) -> Json:
    return without("eventType")(body) if "eventType" in body else body


catalogue = Catalogue()
add = catalogue.add

add("rest-send-empty", "R-01", "POST /message:send answers nothing", answer_as(_path("/message:send"), _empty))
add(
    "rest-stream-as-json",
    "R-02",
    "POST /message:stream is no event stream",
    Edit(on=_path("/message:stream"), stream_headers=_stream_as_text),
)
add("rest-get-null", "R-03", "GET of an unknown task is null", answer_as(_path(r"/tasks/[^/:]+"), _found_nothing))
add(
    "rest-subscribe-enveloped",
    "R-04",
    "GET :subscribe wraps its events",
    edit_frame_envelope(_enveloped, on=_path(r"/tasks/[^/:]+:subscribe")),
)
add(
    "rest-subscribe-shadowed",
    "R-04",
    "GET /tasks/{id} takes the path of :subscribe",
    Edit(on=_path(r"/tasks/[^/:]+:subscribe"), instead=_taken_for_an_id),
    incident="the original agents",
)
add(
    "rest-cancel-in-words",
    "R-05",
    "POST :cancel is answered and not done",
    answer_instead(_path(r"/tasks/[^/:]+:cancel"), {"kind": "task", "status": {"state": "canceled"}}),
)
add(
    "rest-push-unguarded",
    "R-06",
    "the REST alias takes private webhooks",
    answer_as(_path(r"/tasks/[^/:]+/pushNotificationConfigs"), _registers),
)

add(
    "legacy-other-id",
    "L-01",
    "tasks/send makes up an id",
    answer_as(_method("tasks/send"), _another_id),
    also={"L-08 T-06 T-08": "the task is not found again"},
)
add("legacy-kinds", "L-02", "legacy parts have a kind", answer_as(_method("tasks/get", "tasks/send"), _modern_parts))
add("legacy-unnamed", "L-03", "legacy events have no name", Edit(on=_method("tasks/sendSubscribe"), frames=_unnamed))
add(
    "legacy-finished-internal",
    "L-04",
    "a message for a finished legacy task is -32603",
    edit_error(-32002, to=-32603, on=_method("tasks/send")),
)
add(
    "legacy-get-null",
    "L-05",
    "a registered legacy webhook reads as null",
    answer_as(_method("tasks/pushNotification/get"), _nothing),
)
add(
    "legacy-unguarded",
    "L-06",
    "legacy webhooks may be private",
    answer_as(_method("tasks/pushNotification/set"), _taken),
)
add("legacy-webhook-untyped", "L-07", "legacy webhooks have no eventType", sender=edit_webhook(_legacy_body))
add("legacy-answer-lost", "L-08", "a legacy answer never reaches the work", intercept=LegacyDeaf)

MUTANTS = tuple(catalogue.mutants)
