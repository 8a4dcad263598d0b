"""A running hub, spoken to from another process: what the command line's verbs are made of."""

from __future__ import annotations

import hmac
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from fleetsim.hub.keys import API_KEY_HEADER, prove
from fleetsim.hub.state import HubAddress
from fleetsim.model.asking import UnfitAnswer
from fleetsim.model.errors import (
    AuthRefused,
    ConfigError,
    FleetsimError,
    HttpRefused,
    LimitReached,
    NotAccepting,
    UnknownTarget,
    Unreachable,
    WireError,
)
from fleetsim.model.limits import WIRE_BYTES_MAX, TooMuch
from fleetsim.model.text import one_line
from fleetsim.runtime.body import StreamLimits, load_decoder, read_events
from fleetsim.runtime.ports import Limits, Request, Runtime
from fleetsim.wire.json import dump, parse_untrusted

REPLY_BYTES_MAX = 2 * WIRE_BYTES_MAX
"""Bytes of one answer of the hub: a request and what came of it, or a page of excerpts."""

_MARGIN_S = 10.0
_PROOF_S = 15.0
_PROOF_BYTES_MAX = 4_096
_NO_EVENT: Mapping[str, Any] = dict.fromkeys(("seq", "correlationId", "parentId", "agent", "skill", "taskId")) | {
    "at": "",
    "level": "warn",
}

_ERRORS: Mapping[str, type[FleetsimError]] = {
    "FLEETSIM_ERR_UNKNOWN_TARGET": UnknownTarget,
    "FLEETSIM_ERR_NOT_OPEN": UnknownTarget,
    "FLEETSIM_ERR_NO_VETO": UnknownTarget,
    "FLEETSIM_ERR_BAD_REQUEST": ConfigError,
    "FLEETSIM_ERR_UNFIT_ANSWER": UnfitAnswer,
    "FLEETSIM_ERR_TOO_LARGE": TooMuch,
    "FLEETSIM_ERR_BUSY": NotAccepting,
    "FLEETSIM_ERR_NOT_ACCEPTING": NotAccepting,
}


class HubRemote:
    """The hub's API as methods. Answers are the JSON of ``docs/reference/api.md``, read under limits.

    Before each call, whoever listens proves to be the hub that announced itself: a hub may have died since, and its
    port be somebody else's, who would be told the key and the text.

    Every method raises UnknownTarget (no such thing), ConfigError (what is asked for is wrong), NotAccepting (busy or
    storage trouble), AuthRefused (the key is not the hub's), HttpRefused (anything else it refuses), TransportError (it
    is not there) and Unreachable (who is there is not the hub).
    """

    def __init__(self, address: HubAddress, runtime: Runtime) -> None:
        self.address = address
        self._runtime = runtime

    async def get(self, path: str, *, total_s: float = 15.0, **query: Any) -> Any:
        """Read ``/api`` + ``path``."""
        given = urlencode({name: value for name, value in query.items() if value is not None})
        return await self._exchange("GET", f"{path}?{given}" if given else path, b"", total_s)

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Do ``/api`` + ``path``."""
        return await self._exchange("POST", path, dump(dict(body or {})), 15.0)

    async def submit(self, body: Mapping[str, Any]) -> tuple[str, ...]:
        """Ask for work; the keys are those of ``POST /api/requests``."""
        accepted = await self.post("/requests", body)
        return tuple(accepted["correlationIds"])

    async def task(self, correlation_id: str, *, wait_s: int = 0) -> Any:
        """One request, after at most ``wait_s`` seconds for news of it."""
        return await self.get(f"/tasks/{_part(correlation_id)}", total_s=wait_s + _MARGIN_S, wait=wait_s or None)

    async def question(self, question_id: str) -> Any:
        return await self.get(f"/inbox/{_part(question_id)}")

    async def cancel(self, correlation_id: str) -> None:
        await self.post(f"/tasks/{_part(correlation_id)}/cancel")

    async def answer(
        self,
        question_id: str,
        text: str,
        *,
        parts: Sequence[Mapping[str, Any]] = (),
        decision: str = "answer",
        by: str = "operator",
    ) -> Any:
        """Answer or reject a question; ``parts`` are files and data as ``POST /api/inbox/{id}/answer`` has them."""
        body: dict[str, Any] = {"text": text, "decision": decision, "by": by}
        if parts:
            body["parts"] = list(parts)
        return await self.post(f"/inbox/{_part(question_id)}/answer", body)

    async def veto(self, correlation_id: str, *, by: str = "operator") -> Any:
        """Stop work whose window for a veto is open."""
        return await self.post(f"/tasks/{_part(correlation_id)}/veto", {"by": by})

    async def ceremonies(self) -> dict[str, Any]:
        """Every ceremony in force as ``ceremonies``, and what is wrong with files as ``errors``."""
        return {"ceremonies": await self.get("/ceremonies"), "errors": await self.get("/ceremonies/errors")}

    async def run_ceremony(self, ceremony_id: str) -> str:
        fired = await self.post(f"/ceremonies/{_part(ceremony_id)}/run")
        return str(fired["runId"])

    async def dry_run(self, ceremony_id: str) -> dict[str, Any]:
        """What firing a ceremony would send, and to whom."""
        told: dict[str, Any] = await self.post(f"/ceremonies/{_part(ceremony_id)}/run", {"dryRun": True})
        return told

    async def events(self, *, after: int | None = None) -> AsyncGenerator[dict[str, Any], None]:
        """Events as they happen, those after ``after`` first; ends when the hub closes.

        Events that were lost because this reader was too slow are told as one of topic ``events.dropped``.
        """
        load_decoder()
        path = "/events" + (f"?after={after}" if after is not None else "")
        limits = StreamLimits(stream_bytes_max=2**40, events_max=2**40, lines_max=2**40)
        await self._require_proof()
        request = self._request("GET", path, b"", Limits(total_s=None, body_bytes_max=2**40), streaming=True)
        async with self._runtime.transport.open(request) as incoming:
            if incoming.status != 200:
                raise HttpRefused(f"the hub refused its events (HTTP {incoming.status})", status=incoming.status)
            async for event in read_events(incoming, limits=limits):
                if event.event == "message":
                    yield json.loads(event.data)
                elif event.event == "dropped":
                    yield {**_NO_EVENT, "topic": "events.dropped", "payload": json.loads(event.data)}

    async def _exchange(self, method: str, path: str, body: bytes, total_s: float) -> Any:
        await self._require_proof()
        limits = Limits(total_s=total_s, first_byte_s=total_s, body_bytes_max=REPLY_BYTES_MAX)
        reply = await self._runtime.transport.exchange(self._request(method, path, body, limits))
        try:
            content = parse_untrusted(reply.body, bytes_max=REPLY_BYTES_MAX)
        except WireError:
            content = None
        if not isinstance(content, dict):
            raise WireError(f"{self.address.url} did not answer as a hub does (HTTP {reply.status})")
        if reply.status < 300:
            return content.get("data", content)
        message = one_line(str(content.get("error") or f"HTTP {reply.status}"), 500)
        hint = one_line(str(content["hint"]), 300) if content.get("hint") else None
        if kind := _ERRORS.get(str(content.get("code"))):
            raise kind(message, hint=hint)
        if reply.status in {401, 403}:
            raise AuthRefused(message, status=reply.status, hint=hint)
        raise HttpRefused(message, status=reply.status, hint=hint)

    async def _require_proof(self) -> None:
        challenge = self._runtime.ids.secret()
        url = f"{self.address.url}/health?challenge={challenge}"
        limits = Limits(total_s=_PROOF_S, first_byte_s=_PROOF_S, body_bytes_max=_PROOF_BYTES_MAX)
        try:
            reply = await self._runtime.transport.exchange(Request(method="GET", url=url, limits=limits))
            body = parse_untrusted(reply.body, bytes_max=_PROOF_BYTES_MAX)
        except (WireError, LimitReached):
            body = None
        given = str(body.get("proof")) if isinstance(body, dict) else ""
        if not hmac.compare_digest(given.encode(), prove(self.address.proof, self.address.url, challenge).encode()):
            raise Unreachable(
                f"who listens at {self.address.url} is not the hub that announced itself there, and was sent no key",
                hint="see what uses that port, then start the hub with `fleetsim up`",
            )

    def _request(self, method: str, path: str, body: bytes, limits: Limits, *, streaming: bool = False) -> Request:
        headers = {API_KEY_HEADER: self.address.api_key, "content-type": "application/json"}
        url = f"{self.address.url}/api{path}"
        return Request(method=method, url=url, headers=headers, body=body, limits=limits, streaming=streaming)


def _part(text: str) -> str:
    return quote(text, safe="")
