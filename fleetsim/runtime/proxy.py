"""The way through an HTTP proxy: which proxy a connection takes, and the tunnel it opens (CONNECT, RFC 9110 9.3.6).

The proxy resolves the agent's name. Of calls over https it sees that name, the port and the amount of traffic.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from fleetsim.model.errors import ConfigError, Unreachable
from fleetsim.model.text import one_line
from fleetsim.runtime.address import network_of, on_this_machine, parse_address
from fleetsim.runtime.exchange import Origin, is_usable, origin_of, unusable
from fleetsim.runtime.ports import Proxy

_HOST = re.compile(r"[A-Za-z0-9._:-]+", re.ASCII)
_LOGIN = re.compile(r"[^:\ud800-\udfff]*:[^\ud800-\udfff]*")
"""Bytes of a variable that are not UTF-8 are read as surrogates."""
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: ([^\r\n]*))?\r?\n")
_CHALLENGE = re.compile(rb"^proxy-authenticate:[ \t]*([a-z0-9_-]{1,40})", re.IGNORECASE | re.MULTILINE)

NO_PROXY_THERE = "is the proxy running, and are its name and port right?"


@dataclass(frozen=True, slots=True)
class ChosenProxy:
    """The proxy of one connection. ``variable`` names it, if the environment does; ``login`` is ``user:password``."""

    origin: Origin
    variable: str = ""
    login: str = field(default="", repr=False)

    def __str__(self) -> str:
        variable = f" ({self.variable})" if self.variable else ""
        return f"the proxy {self.origin.host}:{self.origin.port}{variable}"


def check_proxy(url: str) -> Origin:
    """The origin of a proxy's address. Raises ConfigError: not plain http or https, or with a path or password."""
    if not is_usable(url) or urlsplit(url).path.strip("/") or not _HOST.fullmatch(origin_of(url).host):
        raise ConfigError(
            "the proxy must be http://HOST:PORT or https://HOST:PORT, without a path or password",
            hint="or environment, for HTTPS_PROXY and NO_PROXY; credentialsEnv names the variable with user:password",
        )
    return origin_of(url)


def choose_proxy(proxy: Proxy | None, origin: Origin) -> ChosenProxy | None:
    """The proxy for a connection to ``origin``; None if it goes there directly. Raises ConfigError."""
    if proxy is None:
        return None
    if proxy.url:
        login = os.environ.get(proxy.login_env, "").strip() if proxy.login_env else ""
        if proxy.login_env and not _LOGIN.fullmatch(login):
            shown = one_line(proxy.login_env, 100)
            raise ConfigError(f"the variable {shown}, the login at the proxy, does not hold user:password")
        return ChosenProxy(check_proxy(proxy.url), login=login)
    name = proxy_variable(origin)
    if not name:
        return None
    url = os.environ[name].strip()
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
        login.encode()
        own = check_proxy(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())
    except (ConfigError, ValueError):
        hint = "name an HTTP proxy, also one that leads to a SOCKS proxy"
        raise ConfigError(f"{name} must be http://HOST:PORT or https://HOST:PORT", hint=hint) from None
    return ChosenProxy(own, name, login)


def proxy_variable(origin: Origin) -> str:
    """The variable whose proxy a connection would take; "" if none is set, or NO_PROXY exempts the host.

    A host of this machine is always exempt.
    """
    name = _variable_set(origin)
    return "" if not name or on_this_machine(str(origin)) or _exempt(origin) else name


def unused_proxy(proxy: Proxy | None, origin: Origin) -> tuple[str, str]:
    """The reason why a connection does not use the environment's proxy, and the next step; both empty without one."""
    if on_this_machine(str(origin)) or (proxy is not None and proxy.url):
        return "", ""
    if proxy is None:
        name = proxy_variable(origin)
        why = f"{name} is set; fleetsim does not use it unless told to" if name else ""
        return why, "`proxy: environment` in agents.yaml, --proxy environment, or way=WayOut(proxy=Proxy()), uses it"
    if name := _variable_set(origin):
        return ("NO_PROXY names this host", f"is it to be reached through {name}?") if _exempt(origin) else ("", "")
    upper = f"{origin.scheme.upper()}_PROXY"
    return f"without a proxy: {upper} is not set", f"set {upper} where fleetsim, or its hub, is started"


def _variable_set(origin: Origin) -> str:
    names = f"{origin.scheme}_proxy", "all_proxy"
    return next((n for lower in names for n in (lower, lower.upper()) if os.environ.get(n, "").strip()), "")


def _exempt(origin: Origin) -> bool:
    """Whether NO_PROXY names the host: by a name, which stands for the names below it too, a network, or ``*``."""
    listed = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    address = parse_address(origin.host)
    for entry in re.split(r"[\s,]+", listed.lower()):
        network = network_of(entry)
        if entry == "*" or (address is not None and network is not None and address in network):
            return True
        name, _, port = entry.rpartition(":")
        if not port.isdigit():
            name, port = entry, ""
        name = name.removeprefix("*").removeprefix(".")
        if name and f".{origin.host}".endswith(f".{name}") and port in {"", str(origin.port)}:
            return True
    return False


def connect_head(chosen: ChosenProxy, origin: Origin) -> bytes:
    """The request for a tunnel. Raises Unreachable: no such host can be written."""
    if not _HOST.fullmatch(origin.host):
        raise unusable("the address")
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    lines = [f"CONNECT {host}:{origin.port} HTTP/1.1", f"Host: {host}:{origin.port}"]
    if chosen.login:
        lines.append(f"Proxy-Authorization: Basic {b64encode(chosen.login.encode()).decode()}")
    return "\r\n".join([*lines, "", ""]).encode()


def check_tunnel(reply: bytes, chosen: ChosenProxy, where: str) -> None:
    """Read the head of a proxy's reply. ``where`` names both. Raises Unreachable: it opened no tunnel."""
    match = _STATUS.match(reply)
    if match is None:
        raise Unreachable(f"{where}: the proxy did not answer as an HTTP proxy", hint="check its address and scheme")
    status, reason = int(match[1]), one_line((match[2] or b"").decode("latin-1"), 80)
    if 200 <= status < 300:
        return
    offered = [scheme.decode() for scheme in _CHALLENGE.findall(reply)]
    if status == 407 and offered and "basic" not in map(str.lower, offered):
        why = f"wants a login by {' or '.join(offered[:4])}, and fleetsim logs in by Basic alone"
        hint = "a proxy on this machine that logs in there, such as cntlm or px, leads through it"
    elif status in {401, 407}:
        why = "wants a login" if not chosen.login else "refused our login"
        hint = (
            f"write the login into {chosen.variable}: http://USER:PASSWORD@HOST:PORT"
            if chosen.variable
            else "name the variable that holds user:password: `credentialsEnv` of `proxy` in agents.yaml; "
            "or --proxy environment, with the login in HTTPS_PROXY"
        )
    else:
        why, hint = "did not open a connection", "do its rules allow this host and port?"
        if status >= 500:
            hint = "is the agent running, and may the proxy reach this host and port?"
    raise Unreachable(f"{where}: the proxy {why} (HTTP {status}{reason and ', ' + reason})", hint=hint)
