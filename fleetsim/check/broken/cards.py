"""Agents whose card, credentials or extensions are broken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from fleetsim.agent.settings import CARD_PATHS, AgentSettings
from fleetsim.check.broken.build import Catalogue, letting_in
from fleetsim.check.broken.editors import (
    about,
    answer_as,
    answer_error,
    at,
    each_object,
    edit_card,
    edit_error,
    edit_everything,
    edit_headers,
    without,
)
from fleetsim.check.broken.services import Ownerless
from fleetsim.check.broken.wire import Answer, Asked, Json
from fleetsim.model.call import Operation
from fleetsim.model.extensions import COST_TYPE, EFFECT_DOMAIN, WORLDSTATE_DELTA_TYPE

AGENT_CARD, AGENT_JSON = CARD_PATHS


def _none(_card: Json) -> None:
    return None


def _with(**members: Json) -> Any:
    return lambda card: {**card, **members}


def _rooted(card: Json) -> Json:
    root = urlunsplit((*urlsplit(card["url"])[:2], "/", "", ""))
    return each_object(card, lambda found: found.update(url=root) if "url" in found else None)


def _relative(card: Json) -> Json:
    return each_object(card, lambda found: found.update(url="/a2a") if "url" in found else None)


def _flag(name: str, value: bool) -> Any:
    return lambda card: {**card, "capabilities": {**card["capabilities"], name: value}}


def _not_streaming(settings: AgentSettings) -> AgentSettings:
    return replace(settings, streaming=False)


def _not_pushing(settings: AgentSettings) -> AgentSettings:
    return replace(settings, push_notifications=False)


def _untagged(card: Json) -> Json:
    first, *others = card["skills"]
    return {**card, "skills": [without("tags")(first), *others]}


def _twins(card: Json) -> Json:
    return {**card, "skills": [*card["skills"], card["skills"][0]]}


def _snake(card: Json) -> Json:
    capabilities = dict(card["capabilities"])
    capabilities["state_transition_history"] = capabilities.pop("stateTransitionHistory", False)
    return {**card, "capabilities": capabilities}


def _own_host(asked: Asked, answer: Answer) -> None:
    host, card = asked.headers.get("host", ""), answer.json
    if isinstance(card, dict) and isinstance(card.get("url"), str):
        answer.say({**card, "url": f"http://{host}/a2a"})


def _no_current(card: Json) -> Json:
    return each_object(
        card, lambda found: found.pop("protocolBinding", None) if found.get("protocolVersion") == "1.0" else None
    )


def _no_version(card: Json) -> Json:
    return each_object(card, lambda found: found.pop("protocolVersion", None))


def _only_current(settings: AgentSettings) -> AgentSettings:
    return replace(settings, dialects=("1.0",))


def _no_legacy_name(card: Json) -> Json:
    return without("protocolVersion", "preferredTransport")(card)


def _extended(card: Json) -> Json:
    return _flag("extendedAgentCard", True)({**card, "supportsAuthenticatedExtendedCard": True})


def _extensions(change: Any) -> Any:
    def edit(card: Json) -> Json:
        capabilities = card["capabilities"]
        changed = [change(dict(extension)) for extension in capabilities.get("extensions", [])]
        return {**card, "capabilities": {**capabilities, "extensions": changed}}

    return edit


def _strangers(extension: dict[str, Any]) -> Json:
    if extension["uri"] != EFFECT_DOMAIN:
        return extension
    skills = extension["params"]["skills"]
    return {**extension, "params": {"skills": {f"{name}-tool": effects for name, effects in skills.items()}}}


def _is_part(found: Json, mime: str) -> bool:
    metadata = found.get("metadata") if isinstance(found, dict) else None
    return isinstance(metadata, dict) and metadata.get("mimeType") == mime


def _no_part(mime: str) -> Any:
    def drop(found: dict[str, Any]) -> None:
        if isinstance(found.get("parts"), list):
            found["parts"] = [part for part in found["parts"] if not _is_part(part, mime)]

    return drop


def _percent(found: dict[str, Any]) -> None:
    if isinstance(found.get("confidence"), float | int):
        found["confidence"] = round(found["confidence"] * 100)


def _key_for_card(asked: Asked, answer: Answer) -> None:
    if "x-api-key" not in asked.headers and "authorization" not in asked.headers:
        answer.say({"detail": "Unauthorized"}, status=401)


def _no_credentials_but_send(asked: Asked) -> bool:
    shown = "x-api-key" in asked.headers or "authorization" in asked.headers
    return asked.path.rstrip("/") == "/a2a" and not shown and asked.operation is not Operation.SEND


def _unauthorized(_asked: Asked, answer: Answer) -> None:
    answer.say({"detail": "Unauthorized"}, status=401)
    answer.headers["www-authenticate"] = 'ApiKey header="X-API-Key"'


def _crash_on_odd_bytes(asked: Asked, answer: Answer) -> None:
    secrets = asked.headers.get("x-api-key", "") + asked.headers.get("authorization", "")
    if answer.status == 401 and not secrets.isascii():
        answer.status, answer.body = 500, b"Internal Server Error"


def _no_challenge(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name != "www-authenticate"}


def _no_caching(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in {"etag", "cache-control"}}


def _no_origin(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if not name.startswith("access-control-")}


def _as_text(headers: dict[str, str]) -> dict[str, str]:
    return {**headers, "content-type": "text/plain; charset=utf-8"}


def _redirect(_asked: Asked, answer: Answer) -> None:
    answer.status, answer.body, answer.headers = 307, b"", {"location": "/a2a", "content-length": "0"}


def _method_not_allowed(_asked: Asked, answer: Answer) -> None:
    answer.say({"detail": "Method Not Allowed"}, status=405)


def _names_extension(asked: Asked) -> bool:
    return any(name in asked.headers for name in ("x-a2a-extensions", "a2a-extensions"))


NO_STREAMS = "streams are refused, so nothing of them can be seen"
NO_WEBHOOKS = "webhooks are refused, so nothing of them can be seen"

catalogue = Catalogue()
add = catalogue.add

add("no-agent-card", "C-01", "the card is not at agent-card.json", edit_card(_none, paths=[AGENT_CARD]))
add("no-agent-json", "C-02", "the card is not at agent.json", edit_card(_none, paths=[AGENT_JSON]))
add(
    "card-url-root",
    "C-03",
    "the card's url is the server's root",
    edit_card(_rooted),
    answer_as(at("/"), _method_not_allowed),
    incident="Quinn PR #6",
)
add("card-incomplete", "C-04", "the card has no defaultOutputModes", edit_card(without("defaultOutputModes")))
add("skill-untagged", "C-05", "a skill has no tags", edit_card(_untagged))
add("skill-twins", "C-05", "two skills share an id", edit_card(_twins))
add(
    "streaming-hidden",
    "C-06",
    "the card says there are no streams, and there are",
    edit_card(_flag("streaming", False)),
)
add(
    "streaming-lie",
    "C-06",
    "the card promises streams, and there are none",
    edit_card(_flag("streaming", True)),
    settings=_not_streaming,
    incident="false flags break the dispatcher",
    also={
        "H-05": "there is no stream to open after the aborted ones",
        "L-03 R-02 R-04 S-01 S-02 S-03 S-04 S-09 S-18": "streams are refused, so nothing of them can be seen",
        "P-14": "a stream is what is refused with the webhook, and there are none",
    },
)
add(
    "push-hidden",
    "C-07",
    "the card says there are no webhooks, and there are",
    edit_card(_flag("pushNotifications", False)),
)
add(
    "push-lie",
    "C-07",
    "the card promises webhooks, and there are none",
    edit_card(_flag("pushNotifications", True)),
    settings=_not_pushing,
    incident="false flags break the dispatcher",
    also={"L-06 P-07 P-08 P-09 P-10 P-11 P-12 P-13 P-14": "webhooks are refused, so nothing of them can be seen"},
)
add(
    "card-versionless",
    "C-08",
    "the card names neither protocolVersion nor preferredTransport",
    edit_card(_no_legacy_name),
    incident="the original agent's card",
)
add("card-same-origin", "C-09", "no other origin may read the card", edit_headers(at(*CARD_PATHS), _no_origin))
add("card-uncached", "C-10", "the card has neither Cache-Control nor ETag", edit_headers(at(*CARD_PATHS), _no_caching))
add(
    "undeclared-scheme",
    "C-11",
    "the card requires a scheme it does not declare",
    edit_card(_with(security=[{"oauth": []}], securityRequirements=[{"schemes": {"oauth": {"list": []}}}])),
)
add("interface-unbound", "C-12", "the 1.0 interface names no binding", edit_card(_no_current))
add("extended-card-lie", "C-13", "the card promises an extended card, and there is none", edit_card(_extended))
add(
    "extended-card-missing",
    "C-13",
    "asked for the extended card it says there is no such method",
    edit_error(-32007, to=-32601),
    edit_error(-32004, to=-32601, on=about(Operation.EXTENDED_CARD)),
)
add("card-as-text", "C-14", "the card is sent as text", edit_headers(at(*CARD_PATHS), _as_text))
add("slash-redirect", "C-15", "the endpoint with a slash redirects", answer_as(at("/a2a/"), _redirect))
add(
    "card-url-relative",
    "C-16",
    "the card's url has no host",
    edit_card(_relative),
    also={"C-12": "the 1.0 interface's url is one of them"},
)
add("card-snake-case", "C-17", "a field of the card is in snake case", edit_card(_snake), incident="Quinn #42")
add(
    "card-follows-host",
    "C-18",
    "the card's addresses are built from the Host header",
    answer_as(at(*CARD_PATHS), _own_host),
)
add(
    "card-of-another-version",
    "C-19",
    "the card's interface names no version, so that it reads as 0.3, and only 1.0 is spoken",
    edit_card(_no_version),
    settings=_only_current,
    as_offered=True,
    incident="released SDKs read an interface without protocolVersion as 0.3",
)
add("card-locked", "A-01", "the card needs the key too", answer_as(at(*CARD_PATHS), _key_for_card))
add(
    "send-unguarded",
    "A-02",
    "a send without credentials is served",
    answer_as(_no_credentials_but_send, _unauthorized),
    settings=letting_in(without_any=True),
)
add(
    "any-key-will-do",
    "A-03",
    "any credentials will do",
    settings=letting_in(with_any=True),
)
add(
    "odd-key-crashes",
    "A-03",
    "a key with odd bytes is HTTP 500",
    answer_as(lambda _asked: True, _crash_on_odd_bytes),
    incident="the fleet's second agent compared text in constant time",
)
add("no-challenge", "A-04", "a 401 names no scheme", edit_headers(lambda _asked: True, _no_challenge))
add(
    "undeclared-key",
    "A-05",
    "the card does not say that a key is needed",
    edit_card(without("security", "securitySchemes", "securityRequirements")),
)
add("tasks-for-all", "A-06", "one caller reads and cancels another's tasks", intercept=Ownerless)
add(
    "extension-without-uri",
    "X-01",
    "a declared extension has no uri",
    edit_card(
        _extensions(lambda extension: without("uri")(extension) if extension["uri"].find("blast") > 0 else extension)
    ),
)
add(
    "effects-of-strangers",
    "X-02",
    "effects are declared for skills that are not on the card",
    edit_card(_extensions(_strangers)),
)
add("no-delta", "X-03", "a changed world is not reported", edit_everything(_no_part(WORLDSTATE_DELTA_TYPE)))
add("no-cost", "X-04", "what a task cost is not reported", edit_everything(_no_part(COST_TYPE)), incident="Quinn #56")
add("confidence-percent", "X-05", "confidence is a percentage", edit_everything(_percent))
add(
    "extension-refused",
    "X-06",
    "an unknown extension is refused",
    answer_error(_names_extension, -32602, "unknown extension"),
)

MUTANTS = tuple(catalogue.mutants)
