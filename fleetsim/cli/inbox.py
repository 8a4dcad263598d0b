"""``fleetsim inbox``: what agents ask, and the answers."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click

from fleetsim.caller.part_rows import read_part_row
from fleetsim.cli import render
from fleetsim.cli.ask import reply_command, whole_at
from fleetsim.cli.hub_client import connect, question_id, request_id
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.parts import body_part, data_option, file_option, list_parts, read_parts
from fleetsim.model.task import Part


@click.group()
def inbox() -> None:
    """What agents wait for. A question takes one answer, once. Any unique beginning of an id will do."""


@inbox.command("list")
@click.pass_obj
def list_questions(common: CommonOptions) -> None:
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
            f"may be stopped until {veto['expiresAt']}: {veto['agent']} {veto['skill']}",
            f"  next: fleetsim inbox veto {veto['correlationId']}",
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
def show(common: CommonOptions, question: str) -> None:
    """Show the whole of QUESTION."""
    found = asyncio.run(_question(common, question))
    if common.as_json:
        render.emit_json(found)
    else:
        render.say(found["question"])
    if found["truncated"]:
        rest = whole_at(found["agent"], found["taskId"], found["textChars"])
        common.warn(*render.cut_short(len(found["question"]), found["textChars"], rest))
    if not common.as_json:
        parts = tuple(read_part_row(part) for part in found["parts"])
        list_parts(common, parts, found["partsTotal"], next_step=f"fleetsim task download {found['correlationId']}")
        if found["answerSchema"] is not None:
            common.note("  the answer is data that fits this schema:")
            common.note(json.dumps(found["answerSchema"], ensure_ascii=False, indent=2))
    common.note(f"  next: {reply_command(question, data=found['asksForData'])}")


@inbox.command("reply")
@click.argument("question")
@click.argument("text", required=False)
@click.option("--by", default="operator", show_default=True, help="Who answers.")
@file_option
@data_option
@click.pass_obj
def reply(
    common: CommonOptions, question: str, text: str | None, by: str, files: tuple[Path, ...], data: tuple[str, ...]
) -> None:
    """Answer QUESTION with TEXT ("-" or nothing reads standard input), with data, with files, or with all of them.

    Where the question comes with a JSON Schema (see: fleetsim inbox show QUESTION), data that does not fit it is
    refused, and the question stays open.

    \b
    fleetsim inbox reply q-1 "the second one"
    fleetsim inbox reply q-1 --data '{"amount": 3}'
    """
    parts = read_parts(files, data)
    if text == "-" or (text is None and not parts and not sys.stdin.isatty()):
        text = sys.stdin.read()
    if not text and not parts:
        raise click.UsageError("an answer says something: give a TEXT, --data or --file")
    done = asyncio.run(_answer(common, question, text or "", "answer", by, parts))
    _report(common, done, "answered")


@inbox.command("reject")
@click.argument("question")
@click.option("--by", default="operator", show_default=True, help="Who rejects.")
@click.pass_obj
def reject(common: CommonOptions, question: str, by: str) -> None:
    """Reject QUESTION: its task is cancelled."""
    done = asyncio.run(_answer(common, question, "", "reject", by))
    _report(common, done, "rejected")


@inbox.command("veto")
@click.argument("correlation_id", metavar="ID")
@click.option("--by", default="operator", show_default=True, help="Who vetoes.")
@click.pass_obj
def veto(common: CommonOptions, correlation_id: str, by: str) -> None:
    """Stop the work ID while its window for a veto is open: its task is cancelled."""
    _report(common, asyncio.run(_veto(common, correlation_id, by)), "vetoed")


def _report(common: CommonOptions, done: Any, what: str) -> None:
    if common.as_json:
        render.emit_json(done)
    common.note(f"{what}; see: fleetsim task get {done['correlationId']} --wait")


async def _get(common: CommonOptions, path: str) -> Any:
    async with connect(common) as hub:
        return await hub.get(path)


async def _veto(common: CommonOptions, correlation_id: str, by: str) -> Any:
    async with connect(common) as hub:
        return await hub.veto(await request_id(hub, correlation_id), by=by)


async def _question(common: CommonOptions, question: str) -> Any:
    async with connect(common) as hub:
        return await hub.question(await question_id(hub, question))


async def _answer(
    common: CommonOptions, question: str, text: str, decision: str, by: str, parts: tuple[Part, ...] = ()
) -> Any:
    async with connect(common) as hub:
        rows = [body_part(part) for part in parts]
        return await hub.answer(await question_id(hub, question), text, parts=rows, decision=decision, by=by)
