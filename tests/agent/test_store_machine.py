"""Whatever is done to the store, in any order and over restarts, it is what the plain model says.

The model is ``store_model``. Everything the store shows is compared after every step: each task whole, the lists by
every filter, page by page, what was let go and for whom, and what a file was given to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from fleetsim.agent.agent import Agent
from fleetsim.agent.limits import AgentLimits, AtCapacity, OutputLimit
from fleetsim.agent.operations import BEHAVIOURS, Principal
from fleetsim.agent.service import Service
from fleetsim.agent.store import Store
from fleetsim.agent.tasks import PushTarget, Record, TaskEnded
from fleetsim.model.call import ListTasks, PushConfig, TaskPage
from fleetsim.model.errors import FleetsimError, InvalidMove, InvalidParams, TaskNotCancelable, TaskNotFound
from fleetsim.model.task import Artifact, Message, Role, Task, TaskState, TextPart
from tests.agent.store_model import ENDS, Full, Kept, Key, Limits, Missing, Model, Over, Refused, Said, TooMuch, Wrong
from tests.volume import volume

pytestmark = pytest.mark.slow

EXAMPLES = volume(500, share=10)
START = datetime(2026, 1, 1, tzinfo=UTC)
TICK_S = 1 / 64
"""What a step takes: no two changes fall together, and neither floats nor microseconds round it."""
KNOWN = Limits(
    tasks=7,
    tasks_per_caller=4,
    output_chars=12,
    events=6,
    messages=4,
    message_chars=22,
    pushes=2,
    finished_s=100.0,
    open_s=1000.0,
)
OURS = AgentLimits(
    tasks_max=KNOWN.tasks,
    tasks_per_caller_max=KNOWN.tasks_per_caller,
    output_chars_max=KNOWN.output_chars,
    events_per_task_max=KNOWN.events,
    history_messages_max=KNOWN.messages,
    history_chars_max=KNOWN.message_chars,
    pushes_per_task_max=KNOWN.pushes,
    terminal_ttl_s=KNOWN.finished_s,
    task_life_s=KNOWN.open_s,
    page_tasks_max=5,
    page_tasks_default=3,
)
SAME = {
    Missing: (TaskNotFound,),
    Over: (TaskEnded, TaskNotCancelable),
    Full: (AtCapacity,),
    TooMuch: (OutputLimit,),
    Wrong: (InvalidMove, InvalidParams),
}

owners = st.sampled_from(["ada", "bob", "anyone"])
contexts = st.sampled_from(["c-1", "c-2"])
texts = st.sampled_from(["", "a", "bc", "defg"])
told = st.none() | texts
numbers = st.integers(0, 30)
"""Which task: the newest when there are fewer."""


class Hands:
    """A clock set by hand, and ids that count."""

    def __init__(self) -> None:
        self.at = 0.0
        self.count = 0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.at)

    def monotonic(self) -> float:
        return self.at

    def new(self) -> str:
        self.count += 1
        return f"id-{self.count}"

    def secret(self) -> str:
        return "s"


def written(said: Said) -> Message:
    return Message(message_id=said.message_id, role=Role.USER, parts=(TextPart(text=said.text),))


class StoreMachine(RuleBasedStateMachine):
    """The store and the model side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.hands = Hands()
        self.model = Model(KNOWN)
        self.kept: dict[Key, Record] = {}
        self.forgotten: list[Key] = []
        self.begin()

    def begin(self) -> None:
        self.store = Store(clock=self.hands, ids=self.hands, limits=OURS)
        self.store.retention.busy = lambda key: key in self.model.busy
        self.store.retention.forgotten.append(self.forgotten.append)
        self.store.keepers.append(lambda key: self.kept.update({key: self.store.read(key)}))
        self.service = Service(
            Agent("x", limits=OURS).settings,
            store=self.store,
            runner=None,
            notifier=None,
            sender=None,
            ids=self.hands,
        )

    def both(self, ours: Callable[[], Any], models: Callable[[], Any]) -> Any:
        """Do it to both: the same is refused, for the same reason."""
        self.hands.at += TICK_S
        refused: type[Refused] | None = None
        try:
            expected = models()
        except Refused as error:
            refused = type(error)
        problem: FleetsimError | None = None
        try:
            result = ours()
        except FleetsimError as error:
            problem = error
        assert isinstance(problem, SAME[refused] if refused else type(None)), f"{problem!r}, and the model {refused}"
        return None if refused else (result, expected)

    def key(self, number: int) -> Key:
        keys = [*self.model.tasks]
        return keys[-1 - number % len(keys)] if keys and number < 30 else ("ada", "nobody's")

    @property
    def now(self) -> float:
        return self.hands.at

    # ------------------------------------------------------------------ changes

    @rule(owner=owners, context=contexts, text=texts)
    def create(self, owner: str, context: str, text: str) -> None:
        key = (owner, f"t-{self.hands.count}")
        said = Said("user", "m", text)
        message = Message(message_id="m", role=Role.USER, parts=(TextPart(text=text),), context_id=context)

        def models() -> None:
            self.model.room(owner)
            self.model.create(key, context, said, self.now)

        made = self.both(lambda: self.store.create(owner, message, skill="s", dialect="1.0", task_id=key[1]), models)
        self.hands.count += 1
        assert made is None or self.kept[key] == made[0] == self.store.read(key)

    @rule(number=numbers, state=st.sampled_from([s.value for s in TaskState if s is not TaskState.UNKNOWN]), text=told)
    def move(self, number: int, state: str, text: str | None) -> None:
        key = self.key(number)
        self.both(
            lambda: self.store.move(key, TaskState(state), text), lambda: self.model.move(key, state, text, self.now)
        )
        self.is_kept(key)

    @rule(number=numbers, text=texts)
    def note(self, number: int, text: str) -> None:
        key = self.key(number)
        self.both(lambda: self.store.note(key, text), lambda: self.model.note(key, text, self.now))

    @rule(number=numbers, name=st.sampled_from(["main", "a", "b"]), text=texts, append=st.booleans())
    def put(self, number: int, name: str, text: str, append: bool) -> None:
        key = self.key(number)
        name = key[1] if name == "main" else name
        piece = Artifact(artifact_id=name, parts=(TextPart(text=text),))
        self.both(
            lambda: self.store.put(key, piece, append=append, last_chunk=False),
            lambda: self.model.put(key, name, text, append, self.now),
        )

    @rule(number=numbers, state=st.sampled_from(sorted(ENDS)), text=told | st.just("x" * 13), reason=told)
    def finish(self, number: int, state: str, text: str | None, reason: str | None) -> None:
        key = self.key(number)
        self.both(
            lambda: self.store.finish(key, TaskState(state), text, reason=reason),
            lambda: self.model.finish(key, state, text, reason, self.now),
        )
        self.is_kept(key)

    @rule(number=numbers)
    def cancel(self, number: int) -> None:
        key = self.key(number)
        self.both(lambda: self.store.cancel(key), lambda: self.model.finish(key, "canceled", None, None, self.now))

    @rule(number=numbers, message_id=st.sampled_from(["", "m", "n"]), text=texts)
    def hear(self, number: int, message_id: str, text: str) -> None:
        key, said = self.key(number), Said("user", message_id, text)
        heard = self.both(
            lambda: self.store.add_message(key, written(said)), lambda: self.model.hear(key, said, self.now)
        )
        assert heard is None or heard[0] is heard[1]
        self.is_kept(key)

    @rule(number=numbers, question=texts, message_id=st.sampled_from(["m", "n"]), text=texts, again=st.booleans())
    def is_asked_and_answered(self, number: int, question: str, message_id: str, text: str, again: bool) -> None:
        self.move(number, "input-required", question)
        self.hear(number, message_id, text)
        if again:
            self.hear(number, message_id, text)

    @rule(number=numbers, name=st.sampled_from(["p", "q", "r"]), remove=st.booleans())
    def push(self, number: int, name: str, remove: bool) -> None:
        key = self.key(number)
        config = PushTarget(config=PushConfig(url="http://x", config_id=name), dialect="1.0")
        if remove:
            self.both(lambda: self.store.delete_push(key, name), lambda: self.model.delete_push(key, name))
        else:
            self.both(lambda: self.store.set_push(key, config), lambda: self.model.set_push(key, name))
        self.is_kept(key)

    @rule(number=numbers)
    def drop(self, number: int) -> None:
        key = self.key(number)
        self.both(lambda: self.store.drop(key), lambda: self.model.forget(key))

    @rule(number=numbers, busy=st.booleans())
    def webhooks_are_under_way(self, number: int, busy: bool) -> None:
        (self.model.busy.add if busy else self.model.busy.discard)(self.key(number))

    @rule(seconds=st.sampled_from([1.0, 99.0, 100.0, 900.0]))
    def time_passes(self, seconds: float) -> None:
        self.hands.at += seconds
        given_up = self.both(self.swept, lambda: self.model.sweep(self.now))
        assert sorted(given_up[0]) == sorted(given_up[1])

    def swept(self) -> tuple[Key, ...]:
        while not self.store.forget():
            pass
        return self.store.sweep()

    @rule(number=numbers, early_s=st.sampled_from([0.0, 2 * TICK_S]), open_=st.booleans())
    def a_task_has_just_reached_its_time_or_is_about_to(self, number: int, early_s: float, open_: bool) -> None:
        kept = self.model.tasks.get(self.key(number))
        if kept is not None and kept.ended is not open_:
            ends = kept.begun + KNOWN.open_s if open_ else kept.touched + KNOWN.finished_s
            if ends - early_s - TICK_S >= self.now:
                self.hands.at = ends - early_s - TICK_S
                self.time_passes(0.0)

    @rule()
    def the_agent_is_started_again(self) -> None:
        order = sorted(self.model.tasks.items(), key=lambda item: (-item[1].changed, item[1].number))
        records = [self.store.read(key) for key, _ in order]
        self.begin()
        self.store.restore(records)
        self.model.restart()

    # ------------------------------------------------------------------ lists

    @rule(owner=owners, size=st.integers(1, 5), number=numbers, text=texts)
    def pages_are_read_while_a_task_changes(self, owner: str, size: int, number: int, text: str) -> None:
        """Every task that did not change meanwhile is met once; one that did may be met again, or not."""
        before = self.model.listed(owner, None, None, None)
        first = self.page(owner, page_size=size)
        changed = self.key(number)
        self.note(number, text)
        met = [task.task_id for task in first.tasks]
        token = first.next_page_token
        while token:
            page = self.page(owner, page_size=size, page_token=token)
            met += [task.task_id for task in page.tasks]
            token = page.next_page_token
        expected = [task_id for _, task_id in before if (owner, task_id) != changed]
        assert [task_id for task_id in met if (owner, task_id) != changed] == expected

    def page(self, owner: str, **asked: Any) -> TaskPage:
        caller = Principal(owner=owner, behaviour=BEHAVIOURS["1.0"])
        page = _finished(self.service.call(ListTasks(**asked), caller))
        assert isinstance(page, TaskPage)
        return page

    @rule(owner=owners, context=st.none() | contexts, state=st.none() | st.sampled_from(["working", "failed"]))
    def lists_are_what_changed_last_first(self, owner: str, context: str | None, state: str | None) -> None:
        moments = sorted(kept.changed for kept in self.model.tasks.values())
        for since in [None, *moments, self.now + 1]:
            expected = self.model.listed(owner, context, state, since)
            seen, token = [], None
            while True:
                page = self.page(
                    owner,
                    context_id=context,
                    state=TaskState(state) if state else None,
                    updated_after=None if since is None else START + timedelta(seconds=since),
                    page_token=token,
                    include_artifacts=True,
                )
                assert (page.page_size, page.total_size) == (3, len(expected))
                assert len(page.tasks) <= 3
                seen += page.tasks
                token = page.next_page_token
                if not token:
                    break
                assert len(page.tasks) == 3
            assert [(owner, task.task_id) for task in seen] == expected
            assert all(task == self.store.read((owner, task.task_id)).task for task in seen)

    # ------------------------------------------------------------------ what is compared

    def is_kept(self, key: Key) -> None:
        """Whoever keeps tasks was given this one as it is."""
        if key in self.model.tasks and key in self.kept:
            kept, now = self.kept[key].task, self.store.read(key).task
            assert (kept.state, kept.history) == (now.state, now.history)
            assert self.kept[key].pushes == self.store.read(key).pushes

    @invariant()
    def every_task_is_what_the_model_says(self) -> None:
        assert len(self.store) == len(self.model.tasks)
        assert sorted(self.forgotten) == sorted(self.model.gone)
        for key, kept in self.model.tasks.items():
            record = self.store.read(key)
            self.compare(record, kept)
        assert self.store.retention.chars == sum(kept.chars for kept in self.model.tasks.values())
        assert {*self.store.retention.open_keys} == {key for key, kept in self.model.tasks.items() if not kept.ended}

    def compare(self, record: Record, kept: Kept) -> None:
        task: Task = record.task
        assert (task.state.value, task.context_id) == (kept.state, kept.context)
        assert (task.status.message.text if task.status.message else None) == kept.says
        assert task.status.timestamp == START + timedelta(seconds=kept.changed)
        assert {a.artifact_id: a.text for a in task.artifacts} == kept.made
        history = [Said(m.role.value, m.message_id if m.role is Role.USER else "?", m.text) for m in task.history]
        assert history == kept.history
        assert [push.config_id for push in record.pushes] == kept.pushes
        assert record.cursor == (0 if kept.ended else kept.events)
        assert self.store.feed(record.key).closed is kept.ended
        assert all(self.store.push(record.key, name) for name in kept.pushes)


def _finished(awaitable: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that waits for nothing."""
    try:
        awaitable.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")


def test_whatever_is_done_to_the_store_it_is_what_the_model_says() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        StoreMachine,
        settings=settings(
            max_examples=EXAMPLES,
            report_multiple_bugs=False,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate],
        ),
    )
