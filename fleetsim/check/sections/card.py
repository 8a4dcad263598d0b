"""Rows about the agent card: where it is served, its content, and whether it tells the truth."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fleetsim.check.agent_under_test import interfaces
from fleetsim.check.evidence import (
    Exchange,
    NotPassed,
    fail_unless,
    fail_unless_error,
    not_applicable_unless,
    not_tested_unless,
)
from fleetsim.check.needs import NOWHERE
from fleetsim.check.raw_dialect import among, listed, mapping, snake_keys, url_parts, url_path
from fleetsim.check.requirement import BUILD_GUIDE, ONCE, SERVER_GUIDE, V03, V10, must, should
from fleetsim.check.session import Session, finished_task
from fleetsim.client.card_trust import CardTrust
from fleetsim.model.call import Operation
from fleetsim.model.card import ProofState
from fleetsim.runtime.ports import Limits
from fleetsim.wire.card_signing import signatures_of
from fleetsim.wire.dialect import dialect_of_version

NEW, OLD = "/.well-known/agent-card.json", "/.well-known/agent.json"
FORGED = "forged.fleetsim.invalid"
INTERFACES = ("supportedInterfaces", "additionalInterfaces")


def _reading_of(session: Session, path: str) -> Exchange:
    """The best of the readings of a path: below the endpoint, beside it, or at the root."""
    reads = [reply for url, reply in session.agent.card_reads.items() if url_parts(url).path.endswith(path)]
    return max(reads, key=lambda reply: ("name" in mapping(reply.value), reply.status == 200))


@must(
    "C-01: The card is served at /.well-known/agent-card.json",
    ONCE,
    source=f"{BUILD_GUIDE}, checklist 'Transport & lifecycle'; A2A 0.3 §5.3, 1.0 §8.2",
    remedy="Serve the card at /.well-known/agent-card.json, where clients look first.",
)
async def at_the_new_path(session: Session) -> None:
    """GET the path; it must answer 200 with a JSON object that names the agent."""
    reply = _reading_of(session, NEW)
    fail_unless(reply.status == 200, f"GET {NEW} gave {reply}", reply)
    fail_unless("name" in mapping(reply.value), "the document there is not a card", reply)


@should(
    "C-02: The same card is served at /.well-known/agent.json",
    ONCE,
    source=f"{BUILD_GUIDE}, 'The agent card', gotcha 2",
    remedy="Mount the same handler at /.well-known/agent.json: older clients look only there.",
)
async def at_the_old_path(session: Session) -> None:
    """GET the old path and compare the card with the one at the new path."""
    reply = _reading_of(session, OLD)
    fail_unless(reply.status == 200 and "name" in mapping(reply.value), f"GET {OLD} gave {reply}", reply)
    new = _reading_of(session, NEW)
    if new.status == 200:
        same = mapping(new.value).get("name") == mapping(reply.value).get("name")
        fail_unless(
            same and mapping(new.value).get("skills") == mapping(reply.value).get("skills"), "the cards differ", reply
        )


def served_card(session: Session) -> tuple[Mapping[str, Any], Exchange]:
    """The card and the reading it came from. Raises NotPassed (not tested) if there is none."""
    found = _reading_of(session, NEW)
    if mapping(found.value) != session.agent.card:
        found = _reading_of(session, OLD)
    not_tested_unless(session.agent.card, "no card was found", found)
    return session.agent.card, found


async def _knock(session: Session, url: str) -> Exchange:
    """Ask for a task nobody made: an unknown method crashes some agents, which is for another requirement to tell.

    Over HTTP+JSON, or after a refusal in the agent's own form, for one that was made: a 404 may be meant for the task.
    """
    get = partial(session.call, Operation.GET, url=url)
    asked = None if session.dialect.over_http else await get(session.dialect.by_id(NOWHERE))
    if asked is not None and not asked.own_form:
        return asked
    try:
        task_id, _ = await session.fixture(finished_task)
    except NotPassed:
        if asked is None:
            raise
        return asked
    return await get(session.dialect.by_id(task_id))


@must(
    "C-03: The card's url is the endpoint",
    ONCE,
    source=f"{BUILD_GUIDE}, 'The agent card', gotcha 1",
    remedy="Set the card's url to the endpoint that takes POSTs (e.g. http://host/a2a), not to the server's root.",
    incident="Quinn PR #6: dispatches died silently on HTTP 405",
)
async def url_is_the_endpoint(session: Session) -> None:
    """Read a task at every url of the card, one that does not exist over JSON-RPC: each must answer in A2A's words."""
    _, reply = served_card(session)
    not_tested_unless(not session.agent.no_way, session.agent.no_way)
    urls = list(session.agent.interfaces())
    fail_unless(urls, "the card names no address", reply)
    for url, _ in dict.fromkeys(urls):
        fail_unless(url, "the card's url is empty", reply)
        place = f"{session.agent.origin}{url_path(url)}"
        place = session.agent.moved.get(place, place) if session.dialect.over_http else place
        asked = await _knock(session, place)
        speaks = asked.answer.get("jsonrpc") == "2.0" and asked.status not in {404, 405}
        speaks = asked.granted if session.dialect.over_http else speaks
        fail_unless(speaks, f"{asked.method} to the card's url {url_path(url)} gave {asked}", asked)


@must(
    "C-04: The card has every required field",
    ONCE,
    source="A2A 0.3 §5.5, 1.0 §4.4.1",
    remedy="Add the missing fields: clients refuse the whole card without them.",
)
async def required_fields(session: Session) -> None:
    """Read name, description, version, capabilities, defaultInputModes, defaultOutputModes, skills."""
    card, reply = served_card(session)
    fields = {"name": str, "description": str, "version": str, "capabilities": dict, "skills": list}
    fields |= {"defaultInputModes": list, "defaultOutputModes": list}
    bad = [name for name, kind in fields.items() if not isinstance(card.get(name), kind)]
    fail_unless(not bad, f"missing or of a wrong type: {', '.join(bad)}", reply)
    flags = {"streaming", "pushNotifications", "stateTransitionHistory", "extendedAgentCard"}
    capabilities = session.agent.capabilities
    odd = [name for name in sorted(flags & capabilities.keys()) if not isinstance(capabilities[name], bool)]
    fail_unless(not odd, f"capabilities that are not booleans: {', '.join(odd)}", reply)


@must(
    "C-05: Every skill has an id of its own, a name, a description and tags",
    ONCE,
    source="A2A 0.3 §5.5.4, 1.0 §4.4.5",
    remedy="Give each skill a unique id, a name, a description and at least one tag.",
)
async def skills_are_whole(session: Session) -> None:
    """Read the card's skills."""
    card, reply = served_card(session)
    skills = listed(card.get("skills"))
    not_tested_unless(skills, "the card lists no skills", reply)
    for skill in map(mapping, skills):
        bad = [name for name in ("id", "name", "description") if not isinstance(skill.get(name), str)]
        if not isinstance(skill.get("tags"), list):
            bad.append("tags")
        fail_unless(not bad, f"skill {skill.get('id')!r} lacks {', '.join(bad)}", reply)
    ids = [mapping(skill).get("id") for skill in skills]
    fail_unless(len(ids) == len(set(map(str, ids))), "two skills share an id", reply)


@must(
    "C-06: capabilities.streaming is the truth",
    source=f"{BUILD_GUIDE}, 'The agent card', gotcha 3, and checklist 'Transport & lifecycle'",
    remedy="Set capabilities.streaming to the truth; callers choose their transport by it.",
)
async def streaming_is_true(session: Session) -> None:
    """Ask for a stream: if the card says true it must come as SSE, otherwise it must be refused with -32004."""
    served_card(session)
    offered = session.agent.streaming
    async with session.stream(Operation.STREAM, session.params(session.quick())) as stream:
        reply = stream.exchange
        if offered:
            fail_unless(stream.is_stream, f"the card says streaming: true, but a stream gave {reply}", reply)
            fail_unless(await stream.next(10), "the card says streaming: true, but no event came", reply)
            fail_unless(reply.error is None, f"the card says streaming: true, but a stream gave {reply}", reply)
            return
        if stream.is_stream:
            await stream.next(10)
        fail_unless(reply.error is not None, f"the card says streaming: false, but a stream gave {reply}", reply)
        fail_unless_error(reply, "a stream nobody offers", -32004)


@must(
    "C-07: capabilities.pushNotifications is the truth",
    source=f"{BUILD_GUIDE}, 'The agent card', gotcha 3, and checklist 'Transport & lifecycle'",
    remedy="Set capabilities.pushNotifications to the truth; callers stop polling because of it.",
)
async def push_is_true(session: Session) -> None:
    """Register a webhook: if the card says true it must be taken (or refused for its address), otherwise refused with
    -32003. A refusal in the agent's words and with another code is not tested.
    """
    served_card(session)
    task_id, _ = await session.begin()
    url = session.agent.listener.origin + "/flag" if session.agent.listener else "https://example.com/flag"
    params = session.dialect.set_hook(task_id, session.dialect.hook(url, id="flag"))
    reply = await session.rpc(Operation.PUSH_SET, params)
    if session.agent.push:
        taken = reply.granted or reply.refused_with(-32602)
        told = f"needs a webhook that is taken: registering gave {reply} (P-40)"
        address_refused = reply.refuses_webhook and not reply.refused_with(-32003)  # -32003: no webhook at all
        not_tested_unless(taken or not address_refused, told, reply)
        fail_unless(taken, f"the card says pushNotifications: true, but registering gave {reply}", reply)
        await session.rpc(Operation.PUSH_DELETE, session.dialect.of_hook(task_id, "flag"))
        return
    fail_unless_error(reply, "the card says pushNotifications: false; registering", -32003)


@should(
    "C-08: The card names its protocolVersion and preferredTransport",
    V03,
    source="A2A 0.3 §5.5; reference interop, 'What real clients found'",
    remedy='Add "protocolVersion": "0.3.0" and "preferredTransport": "JSONRPC".',
    incident="A card of version 0.2 makes 1.x clients give up or speak the wrong dialect",
)
async def names_its_version(session: Session) -> None:
    """Read protocolVersion (0.3.x) and preferredTransport (JSONRPC, HTTP+JSON or GRPC)."""
    not_tested_unless(not session.agent.unknown, "because C-19: the card names another dialect than is spoken")
    card, reply = served_card(session)
    version = str(card.get("protocolVersion", ""))
    fail_unless(version.startswith("0.3"), f"protocolVersion is {version or 'missing'}", reply)
    named = card.get("preferredTransport")
    fail_unless(among(named, ("JSONRPC", "HTTP+JSON", "GRPC")), f"preferredTransport is {named or 'missing'}", reply)


@should(
    "C-09: The card may be read from a browser of another origin",
    ONCE,
    source=f"{SERVER_GUIDE}, step 6.2",
    remedy="Answer the card's paths with Access-Control-Allow-Origin: *.",
)
async def browsers_may_read(session: Session) -> None:
    """GET the card with an Origin header; Access-Control-Allow-Origin must allow it."""
    _, read = served_card(session)
    headers = {"origin": "https://browser.example"}
    reply = await session.agent.exchange("GET", read.url, headers=headers)
    allowed = reply.headers.get("access-control-allow-origin", "")
    fail_unless(allowed in {"*", "https://browser.example"}, "no Access-Control-Allow-Origin on the card", reply)


@should(
    "C-10: The card may be cached: Cache-Control and ETag",
    ONCE,
    source="A2A 1.0 §8.6",
    remedy="Send Cache-Control with max-age and an ETag, and answer If-None-Match with 304.",
)
async def may_be_cached(session: Session) -> None:
    """GET the card and read Cache-Control (max-age) and ETag; a conditional GET must give 304."""
    _, reply = served_card(session)
    fail_unless("max-age" in reply.headers.get("cache-control", ""), "no Cache-Control with max-age", reply)
    tag = reply.headers.get("etag", "")
    fail_unless(tag, "no ETag", reply)
    again = await session.agent.exchange("GET", reply.url, headers={"if-none-match": tag})
    fail_unless(again.status == 304, f"If-None-Match with the current ETag gave {again}", again)


@must(
    "C-11: Every security requirement names a declared scheme",
    ONCE,
    source="A2A 0.3 §5.5.3, 1.0 §4.5",
    remedy="Declare the scheme, or take the requirement out.",
)
async def schemes_are_declared(session: Session) -> None:
    """Compare the names in security (or securityRequirements) with securitySchemes."""
    card, reply = served_card(session)
    asked: set[str] = set()
    for need_ in map(mapping, listed(card.get("security"))):
        asked |= set(map(str, need_))
    for need_ in map(mapping, listed(card.get("securityRequirements"))):
        asked |= set(map(str, mapping(need_.get("schemes"))))
    unknown = asked - mapping(card.get("securitySchemes")).keys()
    fail_unless(not unknown, f"required but not declared: {', '.join(sorted(unknown))}", reply)


@must(
    "C-12: supportedInterfaces says where 1.0 is spoken",
    V10,
    source="A2A 1.0 §4.4.6",
    remedy="List the endpoint in supportedInterfaces with its binding and version.",
)
async def names_1_0(session: Session) -> None:
    """Read an entry with protocolBinding JSONRPC (or HTTP+JSON), protocolVersion 1.x and an absolute url."""
    not_tested_unless(not session.agent.unknown, "because C-19: the card names another dialect than is spoken")
    card, reply = served_card(session)
    entries = [mapping(entry) for entry in listed(card.get("supportedInterfaces"))]
    fit = [
        entry
        for entry in entries
        if entry.get("protocolBinding") == session.dialect.binding
        and dialect_of_version(str(entry.get("protocolVersion", "")), session.dialect.binding) == session.dialect.name
    ]
    not_tested_unless(not session.agent.no_way, session.agent.no_way)
    wanted = f"protocolBinding {session.dialect.binding} and protocolVersion 1.x"
    fail_unless(fit, f"no supportedInterfaces entry with {wanted}", reply)
    fail_unless(url_parts(fit[0].get("url")).netloc, "the entry's url is not absolute", reply)


@must(
    "C-13: The extended card exists exactly if the card says so",
    source="A2A 0.3 §7.10, 1.0 §3.1.11",
    remedy="Serve the method, or set the flag to false and answer -32007 (0.3) or -32004 (1.0).",
)
async def extended_card(session: Session) -> None:
    """Call the method: with the flag it must return a card, without it an error (-32007 or -32004), never -32601."""
    card, read = served_card(session)
    says = session.agent.capabilities.get("extendedAgentCard", card.get("supportsAuthenticatedExtendedCard"))
    operation = Operation.EXTENDED_CARD
    reply = await (session.rpc(operation, {}) if session.dialect.current else session.rpc(operation))
    if says is True:
        fail_unless("name" in mapping(reply.result), f"the card promises an extended one; it gave {reply}", reply)
        return
    served = "name" in mapping(reply.result)
    fail_unless(not served, "an extended card is served that the card does not promise", reply, read)
    # An optional method may be missing in 0.3; that its absence has a code of its own is 1.0's rule.
    codes = {-32007, -32004} if session.dialect.current else {-32007, -32004, -32601}
    fail_unless(reply.refused_with(*codes), f"expected -32007 or -32004, got {reply}", reply)


@should(
    "C-14: The card is sent as application/json",
    ONCE,
    source="A2A 0.3 §5.3, 1.0 §8.2",
    remedy="Send the card as application/json (or application/a2a+json).",
)
async def is_json(session: Session) -> None:
    """Read the Content-Type of the card."""
    _, reply = served_card(session)
    fits = reply.media_type in {"application/json", "application/a2a+json"}
    fail_unless(fits, f"the card's Content-Type is {reply.media_type or 'missing'}", reply)


@should(
    "C-15: The endpoint answers with an extra slash too, without a redirect",
    ONCE,
    source="Reference interop, 'What the official conformance kit expects'",
    remedy="Mount the endpoint with and without the trailing slash; POSTs are not redirected by clients.",
    needs=("json-rpc",),
)
async def extra_slash(session: Session) -> None:
    """POST to the endpoint with a slash appended (or without the one it ends with)."""
    url = session.endpoint
    other = url.rstrip("/") if url_parts(url).path.rstrip("/") and url.endswith("/") else f"{url.rstrip('/')}/"
    reply = await _knock(session, other)
    fail_unless(reply.answer.get("jsonrpc") == "2.0", f"POST {url_parts(other).path} gave {reply}", reply)


@must(
    "C-16: The card's url is absolute",
    ONCE,
    source="A2A 0.3 §5.5, 1.0 §4.4.6",
    remedy="Write the whole address as callers reach it, scheme and host included.",
)
async def url_is_absolute(session: Session) -> None:
    """Parse url and every interface's url of JSON-RPC and HTTP+JSON: http or https, with a host."""
    card, reply = served_card(session)
    entries = [mapping(entry) for name in INTERFACES for entry in listed(card.get(name))]
    urls = [entry.get("url") for entry in ([card] if "url" in card else []) + entries if not _is_grpc(entry)]
    fail_unless(urls or any(map(_is_grpc, [card, *entries])), "the card has no url", reply)
    for url in urls:
        parts = url_parts(url)
        fail_unless(parts.scheme in {"http", "https"} and parts.hostname, f"the url {url!r} is not absolute", reply)


def _is_grpc(entry: Mapping[str, Any]) -> bool:
    named = (entry.get(name, "") for name in ("protocolBinding", "transport", "preferredTransport"))
    return "GRPC" in map(str, named)


@must(
    "C-17: The card's fields are camelCase",
    ONCE,
    source="A2A 0.3 §5.5, 1.0 §5.5",
    remedy="Serialise with camelCase names; push_notifications is a flag nobody reads.",
)
async def card_is_camel_case(session: Session) -> None:
    """Look for keys with underscores outside of free-form objects."""
    card, reply = served_card(session)
    fail_unless(not (bad := snake_keys(card)), f"written with an underscore: {', '.join(bad[:5])}", reply)


@should(
    "C-18: The card's address does not follow a forged Host",
    ONCE,
    source="Reference reliability T-31",
    remedy="Write the configured address, or the socket's own; never build it from the request's Host header.",
)
async def forged_host(session: Session) -> None:
    """GET the card with the Host of somebody else: no address in it may be there."""
    _, read = served_card(session)
    reply = await session.agent.exchange("GET", read.url, headers={"host": FORGED})
    if reply.status != 200 or "name" not in mapping(reply.value):
        return  # refused under a foreign name: no caller is misled
    urls = [url for url, _ in interfaces(mapping(reply.value))]
    led = [url for url in urls if url_parts(url).netloc.lower() == FORGED]
    fail_unless(not led, f"with the Host {FORGED} the card says {', '.join(led)}", reply)


@must(
    "C-19: Every dialect the card offers is one the agent speaks",
    ONCE,
    source="A2A 0.3 §5.5, 1.0 §3.6 and §4.4.6",
    remedy="Give each supportedInterfaces entry the protocolVersion that is served there (without one, "
    "clients read 0.3), and list only what is served.",
)
async def offers_what_it_speaks(session: Session) -> None:
    """Read and cancel a task that is none, in each dialect of the card: neither may be an unknown method or version."""
    # Seen when the agent was discovered; all other requirements are probed in the dialects it knows.
    not_tested_unless(not session.agent.no_way, session.agent.no_way)
    speaks = ", ".join(session.agent.spoken)
    for name, reply in session.agent.unknown.items():
        reason = f"the card reads as A2A {name}, of which the agent knows no method ({reply}); it speaks {speaks}"
        fail_unless(False, reason, reply)


@must(
    "C-20: A signature of the card holds",
    ONCE,
    source="A2A 0.3 §5.5.6, 1.0 §8.4.3",
    remedy="Sign the card that you serve (RFC 8785), again after each change, and serve the public key at the "
    "signature's jku; --signer names another place of it.",
)
async def signature_holds(session: Session) -> None:
    """Read the key that a signature names (jku), or those of --signer, and verify the card with it."""
    card, exchange = served_card(session)
    trust, limits = CardTrust(signers=session.agent.options.signers), Limits(total_s=session.agent.options.reply_s)
    _, proof = await trust.prove(card, session.agent.target.url, session.agent.runtime, limits)
    not_applicable_unless(proof.state is not ProofState.UNSIGNED, str(proof))
    not_tested_unless(proof.state is not ProofState.UNVERIFIED, str(proof), exchange)
    fail_unless(proof.state is ProofState.VERIFIED, f"the signature {proof}", exchange)


@should(
    "C-21: Each signature of the card names its algorithm and its key",
    ONCE,
    source="A2A 0.3 §5.5.6, 1.0 §8.4.2",
    remedy="Put alg (ES256 for example) and kid into the protected header of each signature.",
)
async def signatures_name_their_keys(session: Session) -> None:
    """Decode the protected header of each signature."""
    card, exchange = served_card(session)
    not_applicable_unless(card.get("signatures"), "the card is not signed")
    signatures = signatures_of(card)
    fail_unless(signatures, "signatures is not a list of objects", exchange)
    for number, signature in enumerate(signatures, 1):
        fail_unless(not signature.broken, f"signature {number}: {signature.broken}", exchange)
        fail_unless(signature.key_id, f"signature {number} has no kid", exchange)


# -- credentials ------------------------------------------------------------------------------------


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
    for url, reply in reads.items():
        if at and url.rpartition("/")[0] != beside:
            continue  # what else is closed, or below a guarded endpoint, is not the card
        fail_unless(reply.status not in {401, 403}, f"the card without credentials gave {reply}", reply)


@must(
    "A-02: A call without credentials is refused with HTTP 401",
    ONCE,
    source=f"{SERVER_GUIDE}, step 6.3; seed: A2A Protocol (selectools), 'Error mapping'",
    remedy="Answer 401 before anything of the call is looked at.",
    needs=("auth",),
)
async def no_credentials(session: Session) -> None:
    """POST a call without credentials."""
    reply = await session.rpc(Operation.SEND, session.params(), credentials={})
    fail_unless(reply.status == 401, f"a call without credentials gave {reply}", reply)


@must(
    "A-03: A call with wrong credentials is refused with HTTP 401 or 403",
    ONCE,
    source=f"{SERVER_GUIDE}, step 6.3",
    remedy="Compare the whole secret in constant time, as bytes.",
    needs=("auth",),
)
async def wrong_credentials(session: Session) -> None:
    """POST a call with credentials that are off by a character."""
    reason = "a key in the query is not spoiled" if session.agent.target.query else "add --auth, or --api-key-env"
    not_tested_unless(session.agent.target.headers, f"needs credentials in a header to spoil: {reason}")
    for cut, more in ((None, "x"), (-1, ""), (-1, "~")):
        wrong = {name: value[:cut] + more for name, value in session.agent.target.headers.items()}
        reply = await session.rpc(Operation.GET, session.dialect.by_id(FORGED), credentials=wrong)
        fail_unless(reply.status in {401, 403}, f"a call with wrong credentials gave {reply}", reply)
    odd = {name: f"\xe9\xff{value}" for name, value in session.agent.target.headers.items()}
    reply = await session.rpc(Operation.GET, session.dialect.by_id(FORGED), credentials=odd)
    if reply.status is not None:  # some transports do not send such bytes
        fail_unless(reply.status in {400, 401, 403}, f"credentials with odd bytes gave {reply}", reply)


@should(
    "A-04: A 401 names the scheme in WWW-Authenticate",
    ONCE,
    source="A2A 0.3 §4.4, 1.0 §7.4; RFC 9110 §11.6.1",
    remedy="Send WWW-Authenticate with every 401.",
    needs=("auth",),
)
async def scheme_is_named(session: Session) -> None:
    """Read the header of the refusal."""
    reply = await session.rpc(Operation.GET, session.dialect.by_id(FORGED), credentials={})
    not_tested_unless(reply.status == 401, f"a call without credentials gave {reply}", reply)
    fail_unless(reply.headers.get("www-authenticate"), "the 401 has no WWW-Authenticate", reply)


@must(
    "A-05: Credentials that are demanded are declared on the card, and the other way round",
    ONCE,
    source="A2A 0.3 §4.3, 1.0 §7.3",
    remedy="Declare what is demanded; demand what is declared.",
)
async def declared_and_demanded(session: Session) -> None:
    """Compare how a call without credentials is answered with the card's securitySchemes."""
    card, reply = session.agent.card, session.agent.guarded
    assert reply is not None
    not_tested_unless(card, "no card was found")
    declared = mapping(card.get("securitySchemes"))
    required = card.get("security") or card.get("securityRequirements")
    if session.agent.demands_auth:
        fail_unless(declared, "credentials are demanded, but the card declares no securitySchemes", reply)
    else:
        schemes = map(mapping, declared.values())
        mutual = any("mtlsSecurityScheme" in scheme or scheme.get("type") == "mutualTLS" for scheme in schemes)
        not_tested_unless(not mutual, "the card takes a client certificate, which no call can leave out")
        fail_unless(not required, "the card requires credentials, but a call without them is answered", reply)


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
        reply = await session.call(operation, session.dialect.by_id(task_id), credentials=other)
        fail_unless_error(reply, f"{operation.value} of another caller's task", -32001)
        same = mapping(reply.error).get("message") == mapping(unknown.error).get("message")
        fail_unless(same, "the message distinguishes a foreign task from a missing one", reply, unknown)
