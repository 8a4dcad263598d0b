"""Agents whose card, credentials or extensions are broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urljoin

from fleetsim.model.call import Operation
from fleetsim.model.extensions import COST_TYPE, EFFECT_DOMAIN, WORLDSTATE_DELTA_TYPE
from tests.broken.build import Catalogue, letting_in
from tests.broken.editors import (
    CARD_PATHS,
    about,
    answer_as,
    answer_error,
    answer_if,
    at,
    each_object,
    edit_card,
    edit_error,
    edit_everything,
    edit_headers,
    member,
    renamed,
    without,
)
from tests.broken.services import Ownerless
from tests.broken.wire import Edit, HttpRequest, HttpResponse, Json

AGENT_CARD, AGENT_JSON = CARD_PATHS[::2], CARD_PATHS[1::2]
CREDENTIALS = {"x-api-key", "authorization"}


def _keyless(asked: HttpRequest) -> bool:
    return not asked.headers.keys() & CREDENTIALS


def _keyless_but_send(asked: HttpRequest) -> bool:
    return asked.path.rstrip("/") == "/a2a" and _keyless(asked) and asked.operation is not Operation.SEND


def _flag(name: str, value: bool) -> Callable[[Json], Json]:
    return member("capabilities", lambda capabilities: {**capabilities, name: value})


def _extensions(change: Callable[[Json], Json]) -> Callable[[Json], Json]:
    return member("capabilities", member("extensions", lambda extensions: [change(each) for each in extensions]))


def _no_part(mime: str) -> Callable[[Json], Json]:
    return member("parts", lambda parts: [part for part in parts if part.get("metadata", {}).get("mimeType") != mime])


def _own_host(asked: HttpRequest, answer: HttpResponse) -> None:
    host, card = asked.headers.get("host", ""), answer.json
    if isinstance(card, dict) and isinstance(card.get("url"), str):
        answer.say({**card, "url": f"http://{host}/a2a"})


def _strangers(extension: dict[str, Any]) -> Json:
    if extension["uri"] != EFFECT_DOMAIN:
        return extension
    skills = extension["params"]["skills"]
    return {**extension, "params": {"skills": {f"{name}-tool": effects for name, effects in skills.items()}}}


catalogue = Catalogue()
add = catalogue.add

add("C-01 no-agent-card: the card is not at agent-card.json", edit_card(lambda _card: None, paths=AGENT_CARD))
add("C-02 no-agent-json: the card is not at agent.json", edit_card(lambda _card: None, paths=AGENT_JSON))
add(
    "C-03 card-url-root: the card's url is the server's root",
    edit_card(lambda card: each_object(card, member("url", lambda url: urljoin(url, "/")))),
    answer_if(at("/"), {"detail": "Method Not Allowed"}, status=405),
    incident="Quinn PR #6",
)
add("C-04 card-incomplete: the card has no defaultOutputModes", edit_card(without("defaultOutputModes")))
add(
    "C-05 skill-untagged: a skill has no tags",
    edit_card(member("skills", lambda skills: [without("tags")(skills[0]), *skills[1:]])),
)
add("C-05 skill-twins: two skills share an id", edit_card(member("skills", lambda skills: [*skills, skills[0]])))
add("C-06 streaming-hidden: the card denies streams, and the agent has them", edit_card(_flag("streaming", False)))
add(
    "C-06 streaming-lie: the card promises streams, and there are none",
    edit_card(_flag("streaming", True)),
    settings=lambda settings: replace(settings, streaming=False),
    incident="false flags break the dispatcher",
    also={
        "H-05": "after the aborted streams none can be opened",
        "L-03 R-02 R-04 S-01 S-18": "streams are refused, so nothing of them can be seen",
        "P-14": "a stream is what is refused with the webhook, and there are none",
    },
)
add("C-07 push-hidden: the card denies webhooks, and the agent has them", edit_card(_flag("pushNotifications", False)))
add(
    "C-07 push-lie: the card promises webhooks, and there are none",
    edit_card(_flag("pushNotifications", True)),
    settings=lambda settings: replace(settings, push_notifications=False),
    incident="false flags break the dispatcher",
)
add(
    "C-08 card-versionless: the card names neither protocolVersion nor preferredTransport",
    edit_card(without("protocolVersion", "preferredTransport")),
    incident="the original agent's card",
)
add(
    "C-09 card-same-origin: no other origin may read the card",
    edit_headers(
        at(*CARD_PATHS),
        lambda headers: {name: value for name, value in headers.items() if not name.startswith("access-control-")},
    ),
)
add(
    "C-10 card-uncached: the card has neither Cache-Control nor ETag",
    edit_headers(at(*CARD_PATHS), without("etag", "cache-control")),
)
add(
    "C-11 undeclared-scheme: the card requires a scheme it does not declare",
    edit_card(
        lambda card: {
            **card,
            "security": [{"oauth": []}],
            "securityRequirements": [{"schemes": {"oauth": {"list": []}}}],
        }
    ),
)
add(
    "C-12 interface-unbound: the 1.0 interface names no binding",
    edit_card(
        lambda card: each_object(
            card, lambda found: found.pop("protocolBinding", None) if found.get("protocolVersion") == "1.0" else None
        )
    ),
)
add(
    "C-13 extended-card-lie: the card promises an extended card, and there is none",
    edit_card(_flag("extendedAgentCard", True)),
    edit_card(lambda card: {**card, "supportsAuthenticatedExtendedCard": True}),
)
add(
    "C-13 extended-card-missing: a call for the extended card gets method not found",
    edit_error(-32007, to=-32601),
    edit_error(-32004, to=-32601, on=about(Operation.EXTENDED_CARD)),
)
add(
    "C-14 card-as-text: the card is sent as text",
    edit_headers(at(*CARD_PATHS), lambda headers: {**headers, "content-type": "text/plain; charset=utf-8"}),
)
add(
    "C-15 slash-redirect: the endpoint with a slash redirects",
    Edit(on=at("/a2a/"), instead=lambda _asked: HttpResponse(307, {"location": "/a2a", "content-length": "0"}, b"")),
)
add(
    "C-16 card-url-relative: the card's url has no host",
    edit_card(lambda card: each_object(card, member("url", lambda _url: "/a2a"))),
    also={"C-12": "the 1.0 interface's url is one of them"},
)
add(
    "C-17 card-snake-case: a field of the card is in snake case",
    edit_card(lambda card: renamed(card, {"stateTransitionHistory": "state_transition_history"})),
    incident="Quinn #42",
)
add(
    "C-18 card-follows-host: the card's addresses are built from the Host header", answer_as(at(*CARD_PATHS), _own_host)
)
add(
    "C-19 card-of-another-version: "
    "the card's interface names no version, so that it reads as 0.3, and only 1.0 is spoken",
    edit_card(lambda card: each_object(card, lambda found: found.pop("protocolVersion", None))),
    settings=lambda settings: replace(settings, dialects=("1.0",)),
    as_offered=True,
    incident="released SDKs read an interface without protocolVersion as 0.3",
)
add(
    "C-20 card-signed-before-a-change: the card was changed after it was signed",
    edit_card(member("description", lambda _: "another"), signed=True),
)
add(
    "C-21 signature-without-a-key: the card's signature names no key",
    edit_card(lambda card: {**card, "signatures": [{"protected": "eyJhbGciOiJFUzI1NiJ9", "signature": "AAAA"}]}),
)
add(
    "A-01 card-locked: the card needs the key too",
    answer_if(lambda asked: asked.path in CARD_PATHS and _keyless(asked), {"detail": "Unauthorized"}, status=401),
)
add(
    "A-02 send-unguarded: a send without credentials is served",
    answer_if(_keyless_but_send, {"detail": "Unauthorized"}, status=401),
    edit_headers(_keyless_but_send, lambda headers: {**headers, "www-authenticate": 'ApiKey header="X-API-Key"'}),
    settings=letting_in(without_any=True),
)
add("A-03 any-key-will-do: any credentials will do", settings=letting_in(with_any=True))
add(
    "A-03 odd-key-crashes: a key with odd bytes is HTTP 500",
    answer_as(
        lambda asked: not "".join(asked.headers.get(name, "") for name in CREDENTIALS).isascii(),
        lambda _asked, answer: answer.crash() if answer.status == 401 else None,
    ),
    incident="the fleet's second agent compared text in constant time",
)
add("A-04 no-challenge: a 401 names no scheme", edit_headers(lambda _asked: True, without("www-authenticate")))
add(
    "A-05 undeclared-key: the card does not say that a key is needed",
    edit_card(without("security", "securitySchemes", "securityRequirements")),
)
add("A-06 tasks-for-all: one caller reads and cancels another's tasks", intercept=Ownerless)
add(
    "X-01 extension-without-uri: a declared extension has no uri",
    edit_card(
        _extensions(lambda extension: without("uri")(extension) if extension["uri"].find("blast") > 0 else extension)
    ),
)
add(
    "X-02 effects-of-strangers: effects are declared for skills that are not on the card",
    edit_card(_extensions(_strangers)),
)
add("X-03 no-delta: a changed world is not reported", edit_everything(_no_part(WORLDSTATE_DELTA_TYPE)))
add("X-04 no-cost: what a task cost is not reported", edit_everything(_no_part(COST_TYPE)), incident="Quinn #56")
add(
    "X-05 confidence-percent: confidence is a percentage",
    edit_everything(member("confidence", lambda confidence: round(confidence * 100))),
)
add(
    "X-06 extension-refused: an unknown extension is refused",
    answer_error(
        lambda asked: any(name in asked.headers for name in ("x-a2a-extensions", "a2a-extensions")),
        -32602,
        "unknown extension",
    ),
)

MUTANTS = tuple(catalogue.mutants)
