"""The form for a request to an agent: skill, text, files and data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Select

from fleetsim.dashboard.actions import ACTIONS, SEND
from fleetsim.dashboard.controls import TypedRequest
from fleetsim.dashboard.labels import MUTED, Tone
from fleetsim.dashboard.screens.inbox import AnswerBox
from fleetsim.dashboard.text import fitted, line
from fleetsim.dashboard.widgets import Lines
from fleetsim.model.errors import FleetsimError
from fleetsim.model.text import one_line

HINTS = {"send": "send", "earlier": "earlier request", "back": "back"}


class SendScreen(ModalScreen[str]):
    """Its result is the id of the accepted request, or nothing; ``draft`` then has what was typed.

    ``sent`` are earlier requests, the newest last. Without ``files`` the form cannot name files.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(one.keys, f"app.act('{one.id}')", one.label, id=one.id, show=False)
        for one in ACTIONS
        if one.id in HINTS
    ]

    def __init__(
        self,
        draft: TypedRequest,
        skills: Sequence[str],
        sent: Sequence[TypedRequest],
        send: Callable[[TypedRequest], Awaitable[str]],
        *,
        key: Callable[[str], str],
        files: bool,
    ) -> None:
        """``key`` gives the key of an action, or nothing if the action is not available."""
        super().__init__(name=SEND)
        self._agent, self._skills, self._send, self._under_way = draft.agent, skills, send, False
        self._round, self._at = [draft, *reversed(sent)], 0
        """The text of the person first, then the earlier requests; ``_at`` is the shown one."""
        hints = [line((key(one), Tone.PRIMARY), (f" {word}", MUTED)) for one, word in HINTS.items()]
        self._about, self._keys = Lines(id="send-about", classes="framed"), hints
        self._skill = Select[str]((), prompt="the hub chooses", id="send-skill", classes="framed", compact=True)
        self._text = AnswerBox(id="send-text")
        self._files = Input(id="send-files", classes="framed", placeholder="~/report.pdf", compact=True)
        self._data = Input(id="send-data", classes="framed", placeholder='{"pages": [1, 2]}', compact=True)
        self._files.display = files
        for box, title in ((self._skill, "Skill"), (self._text, "Text"), (self._files, "Files"), (self._data, "Data")):
            box.border_title = title

    def compose(self) -> ComposeResult:
        with Vertical(id="send"):
            yield from (self._about, self._skill, self._text, self._files, self._data)

    def on_mount(self) -> None:
        self._about.set_titles(f"Send to {one_line(self._agent, 60)}")
        self._fill(self._round[0])
        self.set_focus(self._text)  # at once: the next key may already be in the queue
        self.call_after_refresh(self._say)

    def _say(self, text: str = "", tone: Tone = Tone.PLAIN) -> None:
        width = self._about.inner_width
        self._about.show([fitted(self._keys, width), fitted([line((one_line(text, 400), tone))], width)])

    @property
    def draft(self) -> TypedRequest:
        """The request as it stands in the form."""
        skill = self._skill.value if isinstance(self._skill.value, str) else ""
        texts = {"text": self._text.text, "files": self._files.value, "data": self._data.value}
        return TypedRequest(agent=self._agent, skill=skill, **texts)

    def _fill(self, draft: TypedRequest) -> None:
        skills = [*self._skills, *([draft.skill] if draft.agent == self._agent and draft.skill else [])]
        self._skill.set_options([(Text(one_line(name, 60)), name) for name in dict.fromkeys(skills)])
        if draft.skill in skills:
            self._skill.value = draft.skill
        self._text.load_text(draft.text)
        self._text.move_cursor(self._text.document.end)
        self._files.value, self._data.value = draft.files if self._files.display else "", draft.data

    def action_earlier(self) -> None:
        """Show the request before the shown one, after the oldest what the person typed."""
        if self._at == 0:
            self._round[0] = self.draft
        self._at = (self._at + 1) % len(self._round)
        self._fill(self._round[self._at])
        self._say(f"{self._at} of {len(self._round) - 1} earlier requests" if self._at else "your own text")

    def action_back(self) -> None:
        if self._under_way:
            self._say("the hub has not accepted it yet", Tone.WARN)
        else:
            self.dismiss("")

    def action_send_answer(self) -> None:
        if self.draft.blank:
            self._say("type a text, or name a file or data", Tone.WARN)
        elif not self._under_way:
            self._under_way = True
            self._say("sending")
            self.run_worker(self._carry_out(), exit_on_error=False)

    async def _carry_out(self) -> None:
        try:
            sent = await self._send(self.draft)
        except FleetsimError as error:
            self._say(f"not sent: {error}" + (f" ({error.hint})" if error.hint else ""), Tone.BAD)
        else:
            self.dismiss(sent)
        finally:
            self._under_way = False
