"""Writes the lines of a recording, a JSON object a line. ``reader`` reads them."""

from __future__ import annotations

import hashlib
import json
from typing import IO, Any

from pydantic_core import PydanticSerializationError, to_json


class RecordingWriter:
    """Writes a recording line by line. Two recordings are the same if their ``digest`` is."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._last_s = 0.0
        self.lines = 0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def write(self, at_s: float, kind: str, **members: Any) -> bytes:
        """Write one line, with ``t`` (seconds since the start of the run) and ``kind``. Returns the line."""
        written = {"t": round(at_s, 6), "kind": kind, **members}
        try:
            line = to_json(written)
        except PydanticSerializationError:  # a text that is not Unicode, which json alone writes
            line = json.dumps(written, separators=(",", ":")).encode()
        self._hash.update(line)
        self._file.write(line.decode() + "\n")
        self._last_s = at_s
        self.lines += 1
        return line

    def played(self, *, source: str, wall_s: float, cpu_s: float, command: str = "", again: str = "") -> None:
        """Write how the run was played, and the digest of all lines before.

        ``command`` plays it again; the default is ``fleetsim sim`` with the ``source``. ``again`` is the digest of the
        same run played once more.
        """
        played = {"source": source, "digest": self.digest, "wall_s": wall_s, "cpu_s": cpu_s}
        more = {name: value for name, value in (("command", command), ("again", again)) if value}
        self.write(self._last_s, "played", **played, **more)
