"""Rows about the delivery of webhooks: when, how often, with which content, and after a refusal.

Agents may leave a receiver alone that fails too often in a row, so no probe refuses more than it must: with all of
them at work at once, fewer than five deliveries end unsuccessfully.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise, takewhile
from typing import Any

from fleetsim.check.agent_under_test import Hint
from fleetsim.check.evidence import Exchange, fail_unless, not_tested_unless
from fleetsim.check.listener import ReceivedWebhook, WebhookAddress, state_of, tells_the_end
from fleetsim.check.raw_dialect import KINDS, among, answer_text, listed, mapping, texts
from fleetsim.check.requirement import BUILD_GUIDE, V03, must, should
from fleetsim.check.session import (
    Session,
    delivered_webhook,
    registered,
    webhook_on_finished_task,
    webhook_on_running_task,
)
from fleetsim.model.task import TERMINAL

PUSH = f"{BUILD_GUIDE}, 'Push notifications'"
RETRIES_S = 20.0
RETRY_S = 6.0
"""Every agent with retries repeats a refused delivery within this time."""


async def slow_webhook(session: Session) -> tuple[str, WebhookAddress, Exchange]:
    """A task of the slow skill with an inline webhook, until its end was delivered or the time was over."""
    hook = session.hook()
    task_id, reply = await session.begin(session.hint("slow"), push=session.dialect.hook(hook.url))
    await hook.until(tells_the_end, session.options.limit_s)
    return task_id, hook, reply


@must(
    "P-15: The end of a task is delivered",
    source=f"{PUSH}; {BUILD_GUIDE}, checklist 'Transport & lifecycle'",
    remedy="Notify on every terminal transition.",
    needs=("push", "listener", "slow", "end"),
)
async def end_is_delivered(session: Session) -> None:
    """Send to the slow skill with a webhook, and wait for the terminal one."""
    task_id, hook, reply = await session.fixture(slow_webhook)
    arrival = next(filter(tells_the_end, hook.arrivals), None)
    read = await session.get(task_id)
    arrival = fail_unless(arrival, f"no terminal webhook came; the task is {session.state(read)}", reply, read)
    same = state_of(arrival) == session.state(read)
    fail_unless(same, f"the webhook says {state_of(arrival)}, get says {session.state(read)}", arrival, read)


async def send_with_webhook(
    session: Session, hook: WebhookAddress | None = None, hint: Hint | None = None, **config: Any
) -> tuple[WebhookAddress, Exchange]:
    """A send with a webhook in its configuration (a fresh one if none is given), and its answer."""
    hook = hook or session.hook()
    return hook, (await session.begin(hint, push=session.dialect.hook(hook.url, **config)))[1]


@should(
    "P-16: working is delivered",
    source=PUSH,
    remedy="Notify on every transition the caller cares about.",
    needs=("push", "listener", "slow"),
)
async def working_is_delivered(session: Session) -> None:
    """Register inline with the send and look for a webhook before the terminal one."""
    _, hook, reply = await session.fixture(slow_webhook)
    not_tested_unless(hook.arrivals, "no webhook came at all", reply)
    before = takewhile(lambda arrival: not tells_the_end(arrival), hook.arrivals)
    fail_unless(any(state_of(a) == "working" for a in before), "working was not delivered", *hook.arrivals[:2])


@must(
    "P-17: A cancel is delivered",
    source=f"{PUSH}; {BUILD_GUIDE}, checklist 'Transport & lifecycle'",
    remedy="Notify from the cancel path as well.",
    incident="Quinn PR #19; a2a-sdk 0.3.26 sends none",
    needs=("push", "listener", "slow"),
)
async def cancel_is_delivered(session: Session) -> None:
    """Register, cancel, and wait for the canceled webhook."""
    task_id, hook, reply = await webhook_on_running_task(session)
    gone = await session.cancel(task_id)
    not_tested_unless(gone.error is None, f"the cancel gave {gone}", gone)
    arrival = fail_unless(await hook.until(tells_the_end, 10), "no webhook reported the cancel", reply, gone)
    fail_unless(state_of(arrival) == "canceled", "the webhook does not say canceled", arrival)


@must(
    "P-18: A failure is delivered",
    source=PUSH,
    remedy="Notify from the failure path as well.",
    needs=("push", "listener", "fail"),
)
async def failure_is_delivered(session: Session) -> None:
    """Run the failing skill with an inline webhook and wait for the failed webhook."""
    hook, reply = await send_with_webhook(session, hint=session.hint("fail"))
    arrival = await hook.until(tells_the_end, session.options.patience_s)
    arrival = fail_unless(arrival, "no webhook reported the failure", reply)
    fail_unless(state_of(arrival) == "failed", "the webhook does not say failed", arrival)


@must(
    "P-24: A webhook registered after the send is used",
    source=f"{BUILD_GUIDE}, hardening 5 and checklist 'Task store hygiene'",
    remedy="Look the task's webhooks up at each delivery; do not keep those of the send.",
    incident="Configs closed over at submit time: later registrations did nothing",
    needs=("push", "listener", "slow", "end"),
)
async def live_record(session: Session) -> None:
    """Send without one, register while it runs, and wait for the terminal webhook."""
    _, hook, reply = await webhook_on_running_task(session)
    arrival = await hook.until(tells_the_end, session.options.patience_s)
    fail_unless(arrival, "a webhook registered after the send was never called at the end", reply)


@should(
    "P-25: A webhook registered after the end is called at once",
    source="Reference interop, section 8; DESIGN section 3",
    remedy="Deliver the terminal state when a config arrives late: the caller may just have missed it.",
    needs=("push", "listener"),
)
async def after_the_end(session: Session) -> None:
    """Register on a finished task and wait for the webhook."""
    _, hook, reply = await webhook_on_finished_task(session)
    arrival = await hook.until(tells_the_end, 5)
    fail_unless(arrival, "a webhook registered after the end was not called", reply)


@must(
    "P-26: A webhook given with the send is used",
    source="A2A 0.3 §7.1.1, 1.0 §3.2.2",
    remedy="Read configuration.pushNotificationConfig (0.3) or taskPushNotificationConfig (1.0).",
    needs=("push", "listener"),
)
async def with_the_send(session: Session) -> None:
    """Send with the config inside configuration and wait for the terminal webhook."""
    hook, reply = await send_with_webhook(session)
    arrival = await hook.until(tells_the_end, session.options.patience_s)
    fail_unless(arrival, "a webhook given with the send was never called at the end", reply)


@must(
    "P-27: A delivery answered with 500 is tried again",
    source=f"{PUSH}, implementation checklist",
    remedy="Retry after 1, 3 and 9 seconds.",
    needs=("push", "listener"),
)
async def tried_again(session: Session) -> None:
    """Answer the first delivery with 500 and wait for the second."""
    hook, reply = await send_with_webhook(session, session.hook(answers=(500,)))
    not_tested_unless(await hook.anything(session.options.patience_s), "no webhook came at all", reply)
    # An agent may go on to the next state before it tries again: what counts is the first one's state once more.
    again = await hook.until(
        lambda _arrival: any(state_of(later) == state_of(hook.arrivals[0]) for later in hook.arrivals[1:]), 10
    )
    fail_unless(again, "a delivery answered with 500 was not tried again", reply, *hook.arrivals[:1])


@must(
    "P-28: A delivery answered with 4xx is not tried again",
    source=f"{PUSH}, implementation checklist",
    remedy="Give up on 4xx (but 408, 425 and 429).",
    needs=("push", "listener"),
    lasts_s=6,
)
async def not_tried_again(session: Session) -> None:
    """Answer a delivery with 400 and wait 6 s: no second attempt of it."""
    hook, _, reply = await _first_webhook(session, otherwise=400)
    not_tested_unless(await hook.until(tells_the_end, session.options.patience_s), "no terminal webhook came", reply)
    await asyncio.sleep(6)
    ends = [arrival for arrival in hook.arrivals if tells_the_end(arrival)]
    fail_unless(len(ends) <= 1, f"a delivery answered with 400 was tried {len(ends)} times", reply, *ends[:2])


@must(
    "P-29: Redirects of a webhook are not followed",
    source="Reference reliability T-20",
    remedy="Switch redirects off in the delivering client.",
    needs=("push", "listener"),
    lasts_s=2,
)
async def no_redirects(session: Session) -> None:
    """Answer a delivery with 307 to another path of the listener: no request may arrive there."""
    other, hook = session.hook(), session.hook(answers=(307,))
    hook.location = other.url
    _, reply = await send_with_webhook(session, hook)
    not_tested_unless(await hook.anything(session.options.patience_s), "no webhook came at all", reply)
    followed = await other.anything(2)
    fail_unless(followed is None, "the redirect of a webhook was followed", reply, *([followed] if followed else ()))


@should(
    "P-31: Webhooks come in the order of the states",
    source=PUSH,
    remedy="Send webhooks to one address one after the other.",
    needs=("push", "listener", "slow", "end"),
    lasts_s=14,
)
async def in_order(session: Session) -> None:
    """No state may be delivered after the terminal one."""
    _, hook, reply = await session.fixture(slow_webhook)
    not_tested_unless(any(map(tells_the_end, hook.arrivals)), "no terminal webhook came", reply)
    await asyncio.sleep(2)
    states = [state_of(arrival) for arrival in hook.arrivals if state_of(arrival)]
    first = next(place for place, state in enumerate(states) if state in TERMINAL)
    fail_unless(all(state in TERMINAL for state in states[first:]), f"the order was {', '.join(states)}", reply)
    # A notice that is refused once: its second try must not come after the end was delivered.
    hook = session.hook()
    hook.refused_once = {"submitted", "working"}
    _, reply = await send_with_webhook(session, hook)
    not_tested_unless(await hook.until(tells_the_end, session.options.patience_s), "no terminal webhook came", reply)
    await asyncio.sleep(RETRY_S)
    states = [state for arrival in hook.arrivals if (state := state_of(arrival))]
    end = next(place for place, state in enumerate(states) if state in TERMINAL)
    # A state that came before the end (and was refused then) is tried again after it: the order is turned round.
    late = [state for place, state in enumerate(states) if place > end and state not in TERMINAL]
    fail_unless(
        not late, f"a refused {late[0] if late else ''} was tried again after the end", reply, *hook.arrivals[:4]
    )


@must(
    "P-33: A broken receiver does not touch the task",
    source="Seed: implement-a2a-server, step 5",
    remedy="Deliver beside the task, never inside it.",
    needs=("push", "listener"),
)
async def task_is_untouched(session: Session) -> None:
    """Answer deliveries with 500 until the task has ended: it must complete."""
    hook = session.hook(otherwise=500)
    task_id, reply = await session.begin(push=session.dialect.hook(hook.url))
    await session.until(task_id)
    await hook.anything(session.options.patience_s)
    await asyncio.sleep(0.5)  # what the refusal does to the task shows after it
    read = await session.get(task_id)
    hook.otherwise = 200
    state = session.state(read)
    fail_unless(state == "completed", f"with a broken webhook the task is {state or read}", reply, read)
    not_tested_unless(hook.arrivals, "no webhook came at all", reply)


@should(
    "P-34: Retries stop after three, further and further apart",
    source=f"{PUSH}, implementation checklist (1 s / 3 s / 9 s)",
    remedy="Back off exponentially and stop.",
    needs=("push", "listener"),
    lasts_s=RETRIES_S,
)
async def backs_off(session: Session) -> None:
    """Answer every delivery with 500 for 20 s and look at the attempts: two to four, with growing gaps."""
    hook, first, reply = await _first_webhook(session, otherwise=500)
    await asyncio.sleep(RETRIES_S)
    same = [arrival for arrival in hook.arrivals if arrival.body == first.body]
    not_tested_unless(len(same) > 1, "needs a delivery that is tried again: one attempt was all (P-27)", reply)
    fail_unless(2 <= len(same) <= 4, f"one delivery was tried {len(same)} times in {RETRIES_S:g} s", reply, *same[:1])
    gaps = [later.at - sooner.at for sooner, later in pairwise(same)]
    growing = all(after > before for before, after in pairwise(gaps))
    fail_unless(growing, f"the gaps do not grow: {', '.join(f'{gap:.1f} s' for gap in gaps)}", reply)


@should(
    "P-36: Every registered webhook is called",
    source="A2A 0.3 §7.5, 1.0 §3.1.7",
    remedy="Keep a list of configs.",
    needs=("push", "listener", "slow", "end"),
)
async def every_one_is_called(session: Session) -> None:
    """Register two under different ids; both must receive the end."""
    task_id, first, _ = await webhook_on_running_task(session, id="fleetsim-36a")
    second = session.hook()
    reply = await registered(session, task_id, second, id="fleetsim-36b")
    for number, hook in enumerate((first, second), 1):
        arrival = await hook.until(tells_the_end, session.options.patience_s)
        fail_unless(arrival, f"webhook {number} of 2 did not receive the end", reply)


@should(
    "P-37: The end is delivered once",
    source=f"{BUILD_GUIDE}, hardening 3; {PUSH}",
    remedy="Notify from the one place where the state changes.",
    incident="@a2a-js/sdk 1.3.0 delivers a cancel twice",
    needs=("push", "listener", "slow"),
)
async def end_is_told_once(session: Session) -> None:
    """Count the terminal deliveries of a completed task and of a cancelled one after a while, each shape by itself."""
    for cancelled in (False, True):
        if cancelled:
            task_id, hook, reply = await webhook_on_running_task(session)
            gone = await session.cancel(task_id)
            not_tested_unless(gone.error is None, f"the cancel gave {gone}", gone)
        else:
            hook, reply = await send_with_webhook(session)
        what = "the cancel" if cancelled else "the completion"
        seconds = 10 if cancelled else session.options.patience_s
        needs = f"needs a webhook that reports {what}: none came ({'P-17' if cancelled else 'P-26'})"
        not_tested_unless(await hook.until(tells_the_end, seconds), needs, reply)
        await asyncio.sleep(1.5)
        ends = [arrival for arrival in hook.arrivals if tells_the_end(arrival)]
        kinds = Counter(session.dialect.event(arrival.value)[0] for arrival in ends)
        fail_unless(max(kinds.values()) == 1, f"{what} was delivered {max(kinds.values())} times", *ends[:2])
        fail_unless(len(ends) == 1 or session.dialect.current, f"the end was told {len(ends)} times", *ends[:2])


async def _first_webhook(
    session: Session, *, otherwise: int = 200, **config: Any
) -> tuple[WebhookAddress, ReceivedWebhook, Exchange]:
    _, hook, reply = await webhook_on_finished_task(session, otherwise=otherwise, **config)
    arrival = await hook.anything(5)
    if arrival is None:  # an agent that does not deliver late still delivers what is registered inline
        hook, reply = await send_with_webhook(session, session.hook(otherwise=otherwise), **config)
        arrival = not_tested_unless(await hook.anything(session.options.patience_s), "no webhook came at all", reply)
    return hook, arrival, reply


def _bearer(arrival: ReceivedWebhook) -> str:
    scheme, _, token = arrival.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else ""


@must(
    "P-19: A top-level token comes back with the webhook",
    source=f"{PUSH}, 'Token parsing'",
    remedy="Store the token and send it.",
    incident="Quinn #61",
    needs=("push", "listener"),
)
async def top_level_token(session: Session) -> None:
    """Register {url, token}: the delivery carries it as Authorization: Bearer or X-A2A-Notification-Token."""
    token = session.new()
    _, arrival, reply = await _first_webhook(session, token=token)
    got = {_bearer(arrival), arrival.headers.get("x-a2a-notification-token", "")}
    fail_unless(token in got, "the delivery does not carry the token", reply, arrival)


@must(
    "P-20: A token in authentication.credentials comes back with the webhook",
    source=f"{PUSH}, 'Token parsing'",
    remedy="Read both shapes; the top-level token wins.",
    incident="Quinn #61: one shape only, 401 on each delivery",
    needs=("push", "listener"),
)
async def structured_token(session: Session) -> None:
    """Register {url, authentication}: the delivery carries the credentials as Authorization: Bearer."""
    secret = session.new()
    _, arrival, reply = await _first_webhook(session, credentials=secret)
    fail_unless(_bearer(arrival) == secret, "the delivery does not carry the credentials as a bearer", reply, arrival)


@should(
    "P-21: The token is sent in both headers",
    source=f"{PUSH}, implementation checklist; A2A 0.3 §9.5; reference interop, 'Pitfalls'",
    remedy="Send both: receivers look at one or the other.",
    needs=("push", "listener"),
)
async def both_headers(session: Session) -> None:
    """Read Authorization and X-A2A-Notification-Token of a delivery."""
    token = session.new()
    _, arrival, reply = await _first_webhook(session, token=token)
    header = arrival.headers.get("x-a2a-notification-token", "")
    not_tested_unless(token in {header, _bearer(arrival)}, "the delivery does not carry the token", reply, arrival)
    fail_unless(header == token, "no X-A2A-Notification-Token", reply, arrival)
    fail_unless(_bearer(arrival) == token, "no Authorization: Bearer", reply, arrival)


@must(
    "P-22: A webhook's body has the shape of its dialect",
    source=f"{PUSH}; A2A 1.0 §4.3.3",
    remedy="Send the event as it goes over the stream.",
    incident="Quinn #40",
    needs=("push", "listener"),
)
async def body_has_its_shape(session: Session) -> None:
    """0.3: kind, the task's id and status; 1.0: one of task, message, statusUpdate, artifactUpdate."""
    task_id, hook, _ = await session.fixture(delivered_webhook)
    wrappers = {"task", "message", "statusUpdate", "artifactUpdate"}
    for arrival in hook.arrivals:
        body = mapping(arrival.value)
        fail_unless(body, "the body is no JSON object", arrival)
        if session.dialect.current:
            keys = set(body) & wrappers
            fail_unless(len(keys) == 1, f"the body has the keys {', '.join(sorted(body))}", arrival)
        else:
            fail_unless(among(body.get("kind"), KINDS), f"the body's kind is {body.get('kind') or 'missing'}", arrival)
        kind, content = session.dialect.event(body)
        named = session.dialect.task_id(kind, content)
        fail_unless(named == task_id, f"the body names the task {named!r}", arrival)


async def _answers_told(session: Session) -> tuple[str, str, str, ReceivedWebhook]:
    """The text of the task, of ``artifact`` and of ``artifacts`` in the webhook of its end, and that webhook."""
    task_id, hook, _ = await session.fixture(delivered_webhook)
    arrival = next(a for a in hook.arrivals if tells_the_end(a))
    body = mapping(arrival.value)
    read = await session.get(task_id)
    whole = answer_text(session.dialect.task(read.result))
    not_tested_unless(whole, "the task has no text to deliver", read)
    single = texts(mapping(body.get("artifact")).get("parts"))
    several = "".join(texts(mapping(a).get("parts")) for a in listed(body.get("artifacts")))
    return whole, single, several, arrival


@should(
    "P-23: The terminal webhook carries the answer",
    V03,
    source=f"{PUSH}; reference interop, 'What real clients found'",
    remedy="Add the artifact, and an artifacts list for older callers.",
    incident="The original caller got an empty answer from the original agent",
    needs=("push", "listener"),
)
async def end_carries_the_answer(session: Session) -> None:
    """Read artifact (or artifacts) of the completed webhook."""
    whole, single, several, arrival = await _answers_told(session)
    fail_unless(whole in {single, several}, "the terminal webhook carries no artifact with the answer", arrival)


@should(
    "P-38: The terminal webhook carries the answer as an artifacts list too",
    V03,
    source=f"{PUSH}; reference workstacean-facts, 'Callbacks'",
    remedy="Add artifacts: [artifact] beside artifact.",
    incident="Workstacean's tracker reads only artifacts: its callers got empty answers from agents that send artifact",
    needs=("push", "listener"),
    binding_for=("workstacean",),
    after="P-23",
)
async def end_carries_the_list(session: Session) -> None:
    """Read artifacts of the completed webhook."""
    whole, single, several, arrival = await _answers_told(session)
    not_tested_unless(whole in {single, several}, "because P-23: the terminal webhook carries no answer", arrival)
    fail_unless(whole == several, "the answer is in artifact alone; the artifacts list is missing", arrival)


@must(
    "P-30: A re-registered webhook is used with its new token",
    source=f"{BUILD_GUIDE}, hardening 5 and checklist 'Task store hygiene'",
    remedy="Look the task's webhooks up at each delivery; do not keep those of the send.",
    needs=("push", "listener", "slow", "end"),
)
async def new_token_counts(session: Session) -> None:
    """Register twice under one id with different tokens while the task runs: the end comes with the second."""
    task_id, hook, _ = await webhook_on_running_task(session, id="fleetsim-30", token=session.new())
    token = session.new()
    reply = await registered(session, task_id, hook, id="fleetsim-30", token=token)
    arrival = not_tested_unless(
        await hook.until(tells_the_end, session.options.patience_s), "no terminal webhook came", reply
    )
    got = {_bearer(arrival), arrival.headers.get("x-a2a-notification-token", "")}
    fail_unless(token in got, "the end came with another token than the last one registered", reply, arrival)


@must(
    "P-32: Webhooks are JSON",
    source=f"{PUSH}; A2A 1.0 §4.3.3",
    remedy="Set the Content-Type.",
    needs=("push", "listener"),
)
async def is_json(session: Session) -> None:
    """Read the Content-Type: application/json or application/a2a+json."""
    _, hook, _ = await session.fixture(delivered_webhook)
    for arrival in hook.arrivals:
        kind = arrival.headers.get("content-type", "").partition(";")[0].strip().lower()
        fits = kind in {"application/json", "application/a2a+json"}
        fail_unless(fits, f"the Content-Type of a webhook is {kind or 'missing'}", arrival)
