"""``auth`` in agents.yaml and in ``--auth``: the keys of each scheme, their rules, and the credentials made of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from fleetsim.ceremony.written import value_text
from fleetsim.client.credential import API_KEY_HEADER, AgentCredentials, ClientAuth, Credential, Scheme, TokenRequest
from fleetsim.client.http import check_url
from fleetsim.model.errors import ConfigError
from fleetsim.model.security import RequestedCredential
from fleetsim.runtime.address import on_this_machine
from fleetsim.runtime.explain import DECLARED, combine, explain
from fleetsim.runtime.ports import Request, Runtime
from fleetsim.runtime.yaml import load

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~\-]{1,64}")
OURS = frozenset({"host", "content-length", "content-type", "transfer-encoding", "connection", "accept-encoding"})
"""Headers that no file sets."""

_Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=500)]

_SECRET = frozenset({"credentials_env", "credentials_file"})
_OAUTH2 = frozenset({"client_id", "token_url", "discovery_url", "scopes", "parameters", "client_auth"})
_KEYS: Mapping[str, frozenset[str]] = {
    "apiKey": _SECRET | {"header", "query", "cookie"},
    "bearer": _SECRET,
    "basic": _SECRET | {"username"},
    "oauth2": _SECRET | _OAUTH2,
    "mutualTLS": frozenset({"certificate_file", "key_file"}),
    "hmac": _SECRET,
}
"""The keys of each scheme."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthEntry:
    """One credential of ours, and where its secret is."""

    __pydantic_config__: ClassVar[ConfigDict] = DECLARED | ConfigDict(alias_generator=to_camel)
    scheme: Literal[Scheme, "hmac"] = "apiKey"
    """As the card's securitySchemes request it; oauth2 is also for openIdConnect. hmac, Workstacean's reserved word,
    sends nothing, with a warning."""
    credentials_env: _Text | None = None
    """The environment variable that holds the secret (key, token, password, client secret): its name, never the secret
    itself."""
    credentials_file: _Text | None = None
    """The file that holds the secret, read for every request: a path from the folder of agents.yaml, mode 0600."""
    header: _Text | None = None
    """apiKey: the header of the key; without this, query and cookie it is X-API-Key."""
    query: _Text | None = None
    """apiKey: the query parameter of the key."""
    cookie: _Text | None = None
    """apiKey: the cookie of the key."""
    username: _Text | None = None
    """basic: the user; the secret is the password."""
    client_id: _Text | None = None
    """oauth2: the client; the secret is the client's. The grant is client credentials."""
    token_url: _Text | None = None
    """oauth2: the token endpoint. The secret goes there and nowhere else, whatever the card names."""
    discovery_url: _Text | None = None
    """oauth2: the metadata that names the token endpoint (RFC 8414, OpenID Connect): a card's openIdConnectUrl."""
    scopes: Annotated[tuple[_Text, ...], Field(max_length=50)] = ()
    """oauth2: the scopes to request."""
    parameters: Annotated[Mapping[str, _Text], Field(max_length=20)] = field(default_factory=dict)
    """oauth2: further fields of the token request, such as audience or resource."""
    client_auth: ClientAuth | None = None
    """oauth2: whether id and secret go in the Authorization header (basic) or the form (post); without it as the
    metadata says, else basic."""
    certificate_file: _Text | None = None
    """mutualTLS: our certificate, as PEM; a path from the folder of agents.yaml. Read again after a change."""
    key_file: _Text | None = None
    """mutualTLS: its key, as PEM without a passphrase, mode 0600."""

    def credential(self, folder: Path | None = None) -> Credential | None:
        """The credential that the client sends, its file relative to ``folder``; None for hmac."""
        if self.scheme == "hmac":
            return None

        def at(path: str | None) -> str:
            return str((folder or Path()) / path) if path else ""

        token_request = None
        if self.scheme == "oauth2":
            token_request = TokenRequest(
                client_id=self.client_id or "",
                token_url=self.token_url or "",
                discovery_url=self.discovery_url or "",
                scopes=self.scopes,
                parameters=tuple(self.parameters.items()),
                client_auth=self.client_auth,
            )
        return Credential(
            scheme=self.scheme,
            env=self.credentials_env or "",
            header=self.header or API_KEY_HEADER,
            file=at(self.credentials_file),
            query=self.query or "",
            cookie=self.cookie or "",
            username=self.username or "",
            token_request=token_request,
            certificate=at(self.certificate_file),
            key=at(self.key_file),
        )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Mistakes that the types of the keys do not show: the key of each, as it is written, and the message."""
        given = {key.name for key in fields(self) if getattr(self, key.name)} - {"scheme"}
        for name in sorted(given - _KEYS[self.scheme]):
            yield to_camel(name), f"'{to_camel(name)}' does not belong to the scheme {self.scheme}"
        if self.scheme == "mutualTLS" and not (self.certificate_file and self.key_file):
            yield "scheme", "mutualTLS needs a 'certificateFile' and a 'keyFile'"
        if len(given & _SECRET) != 1 and self.scheme not in {"hmac", "mutualTLS"}:
            yield "scheme", "one of 'credentialsEnv' and 'credentialsFile' says where the secret is"
        if self.credentials_env and not VARIABLE.fullmatch(self.credentials_env):
            message = "must be the name of an environment variable, never the secret itself"
            yield "credentialsEnv", f"'credentialsEnv' {message}"
        if len(places := sorted(given & {"header", "query", "cookie"})) > 1:
            yield places[1], "a key goes into one of header, query and cookie"
        for name in ("header", "query", "cookie"):
            text = getattr(self, name)
            if text and (not HEADER.fullmatch(text) or (name == "header" and text.lower() in OURS)):
                yield name, f"not a {name} that may be set here"
        if self.scheme == "basic" and ":" in (self.username or ":"):
            yield "username" if self.username else "scheme", "basic needs a 'username' without a colon"
        if self.scheme == "oauth2":
            if not self.client_id:
                yield "scheme", "oauth2 needs a 'clientId'"
            if len(given & {"token_url", "discovery_url"}) != 1:
                yield "scheme", "oauth2 needs one of 'tokenUrl' and 'discoveryUrl'; `fleetsim card` shows the card's"
            for name in sorted(given & {"token_url", "discovery_url"}):
                yield from self._bad_address(to_camel(name), getattr(self, name))

    def _bad_address(self, key: str, url: str) -> Iterator[tuple[str, str]]:
        if "${" in url:
            return  # an unset variable, which is reported as that
        try:
            check_url(url, f"'{key}'")
        except ConfigError as error:
            yield key, str(error)
        else:
            if not (url.lower().startswith("https://") or on_this_machine(url)):
                yield key, f"'{key}' must be https://, because the secret is sent there"


Auth: TypeAlias = AuthEntry | Annotated[tuple[AuthEntry, ...], Field(min_length=1, max_length=4)]
"""One credential, or all that an agent wants at once."""


def credentials_of(auth: Auth | None, api_key_env: str | None, folder: Path | None = None) -> tuple[Credential, ...]:
    """The credentials that the client sends: ``auth`` wins over ``apiKeyEnv``, and hmac sends none."""
    if auth is None:
        return () if api_key_env is None else (Credential(scheme="apiKey", env=api_key_env),)
    entries = auth if isinstance(auth, tuple) else (auth,)
    return tuple(credential for entry in entries if (credential := entry.credential(folder)) is not None)


class _Option(BaseModel):
    auth: Auth


def read_auth(text: str) -> tuple[Credential, ...]:
    """The credentials in the text of ``--auth``: ``auth`` of agents.yaml, on one line. Raises ConfigError."""
    if not text.startswith(("{", "[")) or "\n" in text:
        hint = "for example --auth '{header: x-functions-key, credentialsEnv: FUNC_KEY}'"
        raise ConfigError("--auth: the text of `auth` in agents.yaml is wanted, in { } on one line", hint=hint)
    written = load(f"auth: {text}", "--auth", bytes_max=16_384, nodes_max=500)
    try:
        auth = _Option.model_validate(written.value).auth
    except ValidationError as error:
        raise combine(explain(written, error, _Option)) from None
    entries = auth if isinstance(auth, tuple) else (auth,)
    problems = [message for entry in entries for _, message in entry.problems()]
    if problems:
        raise ConfigError(f"--auth: {'; '.join(problems)}")
    return credentials_of(auth, None)


async def signed_request(
    credentials: Sequence[Credential], runtime: Runtime, headers: Mapping[str, str], *, env: str | None = None
) -> Request:
    """A request to nowhere with ``headers`` and the credentials as they are now: ``url`` is "" or the query.

    ``env`` is a variable with another secret of the same kind. An OAuth2 token is fetched. Raises as
    ``AgentCredentials.sign``.
    """
    if env is not None:
        if any(credential.query for credential in credentials):
            raise ConfigError("a second caller's key can go into a header alone, and this one goes into the query")
        credentials = [replace(credential, env=env, file="") for credential in credentials or (Credential("bearer"),)]
    return await AgentCredentials(credentials, "the agent").sign(
        runtime, Request(method="GET", url="", headers=headers)
    )


# -- what a card requests -----------------------------------------------------------------------------------------


def entry_text(requested: Sequence[RequestedCredential], variable: str) -> str:
    """``auth`` for one alternative of a card, as YAML on one line; "" if fleetsim cannot send it.

    Variables begin with ``variable``; values that only a person knows have a placeholder.
    """
    entries = [_keys_for(schemes, variable) for schemes in requested]
    if not all(entries):
        return ""
    return value_text(entries if len(entries) > 1 else entries[0])


def _keys_for(requested: RequestedCredential, variable: str) -> dict[str, Any]:
    token = {"scheme": "bearer", "credentialsEnv": f"{variable}_TOKEN"}
    match requested.kind:
        case "apiKey" if requested.place in {"header", "query", "cookie"} and HEADER.fullmatch(requested.key):
            usual = requested.place == "header" and requested.key.lower() == API_KEY_HEADER
            place = {} if usual else {requested.place: requested.key}
            return {"scheme": "apiKey", **place, "credentialsEnv": f"{variable}_API_KEY"}
        case "bearer":
            return token
        case "basic":
            return {"scheme": "basic", "username": "USER", "credentialsEnv": f"{variable}_PASSWORD"}
        case "oauth2" | "openIdConnect":
            address = (("tokenUrl", requested.token_url), ("discoveryUrl", requested.discovery_url))
            named = next(({key: url} for key, url in address if url and not [*AuthEntry()._bad_address(key, url)]), {})
            scopes = [scope for scope in requested.scopes if HEADER.fullmatch(scope.replace("/", "").replace(":", ""))]
            more = {"scopes": scopes} if scopes else {}
            secret = {"credentialsEnv": f"{variable}_CLIENT_SECRET"}
            return {"scheme": "oauth2", "clientId": "CLIENT", **named, **more, **secret} if named else token
        case "mutualTLS":
            return {"scheme": "mutualTLS", "certificateFile": "client.pem", "keyFile": "client.key"}
        case _:
            return {}


def is_answered(alternatives: Iterable[Sequence[RequestedCredential]], credentials: Sequence[Credential]) -> bool:
    """Whether the credentials are all that one of the alternatives requests."""
    return any(all(any(_answers(c, scheme) for c in credentials) for scheme in schemes) for schemes in alternatives)


def _answers(credential: Credential, requested: RequestedCredential) -> bool:
    match requested.kind:
        case "apiKey" if credential.scheme == "apiKey":
            named = {"query": credential.query, "cookie": credential.cookie}
            place = next((place for place, name in named.items() if name), "header")
            name = named.get(place) or credential.header.lower()
            return (place, name) == (requested.place, requested.key.lower() if place == "header" else requested.key)
        case "bearer" | "oauth2" | "openIdConnect":
            return credential.scheme in {"bearer", "oauth2"}
        case kind:
            return credential.scheme == kind != "apiKey"
