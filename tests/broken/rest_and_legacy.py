"""Agents whose REST aliases or legacy dialect are broken."""

from __future__ import annotations

import re
from collections.abc import Callable

from fleetsim.wire.json import dump
from fleetsim.wire.sse import frame
from tests.broken.build import Catalogue
from tests.broken.editors import (
    answer_if,
    answer_instead,
    each_object,
    edit_envelope,
    edit_error,
    edit_frame_envelope,
    grant,
    member,
    renamed,
    without,
)
from tests.broken.senders import edit_webhook
from tests.broken.services import LegacyDeaf
from tests.broken.wire import Edit, HttpRequest, HttpResponse


def _path(pattern: str) -> Callable[[HttpRequest], bool]:
    wanted = re.compile(pattern)
    return lambda asked: wanted.fullmatch(asked.path) is not None


def _method(*names: str) -> Callable[[HttpRequest], bool]:
    return lambda asked: asked.method in names


def _taken_for_an_id(asked: HttpRequest) -> HttpResponse:
    detail = {"detail": f"Task not found: {asked.path.rpartition('/')[2]}"}
    return HttpResponse(404, {"content-type": "application/json"}, dump(detail))


catalogue = Catalogue()
add = catalogue.add

add(
    "R-01 rest-send-empty: POST /message:send answers nothing",
    answer_if(_path("/message:send"), {}, status=200, if_so=lambda answer: answer.status < 300),
)
add(
    "R-02 rest-stream-as-json: POST /message:stream does not return an event stream",
    Edit(on=_path("/message:stream"), stream_headers=lambda headers: {**headers, "content-type": "application/json"}),
)
add(
    "R-03 rest-get-null: GET of an unknown task is null",
    answer_if(_path("/tasks/[^/:]+"), None, status=200, if_so=lambda answer: answer.status == 404),
)
add(
    "R-04 rest-subscribe-enveloped: GET :subscribe wraps its events",
    edit_frame_envelope(
        lambda event: {"jsonrpc": "2.0", "id": None, "result": event}, on=_path("/tasks/[^/:]+:subscribe")
    ),
)
add(
    "R-04 rest-subscribe-shadowed: GET /tasks/{id} takes the path of :subscribe",
    Edit(on=_path("/tasks/[^/:]+:subscribe"), instead=_taken_for_an_id),
    incident="the original agents",
)
add(
    "R-05 rest-cancel-in-words: POST :cancel is answered and not done",
    answer_instead(_path("/tasks/[^/:]+:cancel"), {"kind": "task", "status": {"state": "canceled"}}),
)
add(
    "R-06 rest-push-unguarded: the REST alias takes private webhooks",
    answer_if(
        _path("/tasks/[^/:]+/pushNotificationConfigs"),
        {"id": "default"},
        status=200,
        if_so=lambda answer: answer.status == 400,
    ),
)

add(
    "L-01 legacy-other-id: tasks/send makes up an id",
    edit_envelope(_method("tasks/send"), member("result", lambda result: {**result, "id": "task-1"})),
    also={"T-06": "the task is not found again"},
)
add(
    "L-02 legacy-kinds: legacy parts have a kind",
    edit_envelope(
        _method("tasks/get", "tasks/send"),
        lambda envelope: each_object(
            envelope, member("parts", lambda parts: [renamed(part, {"type": "kind"}) for part in parts])
        ),
    ),
)
add(
    "L-03 legacy-unnamed: legacy events have no name",
    Edit(on=_method("tasks/sendSubscribe"), frames=lambda _asked: lambda envelope: [frame(dump(envelope).decode())]),
)
add(
    "L-04 legacy-finished-internal: a message for a finished legacy task is -32603",
    edit_error(-32002, to=-32603, on=_method("tasks/send")),
)
add(
    "L-05 legacy-get-null: a registered legacy webhook reads as null",
    edit_envelope(_method("tasks/pushNotification/get"), member("result", lambda _result: None)),
)
add("L-06 legacy-unguarded: legacy webhooks may be private", grant(_method("tasks/pushNotification/set"), -32602))
add(
    "L-07 legacy-webhook-untyped: legacy webhooks have no eventType",
    sender=edit_webhook(lambda body: without("eventType")(body) if "eventType" in body else body),
)
add("L-08 legacy-answer-lost: a legacy answer never reaches the work", intercept=LegacyDeaf)

MUTANTS = tuple(catalogue.mutants)
