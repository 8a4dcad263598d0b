"""The page behind the link in a question's notice, as HTML without a script. Pure.

Texts of agents are data here: escaped, bounded and neutralised. Every holder of the link may decide, so the page says
who is recorded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import escape

from msgspec.structs import replace

from fleetsim.channels.channel import ON_CHANNEL
from fleetsim.model.asking import answer_schema
from fleetsim.model.errors import UnfitAnswer
from fleetsim.model.limits import KIB, MIB
from fleetsim.model.problems import html_page, page_policy
from fleetsim.model.task import DataPart
from fleetsim.model.text import html_text, neutralise, one_line
from fleetsim.model.work import Answer, Decision, Question
from fleetsim.request.records import QuestionRecord, QuestionState
from fleetsim.wire.json import parse_untrusted

TEXT_CHARS_MAX = 64 * KIB
"""Characters of the question, and of each piece of its data, that the page shows."""

FILES_BYTES_MAX = MIB
"""Base64 of the files in the page; it only names the others."""

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}", re.ASCII)
_STYLE = """
main{max-width:40rem;margin:auto}h1{overflow-wrap:anywhere}pre.text{font:inherit}
label{display:block;margin:1rem 0 .3rem;font-weight:600}
textarea,button{font:inherit;width:100%;box-sizing:border-box;padding:.7rem;border-radius:.5rem;
border:1px solid #8888}button{margin-top:.8rem;font-weight:600;background:none;color:var(--bad)}
button.yes{background:#1b6e3c;color:#fff}[role=alert]{color:var(--bad)}
"""
PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": page_policy(_STYLE, form_action="'self'") + "; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Robots-Tag": "noindex",
}


def sentence_page(text: str) -> str:
    """A page with one sentence."""
    return html_page(text, _STYLE, ())


def question_page(
    question: Question, files: Mapping[str, str | None], by: str, typed: str, problem: str, *, may_veto: bool
) -> str:
    """The question with its form, in which ``typed`` is the answer so far; ``by`` is recorded.

    ``files`` has the content of files in base64, by the text of their part.
    """
    lines = _body(question, files, by, typed, problem, may_veto=may_veto)
    return html_page(f"{question.agent} asks", _STYLE, lines, form_action="'self'")


def answer_of(question: Question, by: str, decision: str, text: str) -> Answer:
    """The answer of a form: a veto rejects the question. Raises UnfitAnswer, and WireError for data that is no JSON."""
    given = Answer(question_id=question.question_id, text="", by=by, decision=Decision.REJECT)
    if decision in {"reject", "veto"}:
        return given
    text = text.replace("\r\n", "\n").strip()
    if decision != "answer" or not text:
        raise UnfitAnswer("write an answer first")
    given = replace(given, text=text, decision=Decision.ANSWER)
    if answer_schema(question.parts) is None or text[0] not in '{["':
        return given
    return replace(given, text="", parts=(DataPart(data=parse_untrusted(text.encode())),))


def how_it_ended(record: QuestionRecord | None) -> str:
    """How a question ended, in one sentence."""
    if record is not None and record.answer is not None and record.answered_at is not None:
        by, rejected = one_line(record.answer.by), record.answer.decision is Decision.REJECT
        who = f"Somebody on {by}" if by.startswith(ON_CHANNEL) else by
        how = "rejected" if rejected else "answered"
        return f"{who} {how} this question on {record.answered_at:%Y-%m-%d at %H:%M} UTC."
    if record is not None and record.state is QuestionState.EXPIRED:
        return "Nobody answered this question in time."
    return "This question has ended without an answer."


def _body(
    question: Question, files: Mapping[str, str | None], by: str, typed: str, problem: str, *, may_veto: bool
) -> Iterator[str]:
    yield f'<p class="dim">{html_text(question.skill)}, until {question.expires_at:%Y-%m-%d %H:%M} UTC</p>'
    yield f'<pre class="text" dir="auto">{html_text(question.text)}</pre>'
    if question.text_chars > TEXT_CHARS_MAX:
        yield f'<p class="dim">This is the beginning of {question.text_chars:,} characters.</p>'
    left = FILES_BYTES_MAX
    for part in question.parts:
        yield f"<p>{html_text(str(part))}</p>"
        raw = files.get(str(part)) or ""
        if len(raw) <= left and _BASE64.fullmatch(raw):
            left -= len(raw)
            name = html_text(one_line(part.name or "file", 100))
            yield f'<p><a download="{name}" href="data:application/octet-stream;base64,{raw}">Save it</a></p>'
        if part.kind == "data" and not part.truncated:
            shown = json.dumps(part.data, ensure_ascii=False, indent=2, default=dict)
            yield f'<pre dir="auto">{html_text(shown)}</pre>' if shown != question.text else ""
    if problem:
        yield f'<p role="alert">{html_text(one_line(problem, 1_000))}</p>'
    label, hints = "Answer", ""
    if (schema := answer_schema(question.parts)) is not None:
        label, hints = "Answer, as JSON that fits the schema", ' autocapitalize="off" spellcheck="false"'
        members = schema.get("properties")
        if not typed and isinstance(members, Mapping):  # a person on a phone replaces each null
            typed = neutralise(json.dumps(dict.fromkeys(members), ensure_ascii=False, indent=1))
    yield f'<form method="post" autocomplete="off"><label for="text">{label}</label>'
    yield f'<textarea id="text" name="text" rows="5" required{hints}>{escape(typed)}</textarea>'
    yield '<button class="yes" name="decision" value="answer">Send the answer</button>'
    yield '<button name="decision" value="reject" formnovalidate>Reject, and cancel the task</button>'
    if may_veto:
        yield '<button name="decision" value="veto" formnovalidate>Veto: stop this work</button>'
    whose = "this link decides in this name, so do not pass it on"
    if by.startswith(ON_CHANNEL):
        whose = "every reader of the channel can use this link"
    yield f'</form><p class="dim">Recorded as <strong>{html_text(by)}</strong>: {whose}.</p>'
