"""Credentials of an agent, as the ``securitySchemes`` of cards have them (A2A 0.3 section 5.5.3, 1.0 section 4.5).

A secret is in a variable or a private file, and is read for every request, so that a new one counts without a restart.
An OAuth2 token comes from the endpoint that the operator configured. A card never decides where a secret goes. The
client credentials grant is one form and one small reply; why no library sends it: decision 0056.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar
from urllib.parse import quote, quote_plus, urlencode

import msgspec
from msgspec import Struct, structs

from fleetsim.model.errors import AuthRefused, BlockedAddress, ConfigError, FleetsimError, Unreachable
from fleetsim.model.limits import KIB
from fleetsim.model.text import one_line
from fleetsim.runtime.address import AddressPolicy, on_this_machine, parse_webhook_url
from fleetsim.runtime.exchange import where_of
from fleetsim.runtime.ports import Limits, Request, Runtime, Transport, WayOut
from fleetsim.runtime.retry import RETRY_AFTER_MAX_S, retry_after_s
from fleetsim.wire.choice import origin_of

Scheme: TypeAlias = Literal["apiKey", "bearer", "basic", "oauth2", "mutualTLS"]
ClientAuth: TypeAlias = Literal["basic", "post"]

API_KEY_HEADER = "x-api-key"
SECRET_BYTES_MAX = 8 * KIB
TOKEN_BYTES_MAX = 64 * KIB
"""The largest reply of a token or discovery endpoint."""

RENEW_BEFORE_S = 60.0
"""A token is renewed this long before it expires, or after nine tenths of a short life."""

FAILED_S = 2.0
"""For this long no other token is requested after a failure: a card is looked for at several addresses at once.

A ``Retry-After`` of the token endpoint makes it longer, up to ``RETRY_AFTER_MAX_S``.
"""

_SECRET = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,8190}[\x21-\x7e])?", re.ASCII)
_TEXT = re.compile(r"[^\ud800-\udfff]+")
"""A secret that is encoded, so that any text will do; other bytes than UTF-8 are read as surrogates."""
_WELL_KNOWN = re.compile(r"/\.well-known/(openid-configuration|oauth-authorization-server)(?=/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """Where and how to get an OAuth2 token with the client credentials grant (RFC 6749 section 4.4).

    ``token_url`` is the endpoint. Without it, ``discovery_url`` is the metadata that names the endpoint (RFC 8414 or
    OpenID Connect Discovery). ``parameters`` are further fields of the form, such as ``audience``.
    """

    client_id: str
    token_url: str = ""
    discovery_url: str = ""
    scopes: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()
    client_auth: ClientAuth | None = None


@dataclass(frozen=True, slots=True)
class Credential:
    """One credential, by the name of the environment variable (``env``) or the private ``file`` that holds its secret.

    An API key goes into ``header``, or into the ``query`` parameter or ``cookie`` of that name. ``username`` belongs to
    Basic, ``token_request`` to OAuth2; mutual TLS has the files ``certificate`` and ``key`` instead of a secret.
    ``secret`` holds the text itself, for scripts and tests; it is never shown.
    """

    scheme: Scheme
    env: str = ""
    header: str = API_KEY_HEADER
    secret: str | None = field(default=None, repr=False)
    _: KW_ONLY
    file: str = ""
    query: str = ""
    cookie: str = ""
    username: str = ""
    token_request: TokenRequest | None = None
    certificate: str = ""
    key: str = ""

    @classmethod
    def of(cls, scheme: Scheme, secret: str) -> Credential:
        """A credential from the text itself."""
        return cls(scheme=scheme, secret=secret)

    @property
    def source(self) -> str:
        """Where the secret comes from, in words for a message."""
        if self.secret is not None:
            return "the secret given"
        path = self.file or self.certificate
        return f"the file {path}" if path else f"the environment variable {self.env}"

    def headers(self) -> Mapping[str, str]:
        """The request headers of a secret that is in a variable. Raises ConfigError as ``require``."""
        return self.sent(self.require())[0]

    def require(self) -> str:
        """The secret in the variable; "" if it is in a file, which is read when it is used. Raises ConfigError if the
        variable is unset, empty, or holds what cannot be sent.
        """
        if self.file or self.certificate:
            return ""
        return self._checked(self.secret if self.secret is not None else os.environ.get(self.env, ""))

    async def read(self, runtime: Runtime) -> str:
        """The secret, as it is now. Raises ConfigError as ``require``, and if the file is missing or not private."""
        if not self.file:
            return self.require()
        content = await runtime.files.read(Path(self.file), bytes_max=SECRET_BYTES_MAX, private=True)
        return self._checked(content.decode("utf-8", "surrogateescape"))

    def _checked(self, text: str) -> str:
        secret, shown = text.strip(), one_line(self.source, 160)
        if not secret:
            hint = f"put the secret into {shown}" if self.file else f"export {one_line(self.env, 120)}=…"
            raise ConfigError(f"{shown} is {'empty' if self.file else 'not set'}", hint=hint)
        allowed = _TEXT if self.scheme in {"basic", "oauth2"} or self.query else _SECRET
        if not allowed.fullmatch(secret) or (self.cookie and ";" in secret) or len(secret) > 8_192:
            raise ConfigError(f"{shown} holds characters that cannot be sent")
        return secret

    def sent(self, secret: str) -> tuple[dict[str, str], dict[str, str]]:
        """The headers and query parameters that carry a secret, or an OAuth2 token."""
        if self.query:
            return {}, {self.query: secret}
        if self.cookie:
            return {"cookie": f"{self.cookie}={secret}"}, {}
        if self.scheme == "apiKey":
            return {self.header.lower(): secret}, {}
        text = _basic(self.username, secret) if self.scheme == "basic" else f"Bearer {secret}"
        return {"authorization": text}, {}


def _basic(user: str, secret: str) -> str:
    return "Basic " + b64encode(f"{user}:{secret}".encode()).decode("ascii")


class _TokenReply(Struct):
    """RFC 6749 section 5.1."""

    access_token: str
    token_type: str = "bearer"
    expires_in: float | None = None


class _Metadata(Struct):
    """RFC 8414 section 2."""

    token_endpoint: str
    issuer: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class _Refusal(Struct):
    """RFC 6749 section 5.2."""

    error: str = ""
    error_description: str = ""


T = TypeVar("T", _TokenReply, _Metadata)


def way_with(credentials: Iterable[Credential], way: WayOut | None = None) -> WayOut | None:
    """The way out with the client certificate of a credential of mutual TLS, if there is one."""
    for credential in credentials:
        if credential.certificate:
            way = way or WayOut()
            tls = structs.replace(way.tls, certificate=credential.certificate, key=credential.key)
            way = structs.replace(way, tls=tls)
    return way


WAITS_FOR = ContextVar("WAITS_FOR", default="")
"""The reason why the request of this asyncio task has not left yet, in words for a message; "" if it has none."""


class AgentCredentials:
    """Adds the credentials of one agent to requests, and keeps its OAuth2 tokens until they are renewed."""

    def __init__(self, credentials: Iterable[Credential], where: str) -> None:
        """``where`` is the agent's host and port, for messages."""
        self.credentials = tuple(credentials)
        self._where = where
        self._tokens: dict[TokenRequest, tuple[str, float]] = {}  # each with the second at which it is renewed
        self._fetching = asyncio.Lock()
        self._failed: tuple[float, FleetsimError] | None = None

    @property
    def source(self) -> str | None:
        """Where the secrets come from, in words for a message; None without a credential."""
        return " and ".join(credential.source for credential in self.credentials) or None

    def twin(self) -> AgentCredentials:
        """The same for another event loop, with the same tokens."""
        twin = AgentCredentials(self.credentials, self._where)
        twin._tokens = self._tokens
        return twin

    async def sign(self, runtime: Runtime, request: Request) -> Request:
        """The request with every credential; nothing that it already has overrides one. Raises ConfigError if a secret
        or OAuth2 endpoint is missing or wrong, AuthRefused, and Unreachable if no token can be had now.
        """
        WAITS_FOR.set("")
        if not self.credentials:
            return request
        headers, query = dict(request.headers), dict[str, str]()
        for credential in self.credentials:
            if credential.scheme == "mutualTLS":
                continue  # the connection proves it
            if credential.token_request is not None:
                secret = await self._token(runtime, credential, credential.token_request)
            else:
                secret = await credential.read(runtime)
            more, parameters = credential.sent(secret)
            if "cookie" in more and "cookie" in headers:
                more["cookie"] = f"{headers['cookie']}; {more['cookie']}"
            headers |= more
            query |= parameters
        WAITS_FOR.set("")
        joined = f"{request.url}{'&' if '?' in request.url else '?'}{urlencode(query, quote_via=quote)}"
        return structs.replace(request, headers=headers, url=joined if query else request.url)

    def forget(self, request: Request, status: int, headers: Mapping[str, str]) -> bool:
        """Drop the token of a request if the response refuses it. True if a new one may be accepted.

        HTTP 401 refuses a token, and so does ``invalid_token`` under any status (RFC 6750 section 3.1).
        """
        if status != 401 and "invalid_token" not in headers.get("www-authenticate", ""):
            return False
        text = request.headers.get("authorization", "").removeprefix("Bearer ")
        for wanted in [wanted for wanted, token in self._tokens.items() if token[0] == text]:
            self._tokens.pop(wanted, None)  # the dict is the twins', too
        return any(credential.token_request is not None for credential in self.credentials)

    # -- OAuth2

    async def _token(self, runtime: Runtime, credential: Credential, wanted: TokenRequest) -> str:
        """The token, fetched once for all requests that need it. They share a failure too, for ``FAILED_S``."""
        async with self._fetching:
            (token, until), now = self._tokens.get(wanted, ("", 0.0)), runtime.clock.monotonic()
            if token and now < until:
                return token
            if self._failed is not None and now < self._failed[0]:
                raise self._failed[1].with_traceback(None)
            try:
                self._tokens[wanted] = token, _ = await self._fetch(runtime, credential, wanted)
            except FleetsimError as error:
                asked_s = error.retry_after_s if isinstance(error, Unreachable) else None
                pause_s = max(FAILED_S, min(asked_s or 0.0, RETRY_AFTER_MAX_S))
                self._failed = runtime.clock.monotonic() + pause_s, error
                raise
        return token

    async def _fetch(self, runtime: Runtime, credential: Credential, wanted: TokenRequest) -> tuple[str, float]:
        """A new token of the token endpoint. The client proves itself as RFC 6749 section 2.3.1 has it."""
        url, client_auth, transport = wanted.token_url, wanted.client_auth, runtime.transport
        if not url:
            url, offered, transport = await self._discover(runtime, wanted)
            client_auth = client_auth or offered
        secret = await credential.read(runtime)
        form = {"grant_type": "client_credentials", **dict(wanted.parameters)}
        if wanted.scopes:
            form["scope"] = " ".join(wanted.scopes)
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        if client_auth == "post":
            form |= {"client_id": wanted.client_id, "client_secret": secret}
        else:
            headers["authorization"] = _basic(quote_plus(wanted.client_id), quote_plus(secret))
        body, limits = urlencode(form).encode("ascii"), Limits(body_bytes_max=TOKEN_BYTES_MAX)
        request = Request(method="POST", url=url, headers=headers, body=body, limits=limits)
        hidden = (secret, quote_plus(secret), headers.get("authorization", "").removeprefix("Basic "))
        check = f"check clientId and {credential.source}"
        reply = await self._ask(runtime, transport, request, "token request", check, *hidden)
        token = self._read(reply, _TokenReply, "token request", url)
        if token.token_type.lower() not in {"bearer", "bearertoken"} or not _SECRET.fullmatch(token.access_token):
            raise self._unusable("token request", url, "a token that cannot be sent as a bearer token")
        life_s = math.inf if token.expires_in is None else token.expires_in
        return token.access_token, runtime.clock.monotonic() + max(life_s - RENEW_BEFORE_S, life_s * 0.9)

    async def _discover(self, runtime: Runtime, wanted: TokenRequest) -> tuple[str, ClientAuth, Transport]:
        """The token endpoint that the metadata names, how a client proves itself there, and the way to it.

        Another origin than the configured one is called only at a public address, and by https.
        """
        url = wanted.discovery_url
        request = Request(method="GET", url=url, limits=Limits(body_bytes_max=TOKEN_BYTES_MAX))
        metadata = self._read(
            await self._ask(runtime, runtime.transport, request, "discovery", "check discoveryUrl"),
            _Metadata,
            "discovery",
            url,
        )
        expected, stated = _WELL_KNOWN.sub("", url).rstrip("/"), metadata.issuer.rstrip("/")
        if expected != url.rstrip("/") and stated != expected:
            raise self._unusable("discovery", url, f"the metadata of another issuer, “{one_line(stated, 120)}”")
        own = origin_of(metadata.token_endpoint) == origin_of(url)
        schemes = ("https", "http") if own and on_this_machine(url) else ("https",)
        try:
            endpoint = parse_webhook_url(metadata.token_endpoint, what="the token endpoint", schemes=schemes)
        except BlockedAddress as error:
            raise self._unusable("discovery", url, f"metadata that cannot be used: {error}") from error
        transport = runtime.transport if own else runtime.transport.guarded(AddressPolicy())
        methods = metadata.token_endpoint_auth_methods_supported
        only_post = "client_secret_post" in methods and "client_secret_basic" not in methods
        return endpoint.url, "post" if only_post else "basic", transport

    async def _ask(
        self, runtime: Runtime, transport: Transport, request: Request, step: str, hint: str, *hidden: str
    ) -> bytes:
        """The body of a reply with HTTP 200 and without an error; ``hint`` is the next step after a refusal.

        A server that repeats one of the ``hidden`` texts does not get it into a message.
        """
        place = where_of(request.url)
        WAITS_FOR.set(f"OAuth2 token ({step}: {place})")
        try:
            reply = await transport.exchange(request)
        except BlockedAddress as error:
            hint = "name the endpoint in auth.tokenUrl if it is right"
            raise ConfigError(f"{self._where}: no OAuth2 token: {step}: {error}", hint=hint) from error
        except FleetsimError as error:
            raise Unreachable(f"{self._where}: no OAuth2 token: {step}: {error}", hint=error.hint) from error
        refusal = _Refusal()
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            refusal = msgspec.json.decode(reply.body, type=_Refusal)
        if reply.status == 200 and not refusal.error:
            return reply.body
        if 300 <= reply.status < 400:
            raise self._unusable(step, request.url, f"a redirect (HTTP {reply.status}), which is not followed")
        words = ", ".join(word for word in (f"HTTP {reply.status}", refusal.error, refusal.error_description) if word)
        for text in filter(None, hidden):
            words = words.replace(text, "***")
        why = f"cannot be called without an OAuth2 token: {step}: {place} answered {one_line(words, 160)}"
        if reply.status == 429 or reply.status < 200 or reply.status >= 500:
            asked_s = retry_after_s(reply.headers, runtime.clock.now())
            raise Unreachable(f"{self._where}: the agent {why}", retry_after_s=asked_s)
        if reply.status == 404 and not refusal.error:
            hint = "correct the address: auth.tokenUrl or auth.discoveryUrl"
        elif refusal.error == "invalid_client" and "authorization" in request.headers:
            hint += "; some servers want both in the form: clientAuth: post"
        raise AuthRefused(f"{self._where}: the agent {why}", status=reply.status, why=why, hint=hint)

    def _read(self, body: bytes, kind: type[T], step: str, url: str) -> T:
        try:
            return msgspec.json.decode(body, type=kind, strict=False)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise self._unusable(step, url, "something else than RFC 6749 and RFC 8414 have there") from None

    def _unusable(self, step: str, url: str, what: str) -> ConfigError:
        return ConfigError(
            f"{self._where}: no OAuth2 token: {step}: {where_of(url)} answered with {what}",
            hint="check auth.tokenUrl and auth.discoveryUrl",
        )
