"""The dashboard over a hub in this process."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from fleetsim.caller.event_log import KEEP_MAX
from fleetsim.cli.logs import LOG_FORMAT
from fleetsim.dashboard.controls import Controls, WholeText
from fleetsim.hub.hub import Hub
from fleetsim.model.asking import answer_schema, text_of
from fleetsim.model.errors import ConfigError, UnknownTarget, WireError
from fleetsim.model.task import DataPart
from fleetsim.model.work import Answer, Decision
from fleetsim.wire.json import parse_untrusted

LOG_BYTES_MAX = 10 * 1024 * 1024


class HubControls(Controls):
    """The actions of a person on the screen, carried out at the hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def answer(self, question_id: str, text: str) -> str:
        """Answer a question; what is typed goes as data where that is asked for and it is JSON."""
        question = next((q for q in self._hub.tracker.questions() if q.question_id == question_id), None)
        answer = Answer(question_id=question_id, text=text)
        if question is not None and answer_schema(question.parts) is not None and text.strip()[:1] in set('{["'):
            typed = text.encode()
            try:
                data = DataPart(data=parse_untrusted(typed, bytes_max=len(typed)))
            except WireError as error:
                hint = "words without a bracket go as text"
                raise ConfigError(f"this is no JSON: {error}", hint=hint) from None
            answer = Answer(question_id=question_id, text="", parts=(data,))
        question = await self._hub.tracker.answer(answer)
        return f"sent to {question.agent}"

    async def reject(self, question_id: str) -> None:
        await self._hub.tracker.answer(Answer(question_id=question_id, text="", decision=Decision.REJECT))

    async def veto(self, correlation_id: str) -> None:
        if not self._hub.hitl.veto(correlation_id):
            raise UnknownTarget("its window is closed by now", hint="x cancels a task at any time")

    async def cancel(self, correlation_id: str) -> None:
        self._hub.tracker.cancel(correlation_id)

    async def fire(self, ceremony_id: str) -> None:
        await self._hub.require_scheduler().run_now(ceremony_id)

    async def refresh(self, agent: str) -> None:
        await self._hub.broker.refresh(agent)

    async def text(self, correlation_id: str) -> WholeText:
        track = self._hub.tracker.track(correlation_id)
        if track is not None and (question := track.question) is not None:
            return WholeText(text=question.text, chars=max(question.text_chars, len(question.text)))
        if track is not None:
            task = track.task
            text, chars = text_of(task) if task else ("", 0)
            return WholeText(text=text, chars=chars)
        outcome = await self._hub.ledger.outcome(correlation_id)
        if outcome is None:
            raise UnknownTarget("the ledger has it no more")
        return WholeText(text=outcome.text, chars=max(outcome.text_chars, len(outcome.text)))


def has_terminal() -> bool:
    """Whether a screen can be drawn here and read keys."""
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return on_terminal and not in_background()


def in_background() -> bool:
    """Whether a shell runs this as a background job: the terminal would stop the whole process at its first key."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp()
    except (OSError, ValueError):  # stdin is closed, or not the terminal that controls this process
        return False


async def show(hub: Hub, *, title: str, note: str = "", plain: bool = False, read_only: bool = False) -> None:
    """Draw the hub until the person quits, beginning with what the ledger remembers; ``note`` is for the tabs' row."""
    from fleetsim.dashboard.app import FleetApp
    from fleetsim.dashboard.feed import LiveFeed

    async with hub.events.subscribe(after_seq=0, keep_max=KEEP_MAX) as heard:
        last = await hub.ledger.last_seq()
        past = await hub.ledger.events(after_seq=max(0, last - KEEP_MAX), limit=KEEP_MAX)
        app = FleetApp(
            LiveFeed(heard, past=past),
            HubControls(hub),
            clock=hub.runtime.clock,
            title=title,
            note=note,
            ascii=plain,
            read_only=read_only,
        )
        await app.run_async()


class _OwnersLog(RotatingFileHandler):
    """Each file is its owner's alone from its first moment."""

    def _open(self) -> TextIOWrapper:
        Path(self.baseFilename).touch(mode=0o600)
        return super()._open()


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Send the log to a file while the screen is drawn, so that no line lands in the middle of it.

    A full file becomes ``NAME.1``, which replaces the one before.
    """
    root = logging.getLogger()
    before = root.handlers[:]
    handler = _OwnersLog(path, maxBytes=LOG_BYTES_MAX, backupCount=1, encoding="utf-8")
    handler.setFormatter(LOG_FORMAT)
    root.handlers[:] = [handler]
    try:
        yield
    finally:
        root.handlers[:] = before
        handler.close()
