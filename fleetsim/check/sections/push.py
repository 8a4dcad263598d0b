"""Rows about the registration of webhooks: set, get, list, delete, limits, and refused addresses.

A webhook that the agent accepts by mistake is deleted at once.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

from fleetsim.check.evidence import Exchange, fail_unless, fail_unless_error, not_tested_unless
from fleetsim.check.listener import tells_the_end
from fleetsim.check.raw_dialect import mapping, url_parts
from fleetsim.check.requirement import BUILD_GUIDE, V03, V10, must, should
from fleetsim.check.session import (
    Session,
    finished_task,
    register,
    registration,
    webhook_on_finished_task,
    webhook_on_running_task,
)
from fleetsim.model.call import Operation
from fleetsim.model.task import TERMINAL

MANY = 30
SSRF = f"{BUILD_GUIDE}, hardening 4 'SSRF guard'; reference reliability T-20, T-21"
PATH = "/fleetsim-check"
UNRESOLVED = f"http://no-such-host.fleetsim.invalid:PORT{PATH}"


def webhook_config(session: Session, result: Any) -> dict[str, Any]:
    """The config in an answer, nested or flat."""
    config = mapping(result)
    return dict(mapping(config.get("pushNotificationConfig")) or config)


@must(
    "P-01: Registering a webhook returns it",
    source=f"{BUILD_GUIDE}, 'The endpoint surface'; A2A 0.3 §7.5, 1.0 §3.1.7",
    remedy="Return the stored config.",
    needs=("push", "listener"),
)
async def set_returns_it(session: Session) -> None:
    """Register and read url and task of the answer."""
    hook = session.hook()
    task_id, _ = await session.fixture(finished_task)
    reply = await register(session, task_id, hook, id="fleetsim-1", token=session.new())
    fail_unless(reply.granted, f"registering a webhook gave {reply}", reply)
    got = webhook_config(session, reply.result).get("url")
    fail_unless(got == hook.url, f"the registered url came back as {got!r}", reply)
    named = mapping(reply.result).get("taskId")
    fail_unless(named == task_id, f"the answer names the task {named!r}", reply)


async def _call(session: Session, operation: Operation, task_id: str, config_id: str | None = None) -> Exchange:
    return await session.rpc(operation, session.dialect.of_hook(task_id, config_id))


@must(
    "P-02: A registered webhook can be read",
    source=f"{BUILD_GUIDE}, 'The endpoint surface'",
    remedy="Read the config from the place where set stores it.",
    incident="The original wanted params.taskId; every SDK sends params.id",
    needs=("push", "listener"),
)
async def get_reads_it(session: Session) -> None:
    """Get it by task and config id."""
    task_id, hook, reply = await webhook_on_finished_task(session, id="fleetsim-2")
    read = await _call(session, Operation.PUSH_GET, task_id, "fleetsim-2")
    fail_unless(read.error is None, f"reading a registered webhook gave {read}", reply, read)
    got = webhook_config(session, read.result).get("url")
    fail_unless(got == hook.url, f"get shows the url {got!r}", reply, read)


def webhook_configs(session: Session, result: Any) -> list[dict[str, Any]] | None:
    """The configs in the answer to a list; None if it has another shape than the dialect's."""
    configs = mapping(result).get("configs") if session.dialect.proto else result
    return [webhook_config(session, entry) for entry in configs] if isinstance(configs, list) else None


@must(
    "P-03: Registered webhooks can be listed",
    source=f"{BUILD_GUIDE}, 'The endpoint surface'; A2A 0.3 §7.7, 1.0 §3.1.9",
    remedy="Return all configs of the task.",
    needs=("push", "listener"),
)
async def list_shows_it(session: Session) -> None:
    """List: an array in 0.3, {configs: [...]} in 1.0, with the registered url."""
    task_id, hook, reply = await webhook_on_finished_task(session, id="fleetsim-3")
    read = await _call(session, Operation.PUSH_LIST, task_id)
    fail_unless(read.error is None, f"listing webhooks gave {read}", read)
    configs = webhook_configs(session, read.result)
    fail_unless(configs is not None, "the list has another shape than the dialect's", read)
    urls = [config.get("url") for config in configs or []]
    fail_unless(hook.url in urls, "the registered webhook is not in the list", reply, read)


@must(
    "P-04: A deleted webhook is gone",
    source=f"{BUILD_GUIDE}, 'The endpoint surface'; A2A 0.3 §7.8, 1.0 §3.1.10",
    remedy="Remove the config from the live record.",
    needs=("push", "listener", "slow", "end"),
    lasts_s=6,
)
async def delete_removes_it(session: Session) -> None:
    """Delete it while the slow task runs, list, and see that nothing is delivered at the end."""
    task_id, hook, _ = await webhook_on_running_task(session, id="fleetsim-4")
    gone = await _call(session, Operation.PUSH_DELETE, task_id, "fleetsim-4")
    fail_unless(gone.error is None, f"deleting a webhook gave {gone}", gone)
    read = await _call(session, Operation.PUSH_LIST, task_id)
    left = [config.get("url") for config in webhook_configs(session, read.result) or []]
    fail_unless(hook.url not in left, "the deleted webhook is still listed", gone, read)
    ended = await session.until(task_id)
    not_tested_unless(session.state(ended) in TERMINAL, f"the task this leans on did not end: {ended}", ended)
    late = await hook.until(tells_the_end, 2)
    fail_unless(late is None, "the deleted webhook was still called", gone, *([late] if late else []))


@should(
    "P-05: A webhook without a config id is read without one",
    V03,
    source="Reference interop, 'What the official conformance kit expects'",
    remedy="Fall back to the only config there is.",
    needs=("json-rpc", "push", "listener"),
)
async def get_without_id(session: Session) -> None:
    """Register without an id, get with the task alone."""
    task_id, hook, reply = await webhook_on_finished_task(session)
    read = await _call(session, Operation.PUSH_GET, task_id)
    fail_unless(read.error is None, f"reading the only webhook gave {read}", reply, read)
    fail_unless(webhook_config(session, read.result).get("url") == hook.url, "another webhook was read", reply, read)


@should(
    "P-06: Deleting a webhook twice is not an error",
    V10,
    source="A2A 1.0 §3.1.10",
    remedy="Make delete idempotent.",
    needs=("push", "listener"),
)
async def delete_twice(session: Session) -> None:
    """Delete the same config twice."""
    task_id, _, _ = await webhook_on_finished_task(session, id="fleetsim-6")
    first = await _call(session, Operation.PUSH_DELETE, task_id, "fleetsim-6")
    not_tested_unless(first.error is None, f"deleting a webhook gave {first}", first)
    again = await _call(session, Operation.PUSH_DELETE, task_id, "fleetsim-6")
    fail_unless(again.error is None, f"deleting it again gave {again}", again)


@must(
    "P-07: A webhook for an unknown task is -32001",
    source=f"{BUILD_GUIDE}, 'Error code conventions'",
    remedy="Look the task up first.",
    needs=("push",),
)
async def unknown_task(session: Session) -> None:
    """Register for a task id nobody made."""
    url = session.agent.listener.origin + "/nobody" if session.agent.listener else "https://example.com/nobody"
    params = session.dialect.set_hook(session.new(), session.dialect.hook(url))
    reply = await session.rpc(Operation.PUSH_SET, params)
    fail_unless_error(reply, "a webhook for an unknown task", -32001)


@should(
    "P-35: Webhooks per task are bounded",
    source="Reference reliability T-23",
    remedy="Allow five or so: one small send must not make many large POSTs.",
    needs=("push", "listener", "side-effects"),
)
async def bounded(session: Session) -> None:
    """Register 30 configs on one task: at some point it must be refused."""
    task_id, _ = await session.finished()
    reply = None
    for number in range(MANY):
        reply = await register(session, task_id, session.hook(), id=f"fleetsim-many-{number}")
        if reply.error is not None:
            return
    read = await _call(session, Operation.PUSH_LIST, task_id)
    configs = webhook_configs(session, read.result) or []
    not_tested_unless(configs, f"needs webhooks that can be listed: that gave {read} (P-03)", read)
    kept = len(configs)
    fail_unless(kept < MANY, f"{MANY} webhooks were registered on one task, and {kept} are kept", read)


def _port(session: Session) -> int:
    """A port webhooks usually may use, that the listener does not have."""
    place = session.agent.listener.place if session.agent.listener else ""
    return 8443 if place.endswith(":8080") else 8080


def _range(url: str) -> str:
    """The kind of private address in a webhook's URL; empty if it is public or a name."""
    host = url_parts(url).hostname or ""
    try:
        address = ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return ""
    local = address.is_loopback or address.is_unspecified or getattr(address, "ipv4_mapped", None)
    if address.is_global:
        return ""
    return "loopback" if local else "link-local" if address.is_link_local else "private"


async def _register_and_drop(session: Session, task_id: str, url: str) -> Exchange:
    dialect = session.dialect
    reply = await session.rpc(Operation.PUSH_SET, dialect.set_hook(task_id, dialect.hook(url, id="fleetsim-ssrf")))
    if reply.error is None:
        await session.rpc(Operation.PUSH_DELETE, dialect.of_hook(task_id, "fleetsim-ssrf"))
    return reply


async def opened_guard(session: Session) -> bool:
    """Whether the agent lets webhooks to the listener's private address, and refuses a host that does not resolve.

    Then it has a guard, and its operator opened it for this check: what else is open shows nothing.
    """
    listener = session.agent.listener
    if listener is None or not _range(listener.origin):
        return False
    if not (await session.fixture(registration)).granted:
        return False
    task_id, _ = await session.begin()
    return (await _register_and_drop(session, task_id, UNRESOLVED.replace("PORT", "8080"))).error is not None


async def fail_unless_guarded(session: Session, reply: Exchange, url: str, what: str) -> None:
    """End the probe unless a webhook to a private ``url`` was refused; ``what`` was accepted.

    With *fail*, or with *not tested* where the agent's guard was opened for the listener in the same range.
    """
    listener = session.agent.listener
    same = listener is not None and (_range(url) or "loopback") == _range(listener.origin)  # odd spellings of loopback
    if reply.error is None and same and await session.fixture(opened_guard):
        place = session.listener.place
        reason = f"needs a closed webhook guard: the agent's takes more than the listener ({place})"
        not_tested_unless(False, f"{reason}; allow the listener's host and port alone, or check without it", reply)
    fail_unless(reply.error is not None, f"{what} was accepted", reply)


async def _all_refused(session: Session, *urls: str, private: bool = True) -> None:
    task_id, _ = await session.begin()
    for url in urls:
        reply = await _register_and_drop(session, task_id, url)
        if private:
            await fail_unless_guarded(session, reply, url, f"a webhook to {url}")
        fail_unless(reply.error is not None, f"a webhook to {url} was accepted", reply)
        fail_unless(reply.refuses_webhook, f"a webhook to {url} must be -32602, not {reply}", reply)
    read = await session.rpc(Operation.PUSH_LIST, session.dialect.of_hook(task_id))
    kept = {str(config.get("url")) for config in webhook_configs(session, read.result) or []}
    fail_unless(not (set(urls) & kept), "a refused webhook is listed", read)


def _refused(heading: str, how: str, *urls: str, remedy: str, private: bool = True) -> None:
    """A row of addresses that must be refused, and how it is probed; ``PORT`` is a port that nobody allowed."""

    async def refused(session: Session) -> None:
        await _all_refused(session, *(url.replace("PORT", str(_port(session))) for url in urls), private=private)

    refused.__doc__ = how
    must(heading, source=SSRF, remedy=remedy, needs=("push",))(refused)


_refused(
    "P-08: Loopback webhooks are refused",
    "Register http://127.0.0.1, http://localhost and http://[::1] on a port nobody allowed: -32602.",
    *(f"http://{host}:PORT{PATH}" for host in ("127.0.0.1", "localhost", "[::1]")),
    remedy="Resolve the host and refuse loopback addresses unless the operator allowed host and port.",
)
_refused(
    "P-09: Webhooks in private networks are refused",
    "Register addresses of 10/8, 172.16/12, 192.168/16, 100.64/10 and fc00::/7: -32602.",
    *(f"http://{host}:PORT{PATH}" for host in ("10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "[fd00::1]")),
    remedy="Check every resolved address against the private ranges.",
)
_refused(
    "P-10: Link-local webhooks (cloud metadata) are refused",
    "Register http://169.254.169.254 and http://[fe80::1]: -32602.",
    "http://169.254.169.254/latest/meta-data/",
    f"http://[fe80::1]:PORT{PATH}",
    remedy="Check every resolved address against the link-local ranges.",
)
_refused(
    "P-11: Webhooks of other schemes are refused",
    "Register file:, javascript:, gopher: and ftp: addresses: -32602.",
    *("file:///etc/hostname", "javascript:fetch('/')", "gopher://example.com:70/_x", "ftp://example.com/x"),
    "//example.com/x",
    remedy="Accept http and https alone.",
    private=False,
)
_refused(
    "P-12: Webhooks whose host does not resolve are refused",
    "Register a host under .invalid: -32602.",
    UNRESOLVED,
    remedy="Resolve at registration and refuse what does not resolve.",
    private=False,
)
_refused(
    "P-13: Odd spellings of a private host are refused",
    "Register 127.1, 2130706433, 0x7f000001, 0177.0.0.1, 0.0.0.0, [::ffff:127.0.0.1], user@ and percent forms.",
    *(f"http://{host}:PORT{PATH}" for host in ("127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0")),
    *(f"http://{host}:PORT{PATH}" for host in ("[::ffff:127.0.0.1]", "127.0.0.1.")),
    f"http://example.com@127.0.0.1:PORT{PATH}",
    f"http://127%2e0.0.1:PORT{PATH}",
    remedy="Decide on the resolved address, never on the text.",
)


@must(
    "P-39: An allow-list opens what it names and nothing beside it",
    source=f"{BUILD_GUIDE}, checklist 'Task store hygiene' (Quinn #53); reference reliability T-22",
    remedy="Compare the host of the parsed address as a whole, and decide on the resolved address, never on the text.",
    needs=("push", "listener"),
    after="P-13",
)
async def nothing_beside_the_allowed(session: Session) -> None:
    """With webhooks to the listener allowed, register private addresses that merely contain its name: -32602."""
    parts = url_parts(session.listener.origin)
    allowed, port = parts.hostname or "", parts.port
    not_tested_unless(port, "the listener's address has no port")
    others = [f"http://{allowed}@169.254.169.254:{port}{PATH}", f"http://169.254.169.254:{port}/{allowed}:{port}"]
    others += [f"http://169.254.169.254:{port}{PATH}#{allowed}", f"http://{allowed}.fleetsim.invalid:{port}{PATH}"]
    await _all_refused(session, *others)


@must(
    "P-14: A refused webhook is refused aloud, inline too",
    source=SSRF,
    remedy="Vet the inline config before the task is made; never drop it silently.",
    needs=("push",),
)
async def inline_is_refused_aloud(session: Session) -> None:
    """Send with a private webhook in the configuration: the send is -32602; a refused one is not listed."""
    url = f"http://169.254.169.254:{_port(session)}{PATH}"
    push = session.dialect.hook(url, id="fleetsim-ssrf")
    reply = await session.call(Operation.SEND, session.params(push=push))
    await fail_unless_guarded(session, reply, url, f"a send with a webhook to {url}")
    fail_unless(reply.refuses_webhook, f"a send with a webhook to {url} must be -32602, not {reply}", reply)
    if session.agent.streaming:
        async with session.stream(Operation.STREAM, session.params(push=push)) as stream:
            await stream.next(5)
        fail_unless(stream.exchange.refuses_webhook, f"a stream with it gave {stream.exchange}", stream.exchange)


@must(
    "P-40: A refused webhook has the code -32602",
    source=f"{BUILD_GUIDE}, 'Error code conventions'",
    remedy="Raise invalid params where the address is judged.",
    incident="protolabs-agent 0.218.1 refuses with -32603",
    needs=("push",),
    after="P-14",
)
async def refused_as_invalid(session: Session) -> None:
    """Register http://169.254.169.254: if it is refused, then with -32602."""
    task_id, _ = await session.begin()
    reply = await _register_and_drop(session, task_id, "http://169.254.169.254/latest/meta-data/")
    not_tested_unless(reply.error, "needs a webhook that is refused: a link-local one was accepted (P-10)", reply)
    fail_unless_error(reply, "a refused webhook", -32602)
