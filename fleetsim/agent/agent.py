"""``Agent``: an A2A agent in twenty lines, and everything the reference agent promises underneath."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from starlette.types import ASGIApp, Receive, Scope, Send

from fleetsim.agent.app import Engine, Runtimes, build_app
from fleetsim.agent.guard import Authenticator
from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.service import Operations
from fleetsim.agent.settings import BEHAVIOURS, AgentSettings, DialectBehaviour
from fleetsim.agent.skills import Skill, SkillChoice, SkillFunction, choose_skill, make_skill
from fleetsim.agent.tasks import Transition
from fleetsim.model.errors import ConfigError
from fleetsim.model.task import JsonObject
from fleetsim.runtime import server
from fleetsim.runtime.collector import leave_alone
from fleetsim.runtime.ports import Runtime
from fleetsim.runtime.real import running_runtime
from fleetsim.runtime.webhook import WebhookSender
from fleetsim.wire.dialect import DIALECTS

log = logging.getLogger(__name__)


class Agent:
    """An A2A agent made of skills.

    ::

        agent = Agent("greeter", description="Says hello")

        @agent.skill("greet")
        async def greet(task):
            return f"Hello {task.text}"

        agent.serve(port=9000)

    ``api_key`` and ``bearer`` are one caller's secret each, ``api_keys`` and ``bearers`` map callers' names to
    theirs; with any of them, callers see their own tasks only. ``allow_webhook`` lists private addresses that
    webhooks may go to, as ``HOST:PORT`` or ``CIDR:PORT``; PORT may be a range or ``*``. ``url`` is the endpoint as
    callers reach it, if that is not the address it listens on. ``default_skill`` serves messages without a
    ``skillHint``; it is the first skill if not given. ``dialects`` are spoken out of 1.0, 0.3 and 0.1. ``state`` is
    a file to keep tasks in over restarts; without it they are gone with the process. ``input_modes``, if given, are
    the only media types a file part may have. ``path`` is where calls are taken, ``rest`` whether there are also the
    REST aliases; ``drop_failed_webhooks`` removes a webhook whose receiver did not take a notice in all its tries.

    What makes it another kind of agent goes around it (``profiles`` does): ``choose`` picks the skill of a message,
    ``behaviours`` says what is expected in each dialect, ``interceptors`` stand before its operations, each given those
    behind it, ``middleware`` is ASGI, the first outermost, and ``webhook_sender`` makes what delivers webhooks, as
    ``WebhookSender`` does. The store calls ``listeners`` inside each move of a task, with the ``Transition``; they only
    take note. One that stands in front of others has four more: ``offers`` are the skills of its card at
    this moment, if those are not ``skills``, ``callers`` knows who may call, in place of the keys, ``task_metadata`` is
    kept with each new task, and with ``resumes`` open tasks outlive the agent: with ``state``, their skills are begun
    again at the next start, with the message that began the task. ``runtime`` is what it runs on, or opens that at each
    start.
    """

    def __init__(
        self,
        name: str,
        *,
        description: str = "",
        version: str = "1.0.0",
        skills: Iterable[Skill] = (),
        default_skill: str | None = None,
        choose: SkillChoice = choose_skill,
        runtime: Runtime | Runtimes = running_runtime,
        api_key: str | None = None,
        api_keys: Mapping[str, str] | None = None,
        bearer: str | None = None,
        bearers: Mapping[str, str] | None = None,
        allow_webhook: Iterable[str] = (),
        dialects: Iterable[str] = tuple(DIALECTS),
        behaviours: Mapping[str, DialectBehaviour] = BEHAVIOURS,
        url: str | None = None,
        path: str = "/a2a",
        rest: bool = True,
        streaming: bool = True,
        push_notifications: bool = True,
        state_transition_history: bool = False,
        drop_failed_webhooks: bool = False,
        webhook_sender: Callable[..., WebhookSender] = WebhookSender,
        organization: str | None = None,
        provider_url: str | None = None,
        documentation_url: str | None = None,
        input_modes: Iterable[str] | None = None,
        output_modes: Iterable[str] = ("text/plain",),
        state: Path | str | None = None,
        limits: AgentLimits | None = None,
        interceptors: Iterable[Callable[[Operations], Operations]] = (),
        middleware: Iterable[Callable[[ASGIApp], ASGIApp]] = (),
        offers: Callable[[], Iterable[Skill]] | None = None,
        callers: Authenticator | None = None,
        task_metadata: Callable[[], JsonObject] = dict,
        listeners: Iterable[Callable[[Transition], None]] = (),
        resumes: bool = False,
    ) -> None:
        self._runtime = runtime
        self._served: ASGIApp | None = None
        self._settings = AgentSettings(
            name=name,
            description=description,
            version=version,
            skills=tuple(skills),
            default_skill=default_skill,
            choose=choose,
            dialects=tuple(dialects),
            behaviours=behaviours,
            url=url,
            path=path,
            rest=rest,
            streaming=streaming,
            push_notifications=push_notifications,
            state_transition_history=state_transition_history,
            drop_failed_webhooks=drop_failed_webhooks,
            webhook_sender=webhook_sender,
            api_keys=_callers(api_key, api_keys),
            bearers=_callers(bearer, bearers),
            allow_webhook=tuple(allow_webhook),
            organization=organization,
            provider_url=provider_url,
            documentation_url=documentation_url,
            input_modes=None if input_modes is None else tuple(input_modes),
            output_modes=tuple(output_modes),
            state=None if state is None else Path(state),
            limits=limits or AgentLimits(),
            interceptors=tuple(interceptors),
            middleware=tuple(middleware),
            offers=offers,
            callers=callers,
            task_metadata=task_metadata,
            listeners=tuple(listeners),
            resumes=resumes,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The agent as an ASGI application of its own, for ``uvicorn my_module:agent`` or a transport in process.

        The server's own limits on connections and slow senders hold then, not ``serve``'s. Skills that are added
        after the first request are not in it. Raises ConfigError if the card would mislead.
        """
        if self._served is None or scope["type"] == "lifespan":
            self._served = self.app()
        await self._served(scope, receive, send)

    @property
    def runtime(self) -> Runtime | Runtimes:
        """What it runs on, or what opens that at each start."""
        return self._runtime

    @property
    def settings(self) -> AgentSettings:
        return self._settings

    def add(self, skill: Skill) -> None:
        self._settings = self._settings.with_skill(skill)

    @overload
    def skill(self, function: SkillFunction, /) -> Skill: ...

    @overload
    def skill(self, skill_id: str | None = None, /, **options: Any) -> Callable[[SkillFunction], Skill]: ...

    def skill(
        self, what: SkillFunction | str | None = None, /, **options: Any
    ) -> Skill | Callable[[SkillFunction], Skill]:
        """Offer an async function as a skill: ``@agent.skill`` or ``@agent.skill("id", tags=(...))``.

        Raises:
            ConfigError: as ``fleetsim.agent.skill``.
        """

        def offer(function: SkillFunction, skill_id: str | None) -> Skill:
            made = make_skill(function, skill_id, options)
            self.add(made)
            return made

        if callable(what):
            return offer(what, None)
        return lambda function: offer(function, what)

    def engine(self) -> Engine:
        """A fresh, unstarted engine of this agent. Raises ConfigError if the card would mislead."""
        return Engine(self._settings, self._runtime)

    def app(self) -> ASGIApp:
        """A fresh ASGI application with its own tasks. Raises ConfigError if the card would mislead."""
        return self.mount(self.engine())

    def mount(self, engine: Engine) -> ASGIApp:
        """The application over an engine of this agent; a subclass may put something in front of it."""
        return build_app(engine)

    @asynccontextmanager
    async def serving(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
        """Serve in the background while inside; yields the root URL, on a free port unless one is given.

        Raises:
            ConfigError: the address or the state file cannot be had, or the card would mislead.
        """
        engine = self.engine()
        listener = server.listen(host, port)
        try:
            await engine.start()
            app, limits = self.mount(engine), self._settings.limits
            async with server.serving(app, limits, listener, on_stop=engine.stop) as url:
                yield url
        finally:
            listener.close()
            await engine.stop()

    def serve(self, host: str = "127.0.0.1", port: int = 9000) -> None:
        """Serve until interrupted. Logging at INFO goes to stderr unless it is set up already.

        Raises:
            ConfigError: the state file cannot be had, or the card would mislead.
            SystemExit: the address cannot be had; stderr says why.
        """
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        engine = self.engine()
        try:
            listener = server.listen(host, port)
        except ConfigError as error:
            sys.stderr.write(f"error: {error}\n  next: {error.hint}\n")
            raise SystemExit(2) from None
        bound = listener.getsockname()[1]
        if not server.is_loopback(host) and self._settings.authenticator().open:
            log.warning("%s listens on %s without a key: whoever reaches it can use it", self._settings.name, host)
        log.info("%s serves A2A at http://%s:%d%s", self._settings.name, host, bound, self._settings.path)
        app, limits = self.mount(engine), self._settings.limits

        async def start() -> None:
            await engine.start()
            leave_alone()

        server.serve(app, limits, listener, on_start=start, on_stop=engine.stop)

    def replace(self, **changes: Any) -> Agent:
        """A copy with some settings changed, or another ``runtime``. Raises ConfigError for an unknown one."""
        runtime = changes.pop("runtime", self._runtime)
        try:
            settings = replace(self._settings, **changes)
        except TypeError as error:
            raise ConfigError(str(error)) from None
        copy = Agent(settings.name, runtime=runtime)
        copy._settings = settings
        return copy


def _callers(one: str | None, named: Mapping[str, str] | None) -> dict[str, str]:
    return {**({} if one is None else {"caller": one}), **(named or {})}
