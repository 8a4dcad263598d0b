"""Which webhooks an agent must refuse. What an agent accepts by mistake is deleted at once."""

from __future__ import annotations

from fleetsim.check.raw_dialect import url_parts
from fleetsim.check.requirement import BOTH, BUILD_GUIDE, MUST, requirement
from fleetsim.check.sections.push import webhook_configs
from fleetsim.check.session import Session
from fleetsim.check.verdict import fail_unless, not_tested_unless
from fleetsim.model.call import Operation

SSRF = f"{BUILD_GUIDE}, hardening 4 'SSRF guard'; reference reliability T-20, T-21"
PATH = "/fleetsim-check"


def _port(session: Session) -> int:
    """A port webhooks usually may use, that the listener does not have."""
    place = session.agent.listener.place if session.agent.listener else ""
    return 8443 if place.endswith(":8080") else 8080


async def _all_refused(session: Session, *urls: str) -> None:
    dialect = session.dialect
    task_id, _ = await session.begin()
    for url in urls:
        params = dialect.set_hook(task_id, dialect.hook(url, id="fleetsim-ssrf"))
        exchange = await session.rpc(dialect.method(Operation.PUSH_SET), params)
        if exchange.error is None:
            await session.rpc(dialect.method(Operation.PUSH_DELETE), dialect.of_hook(task_id, "fleetsim-ssrf"))
        fail_unless(exchange.error is not None, f"a webhook to {url} was accepted", exchange)
        fail_unless(exchange.code == -32602, f"a webhook to {url} must be -32602, not {exchange.says()}", exchange)
    read = await session.rpc(dialect.method(Operation.PUSH_LIST), dialect.of_hook(task_id))
    kept = {str(config.get("url")) for config in webhook_configs(session, read.result) or []}
    fail_unless(not (set(urls) & kept), "a refused webhook is listed all the same", read)


@requirement(
    "P-08",
    "Loopback webhooks are refused",
    MUST,
    dialects=BOTH,
    source=SSRF,
    remedy="Resolve the host and refuse loopback addresses unless the operator allowed host and port.",
    needs=("push",),
)
async def loopback(session: Session) -> None:
    """Register http://127.0.0.1, http://localhost and http://[::1] on a port nobody allowed: -32602."""
    port = _port(session)
    await _all_refused(session, *(f"http://{host}:{port}{PATH}" for host in ("127.0.0.1", "localhost", "[::1]")))


@requirement(
    "P-09",
    "Webhooks in private networks are refused",
    MUST,
    dialects=BOTH,
    source=SSRF,
    remedy="Check every resolved address against the private ranges.",
    needs=("push",),
)
async def private(session: Session) -> None:
    """Register addresses of 10/8, 172.16/12, 192.168/16, 100.64/10 and fc00::/7: -32602."""
    hosts = ("10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "[fd00::1]")
    await _all_refused(session, *(f"http://{host}:{_port(session)}{PATH}" for host in hosts))


@requirement(
    "P-10",
    "Link-local webhooks (cloud metadata) are refused",
    MUST,
    dialects=BOTH,
    source=SSRF,
    remedy="Check every resolved address against the link-local ranges.",
    needs=("push",),
)
async def link_local(session: Session) -> None:
    """Register http://169.254.169.254 and http://[fe80::1]: -32602."""
    await _all_refused(session, "http://169.254.169.254/latest/meta-data/", f"http://[fe80::1]:{_port(session)}{PATH}")


@requirement(
    "P-11",
    "Webhooks of other schemes are refused",
    MUST,
    dialects=BOTH,
    source=SSRF,
    remedy="Accept http and https alone.",
    needs=("push",),
)
async def schemes(session: Session) -> None:
    """Register file:, javascript:, gopher: and ftp: addresses: -32602."""
    await _all_refused(
        session,
        "file:///etc/hostname",
        "javascript:fetch('/')",
        "gopher://example.com:70/_x",
        "ftp://example.com/x",
        "//example.com/x",
    )


@requirement(
    "P-12",
    "Webhooks whose host does not resolve are refused",
    MUST,
    dialects=BOTH,
    source=SSRF,
    remedy="Resolve at registration and refuse what does not resolve.",
    needs=("push",),
)
async def unresolvable(session: Session) -> None:
    """Register a host under .invalid: -32602."""
    await _all_refused(session, f"http://no-such-host.fleetsim.invalid:{_port(session)}{PATH}")


@requirement(
    "P-13",
    "Odd spellings of a private host are refused",
    MUST,
    dialects=BOTH,
    source=SSRF,
    remedy="Decide on the resolved address, never on the text.",
    needs=("push",),
)
async def spellings(session: Session) -> None:
    """Register 127.1, 2130706433, 0x7f000001, 0177.0.0.1, 0.0.0.0, [::ffff:127.0.0.1], user@ and percent forms."""
    hosts = ("127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "[::ffff:127.0.0.1]", "127.0.0.1.")
    port = _port(session)
    urls = [f"http://{host}:{port}{PATH}" for host in hosts]
    urls += [f"http://example.com@127.0.0.1:{port}{PATH}", f"http://127%2e0.0.1:{port}{PATH}"]
    await _all_refused(session, *urls)


@requirement(
    "P-39",
    "An allow-list opens what it names and nothing beside it",
    MUST,
    dialects=BOTH,
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


@requirement(
    "P-14",
    "A refused webhook is refused aloud, inline too",
    MUST,
    dialects=BOTH,
    source=SSRF,
    remedy="Vet the inline config before the task is made; never drop it silently.",
    needs=("push",),
)
async def inline_is_refused_aloud(session: Session) -> None:
    """Send with a private webhook in the configuration: the send is -32602; a refused one is not listed."""
    url = f"http://169.254.169.254:{_port(session)}{PATH}"
    push = session.dialect.hook(url, id="fleetsim-ssrf")
    exchange = await session.call(Operation.SEND, session.params(push=push))
    fail_unless(exchange.error is not None, f"a send with a webhook to {url} was accepted", exchange)
    fail_unless(
        exchange.code == -32602, f"a send with a webhook to {url} must be -32602, not {exchange.says()}", exchange
    )
    if session.agent.streaming:
        async with session.stream(Operation.STREAM, session.params(push=push)) as stream:
            await stream.next(5)
        fail_unless(stream.exchange.code == -32602, f"a stream with it gave {stream.exchange.says()}", stream.exchange)
