"""The agent card as a value (A2A 1.0 section 4.4, which the 0.3 shape maps into)."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from fleetsim.model.task import JsonObject


class AgentInterface(Struct, frozen=True, kw_only=True):
    """One address of an agent. ``protocol_version`` is the text of the card, such as "0.3.0"."""

    url: str
    binding: str = "JSONRPC"
    protocol_version: str = "0.3.0"
    tenant: str | None = None


class AgentExtension(Struct, frozen=True, kw_only=True):
    uri: str
    description: str | None = None
    required: bool = False
    params: JsonObject = {}


class Capabilities(Struct, frozen=True, kw_only=True):
    """The abilities that the card declares; an absent one is false."""

    streaming: bool = False
    push_notifications: bool = False
    state_transition_history: bool = False
    extended_card: bool = False
    extensions: tuple[AgentExtension, ...] = ()


class AgentSkill(Struct, frozen=True, kw_only=True):
    """One thing an agent offers to do."""

    skill_id: str
    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()


class ProofState(StrEnum):
    """The state of a card's signatures (A2A 1.0 section 8.4)."""

    UNSIGNED = "unsigned"
    VERIFIED = "verified"
    """One fits the card, and its key belongs to a signer of the agent."""
    UNVERIFIED = "unverified"
    """It is not known whether one fits, or whose the key is."""
    FAILED = "failed"
    """One does not fit the card, though its key was there, and no other was verified."""


class CardProof(Struct, frozen=True, kw_only=True):
    """``signer`` is the key of a signature that fits, and where it was found; ``why`` the reason for the state."""

    state: ProofState = ProofState.UNSIGNED
    signer: str = ""
    why: str = ""

    def __str__(self) -> str:
        match self.state:
            case ProofState.UNSIGNED:
                return "the card is not signed"
            case ProofState.VERIFIED:
                return f"verified: {self.signer}"
            case ProofState.UNVERIFIED:
                return f"not verified: {self.why}"
            case ProofState.FAILED:
                return f"does not hold: {self.why}"

    @property
    def doubt(self) -> str:
        """A warning if a signature failed; "" otherwise."""
        return f"the signature of its card {self}" if self.state is ProofState.FAILED else ""


class AgentCard(Struct, frozen=True, kw_only=True):
    """The name, the addresses and the skills of an agent.

    ``interfaces`` are in the card's order of preference. ``security_schemes`` and ``security`` have the 0.3 (OpenAPI)
    shape; the 1.0 form is converted to it. ``proof`` is what fleetsim found out about its signatures; it is never
    written.
    """

    name: str
    description: str = ""
    version: str = ""
    interfaces: tuple[AgentInterface, ...] = ()
    capabilities: Capabilities = Capabilities()
    skills: tuple[AgentSkill, ...] = ()
    default_input_modes: tuple[str, ...] = ("text/plain",)
    default_output_modes: tuple[str, ...] = ("text/plain",)
    provider_organization: str | None = None
    provider_url: str | None = None
    documentation_url: str | None = None
    icon_url: str | None = None
    security_schemes: JsonObject = {}
    security: tuple[JsonObject, ...] = ()
    proof: CardProof = CardProof()

    def skill(self, skill_id: str) -> AgentSkill | None:
        """Return the skill with that id, or None."""
        return next((s for s in self.skills if s.skill_id == skill_id), None)

    def extension(self, uri: str) -> AgentExtension | None:
        """Return the declaration of that extension, or None."""
        return next((e for e in self.capabilities.extensions if e.uri == uri), None)
