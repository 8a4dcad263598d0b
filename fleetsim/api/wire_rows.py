"""Rows of the wire log as commands that a person can run. Masked values stay masked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from shlex import quote

from fleetsim.api.answers import WireExchange
from fleetsim.model.text import GUTTER, Gutter, neutralise, one_line

_OWN = frozenset({"host", "content-length", "connection", "accept-encoding", "transfer-encoding"})


def as_curl(row: WireExchange) -> str:
    """The request as a curl command."""
    words = ["curl", "-X", row.method, row.url]
    for name, value in row.headers.items():
        words += ["-H", f"{name}: {value}"] if name.lower() not in _OWN else []
    if row.body:
        words += ["--data-binary", row.body]
    return " ".join(quote(neutralise(str(word), limit=100_000)) for word in words)


def as_command(row: WireExchange) -> str:
    """The request as a fleetsim command; "" if no verb sends it."""
    try:
        body = json.loads(row.body or "null")
    except ValueError:
        return ""
    params = body.get("params", body) if isinstance(body, dict) else None
    message = params.get("message") if isinstance(params, dict) else None
    parts = message.get("parts") if isinstance(message, dict) else None
    if row.kind != "call" or not isinstance(parts, list):
        return ""
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    words = ["fleetsim", "send", row.agent, "\n".join(texts)]
    return " ".join(quote(neutralise(str(word), limit=100_000)) for word in words) if texts else ""


TEXT_CHARS_MAX = 900_000
"""Characters of a whole log as text; older exchanges are left out."""


def as_text(rows: Sequence[WireExchange]) -> str:
    """The exchanges as text for a person, the newest first; agents' text stands behind a gutter."""
    pieces: list[str] = []
    left = TEXT_CHARS_MAX
    for row in reversed(rows):
        piece = _exchange(row)
        if (left := left - len(piece)) < 0:
            pieces.append(f"and {len(rows) - len(pieces):,} older exchanges")
            break
        pieces.append(piece)
    return "\n\n".join(pieces) or "Nothing went over the wire yet. The hub records from now on: look again soon."


def _exchange(row: WireExchange) -> str:
    took = "" if row.seconds is None else f"  {row.seconds:.3f} s"
    arrow, status = "<-" if row.kind == "webhook" else "->", row.status or "no reply"
    lines = [f"{row.at}  {arrow} {one_line(row.agent)}  {row.method} {one_line(row.url, 2_000)}  {status}{took}"]
    lines += _message("sent" if arrow == "->" else "received", row.headers, row.body, row.body_bytes)
    lines += _message("reply", row.reply_headers, row.reply, row.reply_bytes)
    for frame in row.frames:
        lines += [f"  frame +{frame.after_s:.3f} s, {frame.bytes:,} bytes", *_gutter(frame.text)]
    if (more := row.frames_total - len(row.frames)) > 0:
        lines.append(f"  and {more:,} more frames")
    lines += [f"  problem: {one_line(row.problem, 500)}"] if row.problem else []
    lines += [f"  {one_line(as_curl(row), 4_000)}"] if row.kind == "call" else []
    return "\n".join([*lines, *([f"  {one_line(command, 4_000)}"] if (command := as_command(row)) else [])])


def _message(what: str, headers: Mapping[str, str], body: str, size: int) -> list[str]:
    named = [f"  {GUTTER}{one_line(f'{name}: {value}', 1_000)}" for name, value in headers.items()]
    return [f"  {what}, {size:,} bytes", *named, *_gutter(body)] if size or named else []


def _gutter(text: str) -> list[str]:
    return Gutter(bar=f"  {GUTTER}").add(text).splitlines()
