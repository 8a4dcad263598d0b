"""The links in notices of questions. A holder of one may answer that question. Pure.

A link is made from the hub's keys when its notice is sent, and again to verify it. So the ledger holds no part of it,
and it works after a restart, and at each hub that shares the ledger. Without its sink in agents.yaml it is not valid.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping

ANSWER_PATH = "/answer/"
_TOKEN = re.compile(r"([\w-]{1,64})\.([0-9a-f]{32})", re.ASCII)
_DOMAIN = b"fleetsim answer link v1\0"


class AnswerLinks:
    """Makes and verifies links. ``keys`` maps key epochs to secrets; ``current`` is the one to make links with."""

    def __init__(self, keys: Mapping[int, bytes], *, current: int) -> None:
        self._keys, self._current = dict(keys), current

    def link(self, base: str, question_id: str, reader: str) -> str:
        """The link below ``base`` by which ``reader`` decides."""
        return f"{base}{ANSWER_PATH}{question_id}.{self._mac(self._current, question_id, reader)}"

    def verify(self, token: str, readers: Iterable[str]) -> tuple[str, str] | None:
        """The question's id and the reader, one of ``readers``, of a link's last segment; None for any other text."""
        if (match := _TOKEN.fullmatch(token)) is None:
            return None
        made = {reader: [self._mac(epoch, match[1], reader) for epoch in self._keys] for reader in readers}
        found = [reader for reader, macs in made.items() if any(hmac.compare_digest(mac, match[2]) for mac in macs)]
        return (match[1], found[0]) if found else None

    def _mac(self, epoch: int, question_id: str, reader: str) -> str:
        said = _DOMAIN + f"{question_id}\0{reader}".encode()
        return hmac.new(self._keys[epoch], said, hashlib.sha256).hexdigest()[:32]


def without_link(text: str, link: str) -> str:
    """Remove the secret of a link from a text of somebody else, who may have cut its end off."""
    return re.sub(re.escape(link.rpartition("/")[2].partition(".")[0]) + r"\.\w*", "…", text)
