"""Early webhooks are kept within limits: of one request, of one agent, and of all."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from msgspec import structs

from fleetsim.caller.webhooks import EarlyLimits, EarlyWebhooks
from fleetsim.ledger import EarlyWebhook
from fleetsim.ledger.sqlite import open_ledger
from fleetsim.model.errors import NotAccepting
from fleetsim.runtime.ports import Runtime
from tests.ledger.ledgers import record, webhook

SMALL = EarlyLimits(per_request_max=3, per_agent_max=5, per_agent_bytes_max=100, webhooks_max=7, bytes_max=150)


def early(request: str, size: int = 1, *, agent: str = "a") -> EarlyWebhook:
    return structs.replace(webhook(request, agent=agent), body_bytes=size)


async def test_webhooks_kept_by_an_earlier_run_count(runtime: Runtime) -> None:
    async with open_ledger(None, clock=runtime.clock, storage="inline") as ledger:
        await ledger.accept([record("c-1")])
        room = EarlyWebhooks(ledger, SMALL)
        room.take_over([early("c-1")] * 3)
        with pytest.raises(NotAccepting):
            await room.keep(early("c-1"))


class Disk:
    """A ledger that refuses, after the request has ended or before."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def keep_webhook(self, webhook: EarlyWebhook) -> bool:
        self.asked.set()
        await self.may_go_on.wait()
        raise self.error


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("error", [NotAccepting("full"), ValueError("nested too deep")])
async def test_a_webhook_that_is_not_recorded_takes_no_room(error: Exception, ended: bool) -> None:
    disk = Disk(error)
    room = EarlyWebhooks(disk, replace(SMALL, per_agent_max=1))  # type: ignore[arg-type]
    for _ in range(3):
        keeping = asyncio.create_task(room.keep(early("c-1")))
        await disk.asked.wait()
        if ended:
            room.forget("c-1")
        disk.may_go_on.set()
        with pytest.raises(NotAccepting):
            await keeping


class Fickle:
    """A ledger that records a webhook or does not, as the test says."""

    def __init__(self) -> None:
        self.refuses = False

    async def keep_webhook(self, webhook: EarlyWebhook) -> bool:
        if self.refuses:
            raise NotAccepting("the disk is full")
        return True


@pytest.mark.parametrize("seed", range(10))
async def test_the_free_room_is_always_the_limit_minus_the_kept_webhooks(seed: int) -> None:
    """Compared with a plain list of the kept webhooks, through refusals, failures and ends."""
    rng, ledger = random.Random(seed), Fickle()
    room = EarlyWebhooks(ledger, SMALL)  # type: ignore[arg-type]
    kept: list[EarlyWebhook] = []
    refused = taken = 0
    for _ in range(300):
        agent = rng.choice("ab")
        one = early(f"{agent}-{rng.randrange(3)}", rng.choice((1, 10, 30, 60)), agent=agent)
        mine = [w for w in kept if w.agent == agent]
        fits = (
            sum(w.correlation_id == one.correlation_id for w in kept) < 3
            and len(mine) < 5
            and sum(w.body_bytes for w in mine) + one.body_bytes <= 100
            and len(kept) < 7
            and sum(w.body_bytes for w in kept) + one.body_bytes <= 150
        )
        if rng.random() < 0.3:
            room.forget(one.correlation_id)
            kept = [w for w in kept if w.correlation_id != one.correlation_id]
            continue
        ledger.refuses = rng.random() < 0.3
        if fits and not ledger.refuses:
            await room.keep(one)
            kept.append(one)
            taken += 1
        else:
            with pytest.raises(NotAccepting, match="disk is full" if fits else "too many webhooks"):
                await room.keep(one)
            refused += 1
    assert min(refused, taken) > 30
