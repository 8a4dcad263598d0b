"""Files, data and metadata on the command line: read from options, listed, and saved into a folder."""

from __future__ import annotations

import json
import mimetypes
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from fleetsim.cli.main import CommonOptions
from fleetsim.model.errors import BlockedAddress, ConfigError, FleetsimError, HttpRefused, WireError
from fleetsim.model.limits import PARTS_BYTES_MAX
from fleetsim.model.parts import ListedPart, content_of
from fleetsim.model.task import DataPart, FilePart, Part
from fleetsim.runtime.address import AddressPolicy, parse_webhook_url
from fleetsim.runtime.files import Folder, safe_name
from fleetsim.runtime.ports import Limits, Request, Runtime
from fleetsim.wire.json import parse_untrusted

_PACKED = {
    "gzip": "application/gzip",
    "bzip2": "application/x-bzip2",
    "xz": "application/x-xz",
    "compress": "application/x-compress",
    "br": "application/x-brotli",
}
"""The media type of a compressed file, whatever its content."""

REMOTE_BYTES_MAX = 64 * 1024 * 1024
REMOTE_URL_CHARS_MAX = 8_192
REMOTE_LIMITS = Limits(first_byte_s=30.0, total_s=300.0, body_bytes_max=REMOTE_BYTES_MAX)


file_option = click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Send this file along; may be repeated.",
)
data_option = click.option(
    "--data", multiple=True, metavar="JSON|@FILE", help="Send this JSON value along; may be repeated."
)


def read_parts(files: Iterable[Path], data: Iterable[str]) -> tuple[Part, ...]:
    """The parts that ``--file`` and ``--data`` name, files first. Raises ConfigError."""
    parts: list[Part] = []
    for path in files:
        kind, packing = mimetypes.guess_type(path.name)
        if packing is not None:
            kind = _PACKED.get(packing)
        raw = b64encode(_read(path)).decode("ascii")
        parts.append(FilePart(raw=raw, filename=path.name, media_type=kind or "application/octet-stream"))
    return (*parts, *(DataPart(data=_json(text, "--data")) for text in data))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(PARTS_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > PARTS_BYTES_MAX:
        raise ConfigError(
            f"{path} is larger than {PARTS_BYTES_MAX:,} bytes (parts_bytes_max), which is all one message may carry"
        )
    return content


def _json(value: str, option: str) -> Any:
    text = _read(Path(value[1:])) if value.startswith("@") else value.encode("utf-8", "surrogateescape")
    try:
        return parse_untrusted(text, bytes_max=PARTS_BYTES_MAX)
    except WireError as error:
        where = f"{value[1:]}: " if value.startswith("@") else ""
        raise ConfigError(f"{option}: {where}{error}", hint="a text needs quotes of its own: '\"like this\"'") from None


def read_metadata(values: Iterable[str]) -> dict[str, Any]:
    """``KEY=VALUE`` texts and JSON objects, later ones over earlier ones. Raises ConfigError."""
    metadata: dict[str, Any] = {}
    for text in values:
        key, equals, value = text.partition("=")
        if text.lstrip().startswith(("{", "@")):
            given = _json(text.strip(), "--metadata")
            if not isinstance(given, dict):
                raise ConfigError("--metadata: a JSON object is wanted")
            metadata |= given
        elif key and equals:
            metadata[key] = value
        else:
            raise ConfigError("--metadata: neither KEY=VALUE nor a JSON object")
    return metadata


def list_parts(common: CommonOptions, parts: Sequence[ListedPart], total: int, *, next_step: str = "") -> None:
    """Tell a person, on stderr, which files and data came, and how to have them."""
    for part in parts:
        common.note(f"  {part}")
    if total > len(parts):
        common.note(f"  and {total - len(parts):,} more, which are too many to be kept")
    if parts and next_step:
        common.note(f"  next: {next_step}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedParts:
    """A task's parts by index: the file of each, its address if it was not fetched, or why it failed."""

    paths: Mapping[int, Path] = field(default_factory=dict)
    remote: Mapping[int, str] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)


async def save_parts(
    parts: Sequence[ListedPart], out: Path, *, runtime: Runtime | None = None, policy: AddressPolicy | None = None
) -> SavedParts:
    """Write files, and data as JSON, into ``out``; with a ``policy`` also what it lets us fetch by address.

    Raises ConfigError if ``out`` cannot be written to; what was written until then stays.
    """
    contents: dict[int, bytes] = {}
    remote: dict[int, str] = {}
    failed: dict[int, str] = {}
    for part in parts:
        try:
            if part.truncated:
                failed[part.index] = "it was too large to be kept"
            elif part.kind == "data":
                text = json.dumps(part.data, ensure_ascii=False, indent=2)
                contents[part.index] = text.encode("utf-8", "replace") + b"\n"
            elif part.raw is not None:
                contents[part.index] = content_of(part.raw)
            elif policy is not None and runtime is not None:
                contents[part.index] = await fetch_remote(runtime, part.uri or "", policy)
            else:
                remote[part.index] = part.uri or ""
        except (FleetsimError, ValueError) as error:
            hint = getattr(error, "hint", None)
            failed[part.index] = f"{error}{f' ({hint})' if hint else ''}"
    paths: dict[int, Path] = {}
    if contents:
        with Folder(out) as folder:
            for part in parts:
                if part.index in contents:
                    name = f"data-{part.index}.json"
                    if part.kind != "data":
                        suffix = mimetypes.guess_extension(part.media_type or "") or ""
                        name = safe_name(part.name, f"file-{part.index}{suffix}")
                    paths[part.index] = folder.save(name, contents[part.index])
    return SavedParts(paths=paths, remote=remote, failed=failed)


async def fetch_remote(runtime: Runtime, uri: str, policy: AddressPolicy) -> bytes:
    """Fetch a file that an agent gave by its address.

    The address is the agent's word: the address policy judges it like a webhook's, no redirect is followed, and nothing
    of ours goes with the request, neither a credential nor a header from a file.

    Raises:
        BlockedAddress: no plain http(s) address, or one the policy refuses.
        HttpRefused: any answer but 200; a redirect is one.
        LimitReached: more than ``REMOTE_BYTES_MAX`` bytes.
        TransportError: it cannot be had.
    """
    parsed = parse_webhook_url(uri, what="the file's address", chars_max=REMOTE_URL_CHARS_MAX)
    host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
    where = f"{host}:{parsed.port}"
    request = Request(method="GET", url=parsed.url, headers={"accept": "*/*"}, limits=REMOTE_LIMITS)
    try:
        reply = await runtime.transport.guarded(policy).exchange(request)
    except BlockedAddress as error:
        raise BlockedAddress(str(error), hint=f"to allow it: --allow {where}") from None
    if reply.status != 200:
        redirect = ", a redirect, which is not followed" if 300 <= reply.status < 400 else ""
        raise HttpRefused(f"{where} answered HTTP {reply.status}{redirect}", status=reply.status)
    return reply.body


def report_unsaved(
    common: CommonOptions, parts: Sequence[ListedPart], saved: SavedParts, *, next_step: str = ""
) -> None:
    """Tell a person, on stderr, what was not written and why."""
    for part in parts:
        if part.index in saved.failed:
            common.note(f"  {part}: not saved: {saved.failed[part.index]}")
        elif part.index in saved.remote:
            common.note(f"  {part}: not fetched")
    if saved.remote and next_step:
        common.note(f"  next: {next_step}")
