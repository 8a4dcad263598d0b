"""Probes of the agent card and of declared extensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetsim.check.agent_under_test import dialect_of, interfaces
from fleetsim.check.exchange import Exchange
from fleetsim.check.options import Hint
from fleetsim.check.probe import probe
from fleetsim.check.raw_dialect import listed, mapping, snake_keys, url_parts, url_path
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless, not_applicable_unless, not_tested_unless
from fleetsim.model.call import Operation
from fleetsim.model.extensions import CONFIDENCE, COST, EFFECT_DOMAIN

NEW, OLD = "/.well-known/agent-card.json", "/.well-known/agent.json"
FORGED = "forged.fleetsim.invalid"
FREE_FORM = ("params", "metadata")


def _read(session: Session, path: str) -> Exchange:
    """The best of the readings of a path: below the endpoint, beside it, or at the root."""
    reads = [made for url, made in session.agent.card_reads.items() if url_parts(url).path.endswith(path)]
    return max(reads, key=lambda made: ("name" in mapping(made.value), made.status == 200))


def _card(session: Session) -> tuple[Mapping[str, Any], Exchange]:
    found = _read(session, NEW)
    if mapping(found.value) != session.agent.card:
        found = _read(session, OLD)
    not_tested_unless(session.agent.card, "no card was found", found)
    return session.agent.card, found


@probe("C-01")
async def at_the_new_path(session: Session) -> None:
    """GET agent-card.json."""
    made = _read(session, NEW)
    fail_unless(made.status == 200, f"GET {NEW} gave {made.says()}", made)
    fail_unless("name" in mapping(made.value), "what is served there is no card", made)


@probe("C-02")
async def at_the_old_path(session: Session) -> None:
    """GET agent.json and compare."""
    made = _read(session, OLD)
    fail_unless(made.status == 200 and "name" in mapping(made.value), f"GET {OLD} gave {made.says()}", made)
    new = _read(session, NEW)
    if new.status == 200:
        same = mapping(new.value).get("name") == mapping(made.value).get("name")
        fail_unless(
            same and mapping(new.value).get("skills") == mapping(made.value).get("skills"), "the cards differ", made
        )


@probe("C-03")
async def url_is_the_endpoint(session: Session) -> None:
    """POST to every url of the card, at the configured origin."""
    _, made = _card(session)
    urls = list(session.agent.interfaces())
    fail_unless(urls, "the card names no address for JSON-RPC", made)
    for url, _version in dict.fromkeys(urls):
        fail_unless(url, "the card's url is empty", made)
        place = f"{session.agent.origin}{url_path(url)}"
        asked = await _knock(session, place)
        speaks = asked.answer.get("jsonrpc") == "2.0" and asked.status not in {404, 405}
        fail_unless(speaks, f"POST to the card's url {url_path(url)} gave {asked.says()}", asked)


async def _knock(session: Session, url: str) -> Exchange:
    """Ask for a task nobody made: some agents answer an unknown method with a crash, which is another row's affair."""
    return await session.call(Operation.GET, session.dialect.by_id("fleetsim-no-such-task"), url=url)


@probe("C-04")
async def required_fields(session: Session) -> None:
    """Read the fields that clients need."""
    card, made = _card(session)
    wanted = {"name": str, "description": str, "version": str, "capabilities": dict, "skills": list}
    wanted |= {"defaultInputModes": list, "defaultOutputModes": list}
    bad = [name for name, kind in wanted.items() if not isinstance(card.get(name), kind)]
    fail_unless(not bad, f"missing or of a wrong type: {', '.join(bad)}", made)
    flags = {"streaming", "pushNotifications", "stateTransitionHistory", "extendedAgentCard"}
    told = session.agent.capabilities
    odd = [name for name in sorted(flags & told.keys()) if not isinstance(told[name], bool)]
    fail_unless(not odd, f"capabilities that are no booleans: {', '.join(odd)}", made)


@probe("C-05")
async def skills_are_whole(session: Session) -> None:
    """Read every skill."""
    card, made = _card(session)
    skills = listed(card.get("skills"))
    not_tested_unless(skills, "the card lists no skills", made)
    for skill in map(mapping, skills):
        bad = [name for name in ("id", "name", "description") if not isinstance(skill.get(name), str)]
        if not isinstance(skill.get("tags"), list):
            bad.append("tags")
        fail_unless(not bad, f"skill {skill.get('id')!r} lacks {', '.join(bad)}", made)
    ids = [mapping(skill).get("id") for skill in skills]
    fail_unless(len(ids) == len(set(map(str, ids))), "two skills share an id", made)


@probe("C-06")
async def streaming_is_true(session: Session) -> None:
    """Stream, and compare with the flag."""
    offered = session.agent.streaming
    async with session.stream(Operation.STREAM, session.params(session.quick())) as stream:
        made = stream.exchange
        if offered:
            fail_unless(stream.is_stream, f"the card says streaming: true, but a stream gave {made.says()}", made)
            fail_unless(await stream.next(10), "the card says streaming: true, but no event came", made)
            fail_unless(made.error is None, f"the card says streaming: true, but a stream gave {made.says()}", made)
            return
        if stream.is_stream:
            await stream.next(10)
        fail_unless(made.error is not None, f"the card says streaming: false, but a stream gave {made.says()}", made)
        fail_unless(made.code == -32004, f"a stream nobody offers must be -32004, not {made.says()}", made)


@probe("C-07")
async def push_is_true(session: Session) -> None:
    """Register, and compare with the flag."""
    task_id, _ = await session.begin()
    url = session.agent.listener.origin + "/flag" if session.agent.listener else "https://example.com/flag"
    params = session.dialect.set_hook(task_id, session.dialect.hook(url, id="flag"))
    made = await session.rpc(session.dialect.method(Operation.PUSH_SET), params)
    if session.agent.push:
        taken = made.status == 200 and (made.error is None or made.code == -32602)
        fail_unless(taken, f"the card says pushNotifications: true, but registering gave {made.says()}", made)
        await session.rpc(session.dialect.method(Operation.PUSH_DELETE), session.dialect.of_hook(task_id, "flag"))
        return
    fail_unless(
        made.code == -32003, f"the card says pushNotifications: false; expected -32003, got {made.says()}", made
    )


@probe("C-08")
async def names_its_version(session: Session) -> None:
    """Read protocolVersion and preferredTransport."""
    not_tested_unless(not session.agent.unknown, "because C-19: the card names another dialect than is spoken")
    card, made = _card(session)
    version = str(card.get("protocolVersion", ""))
    fail_unless(version.startswith("0.3"), f"protocolVersion is {version or 'missing'}", made)
    fail_unless(card.get("preferredTransport") == "JSONRPC", "preferredTransport is not JSONRPC", made)


@probe("C-09")
async def browsers_may_read(session: Session) -> None:
    """GET the card from another origin."""
    _, read = _card(session)
    headers = {"origin": "https://browser.example"}
    made = await session.agent.exchange("GET", read.url, headers=headers)
    allowed = made.headers.get("access-control-allow-origin", "")
    fail_unless(allowed in {"*", "https://browser.example"}, "no Access-Control-Allow-Origin on the card", made)


@probe("C-10")
async def may_be_cached(session: Session) -> None:
    """Read the caching headers and ask conditionally."""
    _, made = _card(session)
    fail_unless("max-age" in made.headers.get("cache-control", ""), "no Cache-Control with max-age", made)
    tag = made.headers.get("etag", "")
    fail_unless(tag, "no ETag", made)
    again = await session.agent.exchange("GET", made.url, headers={"if-none-match": tag})
    fail_unless(again.status == 304, f"If-None-Match with the current ETag gave {again.says()}", again)


@probe("C-11")
async def schemes_are_declared(session: Session) -> None:
    """Compare requirements with declarations."""
    card, made = _card(session)
    asked: set[str] = set()
    for need_ in map(mapping, listed(card.get("security"))):
        asked |= set(map(str, need_))
    for need_ in map(mapping, listed(card.get("securityRequirements"))):
        asked |= set(map(str, mapping(need_.get("schemes"))))
    unknown = asked - mapping(card.get("securitySchemes")).keys()
    fail_unless(not unknown, f"required but not declared: {', '.join(sorted(unknown))}", made)


@probe("C-12")
async def names_1_0(session: Session) -> None:
    """Find the 1.0 interface."""
    not_tested_unless(not session.agent.unknown, "because C-19: the card names another dialect than is spoken")
    card, made = _card(session)
    entries = [mapping(entry) for entry in listed(card.get("supportedInterfaces"))]
    fit = [
        entry
        for entry in entries
        if entry.get("protocolBinding") == "JSONRPC" and dialect_of(str(entry.get("protocolVersion", ""))) == "1.0"
    ]
    fail_unless(fit, "no supportedInterfaces entry with protocolBinding JSONRPC and protocolVersion 1.x", made)
    fail_unless(url_parts(fit[0].get("url")).netloc, "the entry's url is not absolute", made)


@probe("C-13")
async def extended_card(session: Session) -> None:
    """Call the method and compare with the flag."""
    card, read = _card(session)
    says = session.agent.capabilities.get("extendedAgentCard", card.get("supportsAuthenticatedExtendedCard"))
    method = session.dialect.method(Operation.EXTENDED_CARD)
    made = await session.rpc(method) if not session.dialect.current else await session.rpc(method, {})
    if says is True:
        fail_unless("name" in mapping(made.result), f"the card promises an extended one; it gave {made.says()}", made)
        return
    fail_unless(made.error is not None, "an extended card is served that the card does not promise", made, read)
    # An optional method may be missing in 0.3; that its absence has a code of its own is 1.0's rule.
    codes = {-32007, -32004} if session.dialect.current else {-32007, -32004, -32601}
    fail_unless(made.code in codes, f"expected -32007 or -32004, got {made.says()}", made)


@probe("C-14")
async def is_json(session: Session) -> None:
    """Read the card's type."""
    _, made = _card(session)
    fits = made.media_type in {"application/json", "application/a2a+json"}
    fail_unless(fits, f"the card's Content-Type is {made.media_type or 'missing'}", made)


@probe("C-15")
async def extra_slash(session: Session) -> None:
    """POST with the slash turned round."""
    url = session.endpoint
    other = url.rstrip("/") if url_parts(url).path.rstrip("/") and url.endswith("/") else f"{url.rstrip('/')}/"
    made = await _knock(session, other)
    fail_unless(made.answer.get("jsonrpc") == "2.0", f"POST {url_parts(other).path} gave {made.says()}", made)


@probe("C-16")
async def url_is_absolute(session: Session) -> None:
    """Parse every url."""
    _, made = _card(session)
    urls = [str(url) for url, _ in session.agent.interfaces()]
    fail_unless(urls, "the card has no url", made)
    for url in urls:
        parts = url_parts(url)
        fail_unless(parts.scheme in {"http", "https"} and parts.hostname, f"the url {url!r} is not absolute", made)


@probe("C-17")
async def card_is_camel_case(session: Session) -> None:
    """Look for underscores."""
    card, made = _card(session)
    fail_unless(not (bad := snake_keys(card)), f"written with an underscore: {', '.join(bad[:5])}", made)


# Extensions.


def _declared(session: Session) -> list[Mapping[str, Any]]:
    return [mapping(entry) for entry in listed(session.agent.capabilities.get("extensions"))]


@probe("C-18")
async def forged_host(session: Session) -> None:
    """Ask for the card under another name."""
    _, read = _card(session)
    made = await session.agent.exchange("GET", read.url, headers={"host": FORGED})
    if made.status != 200 or "name" not in mapping(made.value):
        return  # refused under a foreign name: nobody is led astray
    urls = [url for url, _ in interfaces(mapping(made.value))]
    led = [url for url in urls if url_parts(url).netloc.lower() == FORGED]
    fail_unless(not led, f"with the Host {FORGED} the card says {', '.join(led)}", made)


@probe("X-01")
async def extensions_are_whole(session: Session) -> None:
    """Read the declarations."""
    _, made = _card(session)
    written = session.agent.capabilities.get("extensions")
    not_applicable_unless(written is not None, "the card declares no extensions")
    fail_unless(isinstance(written, list), "capabilities.extensions is no array", made)
    for entry in listed(written):
        fail_unless(isinstance(mapping(entry).get("uri"), str), "an extension without a uri", made)
        params = mapping(entry).get("params")
        fail_unless(params is None or isinstance(params, dict), "an extension's params are no object", made)


def _effect_skills(session: Session) -> Mapping[str, Any] | None:
    """What effect-domain-v1 says of each skill; None if the card does not declare it."""
    entry = next((e for e in _declared(session) if str(e.get("uri", "")).endswith(EFFECT_DOMAIN[-16:])), None)
    return None if entry is None else mapping(mapping(entry.get("params")).get("skills"))


def _effects(session: Session) -> Mapping[str, Any]:
    skills = _effect_skills(session)
    not_applicable_unless(skills is not None, "the card does not declare effect-domain-v1")
    return skills or {}


@probe("X-02")
async def effects_are_of_skills(session: Session) -> None:
    """Compare the extension with the skills."""
    _, made = _card(session)
    if mutating := session.options.mutating:
        declared = _effect_skills(session) or {}
        silent = [skill for skill in mutating if not listed(mapping(declared.get(skill)).get("effects"))]
        fail_unless(not silent, f"changes the world and declares no effect: {', '.join(silent)}", made)
    skills = _effects(session)
    fail_unless(skills, "effect-domain-v1 is declared without params.skills", made)
    ids = {str(skill.get("id")) for skill in session.agent.skills()}
    strange = set(skills) - ids
    fail_unless(not strange, f"effects of skills that do not exist: {', '.join(sorted(map(str, strange)))}", made)
    for name, entry in skills.items():
        effects = listed(mapping(entry).get("effects"))
        whole = all(isinstance(mapping(e).get(k), str) for e in effects for k in ("domain", "path"))
        fail_unless(effects and whole, f"{name} has no effects with domain and path", made)


@probe("X-03")
async def deltas_agree(session: Session) -> None:
    """Run a skill with effects and compare."""
    skills = _effects(session)
    not_tested_unless(skills, "no skill declares effects")
    skill, entry = next(iter(skills.items()))
    _, made = await session.finished(Hint(str(skill), "fleetsim check"))
    not_tested_unless(session.state(made) == "completed", f"{skill} ended {session.state(made)}", made)
    deltas = [mapping(d) for part in _data(session, made, "deltas") for d in listed(part.get("deltas"))]
    fail_unless(deltas, f"{skill} declares effects, but its task carries no worldstate delta", made)
    declared = [_place(mapping(effect)) for effect in listed(mapping(entry).get("effects"))]
    odd = [delta for delta in deltas if _place(delta) not in declared]
    fail_unless(not odd, "a delta that the card does not declare", made)


def _place(effect: Mapping[str, Any]) -> tuple[Any, Any]:
    return effect.get("domain"), effect.get("path")


@probe("X-04")
async def cost_is_told(session: Session) -> None:
    """Run the skill that answers in pieces (or any) and look for its cost."""
    not_applicable_unless(_has(session, COST), "the card does not declare cost-v1")
    made = await _finished_with(session, ("estimate", "cost"), "stream")
    found = _data(session, made, "usage")
    not_tested_unless(
        found or "stream" in session.agent.hints, "no skill is known that costs: name one with --skill-stream", made
    )
    fail_unless(found, "cost-v1 is declared, but the terminal task carries no usage", made)
    took = found[0].get("durationMs")
    fail_unless(isinstance(took, int | float) and took >= 0, "durationMs is missing or no number", made)


@probe("X-05")
async def confidence_is_a_number(session: Session) -> None:
    """Run a skill that declares confidence."""
    not_applicable_unless(_has(session, CONFIDENCE), "the card does not declare confidence-v1")
    made = await _finished_with(session, ("estimate", "confidence"), "quick")
    found = _data(session, made, "confidence")
    not_tested_unless(found, "no skill is known that says how sure it is", made)
    level = found[0].get("confidence")
    fits = isinstance(level, int | float) and not isinstance(level, bool) and 0 <= level <= 1
    fail_unless(fits, f"confidence is {level!r}, no number from 0 to 1", made)


def _has(session: Session, uri: str) -> bool:
    return any(str(entry.get("uri", "")).rpartition("/")[2] == uri.rpartition("/")[2] for entry in _declared(session))


async def _finished_with(session: Session, names: tuple[str, ...], otherwise: str) -> Exchange:
    ids = [str(skill.get("id")) for skill in session.agent.skills()]
    named = next((name for name in names if name in ids), None)
    hint = Hint(named, "fleetsim check") if named else session.agent.hints.get(otherwise, session.quick())
    _, made = await session.finished(hint)
    return made


def _data(session: Session, made: Exchange, key: str) -> list[Mapping[str, Any]]:
    """Data parts of a task that hold a key."""
    task = session.dialect.task(made.result)
    parts = [p for artifact in listed(task.get("artifacts")) for p in listed(mapping(artifact).get("parts"))]
    parts += listed(mapping(mapping(task.get("status")).get("message")).get("parts"))
    return [data for part in parts if key in (data := mapping(mapping(part).get("data")))]


@probe("X-06")
async def unknown_extension_is_ignored(session: Session) -> None:
    """Send with an extension nobody has."""
    name = "a2a-extensions" if session.dialect.current else "x-a2a-extensions"
    headers = {name: "https://fleetsim.example/extensions/unknown/v1"}
    made = await session.call(Operation.SEND, session.params(), headers=headers)
    fail_unless(made.error is None and made.status == 200, f"a send with an unknown extension gave {made.says()}", made)


@probe("C-19")
async def offers_what_it_speaks(session: Session) -> None:
    """What was found when the agent was met; all other rows are probed in the dialects it knows."""
    speaks = ", ".join(session.agent.spoken)
    for name, made in session.agent.unknown.items():
        said = f"the card reads as A2A {name}, of which the agent knows no method ({made.says()}); it speaks {speaks}"
        fail_unless(False, said, made)
