"""Probes of webhooks on their way: when they come, what they carry, and what happens when they are refused.

Agents may leave a receiver alone that fails too often in a row, so no probe refuses more than it must: with all of
them at work at once, fewer than five deliveries end unsuccessfully.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from fleetsim.check.exchange import Exchange
from fleetsim.check.fixtures import delivered_webhook, register
from fleetsim.check.listener import Arrival, Hook, state_of
from fleetsim.check.options import Hint
from fleetsim.check.probe import probe
from fleetsim.check.raw_dialect import KINDS, TERMINAL, among, answer_text, listed, mapping, texts
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless, not_tested_unless

RETRIES_S = 20.0
RETRY_S = 6.0
"""Within so long a refused delivery is tried again by every agent that tries again at all."""


def terminal(arrival: Arrival) -> bool:
    """Whether a webhook tells the end."""
    return state_of(arrival) in TERMINAL


async def _inline(session: Session, hint: Hint | None = None, hook: Hook | None = None, **config: Any) -> Exchange:
    hook = hook or session.hook()
    return (await session.begin(hint, push=session.dialect.hook(hook.url, **config)))[1]


def _seen(arrival: Arrival | None) -> tuple[Arrival, ...]:
    return () if arrival is None else (arrival,)


async def _registered_while_running(session: Session, **config: Any) -> tuple[str, Hook, Exchange]:
    hook = session.hook()
    task_id, _ = await session.begin(session.hint("slow"))
    made = await register(session, task_id, hook, **config)
    not_tested_unless(made.error is None, f"registering a webhook gave {made.says()}", made)
    return task_id, hook, made


@probe("P-15")
async def end_is_delivered(session: Session) -> None:
    """Wait for the end of a slow task."""
    hook = session.hook()
    task_id, made = await session.begin(session.hint("slow"), push=session.dialect.hook(hook.url))
    arrival = await hook.until(terminal, session.options.patience_s)
    read = await session.get(task_id)
    fail_unless(arrival, f"no terminal webhook came; the task is {session.state(read)}", made, read)
    assert arrival is not None
    same = state_of(arrival) == session.state(read)
    fail_unless(same, f"the webhook says {state_of(arrival)}, get says {session.state(read)}", arrival, read)


@probe("P-16")
async def working_is_delivered(session: Session) -> None:
    """What comes before the end."""
    hook = session.hook()
    made = await _inline(session, session.hint("slow"), hook)
    await hook.until(terminal, session.options.patience_s)
    not_tested_unless(hook.arrivals, "no webhook came at all", made)
    fail_unless(any(state_of(a) == "working" for a in hook.arrivals), "working was not delivered", *hook.arrivals[:2])


@probe("P-17")
async def cancel_is_delivered(session: Session) -> None:
    """Cancel, and wait."""
    task_id, hook, made = await _registered_while_running(session)
    gone = await session.cancel(task_id)
    not_tested_unless(gone.error is None, f"the cancel gave {gone.says()}", gone)
    arrival = await hook.until(terminal, 10)
    fail_unless(arrival, "no webhook told of the cancel", made, gone)
    fail_unless(
        arrival is None or state_of(arrival) == "canceled", "the webhook does not say canceled", *_seen(arrival)
    )


@probe("P-18")
async def failure_is_delivered(session: Session) -> None:
    """Fail, and wait."""
    hook = session.hook()
    made = await _inline(session, session.hint("fail"), hook)
    arrival = await hook.until(terminal, session.options.patience_s)
    fail_unless(arrival, "no webhook told of the failure", made)
    fail_unless(arrival is None or state_of(arrival) == "failed", "the webhook does not say failed", *_seen(arrival))


def _bearer(arrival: Arrival) -> str:
    scheme, _, token = arrival.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else ""


async def _first(session: Session, **config: Any) -> tuple[Arrival, Exchange]:
    hook = session.hook()
    task_id, _ = await session.finished()
    made = await register(session, task_id, hook, **config)
    not_tested_unless(made.error is None, f"registering a webhook gave {made.says()}", made)
    arrival = await hook.until(lambda _arrival: True, 5)
    if arrival is None:  # an agent that does not deliver late still delivers what is registered inline
        hook = session.hook()
        made = await _inline(session, None, hook, **config)
        arrival = await hook.until(lambda _arrival: True, session.options.patience_s)
    not_tested_unless(arrival, "no webhook came at all", made)
    assert arrival is not None
    return arrival, made


@probe("P-19")
async def top_level_token(session: Session) -> None:
    """Shape 1."""
    token = session.new()
    arrival, made = await _first(session, token=token)
    got = {_bearer(arrival), arrival.headers.get("x-a2a-notification-token", "")}
    fail_unless(token in got, "the delivery does not carry the token", made, arrival)


@probe("P-20")
async def structured_token(session: Session) -> None:
    """Shape 2."""
    secret = session.new()
    arrival, made = await _first(session, credentials=secret)
    fail_unless(_bearer(arrival) == secret, "the delivery does not carry the credentials as a bearer", made, arrival)


@probe("P-21")
async def both_headers(session: Session) -> None:
    """Both at once."""
    token = session.new()
    arrival, made = await _first(session, token=token)
    header = arrival.headers.get("x-a2a-notification-token", "")
    not_tested_unless(token in {header, _bearer(arrival)}, "the delivery does not carry the token", made, arrival)
    fail_unless(header == token, "no X-A2A-Notification-Token", made, arrival)
    fail_unless(_bearer(arrival) == token, "no Authorization: Bearer", made, arrival)


@probe("P-22")
async def body_has_its_shape(session: Session) -> None:
    """The bodies of a delivery."""
    task_id, hook, _ = await session.fixture(delivered_webhook)
    wrappers = {"task", "message", "statusUpdate", "artifactUpdate"}
    for arrival in hook.arrivals:
        body = mapping(arrival.value)
        fail_unless(body, "the body is no JSON object", arrival)
        if session.dialect.current:
            keys = set(body) & wrappers
            fail_unless(len(keys) == 1, f"the body has the keys {', '.join(sorted(body))}", arrival)
        else:
            fail_unless(among(body.get("kind"), KINDS), f"the body's kind is {body.get('kind')!r}", arrival)
        kind, content = session.dialect.event(body)
        named = session.dialect.task_id(kind, content)
        fail_unless(named == task_id, f"the body names the task {named!r}", arrival)


async def _answers_told(session: Session) -> tuple[str, str, str, Arrival]:
    """What the task says, what its end's webhook says of it as ``artifact`` and as ``artifacts``, and the webhook."""
    task_id, hook, _ = await session.fixture(delivered_webhook)
    arrival = next(a for a in hook.arrivals if terminal(a))
    body = mapping(arrival.value)
    read = await session.get(task_id)
    whole = answer_text(session.dialect.task(read.result))
    not_tested_unless(whole, "the task has no text to deliver", read)
    single = texts(mapping(body.get("artifact")).get("parts"))
    several = "".join(texts(mapping(a).get("parts")) for a in listed(body.get("artifacts")))
    return whole, single, several, arrival


@probe("P-23")
async def end_carries_the_answer(session: Session) -> None:
    """The answer in the body."""
    whole, single, several, arrival = await _answers_told(session)
    fail_unless(whole in {single, several}, "the terminal webhook carries no artifact with the answer", arrival)


@probe("P-38")
async def end_carries_the_list(session: Session) -> None:
    """The answer where the original caller looks for it."""
    whole, single, several, arrival = await _answers_told(session)
    not_tested_unless(whole in {single, several}, "because P-23: the terminal webhook carries no answer", arrival)
    fail_unless(whole == several, "the answer is in artifact alone, and there is no artifacts list", arrival)


@probe("P-24")
async def live_record(session: Session) -> None:
    """Register after the send."""
    _, hook, made = await _registered_while_running(session)
    arrival = await hook.until(terminal, session.options.patience_s)
    fail_unless(arrival, "a webhook registered after the send was never called at the end", made)


@probe("P-25")
async def after_the_end(session: Session) -> None:
    """Register too late."""
    hook = session.hook()
    task_id, _ = await session.finished()
    made = await register(session, task_id, hook)
    not_tested_unless(made.error is None, f"registering a webhook gave {made.says()}", made)
    arrival = await hook.until(terminal, 5)
    fail_unless(arrival, "a webhook registered after the end was not called", made)


@probe("P-26")
async def with_the_send(session: Session) -> None:
    """Register with the send."""
    hook = session.hook()
    made = await _inline(session, None, hook)
    arrival = await hook.until(terminal, session.options.patience_s)
    fail_unless(arrival, "a webhook given with the send was never called at the end", made)


@probe("P-27")
async def tried_again(session: Session) -> None:
    """500, then 200."""
    hook = session.hook(answers=(500,))
    made = await _inline(session, None, hook)
    not_tested_unless(
        await hook.until(lambda _arrival: True, session.options.patience_s), "no webhook came at all", made
    )
    again = await hook.until(lambda _arrival: len(hook.arrivals) > 1 and _repeated(hook), 10)
    fail_unless(again, "a delivery answered with 500 was not tried again", made, *hook.arrivals[:1])


def _repeated(hook: Hook) -> bool:
    first = hook.arrivals[0]
    return any(state_of(later) == state_of(first) for later in hook.arrivals[1:])


@probe("P-28", lasts_s=6)
async def not_tried_again(session: Session) -> None:
    """400."""
    hook = session.hook(otherwise=400)
    task_id, _ = await session.finished()
    made = await register(session, task_id, hook)
    not_tested_unless(made.error is None, f"registering a webhook gave {made.says()}", made)
    if await hook.until(terminal, 3) is None:
        made = await _inline(session, None, hook)
        not_tested_unless(await hook.until(terminal, session.options.patience_s), "no webhook came at all", made)
    await asyncio.sleep(6)
    ends = [arrival for arrival in hook.arrivals if terminal(arrival)]
    fail_unless(len(ends) <= 1, f"a delivery answered with 400 was tried {len(ends)} times", made, *ends[:2])


@probe("P-29", lasts_s=2)
async def no_redirects(session: Session) -> None:
    """307."""
    other, hook = session.hook(), session.hook(answers=(307,))
    hook.location = other.url
    made = await _inline(session, None, hook)
    not_tested_unless(
        await hook.until(lambda _arrival: True, session.options.patience_s), "no webhook came at all", made
    )
    followed = await other.until(lambda _arrival: True, 2)
    fail_unless(followed is None, "the redirect of a webhook was followed", made, *_seen(followed))


@probe("P-30")
async def new_token_counts(session: Session) -> None:
    """Register twice under one id."""
    task_id, hook, _ = await _registered_while_running(session, id="fleetsim-30", token=session.new())
    token = session.new()
    made = await register(session, task_id, hook, id="fleetsim-30", token=token)
    not_tested_unless(made.error is None, f"registering again gave {made.says()}", made)
    arrival = await hook.until(terminal, session.options.patience_s)
    not_tested_unless(arrival, "no terminal webhook came", made)
    assert arrival is not None
    got = {_bearer(arrival), arrival.headers.get("x-a2a-notification-token", "")}
    fail_unless(token in got, "the end came with another token than the last one registered", made, arrival)


@probe("P-31", lasts_s=14)
async def in_order(session: Session) -> None:
    """The order of a whole task."""
    hook = session.hook()
    made = await _inline(session, session.hint("slow"), hook)
    not_tested_unless(await hook.until(terminal, session.options.patience_s), "no terminal webhook came", made)
    await asyncio.sleep(2)
    states = [state_of(arrival) for arrival in hook.arrivals if state_of(arrival)]
    first = next(place for place, state in enumerate(states) if state in TERMINAL)
    fail_unless(all(state in TERMINAL for state in states[first:]), f"the order was {', '.join(states)}", made)
    await _retry_keeps_order(session)


async def _retry_keeps_order(session: Session) -> None:
    """A notice that is refused once: its second try must not come after the end was delivered."""
    hook = session.hook()
    hook.refused_once = {"submitted", "working"}
    made = await _inline(session, None, hook)
    not_tested_unless(await hook.until(terminal, session.options.patience_s), "no terminal webhook came", made)
    await asyncio.sleep(RETRY_S)
    states = [state for arrival in hook.arrivals if (state := state_of(arrival))]
    end = next(place for place, state in enumerate(states) if state in TERMINAL)
    # A state that came before the end (and was refused then) is tried again after it: the order is turned round.
    late = [state for place, state in enumerate(states) if place > end and state not in TERMINAL]
    fail_unless(
        not late, f"a refused {late[0] if late else ''} was tried again after the end", made, *hook.arrivals[:4]
    )


@probe("P-32")
async def is_json(session: Session) -> None:
    """The type of a delivery."""
    _, hook, _ = await session.fixture(delivered_webhook)
    for arrival in hook.arrivals:
        kind = arrival.headers.get("content-type", "").partition(";")[0].strip().lower()
        fits = kind in {"application/json", "application/a2a+json"}
        fail_unless(fits, f"the Content-Type of a webhook is {kind or 'missing'}", arrival)


@probe("P-33")
async def task_is_untouched(session: Session) -> None:
    """A broken receiver."""
    hook = session.hook(otherwise=500)
    task_id, made = await session.begin(push=session.dialect.hook(hook.url))
    await session.until(task_id)
    await hook.until(lambda _arrival: True, session.options.patience_s)
    await asyncio.sleep(0.5)  # what the refusal does to the task shows after it
    read = await session.get(task_id)
    hook.otherwise = 200
    state = session.state(read)
    fail_unless(state == "completed", f"with a broken webhook the task is {state or read.says()}", made, read)
    not_tested_unless(hook.arrivals, "no webhook came at all", made)


@probe("P-34", lasts_s=RETRIES_S)
async def backs_off(session: Session) -> None:
    """Count the tries of one delivery."""
    hook = session.hook(otherwise=500)
    task_id, _ = await session.finished()
    made = await register(session, task_id, hook)
    not_tested_unless(made.error is None, f"registering a webhook gave {made.says()}", made)
    if await hook.until(lambda _arrival: True, 3) is None:
        made = await _inline(session, None, hook)
    not_tested_unless(
        await hook.until(lambda _arrival: True, session.options.patience_s), "no webhook came at all", made
    )
    await asyncio.sleep(RETRIES_S)
    same = [a for a in hook.arrivals if a.body == hook.arrivals[0].body]
    fail_unless(2 <= len(same) <= 4, f"one delivery was tried {len(same)} times in {RETRIES_S:g} s", made, *same[:1])
    gaps = [later.at - sooner.at for sooner, later in pairwise(same)]
    growing = all(after > before for before, after in pairwise(gaps))
    fail_unless(growing, f"the gaps do not grow: {', '.join(f'{gap:.1f} s' for gap in gaps)}", made)


@probe("P-36")
async def every_one_is_called(session: Session) -> None:
    """Two webhooks."""
    task_id, first, _ = await _registered_while_running(session, id="fleetsim-36a")
    second = session.hook()
    made = await register(session, task_id, second, id="fleetsim-36b")
    not_tested_unless(made.error is None, f"registering a second webhook gave {made.says()}", made)
    for number, hook in enumerate((first, second), 1):
        arrival = await hook.until(terminal, session.options.patience_s)
        fail_unless(arrival, f"webhook {number} of 2 was not told of the end", made)


@probe("P-37")
async def cancel_is_told_once(session: Session) -> None:
    """Cancel, and count."""
    task_id, hook, made = await _registered_while_running(session)
    gone = await session.cancel(task_id)
    not_tested_unless(gone.error is None, f"the cancel gave {gone.says()}", gone)
    not_tested_unless(await hook.until(terminal, 10), "no webhook told of the cancel", made, gone)
    await asyncio.sleep(1.5)
    ends = [arrival for arrival in hook.arrivals if terminal(arrival)]
    same = [arrival for arrival in ends if arrival.body == ends[0].body]
    fail_unless(len(same) == 1, f"the cancel was delivered {len(same)} times", *same[:2])
    fail_unless(len(ends) == 1 or session.dialect.current, f"the end was told {len(ends)} times", *ends[:2])
