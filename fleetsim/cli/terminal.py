"""The terminal while a command runs: progress on stderr, an answer as it grows, lines of input."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

import click

from fleetsim.cli.render import seconds
from fleetsim.model.text import GUTTER, one_line

LINE_BYTES_MAX = 8 * 1024 * 1024
_READ_BYTES = 64 * 1024
_TERMINAL_EVERY_S, _PIPE_EVERY_S = 0.5, 10.0


def on_stop(stop: Callable[[], object], *more: signal.Signals) -> None:
    """Call ``stop`` in the running loop for SIGTERM, SIGHUP and ``more``; one that is ignored (nohup) stays ignored."""
    loop = asyncio.get_running_loop()

    def end(*_: object) -> None:
        # A stopped job gets SIGCONT at the same time. Textual would stop it again: the shell has the terminal now.
        signal.signal(signal.SIGCONT, lambda *_: None)  # with SIG_IGN, Python reports a pending one as an error
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        loop.call_soon_threadsafe(stop)

    for number in (signal.SIGTERM, signal.SIGHUP, *more):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)


class Progress:
    """One line that rewrites itself on a terminal, a line every ten seconds otherwise.

    Shows ``what`` and how long it has taken, until left or closed. ``async with``; ``say`` changes the words.
    """

    def __init__(self, what: str | Callable[[], str], *, quiet: bool = False) -> None:
        self._what = what
        self._quiet = quiet
        self._remark = ""
        self._live = sys.stderr.isatty()
        self._shown = False
        self._done = asyncio.Event()

    def say(self, what: str) -> None:
        self._what = what

    def remark(self, text: str) -> None:
        """Show at once what an agent says while it is at work: many frameworks tell their answer word by word so."""
        text = one_line(text, 160)
        if self._quiet or self._done.is_set() or text in {"", self._remark}:
            return
        self._remark, self._what = text, GUTTER + text
        self._write(self._what)

    def close(self) -> None:
        """Show no more: the line is taken away, and the terminal is free for an answer."""
        self._done.set()
        self.clear()

    def clear(self) -> None:
        """Remove the line, so that something else can be printed; it comes again."""
        if self._shown and self._live:
            self._shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    async def __aenter__(self) -> Progress:
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        if not self._quiet:
            self._group.create_task(self._show(), name="progress")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        await self._group.__aexit__(None, None, None)

    async def _show(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not self._done.is_set():
            try:
                async with asyncio.timeout(_TERMINAL_EVERY_S if self._live else _PIPE_EVERY_S):
                    await self._done.wait()
            except TimeoutError:
                what = self._what if isinstance(self._what, str) else self._what()
                self._write(f"{one_line(what, 160)} … {seconds(loop.time() - began)}")

    def _write(self, text: str) -> None:
        self._shown = True
        if self._live:
            rewrite(text)
        else:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def rewrite(text: str) -> None:
    """Put one line in place of the one before, on a terminal's stderr; "" takes it away. It is cut to the width."""
    sys.stderr.write(f"\r\x1b[K{one_line(text, shutil.get_terminal_size().columns - 1)}")
    sys.stderr.flush()


@dataclass(slots=True)
class LivePieces:
    """Which text of a growing answer can be shown already, so that the answer stands on stdout once and in order.

    The text of an artifact is shown as soon as all artifacts before it are whole. Text that cannot be placed waits for
    the finished answer (``hold``). The first piece of a stream need not say ``append``; in a stream that was ``joined``
    while it ran, it is the first only if it does not.
    """

    shown: str = ""
    joined: bool = False
    _texts: dict[str, list[str]] = field(default_factory=dict)
    _whole: frozenset[str] = frozenset()
    _growing: str | None = None
    _held: bool = False

    def more(self, artifact_id: str, piece: str, *, append: bool, last: bool = False, cut: bool = False) -> str:
        """The text to print for one piece; ``cut`` says that it is only a beginning."""
        self._held = self._held or (self.joined and append and artifact_id not in self._texts)
        if self._held:
            return ""
        pieces = self._texts.setdefault(artifact_id, [])
        if not append:
            pieces.clear()
        pieces.append(piece)
        self._whole = self._whole | {artifact_id} if last else self._whole - {artifact_id}
        grows = append and not last and artifact_id == self._growing
        new = piece if grows else self._from_the_first()
        self._held = self._held or cut
        self.shown += new
        return new

    def hold(self) -> None:
        """Pieces are missing: show no more of them."""
        self._held = True

    def _from_the_first(self) -> str:
        texts = []
        for artifact_id, pieces in self._texts.items():
            texts.append("".join(pieces))
            self._growing = artifact_id if texts[-1] else None
            if artifact_id not in self._whole:
                break
        known = "\n".join(filter(None, texts))
        if not known.startswith(self.shown):
            self.hold()
            return ""
        return known[len(self.shown) :]


class TypedLines:
    """Standard input as lines, each read when it is asked for; a prompt is shown to a person alone.

    The reading thread is a daemon on the bare file: a read of ``sys.stdin``, or one in the loop's own
    threads, would hold the process until Enter is pressed.
    """

    def __init__(self, prompt: str = "> ") -> None:
        self._file = sys.stdin.fileno()
        self.typed = os.isatty(self._file)
        self._prompt = prompt if self.typed else ""
        self._left = b""
        self._ended = False

    async def next(self) -> str | None:
        """The next line, None at the end. Raises ClickException for one that is longer than any text may be."""
        if self._prompt:
            sys.stderr.write(self._prompt)
            sys.stderr.flush()
        while b"\n" not in self._left and not self._ended:
            piece = await self._read()
            self._ended = not piece
            self._left += piece
            if len(self._left) > LINE_BYTES_MAX:
                raise click.ClickException(f"a line is longer than {LINE_BYTES_MAX} bytes")
        if not self._left:
            return None
        line, _, self._left = self._left.partition(b"\n")
        return line.decode("utf-8", "replace").removesuffix("\r")

    async def _read(self) -> bytes:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bytes] = loop.create_future()

        def deliver(piece: bytes) -> None:
            if not done.done():
                done.set_result(piece)

        def read() -> None:
            try:
                piece = os.read(self._file, _READ_BYTES)
            except OSError:
                piece = b""  # the terminal is gone
            try:
                loop.call_soon_threadsafe(deliver, piece)
            except RuntimeError:
                return  # the waiting code has left

        # Ctrl-C is the main thread's: taken by one that waits for a key, it would wake nobody.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        threading.Thread(target=read, name="typed", daemon=True).start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return await done
