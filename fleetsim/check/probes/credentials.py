"""Probes of who is let in."""

from __future__ import annotations

from fleetsim.check.exchange import written
from fleetsim.check.probe import probe
from fleetsim.check.raw_dialect import mapping
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless, not_tested_unless
from fleetsim.model.call import Operation


@probe("A-01")
async def card_is_public(session: Session) -> None:
    """The card was read without credentials first, at both paths of the place where it is."""
    reads, at = session.agent.open_reads, session.agent.card_at
    beside = at.rpartition("/")[0]
    for url, made in reads.items():
        if at and url.rpartition("/")[0] != beside:
            continue  # what else is closed, or below a guarded endpoint, is not the card
        fail_unless(made.status not in {401, 403}, f"the card without credentials gave {made.says()}", made)


@probe("A-02")
async def no_credentials(session: Session) -> None:
    """Call without credentials."""
    made = await session.rpc(session.dialect.method(Operation.SEND), session.params(), credentials={})
    fail_unless(made.status == 401, f"a call without credentials gave {made.says()}", made)


@probe("A-03")
async def wrong_credentials(session: Session) -> None:
    """Call with credentials that are off by a little."""
    not_tested_unless(session.agent.target.headers, "needs credentials to spoil: add --api-key-env or --bearer-env")
    for cut, more in ((None, "x"), (-1, ""), (-1, "~")):
        wrong = {name: value[:cut] + more for name, value in session.agent.target.headers.items()}
        made = await session.rpc("fleetsim/check", {}, credentials=wrong)
        fail_unless(made.status in {401, 403}, f"a call with wrong credentials gave {made.says()}", made)
    odd = {name: f"\xe9\xff{value}" for name, value in session.agent.target.headers.items()}
    made = await session.rpc("fleetsim/check", {}, credentials=odd)
    if made.status is not None:  # some transports do not send such bytes
        fail_unless(made.status in {400, 401, 403}, f"credentials with odd bytes gave {made.says()}", made)


@probe("A-04")
async def scheme_is_named(session: Session) -> None:
    """Read WWW-Authenticate."""
    made = await session.raw(written(session.envelope("fleetsim/check", {})), credentials={})
    not_tested_unless(made.status == 401, f"a call without credentials gave {made.says()}", made)
    fail_unless(made.headers.get("www-authenticate"), "the 401 has no WWW-Authenticate", made)


@probe("A-05")
async def declared_and_demanded(session: Session) -> None:
    """Compare the card with the door."""
    card, made = session.agent.card, session.agent.guarded
    assert made is not None
    not_tested_unless(card, "no card was found")
    declared = mapping(card.get("securitySchemes"))
    required = card.get("security") or card.get("securityRequirements")
    if session.agent.demands_auth:
        fail_unless(declared, "credentials are demanded, but the card declares no securitySchemes", made)
    else:
        fail_unless(not required, "the card requires credentials, but a call without them is answered", made)


@probe("A-06")
async def foreign_tasks(session: Session) -> None:
    """Look at one caller's task as another."""
    other = session.agent.target.other_headers
    task_id, _ = await session.begin()
    unknown = await session.call(Operation.GET, session.dialect.by_id(session.new()), credentials=other)
    for operation in (Operation.GET, Operation.CANCEL):
        made = await session.call(operation, session.dialect.by_id(task_id), credentials=other)
        fail_unless(made.code == -32001, f"{operation.value} of another caller's task gave {made.says()}", made)
        same = mapping(made.error).get("message") == mapping(unknown.error).get("message")
        fail_unless(same, "a foreign task and a missing one are told apart by the message", made, unknown)
