"""What a person asks for on the screens, handed to Controls; every failure is said with its reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import cast

from fleetsim.dashboard.controls import Controls, WholeText
from fleetsim.dashboard.dialogs import ConfirmScreen
from fleetsim.dashboard.labels import Tone
from fleetsim.dashboard.panes.base import PaneBase, TextKey
from fleetsim.dashboard.panes.ceremonies import CeremoniesPane
from fleetsim.dashboard.panes.fleet import AgentPane, FleetPane
from fleetsim.dashboard.panes.inbox import InboxPane
from fleetsim.dashboard.text import Line, line, muted, strong
from fleetsim.dashboard.view import View
from fleetsim.dashboard.view_inbox import QuestionRow
from fleetsim.dashboard.widget import NeutralisedApp
from fleetsim.model.errors import FleetsimError
from fleetsim.model.text import neutralise

SAID_S = 8.0
FAILED_S = 30.0
"""How long a message stays in the status line."""

WHOLE_MAX = 4
"""Whole texts kept, the newest."""

WRITING = frozenset({"reply", "cancel", "fire", "send_answer", "reject", "refresh_card"})
"""Actions that change the fleet, or lead there: a reader does not have them."""


class Actions(NeutralisedApp):
    """The part of the app that acts. It waits for nothing on the way of the drawing."""

    def __init__(self, controls: Controls) -> None:
        super().__init__()
        self._controls = controls
        self._busy: set[str] = set()
        self._panes: dict[str, PaneBase] = {}
        self._whole: dict[TextKey, WholeText] = {}
        self._fetched: set[TextKey] = set()

    @property
    def pane(self) -> PaneBase:
        """The screen that is open."""
        raise LookupError("no screen is open")

    @property
    def view(self) -> View:
        """What was drawn last."""
        raise LookupError("nothing was drawn")

    def say(self, words: str, role: Tone = Tone.PLAIN, seconds: float = SAID_S) -> None:
        """Show a message for a while."""

    def show_pane(self, name: str) -> None:
        """Open a screen."""

    def draw(self) -> None:
        """Draw the screen that is open."""

    def fetch(self, key: TextKey) -> None:
        """Have the whole of a text that events carry an excerpt of, and draw it when it is there."""
        if key in self._fetched:
            return
        self._fetched.add(key)

        async def ask() -> None:
            try:
                found = await self._controls.text(key[0])
            except FleetsimError as error:
                self.say(f"only an excerpt of the text can be had: {error}", Tone.WARN)
                return
            self._whole[key] = replace(found, text=neutralise(found.text, limit=len(found.text) + 1))
            while len(self._whole) > WHOLE_MAX:
                oldest = next(iter(self._whole))
                del self._whole[oldest]
                self._fetched.discard(oldest)
            self.draw()

        self.run_worker(ask(), name="text", exit_on_error=False)

    def action_reply(self) -> None:
        """To the question under the cursor, or that of the task under it."""
        inbox = cast(InboxPane, self._panes["inbox"])
        if self.pane is inbox:
            inbox.reply()
            return
        task = self.pane.chosen_task()
        row = next((row for row in self.view.questions if row.correlation_id == task), None)
        if row is None:
            self.say("this task does not wait for an answer", Tone.WARN)
            return
        inbox.main.select(row.question_id)
        self.show_pane("inbox")
        self.call_after_refresh(inbox.reply)

    def action_send_answer(self) -> None:
        """Send what was typed, once."""
        inbox = self.pane
        if not isinstance(inbox, InboxPane) or inbox.current is None or not inbox.answerable:
            return
        row, text = inbox.current, inbox.box.text
        if not text.strip():
            self.say("type an answer first", Tone.WARN)
            return

        async def send() -> str:
            said = await self._controls.answer(row.question_id, text)
            inbox.taken(row.question_id)
            return said or "answer sent"

        self._do("answer:" + row.question_id, "the answer was not sent", send)

    def action_reject(self) -> None:
        """Refuse to answer, or stop work within its window, after asking."""
        inbox = self.pane
        if not isinstance(inbox, InboxPane) or inbox.current is None or inbox.current.decision:
            return
        row = inbox.current
        if row.veto:
            self._veto(row)
            return

        async def reject() -> str:
            await self._controls.reject(row.question_id)
            inbox.taken(row.question_id)
            return "rejected; the task is being cancelled"

        what = [
            line("Reject the question of ", strong(row.agent), f" about {row.skill}?"),
            line(muted("Its task is cancelled.")),
        ]
        self._ask("Reject", what, lambda: self._do("answer:" + row.question_id, "not rejected", reject))

    def _veto(self, row: QuestionRow) -> None:
        async def veto() -> str:
            await self._controls.veto(row.correlation_id)
            return f"vetoed; {row.agent} is asked to stop"

        what = [line("Stop ", strong(row.agent), f" at work on {row.skill}?"), line(muted("Its task is cancelled."))]
        self._ask("Veto", what, lambda: self._do("veto:" + row.correlation_id, "not vetoed", veto))

    def action_cancel(self) -> None:
        """Cancel the task under the cursor, after asking."""
        key = self.pane.chosen_task()
        row = next((row for row in self.view.tasks if row.correlation_id == key), None)
        if row is None or not row.open:
            self.say("no running task under the cursor", Tone.WARN)
            return

        async def cancel() -> str:
            await self._controls.cancel(row.correlation_id)
            return f"asked {row.agent} to stop {row.correlation_id[:8]}"

        what = [line("Cancel task ", strong(row.correlation_id[:8]), f" of {row.agent} / {row.skill}?")]
        self._ask("Cancel", what, lambda: self._do("cancel:" + row.correlation_id, "not cancelled", cancel))

    def action_fire(self) -> None:
        """Run the ceremony under the cursor now."""
        pane = self.pane
        if not isinstance(pane, CeremoniesPane) or pane.current is None:
            return
        row = pane.current
        if row.error:
            self.say("a broken ceremony cannot be fired: correct its file first", Tone.WARN)
            return

        async def fire() -> str:
            await self._controls.fire(row.ceremony_id)
            return f"fired {row.ceremony_id}"

        self._do("fire:" + row.ceremony_id, "not fired", fire)

    def action_refresh_card(self) -> None:
        """Fetch the agent's card again."""
        pane = self.pane
        name = pane.agent if isinstance(pane, AgentPane) else pane.main.key if isinstance(pane, FleetPane) else None
        if not name:
            return

        async def refresh() -> str:
            await self._controls.refresh(name)
            return f"asked {name} for its card"

        self._do("refresh:" + name, "the card was not fetched", refresh)

    def _ask(self, title: str, what: list[Line], then: Callable[[], None]) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                then()

        self.push_screen(ConfirmScreen(title, what), answered)

    def _do(self, key: str, failed: str, work: Callable[[], Awaitable[str]]) -> None:
        """Carry out an intent beside the drawing; the same one is not begun twice."""
        if key in self._busy:
            self.say("already being done")
            return
        self._busy.add(key)
        self.run_worker(self._carry_out(key, failed, work), name=failed, exit_on_error=False)

    async def _carry_out(self, key: str, failed: str, work: Callable[[], Awaitable[str]]) -> None:
        try:
            self.say(await work(), Tone.GOOD)
        except FleetsimError as error:
            self.say(f"{failed}: {error}" + (f" ({error.hint})" if error.hint else ""), Tone.BAD, FAILED_S)
        finally:
            self._busy.discard(key)
