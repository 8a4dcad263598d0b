"""Misused callback tokens: headers, lookups, other tasks, formats of other tokens (T-07, T-11 to T-18)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from itertools import product
from typing import Any

import pytest
from starlette.requests import Request

from fleetsim.agent import Agent, SkillContext
from fleetsim.caller.receiver import given_token
from fleetsim.caller.webhooks import CallbackTokens
from fleetsim.model.task import Task, TaskState, TaskStatus
from fleetsim.model.work import OutcomeKind
from fleetsim.request.signals import Replied
from fleetsim.runtime.ports import Request as Outgoing
from fleetsim.testbed.faults import Match, SlowStart
from tests.caller.fleet import HUB, Fleet, fleet

TOKENS = CallbackTokens({1: b"k" * 32}, current=1)
GENUINE = TOKENS.mint("scout", "c-1").encode()
AUTH, TOKEN = b"authorization", b"x-a2a-notification-token"

MALFORMED: list[list[tuple[bytes, bytes]]] = [
    [],
    [(AUTH, b"")],
    [(AUTH, b"Bearer")],
    [(AUTH, b"Bearer ")],
    [(AUTH, GENUINE)],
    [(AUTH, b"Basic " + GENUINE)],
    [(AUTH, b"Bearer\t" + GENUINE)],
    [(AUTH, b"Bearer " + GENUINE + b", Bearer x")],
    [(AUTH, b"Bearer " + GENUINE + b"\x00")],
    [(AUTH, b"Bearer " + GENUINE + b"\xe9")],
    [(AUTH, b"Bearer \xe9\xe9\xe9")],
    [(AUTH, b"Bearer " + GENUINE + b"=")],
    [(AUTH, b"Bearer " + GENUINE[:-1])],
    [(AUTH, b"Bearer " + GENUINE.replace(b".", b""))],
    [(AUTH, b"Bearer ." + GENUINE)],
    [(AUTH, b"Bearer " + GENUINE + b".x")],
    [(AUTH, b"Bearer " + GENUINE.partition(b".")[0] + b".")],
    [(AUTH, b"Bearer " + b"a" * 100_000)],
    [(AUTH, b"Bearer " + b"." * 2_000)],
    [(AUTH, b"Bearer " + GENUINE), (AUTH, b"Bearer " + GENUINE)],
    [(AUTH, b"Bearer " + GENUINE), (AUTH, b"Bearer x")],
    [(AUTH, b"Bearer " + GENUINE), (TOKEN, b"x")],
    [(AUTH, b"Bearer x"), (TOKEN, GENUINE)],
    [(AUTH, b"Basic x"), (TOKEN, GENUINE)],
    [(AUTH, b""), (TOKEN, GENUINE)],
    [(TOKEN, b"")],
    [(TOKEN, b"Bearer " + GENUINE)],
    [(TOKEN, GENUINE), (TOKEN, b"x")],
    [(TOKEN, GENUINE), (TOKEN, GENUINE), (TOKEN, GENUINE)],
    [(TOKEN, GENUINE.upper())],
    [(TOKEN, "\u0661".encode() + GENUINE)],
    [(b"x-api-key", GENUINE)],
]


@pytest.mark.parametrize("headers", MALFORMED)
def test_no_malformed_header_is_a_token_and_none_raises(headers: list[tuple[bytes, bytes]]) -> None:
    token = given_token(Request({"type": "http", "headers": headers}))
    assert token is None or TOKENS.verify(token) is None


def test_a_token_is_read_from_either_header_or_from_both_if_equal() -> None:
    for headers in (
        [(AUTH, b"bearer " + GENUINE)],
        [(TOKEN, GENUINE)],
        [(AUTH, b"Bearer " + GENUINE), (TOKEN, GENUINE)],
    ):
        token = given_token(Request({"type": "http", "headers": headers}))
        assert token is not None
        assert TOKENS.verify(token) is not None


def encoded(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def jwt(header: dict[str, Any], claims: Any = None, key: bytes | None = None) -> str:
    said = f"{encoded(header)}.{encoded(claims or {'sub': 'scout', 'task': 'c-1', 'exp': 4_000_000_000})}"
    if key is None:
        return f"{said}."
    return f"{said}.{encoded(hmac.new(key, said.encode(), hashlib.sha256).digest())}"


def test_a_token_of_another_kind_is_refused() -> None:
    """There is no JWT mode: the claims of such a token and the key that it names do not matter."""
    algorithms = ["none", "None", "NONE", "nOnE", "", "HS256", "HS512", "RS256", "ES256", "PS256", "EdDSA", "dir", None]
    keys = [None, b"", b"secret", b"k" * 32, b"-----BEGIN PUBLIC KEY-----"]
    tried = [jwt({"alg": alg, "typ": "JWT"}, key=key) for alg, key in product(algorithms, keys)]
    more: list[dict[str, Any]] = [
        {"jku": "http://evil.example/jwks"},
        {"x5u": "http://evil.example/x"},
        {"jwk": {"kty": "oct", "k": "AA"}},
        {"kid": "../../dev/null"},
        {"kid": "1"},
        {"crit": ["exp"], "exp": 1},
        {"b64": False},
        {"zip": "DEF"},
        {"cty": "JWT"},
    ]
    tried += [jwt({"alg": "HS256", **claims}, key=b"k" * 32) for claims in more]
    tried += [encoded(b"1\0scout\0c-1") + "." + encoded(hmac.new(b"k" * 32, b"1\0scout\0c-1", hashlib.sha256).digest())]
    assert len(tried) >= 25
    assert [token for token in tried if TOKENS.verify(token) is not None] == []


def worker(name: str) -> Agent:
    agent = Agent(name)

    @agent.skill("work")
    async def work(task: SkillContext) -> str:
        await asyncio.sleep(3_000)
        return "own words"

    return agent


async def post(f: Fleet, path: str, task_id: str, token: str, state: str = "working") -> int:
    body = {"kind": "status-update", "taskId": task_id, "contextId": "c", "status": {"state": state}, "final": False}
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    url = f"{HUB}/api/a2a/callback/{path}"
    request = Outgoing(method="POST", url=url, headers=headers, body=json.dumps(body).encode())
    return (await f.network.exchange(request)).status


@pytest.mark.slow
async def test_each_token_is_valid_for_its_own_task_only() -> None:
    """Two agents with four tasks each: of token × path × body, only matching triples are accepted."""
    async with fleet(worker("scout"), worker("clerk"), streaming=False) as f:
        tasks: list[tuple[str, str, str]] = []
        for agent, _ in product(("scout", "clerk"), range(4)):
            cid = await f.ask(agent, "go", skill="work")
            await asyncio.sleep(1)
            track = f.tracker.track(cid)
            assert track is not None
            assert track.task is not None
            tasks.append((agent, cid, track.task.task_id))
        taken = []
        for (at, (agent, cid, _)), (there, (_, path, _)), (body, (_, _, task_id)) in product(
            enumerate(tasks), repeat=3
        ):
            status = await post(f, path, task_id, f.tokens.mint(agent, cid))
            assert status == (200 if at == there == body else 401), (at, there, body)
            taken += [at] * (status == 200)
            await asyncio.sleep(0.05)
        assert taken == list(range(8))
        for agent, cid, task_id in tasks:
            other = "clerk" if agent == "scout" else "scout"
            assert await post(f, cid, task_id, f.tokens.mint(other, cid)) == 401
        assert f.outcomes == []


async def test_a_foreign_token_causes_no_lookup() -> None:
    """A lookup takes time on this disk; without one, the time of a refusal does not reveal whether a task exists."""
    async with fleet(worker("scout"), streaming=False, push=False, disk_s=8) as f:
        cid = await f.ask("scout", "go", skill="work")
        await asyncio.sleep(30)
        track = f.tracker.track(cid)
        assert track is not None
        assert track.task is not None
        forger = CallbackTokens({1: b"x" * 32}, current=1)
        took = []
        for path in (cid, track.task.task_id, "nowhere"):
            for token in (forger.mint("scout", cid), "x", forger.mint("nobody", "nowhere")):
                began = asyncio.get_running_loop().time()
                assert await post(f, path, track.task.task_id, token) == 401
                took.append(asyncio.get_running_loop().time() - began)
        assert max(took) < 0.1
        began = asyncio.get_running_loop().time()
        assert await post(f, "nowhere", "t", f.tokens.mint("scout", "nowhere")) == 401
        assert asyncio.get_running_loop().time() - began > 0.1, "a genuine one is looked up, and that can be seen here"


async def test_a_second_request_cannot_get_the_first_ones_task() -> None:
    """(agent, task) belongs to the request that was bound to it first; the other ends as the agent's fault (F-20)."""

    def hold_back(network: Any) -> None:
        network.fault(SlowStart(seconds=8.0), Match(rpc_method="message/send"))

    async with fleet(worker("scout"), streaming=False, push=False, dialect="0.3", before=hold_back) as f:
        first, second = [await f.ask("scout", "go", skill="work") for _ in range(2)]
        await asyncio.sleep(1)
        now = asyncio.get_running_loop().time()
        stolen = Task(task_id="t-1", context_id="c", status=TaskStatus(state=TaskState.WORKING))
        f.tracker.signal(first, Replied(reply=stolen, began=now))
        f.tracker.signal(second, Replied(reply=stolen, began=now))
        outcome = await f.tracker.wait(second)
        assert outcome.kind is OutcomeKind.PROTOCOL_ERROR
        assert f.tracker.find("scout", "t-1") == first
        assert f.tracker.track(first) is not None
