"""Agents whose webhooks are broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fleetsim.model.call import Operation
from fleetsim.model.task import TaskState
from tests.broken.build import Catalogue, with_limits
from tests.broken.editors import (
    LEGACY,
    SENDS,
    about,
    answer_error,
    each_object,
    edit_params,
    edit_reply,
    grant,
    in_dialect,
    without,
)
from tests.broken.senders import (
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
    UnresolvedSender,
    Untold,
    edit_webhook,
    sending,
    silent_about,
    telling_twice,
    trusting,
)
from tests.broken.services import (
    FirstTokenStays,
    InlineDeaf,
    NoDelete,
    OneSlot,
    RefusedAsInternal,
    SilentlyDropped,
    StrictDelete,
    Undead,
)
from tests.broken.wire import Json

SET, GET, LIST, DELETE = Operation.PUSH_SET, Operation.PUSH_GET, Operation.PUSH_LIST, Operation.PUSH_DELETE
OLD_GET = in_dialect("0.3", GET)
PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")


def _in_config(*names: str) -> Callable[[Json], Json]:
    """Leave members out of a webhook's config, wherever the dialect has it."""

    def change(found: Json) -> None:
        for name in names:
            found.pop(name, None)

    return lambda params: each_object(params, change)


catalogue = Catalogue()
add = catalogue.add

add("P-01 set-null: registering a webhook returns null", edit_reply(SET, to=lambda _result: None))
add(
    "P-02 get-wants-task-id: reading a webhook wants taskId, which no SDK sends",
    answer_error(
        lambda asked: asked.operation is GET and "taskId" not in asked.params and (asked.method not in LEGACY),
        -32602,
        "taskId is required",
    ),
    incident="the original agent",
    also={"P-05": "reading without a config id is reading"},
)
add("P-03 list-null: listing webhooks returns null", edit_reply(LIST, to=lambda _result: None))
add("P-04 delete-in-words: a deleted webhook is still there", intercept=NoDelete)
add("P-04 deleted-told: a deleted webhook is still told", intercept=Undead)
add(
    "P-05 config-id-demanded: reading a webhook wants a config id",
    answer_error(
        lambda asked: OLD_GET(asked) and "pushNotificationConfigId" not in asked.params, -32602, "config id is required"
    ),
    incident="the 1.x servers",
)
add("P-06 delete-once: deleting a webhook twice is an error", intercept=StrictDelete)
add("P-07 webhook-for-nobody: a webhook for an unknown task is taken", grant(about(SET), -32001))
add("P-08 loopback-taken: loopback webhooks are taken", sender=trusting("127.0.0.0/8", "::1/128"), incident="Quinn #19")
add("P-09 private-taken: webhooks in private networks are taken", sender=trusting(*PRIVATE), incident="Quinn #19")
add(
    "P-10 metadata-taken: link-local webhooks are taken",
    sender=trusting("169.254.0.0/16", "fe80::/10"),
    incident="Quinn #19",
    also={"L-06 P-14 R-06 P-39": "the same guard, asked in another place"},
)
add("P-11 any-scheme-taken: webhooks of any scheme are taken", sender=AnySchemeSender)
LOOKS_ALIKE = {"P-39": "one of the addresses that merely look like the allowed one is of this kind"}
add("P-12 unresolved-taken: webhooks whose host does not resolve are taken", sender=UnresolvedSender, also=LOOKS_ALIKE)
add("P-13 odd-spelling-taken: odd spellings of a private host are taken", sender=LaxFormSender, also=LOOKS_ALIKE)
add(
    "P-08 no-guard: every address is taken",
    sender=TrustingSender,
    incident="Quinn #19",
    also={
        "L-06 R-06": "the same guard, asked in another place",
        "P-09 P-10 P-12 P-13 P-14 P-39": "no address is refused",
    },
)
add(
    "P-12 names-trusted: every name is taken",
    sender=NameBlindSender,
    also={"P-08": "localhost is a name", **LOOKS_ALIKE},
)
add(
    "P-40 refused-as-internal: a refused webhook is an internal error whose words name it",
    intercept=RefusedAsInternal,
    incident="protolabs-agent 0.218.1",
    also={"L-06": "the code of the same refusal in 0.1"},
)
add(
    "P-14 dropped-in-silence: a refused webhook in a send is dropped in silence",
    intercept=SilentlyDropped,
    incident="the original agent",
)
add(
    "P-15 end-untold: the end of a task is not delivered",
    sender=silent_about(TaskState.COMPLETED),
    also={"L-07 P-24 P-25 P-26 P-36": "it waits for the webhook of a task's end"},
)
add("P-16 working-untold: working is not delivered", sender=silent_about(TaskState.WORKING))
add(
    "P-17 cancel-without-push: a cancel is not delivered", sender=silent_about(TaskState.CANCELED), incident="Quinn #19"
)
add("P-18 failure-untold: a failure is not delivered", sender=silent_about(TaskState.FAILED))
add(
    "P-19 tokenless: webhooks carry no token",
    sender=sending(lambda delivery: replace(delivery, token=None, scheme=None, credentials=None)),
    also={"P-20 P-30": "no token is sent at all"},
)
add(
    "P-19 top-level-token-unread: a top-level token is not read",
    edit_params(SET, *SENDS, to=_in_config("token")),
    incident="Quinn #61",
    also={"P-30": "the second registration has a top-level token"},
)
add(
    "P-20 token-shape: a token in authentication.credentials is not read",
    edit_params(SET, *SENDS, to=_in_config("authentication")),
    incident="Quinn #61",
)
add(
    "P-21 one-token-header: the token is sent as Authorization alone",
    sender=OneHeaderSender,
    incident="the original agent",
)
add("P-22 webhook-without-kind: a webhook's body has no kind", sender=edit_webhook(lambda body: without("kind")(body)))
add(
    "P-23 webhook-without-answer: the terminal webhook carries no answer",
    sender=edit_webhook(lambda body: without("artifact", "artifacts")(body)),
    incident="a2a-sdk 1.3.0",
)
add(
    "P-38 webhook-artifact-alone: the end carries artifact and no artifacts list",
    sender=edit_webhook(without("artifacts")),
    incident="both original agents",
)
add(
    "P-24 closed-over-push-config: a webhook registered after the send is not used",
    pair=Untold,
    incident="the seed's hardening 5",
    also={"L-07 P-17 P-25 P-36": "it registers its webhook after the send"},
)
add(
    "P-25 late-untold: a webhook registered after the end hears nothing",
    pair=lambda: Untold(lambda task: task.terminal),
)
add(
    "P-26 inline-unused: a webhook given with the send is not used",
    intercept=InlineDeaf,
    also={"P-15 P-18": "its webhook comes with the send"},
)
add(
    "P-27 never-retried: a refused delivery is not tried again",
    sender=OneShotSender,
)
add(
    "P-27 everything-delivered: every answer counts as delivered",
    sender=EasySender,
    incident="the original agent (U26)",
)
add("P-28 4xx-retried: a 4xx is tried again", sender=StubbornSender)
add("P-29 redirect-followed: redirects are followed", sender=FollowingSender)
add("P-30 first-token-stays: a re-registered webhook keeps its first token", intercept=FirstTokenStays)
add(
    "P-31 overtaken: a late working arrives after the end",
    also={"P-16": "working comes after the end"},
    sender=HastySender,
    incident="the original agent (U23)",
)
add("P-31 retry-overtaken: a refused working is tried again after the end was delivered", sender=ParallelSender)
add("P-39 allowed-by-text: whatever contains an allowed host is allowed", sender=TextAllowingSender)
add(
    "P-32 webhook-as-text: webhooks are sent as text",
    sender=sending(lambda delivery: replace(delivery, content_type="text/plain")),
)
add(
    "P-33 receiver-breaks-task: a broken receiver fails the task",
    pair=Fragile,
    also={"T-07": "a task that was completed is failed"},
)
add("P-34 rapid-retries: retries come all at once", sender=RapidSender)
add("P-35 webhooks-unbounded: a task takes any number of webhooks", settings=with_limits(pushes_per_task_max=10000))
add("P-36 one-slot: a second webhook replaces the first", intercept=OneSlot, incident="the original agent")
add(
    "P-37 cancel-told-twice: a cancel is delivered twice",
    sender=telling_twice(TaskState.CANCELED),
    incident="the original agent (U24)",
)
add("P-37 end-told-twice: a completion is delivered twice", sender=telling_twice(TaskState.COMPLETED))

MUTANTS = tuple(catalogue.mutants)
