"""The signer of a card, and the client's handling of a failed or missing signature."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from fleetsim.agent import Agent, SkillContext
from fleetsim.agent.agent import Engine, build_app
from fleetsim.agent.card_signer import CardSigner
from fleetsim.agent.settings import CARD_PATHS
from fleetsim.client import AgentClient
from fleetsim.client.card_trust import CardTrust
from fleetsim.model.card import ProofState
from fleetsim.model.errors import CardNotTrusted, HttpRefused, WireError
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import MemoryFiles, virtual_runtime
from fleetsim.wire.cards import write_card
from tests.wire.test_card_signing import CARD, SIGNER, pem_of

URL, KEYS = "https://quinn.example", "https://quinn.example/keys.json"
OTHER = CardSigner(pem_of(ec.generate_private_key(ec.SECP256R1())), "other.pem")
REQUIRED = CardTrust(required=True)
Change = Callable[[dict[str, Any]], dict[str, Any]]


def changed(card: dict[str, Any]) -> dict[str, Any]:
    return {**card, "description": "changed on its way"}


@asynccontextmanager
async def served(
    key_url: str = KEYS, change: Change = dict, *, signer: CardSigner | None = SIGNER, keys: CardSigner = SIGNER
) -> AsyncIterator[Callable[..., AgentClient]]:
    """A card, signed and then changed, and the keys at ``key_url``; yields a function that makes a client."""
    card = write_card(CARD)
    signed = change(signer.sign(card, key_url) if signer else card)

    async def card_at(_: Request) -> JSONResponse:
        return JSONResponse(signed)

    async def keys_at(_: Request) -> JSONResponse:
        return JSONResponse(keys.key_set)

    network, files = MemoryNetwork(), MemoryFiles({"keys.json": json.dumps(keys.key_set)})
    network.mount(URL, Starlette(routes=[*(Route(path, card_at) for path in CARD_PATHS), Route("/keys.json", keys_at)]))
    network.mount("https://elsewhere.example", Starlette(routes=[Route("/keys.json", keys_at)]))
    network.mount("https://10.0.0.7", Starlette(routes=[Route("/keys.json", keys_at)]))
    runtime = replace(virtual_runtime(0, network), files=files)
    async with network:
        yield lambda trust, **options: AgentClient(URL, runtime=runtime, trust=trust, **options)


@pytest.mark.parametrize("trust", [CardTrust(), REQUIRED, CardTrust(required=True, signers=("keys.json",))])
async def test_a_key_at_the_agents_origin_or_in_a_file_verifies_the_card(trust: CardTrust) -> None:
    async with served() as client:
        card = await client(trust).discover()
    assert card.proof.state is ProofState.VERIFIED
    assert SIGNER.key_id in card.proof.signer


@pytest.mark.parametrize("signers", [(), ("keys.json",)])
async def test_a_failed_signature_is_a_warning_and_refused_where_one_is_required(signers: tuple[str, ...]) -> None:
    async with served(change=changed) as client:
        lenient = client(CardTrust(signers=signers))
        assert (await lenient.discover()).proof.state is ProofState.FAILED
        assert any("signature" in warning for warning in (await lenient.choice()).warnings)
        assert ["signature" in doubt for doubt in lenient.doubts] == [True]
        with pytest.raises(CardNotTrusted):
            await client(CardTrust(required=True, signers=signers)).discover()


async def test_a_card_without_a_canonical_form_blames_no_key() -> None:
    def extended(card: dict[str, Any]) -> dict[str, Any]:
        extension = {"uri": "https://x.example/build", "params": {"number": 2**60}}
        return {**card, "capabilities": {**card["capabilities"], "extensions": [extension]}}

    async with served(change=extended) as client:
        card = await client(CardTrust()).discover()
    assert card.proof.state is ProofState.FAILED
    assert "2^53" in card.proof.why
    assert card.proof.signer == ""


async def test_another_signer_than_the_named_ones_fails() -> None:
    async with served(keys=OTHER) as client:
        card = await client(CardTrust(signers=("keys.json",))).discover()
        assert card.proof.state is ProofState.FAILED


@pytest.mark.parametrize(
    ("key_url", "state"),
    [
        ("", ProofState.UNVERIFIED),
        ("https://elsewhere.example/keys.json", ProofState.UNVERIFIED),
        ("https://10.0.0.7/keys.json", ProofState.UNVERIFIED),
        ("http://quinn.example:443/keys.json", ProofState.UNVERIFIED),
        ("https://quinn.example/nothing.json", ProofState.UNVERIFIED),
        ("file:///etc/passwd", ProofState.UNVERIFIED),
        ("keys.json", ProofState.UNVERIFIED),
    ],
)
async def test_a_key_that_anybody_could_have_named_verifies_no_card(key_url: str, state: ProofState) -> None:
    async with served(key_url) as client:
        assert (await client(CardTrust()).discover()).proof.state is state
        with pytest.raises(CardNotTrusted):
            await client(REQUIRED).discover()


async def test_no_card_causes_a_read_of_a_local_file() -> None:
    async with served("keys.json") as client:
        assert not (await client(CardTrust()).discover()).proof.signer


async def test_a_key_at_another_origin_verifies_the_card_if_its_address_is_named() -> None:
    async with served("https://elsewhere.example/keys.json") as client:
        trust = CardTrust(required=True, signers=("https://elsewhere.example/keys.json",))
        assert (await client(trust).discover()).proof.state is ProofState.VERIFIED


@pytest.mark.parametrize("signatures", [None, [], [None], {"a": 1}, [{"protected": "e30", "signature": "AA"}]])
async def test_a_card_without_a_signature_is_refused_where_one_is_required(signatures: object) -> None:
    async with served(change=lambda card: {**card, "signatures": signatures}, signer=None) as client:
        assert (await client(CardTrust()).discover()).proof.state in {ProofState.UNSIGNED, ProofState.UNVERIFIED}
        with pytest.raises(CardNotTrusted):
            await client(REQUIRED).discover()


async def test_a_pinned_dialect_does_not_call_an_agent_whose_card_is_refused() -> None:
    async with served(change=changed) as client:
        pinned = client(REQUIRED, dialect="0.3")
        with pytest.raises(CardNotTrusted):
            await pinned.send_task("hi")


async def test_a_required_signature_needs_a_card_also_where_the_dialect_is_pinned() -> None:
    network = MemoryNetwork()
    network.mount(URL, Starlette())
    async with network:
        with pytest.raises(HttpRefused):
            await AgentClient(URL, runtime=virtual_runtime(0, network), trust=REQUIRED, dialect="0.3").send_task("hi")
    assert {seen.request.method for seen in network.seen} == {"GET"}


@pytest.mark.parametrize("dialect", ["1.0", "0.3"])
async def test_our_agent_signs_its_card_and_its_extended_card(dialect: str, tmp_path: Any) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(pem_of(ec.generate_private_key(ec.SECP256R1())))
    key.chmod(0o600)
    agent = Agent("quinn", url=f"{URL}/a2a", dialects=(dialect,), sign_key=key, api_key="k" * 32)

    @agent.skill("echo")
    async def echo(task: SkillContext) -> str:
        return task.text

    @agent.skill("audit", public=False)
    async def audit(task: SkillContext) -> str:
        return task.text

    network = MemoryNetwork()
    network.mount(URL, build_app(Engine(agent.settings, virtual_runtime(1, network, name="quinn"))))
    async with network:
        reader = AgentClient(URL, runtime=virtual_runtime(0, network), trust=REQUIRED)
        public = await reader.discover()
        known = await AgentClient(
            URL, runtime=virtual_runtime(0, network), trust=REQUIRED, auth_token=None, headers={"x-api-key": "k" * 32}
        ).extended_card()
    assert (public.proof.state, known.proof.state) == (ProofState.VERIFIED, ProofState.VERIFIED)
    assert [skill.skill_id for skill in known.skills] == ["echo", "audit"]


async def test_an_invalid_card_stays_a_wire_error() -> None:
    async with served(change=lambda _: {"signatures": [1]}) as client:
        with pytest.raises(WireError):
            await client(REQUIRED).discover()


async def test_a_failed_signature_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with served(f"{KEYS}?once", change=changed) as client:
        reader = client(CardTrust())
        for _ in range(3):
            await reader.discover(refresh=True)
    assert len([line for line in caplog.records if "signature" in line.getMessage()]) == 1
