"""Agents whose webhooks are broken."""

from __future__ import annotations

from dataclasses import replace

from fleetsim.check.broken.build import Catalogue, with_limits
from fleetsim.check.broken.editors import (
    LEGACY,
    SENDS,
    JsonEdit,
    about,
    answer_as,
    answer_error,
    edit_params,
    edit_reply,
    without,
)
from fleetsim.check.broken.senders import (
    AnySchemeSender,
    EasySender,
    FollowingSender,
    Fragile,
    HastySender,
    LaxFormSender,
    NameBlindSender,
    OneHeaderSender,
    OneShotSender,
    ParallelSender,
    RapidSender,
    StubbornSender,
    TextAllowingSender,
    TrustingSender,
    TwiceSender,
    UnresolvedSender,
    Untold,
    edit_webhook,
    sending,
    silent_about,
    trusting,
)
from fleetsim.check.broken.services import (
    FirstTokenStays,
    InlineDeaf,
    NoDelete,
    OneSlot,
    SilentlyDropped,
    StrictDelete,
    Undead,
)
from fleetsim.check.broken.wire import Answer, Asked, Json
from fleetsim.model.call import Operation
from fleetsim.model.task import TaskState
from fleetsim.runtime.webhook import Delivery

SET, GET, LIST, DELETE = Operation.PUSH_SET, Operation.PUSH_GET, Operation.PUSH_LIST, Operation.PUSH_DELETE
PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")


def _wants_task_id(asked: Asked) -> bool:
    return asked.operation is GET and "taskId" not in asked.params and asked.method not in LEGACY


def _no_config_id(asked: Asked) -> bool:
    return (
        asked.operation is GET
        and "pushNotificationConfigId" not in asked.params
        and "/" in asked.method
        and asked.method not in LEGACY
    )


def _registered_anyway(asked: Asked, answer: Answer) -> None:
    envelope = answer.json
    if isinstance(envelope, dict) and envelope.get("error", {}).get("code") == -32001:
        answer.say({"jsonrpc": "2.0", "id": envelope.get("id"), "result": dict(asked.params)})


def _in_config(*names: str) -> JsonEdit:
    """Leave members out of a webhook's config, wherever the dialect has it."""

    def change(params: Json) -> Json:
        params = without(*names)(params)
        for key in ("pushNotificationConfig", "pushNotification", "configuration"):
            if isinstance(params.get(key), dict):
                params[key] = change(params[key])
        for key in ("taskPushNotificationConfig",):
            if isinstance(params.get(key), dict):
                params[key] = without(*names)(params[key])
        return params

    return change


def _kindless(body: Json) -> Json:
    return without("kind")(body)


def _no_answer(body: Json) -> Json:
    return without("artifact", "artifacts")(body)


def _tokenless(delivery: Delivery) -> Delivery:
    return replace(delivery, token=None, scheme=None, credentials=None)


def _as_text(delivery: Delivery) -> Delivery:
    return replace(delivery, content_type="text/plain")


catalogue = Catalogue()
add = catalogue.add

add("set-null", "P-01", "registering a webhook returns null", edit_reply(SET, to=lambda _result: None))
add(
    "get-wants-task-id",
    "P-02",
    "reading a webhook wants taskId, which no SDK sends",
    answer_error(_wants_task_id, -32602, "taskId is required"),
    incident="the original agent",
    also={"P-05": "reading without a config id is reading"},
)
add("list-null", "P-03", "listing webhooks returns null", edit_reply(LIST, to=lambda _result: None))
add("delete-in-words", "P-04", "a deleted webhook is still there", intercept=NoDelete)
add("deleted-told", "P-04", "a deleted webhook is still told", intercept=Undead)
add(
    "config-id-demanded",
    "P-05",
    "reading a webhook wants a config id",
    answer_error(_no_config_id, -32602, "config id is required"),
    incident="the 1.x servers",
)
add("delete-once", "P-06", "deleting a webhook twice is an error", intercept=StrictDelete)
add("webhook-for-nobody", "P-07", "a webhook for an unknown task is taken", answer_as(about(SET), _registered_anyway))
add(
    "loopback-taken",
    "P-08",
    "loopback webhooks are taken",
    sender=trusting("127.0.0.0/8", "::1/128"),
    incident="Quinn #19",
)
add("private-taken", "P-09", "webhooks in private networks are taken", sender=trusting(*PRIVATE), incident="Quinn #19")
add(
    "metadata-taken",
    "P-10",
    "link-local webhooks are taken",
    sender=trusting("169.254.0.0/16", "fe80::/10"),
    incident="Quinn #19",
    also={"L-06 P-14 R-06 P-39": "the same guard, asked in another place"},
)
add("any-scheme-taken", "P-11", "webhooks of any scheme are taken", sender=AnySchemeSender)
LOOKS_ALIKE = {"P-39": "one of the addresses that merely look like the allowed one is of this kind"}
add(
    "unresolved-taken",
    "P-12",
    "webhooks whose host does not resolve are taken",
    sender=UnresolvedSender,
    also=LOOKS_ALIKE,
)
add(
    "odd-spelling-taken",
    "P-13",
    "odd spellings of a private host are taken",
    sender=LaxFormSender,
    also=LOOKS_ALIKE,
)
add(
    "no-guard",
    "P-08",
    "every address is taken",
    sender=TrustingSender,
    incident="Quinn #19",
    also={
        "L-06 R-06": "the same guard, asked in another place",
        "P-09 P-10 P-12 P-13 P-14 P-39": "no address is refused",
    },
)
add(
    "names-trusted",
    "P-12",
    "every name is taken",
    sender=NameBlindSender,
    also={"P-08": "localhost is a name", **LOOKS_ALIKE},
)
add(
    "dropped-in-silence",
    "P-14",
    "a refused webhook in a send is dropped in silence",
    intercept=SilentlyDropped,
    incident="the original agent",
)
add(
    "end-untold",
    "P-15",
    "the end of a task is not delivered",
    sender=silent_about(TaskState.COMPLETED),
    also={"L-07 P-24 P-25 P-26 P-36": "it waits for the end of a task to be told"},
)
add("working-untold", "P-16", "working is not delivered", sender=silent_about(TaskState.WORKING))
add(
    "cancel-without-push",
    "P-17",
    "a cancel is not delivered",
    sender=silent_about(TaskState.CANCELED),
    incident="Quinn #19",
)
add("failure-untold", "P-18", "a failure is not delivered", sender=silent_about(TaskState.FAILED))
add(
    "tokenless",
    "P-19",
    "webhooks carry no token",
    sender=sending(_tokenless),
    also={"P-20 P-30": "no token is sent at all"},
)
add(
    "top-level-token-unread",
    "P-19",
    "a top-level token is not read",
    edit_params(SET, *SENDS, to=_in_config("token")),
    incident="Quinn #61",
    also={"P-30": "the second registration has a top-level token"},
)
add(
    "token-shape",
    "P-20",
    "a token in authentication.credentials is not read",
    edit_params(SET, *SENDS, to=_in_config("authentication")),
    incident="Quinn #61",
)
add(
    "one-token-header",
    "P-21",
    "the token is sent as Authorization alone",
    sender=OneHeaderSender,
    incident="the original agent",
)
add("webhook-without-kind", "P-22", "a webhook's body has no kind", sender=edit_webhook(_kindless))
add(
    "webhook-without-answer",
    "P-23",
    "the terminal webhook carries no answer",
    sender=edit_webhook(_no_answer),
    incident="a2a-sdk 1.3.0",
)
add(
    "webhook-artifact-alone",
    "P-38",
    "the end carries artifact and no artifacts list",
    sender=edit_webhook(without("artifacts")),
    incident="both original agents",
)
add(
    "closed-over-push-config",
    "P-24",
    "a webhook registered after the send is not used",
    pair=Untold,
    incident="the seed's hardening 5",
    also={"L-07 P-17 P-25 P-36": "it registers its webhook after the send"},
)
add(
    "late-untold",
    "P-25",
    "a webhook registered after the end hears nothing",
    pair=lambda: Untold(lambda task: task.terminal),
)
add(
    "inline-unused",
    "P-26",
    "a webhook given with the send is not used",
    intercept=InlineDeaf,
    also={"P-15 P-18": "its webhook comes with the send"},
)
add(
    "never-retried",
    "P-27",
    "a refused delivery is not tried again",
    sender=OneShotSender,
    also={"P-34": "there are no retries to look at"},
)
add(
    "everything-delivered",
    "P-27",
    "every answer counts as delivered",
    sender=EasySender,
    incident="the original agent (U26)",
    also={"P-34": "there are no retries to look at"},
)
add("4xx-retried", "P-28", "a 4xx is tried again", sender=StubbornSender)
add("redirect-followed", "P-29", "redirects are followed", sender=FollowingSender)
add("first-token-stays", "P-30", "a re-registered webhook keeps its first token", intercept=FirstTokenStays)
add(
    "overtaken",
    "P-31",
    "a late working arrives after the end",
    also={"P-16": "working comes after the end"},
    sender=HastySender,
    incident="the original agent (U23)",
)
add(
    "retry-overtaken",
    "P-31",
    "a refused working is tried again after the end was delivered",
    sender=ParallelSender,
)
add("allowed-by-text", "P-39", "whatever contains an allowed host is allowed", sender=TextAllowingSender)
add("webhook-as-text", "P-32", "webhooks are sent as text", sender=sending(_as_text))
add(
    "receiver-breaks-task",
    "P-33",
    "a broken receiver fails the task",
    pair=Fragile,
    also={"T-07": "a task that was completed is failed"},
)
add("rapid-retries", "P-34", "retries come all at once", sender=RapidSender)
add(
    "webhooks-unbounded",
    "P-35",
    "a task takes any number of webhooks",
    settings=with_limits(pushes_per_task_max=10_000),
)
add("one-slot", "P-36", "a second webhook replaces the first", intercept=OneSlot, incident="the original agent")
add(
    "cancel-told-twice",
    "P-37",
    "a cancel is delivered twice",
    sender=TwiceSender,
    incident="the original agent (U24)",
)

MUTANTS = tuple(catalogue.mutants)
