"""``fleetsim task retry``: send requests again that ended as undeliverable, unknown or failed, one or many."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import click

from fleetsim.api.answers import RetryGroup, RetryReport
from fleetsim.cli import render
from fleetsim.cli.hub_client import at_hub, connect
from fleetsim.cli.main import CommonOptions, Exit
from fleetsim.cli.options import read_span
from fleetsim.client.hub_client import HubClient
from fleetsim.client.hub_follow import request_id
from fleetsim.model.errors import FleetsimError, MayHaveRun, TransportError
from fleetsim.model.spans import SECONDS_IN

WHYS_MAX = 10
"""Different refusals that are reported."""

_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)/([smh])", re.ASCII)


def _read_rate(_: click.Context, __: click.Parameter, text: str) -> float:
    """The seconds from one request to the next of a rate such as ``2/s``. Raises BadParameter."""
    found = _RATE.fullmatch(text)
    if found is None or not float(found[1]):
        raise click.BadParameter("must be a number per second, minute or hour, such as 2/s or 30/m")
    return SECONDS_IN[found[2]] / float(found[1])


@click.command()
@click.argument("task_id", metavar="[ID]", required=False)
@click.option(
    "--kind", "kinds", metavar="KIND,…", help="Many at once: those that ended as undeliverable, unknown, failed."
)
@click.option("--agent", help="With --kind: only the requests of this agent.")
@click.option("--skill", help="With --kind: only those of this skill.")
@click.option(
    "--since",
    callback=read_span,
    metavar="SPAN",
    help="With --kind: only those that ended in the last SPAN.  [default: 1d]",
)
@click.option("--dry-run", is_flag=True, help="With --kind: show what would be sent, and send nothing.")
@click.option("--count", type=int, metavar="N", help="With --kind: confirm that N requests are sent.")
@click.option(
    "--rate", default="5/s", show_default=True, callback=_read_rate, help="With --kind: how many per s, m or h."
)
@click.option("--may-repeat", is_flag=True, help="Also if the agent may have done the work already.")
@click.pass_obj
def retry(common: CommonOptions, /, task_id: str | None, may_repeat: bool, kinds: str | None, **many: Any) -> int:
    """Send a request of the hub again that ended as undeliverable, unknown or failed, or with --kind all such requests.

    The new request names the old one, whose outcome stays. After unknown and failed the agent may have done the work:
    then a person is asked, unless agents.yaml declares the skill idempotent. --kind shows how many requests would be
    sent to which agent, and why they ended. It then asks for their number and, for each agent that may have done the
    work, whether to repeat it. Ctrl-C stops the sending: the requests that were sent stay sent.

    \b
    fleetsim task retry 4f6b1c2e
    fleetsim task retry --kind undeliverable,unknown --agent quinn --since 2h
    """
    if (task_id is None) is (kinds is None):
        raise click.UsageError("give an ID or --kind")
    if kinds is not None:
        return asyncio.run(_retry_many(common, kinds, many, may_repeat=may_repeat))

    async def again(hub: HubClient) -> str:
        request = await request_id(hub, task_id or "")
        try:
            return await hub.retry(request, may_repeat=may_repeat)
        except MayHaveRun as error:
            asks = sys.stdin.isatty() and sys.stderr.isatty()
            if not (asks and click.confirm(f"{error}. Send it again?", err=True)):
                raise
        return await hub.retry(request, may_repeat=True)

    request = at_hub(common, again)
    if common.as_json:
        render.emit_json({"correlationId": request})
    common.note(f"sent again as {request}; see: fleetsim task get {request} --wait")
    return Exit.OK


async def _retry_many(common: CommonOptions, kinds: str, options: dict[str, Any], *, may_repeat: bool) -> int:
    async with connect(common) as hub:
        window, only = options["since"] or SECONDS_IN["d"], {name: options[name] for name in ("agent", "skill")}
        preview = await hub.retries(kinds, window=int(window), **only)
        if common.as_json and options["dry_run"]:
            render.emit_json(preview)
        else:
            _show(common, preview)
        if options["dry_run"] or not preview.count:
            return Exit.OK
        chosen = confirmed(preview, options["count"], may_repeat=may_repeat)
        sent: dict[str, str] = {}
        refused: dict[str, str] = {}
        try:
            await send_again(hub, chosen, options["rate"], sent, refused)
        finally:  # also after Ctrl-C
            if common.as_json:
                render.emit_json({"sent": sent, "refused": refused})
            common.note(f"sent {len(sent)} of {sum(len(g.correlation_ids) for g in chosen)} requests again")
            for why, times in Counter(refused.values()).most_common(WHYS_MAX):
                common.note(f"  {times} refused: {why}")
    return Exit.FAILED if refused else Exit.OK


async def send_again(
    hub: HubClient, chosen: Iterable[RetryGroup], pause_s: float, sent: dict[str, str], refused: dict[str, str]
) -> None:
    """Retry the requests of these groups. ``sent`` gets the new ids by the old, ``refused`` the refusals."""
    for doubtful, old in ((group.may_have_run, old) for group in chosen for old in group.correlation_ids):
        if sent or refused:
            await asyncio.sleep(pause_s)
        try:
            sent[old] = await hub.retry(old, may_repeat=doubtful)
        except TransportError:
            raise
        except FleetsimError as error:
            refused[old] = str(error)


def _show(common: CommonOptions, preview: RetryReport) -> None:
    """The preview for a person. With ``-o json`` stdout is for what was sent."""
    rows = []
    for group in sorted(preview.groups, key=lambda group: -len(group.correlation_ids)):
        kind = group.kind + ", may have run" * group.may_have_run
        dates = (f"{at:%m-%d %H:%MZ}" for at in (group.oldest, group.newest))
        rows.append([group.agent, kind, len(group.correlation_ids), *dates, group.reason])
    if rows and not common.as_json:
        render.table(["AGENT", "ENDED AS", "COUNT", "OLDEST", "NEWEST", "REASON"], rows, right=frozenset({2}))
    common.note(f"{preview.count} requests may be sent again")
    for why, times in preview.left_out.items():
        common.note(f"  {times} may not: {why}")
    if not preview.complete:
        common.note("  older ones are not counted: send these first, or name a shorter --since, an --agent or a --kind")


def confirmed(preview: RetryReport, count: int | None, *, may_repeat: bool) -> list[RetryGroup]:
    """The groups that a person confirms, or ``--may-repeat`` and ``--count``. Raises UsageError for another count."""
    asks = count is None and sys.stdin.isatty() and sys.stderr.isatty()
    runs = Counter[str]()
    for group in preview.groups:
        runs[group.agent] += group.may_have_run * len(group.correlation_ids)
    ask = "{} may have done {} of these already. Repeat them?"
    repeated = {a for a, n in runs.items() if may_repeat or (asks and n and click.confirm(ask.format(a, n), err=True))}
    chosen = [group for group in preview.groups if not group.may_have_run or group.agent in repeated]
    total = sum(len(group.correlation_ids) for group in chosen)
    if asks and total:
        count = click.prompt(f"Type {total} to send {total} requests again", type=int, err=True)
    if count != total:
        left = sum(runs[agent] for agent in runs.keys() - repeated)
        more = f"; {left} more may have run already, and need --may-repeat" if left else ""
        raise click.UsageError(f"nothing was sent: confirm with --count {total}{more}")
    return chosen
