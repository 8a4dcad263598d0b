"""``fleetsim inbox``: what agents ask, and the answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from fleetsim.api.part_rows import body_part, read_part_row
from fleetsim.cli import render
from fleetsim.cli.ask import reply_command, whole_at
from fleetsim.cli.hub_client import at_hub
from fleetsim.cli.main import CommonOptions
from fleetsim.cli.parts import data_option, file_option, list_parts, read_parts
from fleetsim.client.hub_client import HubClient
from fleetsim.client.hub_follow import question_id, request_id
from fleetsim.model.task import Part


@click.group()
def inbox() -> None:
    """Questions of agents. A question takes one answer, once. Any unique beginning of an id will do."""


@inbox.command("list")
@click.pass_obj
def list_questions(common: CommonOptions) -> None:
    """List open questions and work that may still be vetoed."""
    waiting = at_hub(common, lambda hub: hub.get("/inbox"))
    if common.as_json:
        render.emit_json(waiting)
        return
    questions, columns = waiting["questions"], ("questionId", "agent", "skill", "kind", "expiresAt", "question")
    render.table(
        ["QUESTION", "AGENT", "SKILL", "KIND", "EXPIRES", "TEXT"], [[q[key] for key in columns] for q in questions]
    )
    for veto in waiting["vetoes"]:
        common.note(
            f"may be stopped until {veto['expiresAt']}: {veto['agent']} {veto['skill']}",
            f"  next: fleetsim inbox veto {veto['correlationId']}",
        )
    if any(q["truncated"] for q in questions):
        common.note("  long questions are cut here; all of one: fleetsim inbox show QUESTION")
    if questions:
        common.note('  next: fleetsim inbox reply QUESTION "your answer"')
    else:
        common.note("nobody waits for you")


@inbox.command("show")
@click.argument("question")
@click.pass_obj
def show(common: CommonOptions, question: str) -> None:
    """Show the whole of QUESTION."""

    async def read(hub: HubClient) -> Any:
        return await hub.question(await question_id(hub, question))

    row = at_hub(common, read)
    if common.as_json:
        render.emit_json(row)
    else:
        render.say(row["question"])
    if row["truncated"]:
        rest = whole_at(row["agent"], row["taskId"], row["textChars"])
        common.warn(*render.cut_short(len(row["question"]), row["textChars"], rest))
    if not common.as_json:
        parts = tuple(read_part_row(part) for part in row["parts"])
        list_parts(common, parts, row["partsTotal"], next_step=f"fleetsim task download {row['correlationId']}")
        if row["answerSchema"] is not None:
            common.note("  the answer is data that fits this schema:")
            common.note(json.dumps(row["answerSchema"], ensure_ascii=False, indent=2))
    common.note(f"  next: {reply_command(question, data=row['asksForData'])}")


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
    _settle(common, question, text or "", "answer", by, parts)


@inbox.command("reject")
@click.argument("question")
@click.option("--by", default="operator", show_default=True, help="Who rejects.")
@click.pass_obj
def reject(common: CommonOptions, question: str, by: str) -> None:
    """Reject QUESTION: its task is cancelled."""
    _settle(common, question, "", "reject", by)


@inbox.command("veto")
@click.argument("correlation_id", metavar="ID")
@click.option("--by", default="operator", show_default=True, help="Who vetoes.")
@click.pass_obj
def veto(common: CommonOptions, correlation_id: str, by: str) -> None:
    """Stop the work ID while its window for a veto is open: its task is cancelled."""

    async def stop(hub: HubClient) -> Any:
        return await hub.veto(await request_id(hub, correlation_id), by=by)

    _report(common, at_hub(common, stop), "vetoed")


def _settle(
    common: CommonOptions, question: str, text: str, decision: str, by: str, parts: tuple[Part, ...] = ()
) -> None:
    rows = [body_part(part) for part in parts]

    async def settle(hub: HubClient) -> Any:
        return await hub.answer(await question_id(hub, question), text, parts=rows, decision=decision, by=by)

    _report(common, at_hub(common, settle), "answered" if decision == "answer" else "rejected")


def _report(common: CommonOptions, row: Any, what: str) -> None:
    if common.as_json:
        render.emit_json(row)
    common.note(f"{what}; see: fleetsim task get {row['correlationId']} --wait")
