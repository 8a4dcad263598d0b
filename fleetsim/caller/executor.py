"""The executor carries one call to one agent and brings back its answer (Workstacean's A2AExecutor).

It builds the parts of a request that are the same for every dialect: trace headers, metadata and the webhook of a
send. It passes errors to ``step`` unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

from msgspec.structs import replace

from fleetsim.caller.agent_limiter import AgentLimiter
from fleetsim.caller.webhooks import CALLBACK_PATH, CallbackTokens
from fleetsim.client import AgentClient
from fleetsim.fleet.cards import CardBroker
from fleetsim.model.asking import in_form, question_parts
from fleetsim.model.call import (
    Call,
    CancelTask,
    GetTask,
    ListTasks,
    Operation,
    PushConfig,
    SendMessage,
    SetPush,
    SubscribeToTask,
    TaskPage,
)
from fleetsim.model.errors import (
    AuthRefused,
    ConfigError,
    FleetsimError,
    MethodNotFound,
    VersionNotSupported,
    WireError,
)
from fleetsim.model.event import TaskEvent
from fleetsim.model.extensions import HUBS_HEADER, HUBS_KEY, TRACE
from fleetsim.model.task import Message, Role, Task, with_text
from fleetsim.model.work import Answer, SkillRequest
from fleetsim.request.records import RequestRecord
from fleetsim.runtime.webhook import SCHEME, write_secret
from fleetsim.wire.choice import Choice
from fleetsim.wire.dialect import Reply, dialect

T = TypeVar("T")


class HubIdentity(Protocol):
    """The hub as its requests name it to agents."""

    def callback_base(self, agent: str, url: str, /) -> str | None:
        """The address for webhooks of an agent whose work was sent to ``url``; None for polling only."""

    def hubs_visited(self, record: RequestRecord, /) -> tuple[str, ...]:
        """The ids of the hubs that the request came through, this one included, if the agent is to know them."""


class CallObserver(Protocol):
    """Observes each call to an agent, from start to end."""

    def calling(self, record: RequestRecord, operation: Operation, /) -> AbstractContextManager[Mapping[str, str]]:
        """Entered before the call, with further headers for it; left with its error, if any."""


class Observers(NamedTuple):
    """Two observers as one."""

    first: CallObserver
    second: CallObserver

    @contextmanager
    def calling(self, record: RequestRecord, operation: Operation) -> Iterator[Mapping[str, str]]:
        with self.first.calling(record, operation) as one, self.second.calling(record, operation) as other:
            yield {**one, **other}


class Executor:
    """Calls agents."""

    def __init__(
        self,
        clients: CardBroker,
        limiter: AgentLimiter,
        *,
        tokens: CallbackTokens,
        hub: HubIdentity,
        observer: CallObserver | None = None,
    ) -> None:
        self._clients = clients
        self._limiter = limiter
        self.accounts = limiter.accounts
        self._tokens = tokens
        self._hub = hub
        self._observer = observer

    def slot(
        self, record: RequestRecord, *, breaks: bool = True, first: bool = True
    ) -> AbstractAsyncContextManager[None]:
        """Hold one of the agent's slots, for a ``send``, ``stream`` or ``resume``; other calls take theirs themselves.

        A call that takes longer than ``call_s`` waits on without its slot.

        ``breaks``: refuse at once while its breaker is open; ``first``: before polls. Raises Unreachable.
        """
        agent, url = record.agent, record.sent_to
        former, limits = self._clients.former(agent, url), self._clients.client(agent, url).limits
        return self._limiter.call(agent, breaks=breaks, first=first, former=former, for_s=limits.total_s)

    async def as_asked_for(self, record: RequestRecord) -> RequestRecord:
        """A follow-up on a task unknown to this hub, in the form that the task asks for, if it can be read."""
        request = record.request
        if request.task_id is None or record.earlier:
            return record
        try:
            waiting = _task(await self._call(record, GetTask(task_id=request.task_id)))
        except FleetsimError:
            return record
        text, parts = in_form(question_parts(waiting), request.text, request.parts)
        return replace(record, request=replace(request, text=text, parts=parts))

    async def send(self, record: RequestRecord) -> Task | Message:
        """Send the request and return the agent's first answer. Raises FleetsimError as the client does."""
        reply = await self._call(record, self._message(record, Operation.SEND))
        if record.other_taken and record.dialect is not None:
            self._clients.speaks(record.agent, record.sent_to, record.dialect)
        return _task_or_message(reply)

    def stream(self, record: RequestRecord) -> AbstractAsyncContextManager[AsyncIterator[TaskEvent]]:
        return self._opened(record, self._message(record, Operation.STREAM))

    def subscribe(self, record: RequestRecord) -> AbstractAsyncContextManager[AsyncIterator[TaskEvent]]:
        """Rejoin the stream of a bound task."""
        return self._opened(record, SubscribeToTask(task_id=_bound(record).task_id))

    @asynccontextmanager
    async def _opened(self, record: RequestRecord, call: Call) -> AsyncIterator[AsyncIterator[TaskEvent]]:
        client, account = self._client(record), self.accounts.account(record.agent)
        with self._calling(record, call.operation) as headers:
            async with client.events(call, headers=headers, choice=_as_dispatched(record), turns=account) as events:
                yield events

    async def poll(self, record: RequestRecord) -> Task:
        """Read a bound task. Always goes out, breaker or not: it is how a recovered agent is noticed."""
        async with self.slot(record, breaks=False, first=False):
            return _task(await self._call(record, GetTask(task_id=_bound(record).task_id)))

    def searchable(self, record: RequestRecord) -> bool:
        """Whether a task whose reply was lost can be found: by our id for it, or in 1.0 by a context of its own."""
        listed = record.dialect is not None and Operation.LIST in dialect(record.dialect).methods
        return (listed and _fresh_context(record.request) is not None) or _known_id(record) is not None

    async def find(self, record: RequestRecord) -> Task | None:
        """Look for a task whose reply was lost, where ``searchable``."""
        known, context = _known_id(record), record.request.correlation_id
        async with self.slot(record, breaks=False, first=False):
            if known is None:
                page = await self._call(record, ListTasks(context_id=context, page_size=2))
                tasks = page.tasks if isinstance(page, TaskPage) else ()
                if len(tasks) != 1:
                    return None
                known = tasks[0].task_id  # a list shows tasks without artifacts: the one task is read whole
            task = _task(await self._call(record, GetTask(task_id=known)))
            return task if task.task_id == known else None  # an agent may show another task

    async def resume(self, record: RequestRecord, answer: Answer) -> Task | Message:
        """Send an answer on the same task and the agent's own context; one message id per answer."""
        task = _bound(record)
        message = Message(
            message_id=f"{answer.question_id}-answer",
            role=Role.USER,
            parts=with_text(answer.text, answer.parts),
            context_id=task.context_id or None,
            task_id=task.task_id,
        )
        metadata = {**answer.metadata, **self._metadata(record)}
        call = SendMessage(message=message, metadata=metadata, task_id=task.task_id)
        return _task_or_message(await self._call(record, call))

    async def cancel(self, record: RequestRecord) -> Task:
        async with self.slot(record, breaks=False):
            return _task(await self._call(record, CancelTask(task_id=_bound(record).task_id)))

    async def register_push(self, record: RequestRecord) -> None:
        """Register our webhook for a bound task; the path then ends in the agent's task id (the seed's form)."""
        task_id = _bound(record).task_id
        config = self._push_config(record, task_id)
        if config is None:
            raise ConfigError("no callback address is configured")
        async with self.slot(record, breaks=False):
            await self._call(record, SetPush(task_id=task_id, config=config))

    async def _call(self, record: RequestRecord, call: Call) -> Reply:
        """One call in the form decided at dispatch (T-09), or as the card of an agent with a new version says."""
        client, then, account = self._client(record), _as_dispatched(record), self.accounts.account(record.agent)
        with self._calling(record, call.operation) as headers:
            try:
                return await client.call(call, headers=headers, choice=then, turns=account)
            except (MethodNotFound, VersionNotSupported):
                if then is None or isinstance(call, SetPush | ListTasks):
                    raise  # methods that many agents never had
                await self._clients.refresh(record.agent, record.sent_to)
                now = await client.choice()
                if (now.dialect_name, now.url, now.tenant) == (then.dialect_name, then.url, then.tenant):
                    raise
            return await client.call(call, headers=headers, turns=account)

    def _client(self, record: RequestRecord) -> AgentClient:
        return self._clients.client(record.agent, record.sent_to)

    @contextmanager
    def _calling(self, record: RequestRecord, operation: Operation) -> Iterator[Mapping[str, str]]:
        """Observe one call, and yield its headers. Raises ConfigError instead of AuthRefused from an earlier address,
        which gets no credential: that refusal does not concern the agent's key.
        """
        headers = {"X-Correlation-Id": record.request.correlation_id}
        if record.request.parent_id:
            headers["X-Parent-Id"] = record.request.parent_id
        if hubs := self._hub.hubs_visited(record):
            headers[HUBS_HEADER] = ",".join(hubs)
        try:
            with self._observer.calling(record, operation) if self._observer else nullcontext({}) as more:
                yield {**headers, **more}
        except AuthRefused as error:
            if not self._clients.former(record.agent, record.sent_to):
                raise
            where = self._client(record).where
            raise ConfigError(
                f"{where} asks for a credential (HTTP {error.status}), and agents.yaml has none for it any more"
            ) from error

    def _message(self, record: RequestRecord, operation: Operation) -> SendMessage:
        request = record.request
        message = Message(
            message_id=record.message_id,
            role=Role.USER,
            parts=with_text(request.text, request.parts),
            context_id=request.context_id or _fresh_context(request),
            task_id=request.task_id,
        )
        inline = record.push and not record.register_push
        return SendMessage(
            message=message,
            wait=False,
            push=self._push_config(record, request.correlation_id) if inline else None,
            task_id=request.task_id or request.correlation_id,
            metadata=self._metadata(record),
            operation=operation,
        )

    def _push_config(self, record: RequestRecord, last: str) -> PushConfig | None:
        base = self._hub.callback_base(record.agent, record.sent_to)
        if base is None:
            return None
        cid, epoch = record.request.correlation_id, record.token_epoch
        signed = self._clients.entry(record.agent, record.sent_to).signed
        config = PushConfig(
            url=f"{base.rstrip('/')}{CALLBACK_PATH}{quote(last, safe='')}",
            token=self._tokens.mint(record.agent, cid, epoch=epoch, signed=signed),
        )
        if not signed:
            return config
        secret = write_secret(self._tokens.signing_secret(record.agent, cid, epoch=epoch))
        return replace(config, scheme=SCHEME, credentials=secret)

    def _metadata(self, record: RequestRecord) -> Mapping[str, Any]:
        """The metadata of every message. The trace names the skill only if the agent receives it as a hint: it does not
        have a skill that only the hub names, such as ``chat``.
        """
        request = record.request
        hint = record.skill if record.hint is None else record.hint
        trace = {"traceId": request.correlation_id, "extension": TRACE}
        ours: dict[str, Any] = {"correlationId": request.correlation_id, "a2a.trace": trace}
        if hint:
            ours["skillHint"] = trace["skill"] = hint
        if request.parent_id:
            ours["parentId"] = request.parent_id
        if hubs := self._hub.hubs_visited(record):
            ours[HUBS_KEY] = list(hubs)
        return {**request.metadata, **ours}


def _fresh_context(request: SkillRequest) -> str | None:
    """The new context of a request. A follow-up stays in its task's context, and the agent makes the context of a
    conversation on the first turn."""
    alone = request.context_id is None and request.task_id is None and not request.first_turn
    return request.correlation_id if alone else None


def _known_id(record: RequestRecord) -> str | None:
    """The id of the task before the agent's reply: a follow-up's, or our own if the caller names the task."""
    ours = record.dialect is not None and dialect(record.dialect).caller_names_task
    return record.request.task_id or (record.request.correlation_id if ours else None)


def _as_dispatched(record: RequestRecord) -> Choice | None:
    if not record.rpc_url or record.dialect is None:
        return None
    return Choice(dialect_name=record.dialect, url=record.rpc_url, tenant=record.tenant)


def _bound(record: RequestRecord) -> Task:
    if record.task is None:
        raise WireError("the request is not bound to a task yet")
    return record.task


def _task(reply: object) -> Task:
    if not isinstance(reply, Task):
        raise WireError("the agent replied with something other than a task")
    return reply


def _task_or_message(reply: object) -> Task | Message:
    if isinstance(reply, Task):
        if not reply.task_id:
            raise WireError("the agent answered with a task without an id")
        return reply
    if isinstance(reply, Message):
        return reply
    raise WireError("the agent answered with neither a task nor a message")
