"""A2A 0.3: ``message/send`` and its family, objects told apart by ``kind``. The seeds' wire.

Also takes the older names that peers of 0.2 and selectools still send. 0.2.x is read and written as 0.3.
"""

from __future__ import annotations

from typing import Any, ClassVar

from fleetsim.model.call import Call, GetExtendedCard, Operation, SendMessage
from fleetsim.model.card import AgentCard
from fleetsim.model.event import ArtifactUpdate, DirectReply, StatusUpdate, TaskEvent
from fleetsim.model.task import TERMINAL, JsonObject, Task
from fleetsim.wire import base, reading
from fleetsim.wire.cards import write_card
from fleetsim.wire.json import present


def _read_send(params: JsonObject, operation: Operation) -> SendMessage:
    configuration = base.read_configuration(params)
    push = reading.member(configuration, "pushNotificationConfig", "pushNotification")
    return SendMessage(
        message=base.read_sent_message(params, beside=True),
        wait=reading.flag(configuration, "blocking"),
        accepted_output_modes=reading.texts(configuration, "acceptedOutputModes"),
        history_length=reading.count(configuration, "historyLength"),
        push=None if push is None else reading.read_push_config(push),
        metadata=reading.metadata(params),
        operation=operation,
    )


class V03(base.Dialect):
    """A2A 0.3."""

    name = "0.3"
    methods: ClassVar = {
        Operation.SEND: ("message/send", "tasks/send"),
        Operation.STREAM: ("message/stream", "message/sendStream"),
        Operation.GET: ("tasks/get",),
        Operation.CANCEL: ("tasks/cancel",),
        Operation.SUBSCRIBE: ("tasks/resubscribe",),
        Operation.PUSH_SET: ("tasks/pushNotificationConfig/set", "tasks/pushNotification/set"),
        Operation.PUSH_GET: ("tasks/pushNotificationConfig/get", "tasks/pushNotification/get"),
        Operation.PUSH_LIST: ("tasks/pushNotificationConfig/list",),
        Operation.PUSH_DELETE: ("tasks/pushNotificationConfig/delete",),
        Operation.EXTENDED_CARD: ("agent/getAuthenticatedExtendedCard", "agent/authenticatedExtendedCard"),
    }
    """A2A 0.3.0 section 3.5.6; the second names are interop.md section 5's and the seed guide's."""
    loses = (
        "operation list: 0.3 has none over JSON-RPC",
        "media type of a text part",
        "a file's address when its content is there too",
        "microseconds of a time stamp",
        "events of a push configuration, and all its schemes but one",
        "artifacts beside a status update that is streamed",
    )
    rejoins = False
    card_version = "0.3.0"
    decoders: ClassVar = {
        Operation.SEND: lambda params: _read_send(params, Operation.SEND),
        Operation.STREAM: lambda params: _read_send(params, Operation.STREAM),
        Operation.GET: base.read_get,
        Operation.CANCEL: base.read_cancel,
        Operation.SUBSCRIBE: base.read_subscribe,
        Operation.PUSH_SET: base.read_set_push,
        Operation.PUSH_GET: base.read_get_push,
        Operation.PUSH_LIST: base.read_list_push,
        Operation.PUSH_DELETE: base.read_delete_push,
        Operation.EXTENDED_CARD: lambda params: GetExtendedCard(),
    }
    kinds = True

    def write_send(self, call: SendMessage) -> dict[str, Any]:
        """The context stands beside the message too, where the seed has it ("Request shape"): its agent reads it
        nowhere else, and 0.3's own members are in the message."""
        push = None if call.push is None else base.write_push_config(call.push, schemes_listed=True)
        return {
            "message": self.write_message(call.message),
            **present(contextId=call.message.context_id),
            "configuration": {
                "acceptedOutputModes": list(call.accepted_output_modes),
                **present(blocking=call.wait, historyLength=call.history_length, pushNotificationConfig=push),
            },
            **present(metadata=dict(call.metadata)),
        }

    def encode_reply(self, call: Call, reply: base.Reply) -> Any:
        """The ``result`` of an answer to ``call``; a card is 0.3's alone."""
        return write_card(reply, current=False) if isinstance(reply, AgentCard) else super().encode_reply(call, reply)

    def encode_push(self, event: TaskEvent, task: Task) -> dict[str, Any]:
        """A webhook body: a status update with its results beside it (seed "Push notifications")."""
        if isinstance(event, ArtifactUpdate | DirectReply):
            return self.encode_event(event)
        status = base.pushed_status(event, task)
        body = self.encode_event(StatusUpdate(task_id=task.task_id, context_id=task.context_id, status=status))
        artifacts = task.artifacts if status.state in TERMINAL else ()
        if artifacts:
            body["artifact"] = {**self.write_artifact(artifacts[0]), "append": False, "lastChunk": True}
            body["artifacts"] = [self.write_artifact(artifact) for artifact in artifacts]
        return body
