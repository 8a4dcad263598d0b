"""``fleetsim inbox``: what agents ask, and the answers."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click

from fleetsim.cli import render
from fleetsim.cli.asking import whole_at
from fleetsim.cli.hub_client import hub, question_id, request_id
from fleetsim.cli.main import Common


@click.group()
def inbox() -> None:
    """What agents wait for. A question takes one answer, once. Any unique beginning of an id will do."""


@inbox.command("list")
@click.pass_obj
def list_questions(common: Common) -> None:
    """List open questions and work that may still be vetoed."""
    found = asyncio.run(_get(common, "/inbox"))
    if common.as_json:
        render.emit_json(found)
        return
    render.table(
        ["QUESTION", "AGENT", "SKILL", "KIND", "EXPIRES", "TEXT"],
        [
            [q["questionId"], q["agent"], q["skill"], q["kind"], q["expiresAt"], q["question"]]
            for q in found["questions"]
        ],
    )
    for veto in found["vetoes"]:
        common.note(
            f"may be stopped until {veto['expiresAt']}: {veto['agent']} {veto['skill']}\n"
            f"  next: fleetsim inbox veto {veto['correlationId']}"
        )
    if any(q["truncated"] for q in found["questions"]):
        common.note("  long questions are cut here; all of one: fleetsim inbox show QUESTION")
    if found["questions"]:
        common.note('  next: fleetsim inbox reply QUESTION "your answer"')
    else:
        common.note("nobody waits for you")


@inbox.command("show")
@click.argument("question")
@click.pass_obj
def show(common: Common, question: str) -> None:
    """Show the whole of QUESTION."""
    found = asyncio.run(_question(common, question))
    if common.as_json:
        render.emit_json(found)
    else:
        render.say(found["question"])
    if found["truncated"]:
        rest = whole_at(found["agent"], found["taskId"], found["textChars"])
        common.warn(render.cut_short(len(found["question"]), found["textChars"], rest))
    common.note(f'  next: fleetsim inbox reply {question} "your answer"')


@inbox.command("reply")
@click.argument("question")
@click.argument("text", required=False)
@click.option("--by", default="operator", show_default=True, help="Who answers.")
@click.pass_obj
def reply(common: Common, question: str, text: str | None, by: str) -> None:
    """Answer QUESTION with TEXT ("-" or nothing reads standard input)."""
    if text == "-" or (text is None and not sys.stdin.isatty()):
        text = sys.stdin.read()
    if not text:
        raise click.UsageError("an answer says something: give a TEXT")
    done = asyncio.run(_answer(common, question, text, "answer", by))
    _told(common, done, "answered")


@inbox.command("reject")
@click.argument("question")
@click.option("--by", default="operator", show_default=True, help="Who rejects.")
@click.pass_obj
def reject(common: Common, question: str, by: str) -> None:
    """Reject QUESTION: its task is cancelled."""
    done = asyncio.run(_answer(common, question, "", "reject", by))
    _told(common, done, "rejected")


@inbox.command("veto")
@click.argument("correlation_id", metavar="ID")
@click.option("--by", default="operator", show_default=True, help="Who vetoes.")
@click.pass_obj
def veto(common: Common, correlation_id: str, by: str) -> None:
    """Stop the work ID while its window for a veto is open: its task is cancelled."""
    _told(common, asyncio.run(_veto(common, correlation_id, by)), "vetoed")


def _told(common: Common, done: Any, what: str) -> None:
    if common.as_json:
        render.emit_json(done)
    common.note(f"{what}; see: fleetsim task get {done['correlationId']} --wait")


async def _get(common: Common, path: str) -> Any:
    async with hub(common) as found:
        return await found.get(path)


async def _veto(common: Common, correlation_id: str, by: str) -> Any:
    async with hub(common) as found:
        return await found.veto(await request_id(found, correlation_id), by=by)


async def _question(common: Common, question: str) -> Any:
    async with hub(common) as found:
        return await found.question(await question_id(found, question))


async def _answer(common: Common, question: str, text: str, decision: str, by: str) -> Any:
    async with hub(common) as found:
        return await found.answer(await question_id(found, question), text, decision=decision, by=by)
