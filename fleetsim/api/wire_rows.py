"""Rows of the wire log as commands that a person can run. Masked values stay masked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from shlex import quote
from typing import Any

from fleetsim.model.text import neutralise

_OWN = frozenset({"host", "content-length", "connection", "accept-encoding", "transfer-encoding"})


def as_curl(row: Mapping[str, Any]) -> str:
    """The request as a curl command."""
    words = ["curl", "-X", row["method"], row["url"]]
    for name, value in row["headers"].items():
        words += ["-H", f"{name}: {value}"] if name.lower() not in _OWN else []
    if row["body"]:
        words += ["--data-binary", row["body"]]
    return " ".join(quote(neutralise(str(word), limit=100_000)) for word in words)


def as_command(row: Mapping[str, Any]) -> str:
    """The request as a fleetsim command; "" if no verb sends it."""
    try:
        body = json.loads(row["body"] or "null")
    except ValueError:
        return ""
    params = body.get("params", body) if isinstance(body, dict) else None
    message = params.get("message") if isinstance(params, dict) else None
    parts = message.get("parts") if isinstance(message, dict) else None
    if row["kind"] != "call" or not isinstance(parts, list):
        return ""
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    words = ["fleetsim", "send", row["agent"], "\n".join(texts)]
    return " ".join(quote(neutralise(str(word), limit=100_000)) for word in words) if texts else ""
