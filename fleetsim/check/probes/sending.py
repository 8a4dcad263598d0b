"""Probes of a send: how soon it is answered, in which shape, and what it takes."""

from __future__ import annotations

from fleetsim.check.exchange import Exchange
from fleetsim.check.fixtures import finished_task
from fleetsim.check.probe import Phase, probe
from fleetsim.check.raw_dialect import INTERRUPTED, TERMINAL, among, listed, mapping, texts
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless, not_tested_unless
from fleetsim.model.call import Operation


@probe("T-01")
async def answered_by_a_task(session: Session) -> None:
    """The shape of the answer."""
    made = await session.send()
    fail_unless(made.status == 200 and made.error is None, f"a plain text was answered with {made.says()}", made)
    dialect, result = session.dialect, mapping(made.result)
    if dialect.current:
        fail_unless(len(result.keys() & {"task", "message"}) == 1, "the result is neither {task} nor {message}", made)
        if "message" in result:
            return
    elif not dialect.legacy:
        fail_unless(among(result.get("kind"), ("task", "message")), f"kind is {result.get('kind')!r}", made)
        if result.get("kind") == "message":
            return
    task = dialect.task(result)
    fail_unless(isinstance(task.get("id"), str) and task["id"], "the task has no id", made)
    fail_unless(isinstance(dialect.context_id(task), str), "the task has no context", made)
    fail_unless(
        dialect.spelled(task), f"the state {mapping(task.get('status')).get('state')!r} is not spelled so", made
    )


async def _at_once(session: Session, wait: bool | None, what: str) -> None:
    made = await session.send(session.hint("slow"), wait=wait)
    fail_unless(made.error is None and made.status == 200, f"{what} gave {made.says()}", made)
    rush = session.options.rush_s
    fail_unless(made.seconds <= rush, f"{what} was answered after {made.seconds:.2f} s; {rush:g} s are allowed", made)
    state = session.state(made)
    not_tested_unless(
        state not in TERMINAL, f"the slow skill was {state} at once: name a slower one with --skill-slow", made
    )
    fail_unless(state, f"{what} was not answered by a task", made)
    await session.cancel(session.dialect.task(made.result).get("id"))


@probe("T-02", Phase.ALONE)
async def send_is_quick(session: Session) -> None:
    """A send that says nothing of blocking."""
    await _at_once(session, None, "a send")


@probe("T-03", Phase.ALONE)
async def blocking_is_quick(session: Session) -> None:
    """A send that asks to block."""
    await _at_once(session, True, "a send with blocking: true")


@probe("T-04", Phase.ALONE)
async def immediately(session: Session) -> None:
    """A send that asks for the answer at once."""
    await _at_once(session, False, "a send with returnImmediately: true")


@probe("T-05")
async def waits(session: Session) -> None:
    """A send that waits."""
    made = await session.send(session.hint("slow"), wait=None)
    fail_unless(made.error is None and made.status == 200, f"a waiting send gave {made.says()}", made)
    state = session.state(made)
    fail_unless(state in TERMINAL | INTERRUPTED, f"a waiting send was answered while the task was {state or '?'}", made)


@probe("T-12")
async def context_is_kept(session: Session) -> None:
    """A context of our own."""
    context = session.new()
    task_id, made = await session.begin(contextId=context)
    got = session.dialect.task(made.result).get("contextId")
    fail_unless(got == context, f"our contextId came back as {got!r}", made)
    read = await session.get(task_id)
    fail_unless(session.dialect.task(read.result).get("contextId") == context, "get shows another contextId", read)


@probe("T-16")
async def ids_are_new(session: Session) -> None:
    """Three tasks."""
    ids = [(await session.begin())[0] for _ in range(3)]
    last = (await session.begin())[1]
    fail_unless(len(set(ids)) == 3, "two tasks have one id", last)
    fail_unless(all(len(name) >= 16 for name in ids), f"task ids are short: {ids[0]!r}", last)
    fail_unless(not all(name.isdigit() for name in ids), "task ids are plain numbers", last)


@probe("T-27")
async def any_script(session: Session) -> None:
    """Texts from everywhere."""
    text = "Grüße 🛰️ العربية 漢字 \u200d e\u0301 \U0001f469\u200d\U0001f680 " + "w" * 500
    params = session.params()
    params["message"]["parts"] = [session.dialect.part(text)]
    made = await session.call(Operation.SEND, params)
    fail_unless(made.error is None and made.status == 200, f"a text of many scripts gave {made.says()}", made)
    task = session.dialect.task(made.result)
    not_tested_unless(task, "the answer is no task", made)
    read = await session.get(task.get("id"))
    history = [mapping(m) for m in listed(session.dialect.task(read.result).get("history"))]
    asked = [texts(m.get("parts")) for m in history if str(m.get("role", "")).lower().endswith("user")]
    fail_unless(not asked or text in asked, "the history holds another text than was sent", read)


@probe("T-28")
async def data_part(session: Session) -> None:
    """Text and data."""
    params = session.params()
    params["message"]["parts"].append(session.dialect.data_part({"answer": 42, "nested": {"a": [1, 2]}}))
    made = await session.call(Operation.SEND, params)
    taken = made.status == 200 and (made.error is None or made.code == -32005)
    fail_unless(taken, f"a data part gave {made.says()}", made)


@probe("T-29")
async def the_fleet_caller(session: Session) -> None:
    """What the fleet sends."""
    skills = session.agent.skills()
    hint = session.quick().skill or (str(skills[0].get("id")) if skills else None)
    correlation = session.new()
    told = {"correlationId": correlation, "parentId": session.new(), "content": "check", "targets": []}
    params = session.params(metadata={**told, **({"skillHint": hint} if hint else {})}, contextId=correlation)
    del params["configuration"]["acceptedOutputModes"]
    headers = {"x-correlation-id": correlation, "x-parent-id": session.new()}
    made = await session.call(Operation.SEND, params, headers=headers)
    fail_unless(made.error is None and made.status == 200, f"the fleet's own send gave {made.says()}", made)


def history_of(session: Session, made: Exchange) -> list[object]:
    """The history an answer shows."""
    return listed(session.dialect.task(made.result).get("history"))


async def _history(session: Session) -> None:
    task_id, _ = await session.fixture(finished_task)
    none = await session.get(task_id, historyLength=0)
    fail_unless(none.error is None, f"historyLength 0 gave {none.says()}", none)
    count = len(history_of(session, none))
    fail_unless(count == 0, f"historyLength 0 gave {count} messages", none)
    one = await session.get(task_id, historyLength=1)
    fail_unless(len(history_of(session, one)) <= 1, "historyLength 1 gave more than one message", one)


probe("T-19")(_history)


@probe("T-20")
async def history_on_0_3(session: Session) -> None:
    """The same on 0.3."""
    await _history(session)
