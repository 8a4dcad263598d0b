"""Answers in the form that an agent framework asks for, so that a person can answer in words.

A2A leaves open how a question is asked. Two frameworks ask for the result of a function call, in a data part, and
take it from a data part alone: an answer in words is refused (Strands Agents) or asked for again (Google's ADK). Who
runs the fleet cannot mend the framework; which form it wants stands in the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fleetsim.model.task import INTERRUPTED, DataPart, Part, Task


def asked_by(task: Task | None) -> tuple[Part, ...]:
    """The parts a waiting task asks with; none if it does not wait or says nothing."""
    if task is None or task.state not in INTERRUPTED or task.status.message is None:
        return ()
    return task.status.message.parts


def in_form(asked: Iterable[Part], text: str, parts: tuple[Part, ...]) -> tuple[str, tuple[Part, ...]]:
    """What to send for the answer ``text`` and ``parts``: both as they are, unless the question wants a form.

    Words, or one piece of data without words, then become the result of the one call that is asked about. Data that
    is in the form already, files, and answers to several calls at once are sent as they are: they say more than one
    result can.
    """
    wanted = [form for part in asked if isinstance(part, DataPart) and (form := _form(part)) is not None]
    if len(wanted) != 1:
        return text, parts
    match parts:
        case () if text:
            return "", (_filled(wanted[0], text),)
        case (DataPart(data=data),) if not text and not _is_filled(data):
            return "", (_filled(wanted[0], data),)
    return text, parts


def _form(part: DataPart) -> DataPart | None:
    """The answer a part wants, its result left open; None if it is no question of a framework we know."""
    data = part.data
    if not isinstance(data, Mapping):
        return None
    match data.get("interrupts"):
        case [{"interruptId": str(interrupt)}]:
            return DataPart(data={"interruptResponse": {"interruptId": interrupt}})
    called = data.get("id"), data.get("name")
    if part.metadata.get("adk_type") == "function_call" and all(isinstance(name, str) for name in called):
        return DataPart(data={"id": called[0], "name": called[1]}, metadata={"adk_type": "function_response"})
    return None


def _filled(form: DataPart, result: Any) -> DataPart:
    """ADK takes an object for a result; words go into its member ``result``, as its own tools put them."""
    if "interruptResponse" in form.data:
        return DataPart(data={"interruptResponse": {**form.data["interruptResponse"], "response": result}})
    response = result if isinstance(result, Mapping) else {"result": result}
    return DataPart(data={**form.data, "response": response}, metadata=form.metadata)


def _is_filled(data: Any) -> bool:
    return isinstance(data, Mapping) and ("interruptResponse" in data or {"id", "name", "response"} <= data.keys())
