"""What is asked of credentials: who is let in, and who is told what."""

from __future__ import annotations

from fleetsim.check.evidence import fail_unless, not_tested_unless, written
from fleetsim.check.raw_dialect import mapping
from fleetsim.check.requirement import ONCE, SERVER_GUIDE, must, should
from fleetsim.check.session import Session
from fleetsim.model.call import Operation


@must(
    "A-01: The card is public although calls need credentials",
    ONCE,
    source=f"{SERVER_GUIDE}, step 6.3; seed: A2A Protocol (selectools), 'Endpoints'",
    remedy="Leave the card's paths out of the authentication.",
    needs=("auth",),
)
async def card_is_public(session: Session) -> None:
    """GET the card without credentials."""
    # The card was read without credentials first, at both paths of the place where it is.
    reads, at = session.agent.open_reads, session.agent.card_at
    beside = at.rpartition("/")[0]
    for url, exchange in reads.items():
        if at and url.rpartition("/")[0] != beside:
            continue  # what else is closed, or below a guarded endpoint, is not the card
        fail_unless(exchange.status not in {401, 403}, f"the card without credentials gave {exchange}", exchange)


@must(
    "A-02: A call without credentials is refused with HTTP 401",
    ONCE,
    source=f"{SERVER_GUIDE}, step 6.3; seed: A2A Protocol (selectools), 'Error mapping'",
    remedy="Answer 401 before anything of the call is looked at.",
    needs=("auth",),
)
async def no_credentials(session: Session) -> None:
    """POST a call without credentials."""
    exchange = await session.rpc(Operation.SEND, session.params(), credentials={})
    fail_unless(exchange.status == 401, f"a call without credentials gave {exchange}", exchange)


@must(
    "A-03: A call with wrong credentials is refused with HTTP 401 or 403",
    ONCE,
    source=f"{SERVER_GUIDE}, step 6.3",
    remedy="Compare the whole secret in constant time, as bytes.",
    needs=("auth",),
)
async def wrong_credentials(session: Session) -> None:
    """POST a call with credentials that are off by a character."""
    not_tested_unless(session.agent.target.headers, "needs credentials to spoil: add --api-key-env or --bearer-env")
    for cut, more in ((None, "x"), (-1, ""), (-1, "~")):
        wrong = {name: value[:cut] + more for name, value in session.agent.target.headers.items()}
        exchange = await session.rpc("fleetsim/check", {}, credentials=wrong)
        fail_unless(exchange.status in {401, 403}, f"a call with wrong credentials gave {exchange}", exchange)
    odd = {name: f"\xe9\xff{value}" for name, value in session.agent.target.headers.items()}
    exchange = await session.rpc("fleetsim/check", {}, credentials=odd)
    if exchange.status is not None:  # some transports do not send such bytes
        fail_unless(exchange.status in {400, 401, 403}, f"credentials with odd bytes gave {exchange}", exchange)


@should(
    "A-04: A 401 names the scheme in WWW-Authenticate",
    ONCE,
    source="A2A 0.3 §4.4, 1.0 §7.4; RFC 9110 §11.6.1",
    remedy="Send WWW-Authenticate with every 401.",
    needs=("auth",),
)
async def scheme_is_named(session: Session) -> None:
    """Read the header of the refusal."""
    exchange = await session.raw(written(session.envelope("fleetsim/check", {})), credentials={})
    not_tested_unless(exchange.status == 401, f"a call without credentials gave {exchange}", exchange)
    fail_unless(exchange.headers.get("www-authenticate"), "the 401 has no WWW-Authenticate", exchange)


@must(
    "A-05: Credentials that are demanded are declared on the card, and the other way round",
    ONCE,
    source="A2A 0.3 §4.3, 1.0 §7.3",
    remedy="Declare what is demanded; demand what is declared.",
)
async def declared_and_demanded(session: Session) -> None:
    """Compare how a call without credentials is answered with the card's securitySchemes."""
    card, exchange = session.agent.card, session.agent.guarded
    assert exchange is not None
    not_tested_unless(card, "no card was found")
    declared = mapping(card.get("securitySchemes"))
    required = card.get("security") or card.get("securityRequirements")
    if session.agent.demands_auth:
        fail_unless(declared, "credentials are demanded, but the card declares no securitySchemes", exchange)
    else:
        fail_unless(not required, "the card requires credentials, but a call without them is answered", exchange)


@must(
    "A-06: Another caller's task looks like no task",
    source="Reference reliability T-24; A2A 1.0 §13.1",
    remedy="Filter by owner inside the look-up, so that a foreign task and a missing one are answered alike.",
    needs=("auth", "second-key"),
)
async def foreign_tasks(session: Session) -> None:
    """Read and cancel one caller's task with a second caller's credentials: -32001, as for an unknown id."""
    other = session.agent.target.other_headers
    task_id, _ = await session.begin()
    unknown = await session.call(Operation.GET, session.dialect.by_id(session.new()), credentials=other)
    for operation in (Operation.GET, Operation.CANCEL):
        exchange = await session.call(operation, session.dialect.by_id(task_id), credentials=other)
        fail_unless(exchange.code == -32001, f"{operation.value} of another caller's task gave {exchange}", exchange)
        same = mapping(exchange.error).get("message") == mapping(unknown.error).get("message")
        fail_unless(same, "a foreign task and a missing one are told apart by the message", exchange, unknown)
