"""What is asked of a webhook that arrives: its token, its body, and the answer in it."""

from __future__ import annotations

from typing import Any

from fleetsim.check.exchange import Exchange
from fleetsim.check.fixtures import delivered_webhook, register
from fleetsim.check.listener import Arrival
from fleetsim.check.raw_dialect import KINDS, among, answer_text, listed, mapping, texts
from fleetsim.check.requirement import BOTH, BUILD_GUIDE, MUST, SHOULD, V03, requirement
from fleetsim.check.sections.push_delivery import send_with_webhook, tells_the_end, webhook_on_running_task
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless, not_tested_unless

PUSH = f"{BUILD_GUIDE}, 'Push notifications'"


async def _first_webhook(session: Session, **config: Any) -> tuple[Arrival, Exchange]:
    hook = session.hook()
    task_id, _ = await session.finished()
    exchange = await register(session, task_id, hook, **config)
    not_tested_unless(exchange.error is None, f"registering a webhook gave {exchange.says()}", exchange)
    arrival = await hook.until(lambda _arrival: True, 5)
    if arrival is None:  # an agent that does not deliver late still delivers what is registered inline
        hook = session.hook()
        exchange = await send_with_webhook(session, None, hook, **config)
        arrival = await hook.until(lambda _arrival: True, session.options.patience_s)
    not_tested_unless(arrival, "no webhook came at all", exchange)
    assert arrival is not None
    return arrival, exchange


def _bearer(arrival: Arrival) -> str:
    scheme, _, token = arrival.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else ""


@requirement(
    "P-19",
    "A top-level token comes back with the webhook",
    MUST,
    dialects=BOTH,
    source=f"{PUSH}, 'Token parsing'",
    remedy="Store the token and send it.",
    incident="Quinn #61",
    needs=("push", "listener"),
)
async def top_level_token(session: Session) -> None:
    """Register {url, token}: the delivery carries it as Authorization: Bearer or X-A2A-Notification-Token."""
    token = session.new()
    arrival, exchange = await _first_webhook(session, token=token)
    got = {_bearer(arrival), arrival.headers.get("x-a2a-notification-token", "")}
    fail_unless(token in got, "the delivery does not carry the token", exchange, arrival)


@requirement(
    "P-20",
    "A token in authentication.credentials comes back with the webhook",
    MUST,
    dialects=BOTH,
    source=f"{PUSH}, 'Token parsing'",
    remedy="Read both shapes; the top-level token wins.",
    incident="Quinn #61: one shape only, 401 on each delivery",
    needs=("push", "listener"),
)
async def structured_token(session: Session) -> None:
    """Register {url, authentication}: the delivery carries the credentials as Authorization: Bearer."""
    secret = session.new()
    arrival, exchange = await _first_webhook(session, credentials=secret)
    fail_unless(
        _bearer(arrival) == secret, "the delivery does not carry the credentials as a bearer", exchange, arrival
    )


@requirement(
    "P-21",
    "The token is sent in both headers",
    SHOULD,
    dialects=BOTH,
    source=f"{PUSH}, implementation checklist; A2A 0.3 §9.5; reference interop, 'Pitfalls'",
    remedy="Send both: receivers look at one or the other.",
    needs=("push", "listener"),
)
async def both_headers(session: Session) -> None:
    """Read Authorization and X-A2A-Notification-Token of a delivery."""
    token = session.new()
    arrival, exchange = await _first_webhook(session, token=token)
    header = arrival.headers.get("x-a2a-notification-token", "")
    not_tested_unless(token in {header, _bearer(arrival)}, "the delivery does not carry the token", exchange, arrival)
    fail_unless(header == token, "no X-A2A-Notification-Token", exchange, arrival)
    fail_unless(_bearer(arrival) == token, "no Authorization: Bearer", exchange, arrival)


@requirement(
    "P-22",
    "A webhook's body has the shape of its dialect",
    MUST,
    dialects=BOTH,
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
            fail_unless(among(body.get("kind"), KINDS), f"the body's kind is {body.get('kind')!r}", arrival)
        kind, content = session.dialect.event(body)
        named = session.dialect.task_id(kind, content)
        fail_unless(named == task_id, f"the body names the task {named!r}", arrival)


async def _answers_told(session: Session) -> tuple[str, str, str, Arrival]:
    """What the task says, what its end's webhook says of it as ``artifact`` and as ``artifacts``, and the webhook."""
    task_id, hook, _ = await session.fixture(delivered_webhook)
    arrival = next(a for a in hook.arrivals if tells_the_end(a))
    body = mapping(arrival.value)
    read = await session.get(task_id)
    whole = answer_text(session.dialect.task(read.result))
    not_tested_unless(whole, "the task has no text to deliver", read)
    single = texts(mapping(body.get("artifact")).get("parts"))
    several = "".join(texts(mapping(a).get("parts")) for a in listed(body.get("artifacts")))
    return whole, single, several, arrival


@requirement(
    "P-23",
    "The terminal webhook carries the answer",
    SHOULD,
    dialects=V03,
    source=f"{PUSH}; reference interop, 'What real clients found'",
    remedy="Add the artifact, and an artifacts list for older callers.",
    incident="The original caller got an empty answer from the original agent",
    needs=("push", "listener"),
)
async def end_carries_the_answer(session: Session) -> None:
    """Read artifact (or artifacts) of the completed webhook."""
    whole, single, several, arrival = await _answers_told(session)
    fail_unless(whole in {single, several}, "the terminal webhook carries no artifact with the answer", arrival)


@requirement(
    "P-38",
    "The terminal webhook carries the answer as an artifacts list too",
    SHOULD,
    dialects=V03,
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
    fail_unless(whole == several, "the answer is in artifact alone, and there is no artifacts list", arrival)


@requirement(
    "P-30",
    "A re-registered webhook is used with its new token",
    MUST,
    dialects=BOTH,
    source=f"{BUILD_GUIDE}, hardening 5 and checklist 'Task store hygiene'",
    remedy="Read the config from the live record on every delivery.",
    needs=("push", "listener", "slow"),
)
async def new_token_counts(session: Session) -> None:
    """Register twice under one id with different tokens while the task runs: the end comes with the second."""
    task_id, hook, _ = await webhook_on_running_task(session, id="fleetsim-30", token=session.new())
    token = session.new()
    exchange = await register(session, task_id, hook, id="fleetsim-30", token=token)
    not_tested_unless(exchange.error is None, f"registering again gave {exchange.says()}", exchange)
    arrival = await hook.until(tells_the_end, session.options.patience_s)
    not_tested_unless(arrival, "no terminal webhook came", exchange)
    assert arrival is not None
    got = {_bearer(arrival), arrival.headers.get("x-a2a-notification-token", "")}
    fail_unless(token in got, "the end came with another token than the last one registered", exchange, arrival)


@requirement(
    "P-32",
    "Webhooks are JSON",
    MUST,
    dialects=BOTH,
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
