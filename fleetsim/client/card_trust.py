"""Who signed an agent's card, and whether that is enough (A2A 1.0 section 8.4.3)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fleetsim.model.card import AgentCard, CardProof, ProofState
from fleetsim.model.errors import CardNotTrusted, ConfigError, FleetsimError
from fleetsim.model.text import one_line
from fleetsim.runtime.address import AddressPolicy, on_this_machine, parse_webhook_url
from fleetsim.runtime.exchange import where_of
from fleetsim.runtime.ports import Limits, Request, Runtime
from fleetsim.wire.cards import read_card
from fleetsim.wire.choice import origin_of

if TYPE_CHECKING:
    from joserfc.jwk import Key

    from fleetsim.wire.card_signing import Signature

_warn_once = lru_cache(256)(logging.getLogger(__name__).warning)  # a hub reads the card again and again


@dataclass(frozen=True, slots=True, kw_only=True)
class CardTrust:
    """The signers of an agent's card. ``required``: a card counts only with a verified signature.

    ``signers`` are files (JWK Set, JWK or PEM) and https addresses (JWK Set) with their public keys. Without any, a
    signature is verified by a key that it names at the agent's own origin; by https if a signature is required.
    """

    required: bool = False
    signers: tuple[str, ...] = ()

    async def read(self, value: Any, url: str, runtime: Runtime, limits: Limits) -> AgentCard:
        """The card in ``value``, of the agent at ``url``: only the part that a verified signature covers. Raises
        WireError if it is no card, and CardNotTrusted without a required signature.
        """
        card = read_card(value)
        covered, proof = await self.prove(value, url, runtime, limits)
        if proof.doubt:
            _warn_once("%s: %s", where_of(url), proof.doubt)
        if self.required and proof.state is not ProofState.VERIFIED:
            hint = "ask the agent's owner for a signed card and its public key; name the key in `signers` or --signer"
            raise CardNotTrusted(f"{where_of(url)}: `trust: signed` (--signer) refuses the card: {proof}", hint=hint)
        return card if proof.state is ProofState.UNSIGNED else replace(read_card(covered), proof=proof)

    async def prove(
        self, value: Mapping[str, Any], url: str, runtime: Runtime, limits: Limits
    ) -> tuple[Mapping[str, Any], CardProof]:
        """The part of the card that counts, and what is known about its signatures."""
        if not value.get("signatures"):
            return value, CardProof()
        from fleetsim.wire.card_signing import FORMS, forms_of, signatures_of, verify  # not for cards without one

        forms, proof = forms_of(value), CardProof(state=ProofState.UNVERIFIED, why="it has no readable signature")
        for signature in signatures_of(value):
            named = f"key {one_line(signature.key_id, 80) or 'without a name'}"
            try:
                keys, place, known = await self._keys(signature, url, runtime, limits)
            except FleetsimError as error:
                proof = _worse(proof, ProofState.UNVERIFIED, f"{named}: {error}")
                continue
            covered = verify(forms, signature, keys)
            signer = f"{named}, from {place}"
            if covered is not None and known:
                return covered, CardProof(state=ProofState.VERIFIED, signer=signer)
            if covered is not None:
                why = f"{signer} fits, but that is not the agent's origin, and no signer is named in `signers`"
                proof = _worse(proof, ProofState.UNVERIFIED, why, signer)
            elif len(forms) < FORMS:
                why = "the card has no canonical form (RFC 8785): a number is above 2^53, or a text is not Unicode"
                proof = _worse(proof, ProofState.FAILED, why)
            elif any(key.kid for key in keys):
                proof = _worse(proof, ProofState.FAILED, f"the card is not what {signer} signed")
            else:
                why = f"{named} is none of the signers' keys, or the card was changed"
                proof = _worse(proof, ProofState.FAILED, why)
        return value, proof

    async def _keys(
        self, signature: Signature, url: str, runtime: Runtime, limits: Limits
    ) -> tuple[list[Key], str, bool]:
        """The keys to try, where they are from, and whether they belong to a signer of the agent.

        A key of a PEM file has no name; it is tried where no other has the right one. Raises FleetsimError.
        """
        if signature.broken:
            raise ConfigError(signature.broken)
        nameless: list[Key] = []
        for signer in self.signers:
            keys = await self._read(signer, signer, runtime, limits)
            if named := [key for key in keys if key.kid == signature.key_id]:
                return named, one_line(signer, 200), True
            nameless += [key for key in keys if not key.kid]
        if self.signers:
            return nameless, one_line(", ".join(self.signers), 200), True
        if not signature.key_url:
            raise ConfigError("its signature does not say where it is (jku); give it with --signer, or with `signers`")
        keys = await self._read(signature.key_url, url, runtime, limits)
        place = one_line(signature.key_url, 200)
        if named := [key for key in keys if key.kid == signature.key_id]:
            return named, place, origin_of(signature.key_url) == origin_of(url)
        raise ConfigError(f"{place} has no such key")

    async def _read(self, source: str, trusted: str, runtime: Runtime, limits: Limits) -> list[Key]:
        """The keys in a signer's file or at an address, of another origin than that of ``trusted`` at a public one."""
        from fleetsim.wire.card_signing import KEYS_BYTES_MAX, read_keys

        if source in self.signers and origin_of(source) is None:  # no card names a file of this machine
            return read_keys(await runtime.files.read(Path(source), bytes_max=KEYS_BYTES_MAX), source)
        own = origin_of(source) == origin_of(trusted)
        plain = own and (on_this_machine(source) or not self.required)  # the card comes the same way
        schemes = ("https", "http") if plain else ("https",)
        url = parse_webhook_url(source, what="the address of its key", schemes=schemes).url
        transport = runtime.transport if own else runtime.transport.guarded(AddressPolicy())
        reply = await transport.exchange(
            Request(method="GET", url=url, limits=replace(limits, body_bytes_max=KEYS_BYTES_MAX))
        )
        if reply.status != 200:
            raise ConfigError(f"{where_of(url)} answered HTTP {reply.status} for it")
        return read_keys(reply.body, one_line(url, 200))


def _worse(proof: CardProof, state: ProofState, why: str, signer: str = "") -> CardProof:
    """The proof after one more signature that was not verified: a failed one decides."""
    if proof.state is ProofState.FAILED:
        return proof
    return CardProof(state=state, why=one_line(why, 400), signer=signer)
