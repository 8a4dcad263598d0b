"""The promises of a card to its callers, as short texts to keep in a file, and the changes between two cards. Pure.

The texts of a card are hostile: each is one harmless, short line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from urllib.parse import urlsplit

from msgspec import MsgspecError, Struct, json, structs

from fleetsim.model.card import AgentCard, AgentInterface, AgentSkill, ProofState
from fleetsim.model.errors import WireError
from fleetsim.model.security import in_words, requested_schemes
from fleetsim.model.text import one_line
from fleetsim.wire.cards import major_minor
from fleetsim.wire.choice import origin_of

_CHARS_MAX = 200
_FREE = "none requested"
_VERIFIED, _BROKEN = "verified", "does not hold"


class CardChange(Struct, frozen=True, kw_only=True):
    """One difference. ``breaking``: callers that relied on the card before may fail now."""

    text: str
    breaking: bool = False

    def __str__(self) -> str:
        return self.text


class SkillFacts(Struct, frozen=True, kw_only=True):
    """A skill: its name and description, and media types as "takes text/plain" and "gives text/plain"."""

    text: str
    modes: tuple[str, ...]


class CardFacts(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A card in short texts. ``interfaces`` name an address of the agent's own origin by its path.

    ``credentials`` are the alternatives that the card requests. ``signature`` is None if it is not to be compared.
    """

    name: str
    version: str
    description: str
    skills: Mapping[str, SkillFacts]
    interfaces: tuple[str, ...]
    capabilities: tuple[str, ...]
    required_extensions: tuple[str, ...]
    credentials: tuple[str, ...]
    signature: str | None = None

    @classmethod
    def of(cls, card: AgentCard, url: str, *, signature: bool = True) -> CardFacts:
        """The promise of the agent at ``url``."""
        proof = card.proof
        signed = {
            ProofState.UNSIGNED: "unsigned",
            ProofState.VERIFIED: f"{_VERIFIED}: {_line(proof.signer)}",
            ProofState.UNVERIFIED: "not verified",
            ProofState.FAILED: _BROKEN,
        }[proof.state]
        able = card.capabilities
        flags = {
            "streaming": able.streaming,
            "push notifications": able.push_notifications,
            "extended card": able.extended_card,
        }
        return cls(
            name=_line(card.name),
            version=_line(card.version),
            description=_line(card.description),
            skills={one_line(skill.skill_id, 64): _skill(skill, card) for skill in card.skills if skill.skill_id},
            interfaces=tuple(dict.fromkeys(_interface(interface, url) for interface in card.interfaces)),
            capabilities=tuple(name for name, has in flags.items() if has),
            required_extensions=tuple(_line(extension.uri) for extension in able.extensions if extension.required),
            credentials=tuple(in_words((scheme,)) for scheme in requested_schemes(card)) or (_FREE,),
            signature=signed if signature else None,
        )

    def changes_to(self, now: CardFacts) -> tuple[CardChange, ...]:
        return tuple(self._changes(now))

    def _changes(self, now: CardFacts) -> Iterator[CardChange]:
        yield from _lines("skill", self.skills, now.skills)
        yield from _lines("interface", self.interfaces, now.interfaces)
        for name in _added(self.capabilities, now.capabilities):
            yield CardChange(text=f"{name} on")
        for name in _added(now.capabilities, self.capabilities):
            yield CardChange(text=f"{name} off", breaking=True)
        for change in _lines("credential", self.credentials, now.credentials):
            yield structs.replace(change, breaking=change.breaking and _FREE not in now.credentials)
        for uri in _added(self.required_extensions, now.required_extensions):
            yield CardChange(text=f"required extension +{uri}", breaking=True)
        for uri in _added(now.required_extensions, self.required_extensions):
            yield CardChange(text=f"required extension -{uri}")
        if None not in {self.signature, now.signature} and self.signature != now.signature:
            worse = str(self.signature).startswith(_VERIFIED) or now.signature == _BROKEN
            yield CardChange(text=f"signature: {self.signature} -> {now.signature}", breaking=worse)
        for skill_id, before in self.skills.items():
            if (after := now.skills.get(skill_id)) is not None:
                yield from _lines(f"skill {skill_id}:", before.modes, after.modes)
                if before.text != after.text:
                    yield CardChange(text=f"text of skill {skill_id}")
        if self.version != now.version:
            yield CardChange(text=f"version: {self.version} -> {now.version}")
        for name in ("name", "description"):
            if getattr(self, name) != getattr(now, name):
                yield CardChange(text=name)


class LockedCards(Struct, frozen=True, tag="fleetsim/card-lock/1", tag_field="schema"):
    """The cards of a fleet by the names of its agents, as a file keeps them."""

    agents: dict[str, CardFacts]

    @classmethod
    def read(cls, content: bytes) -> LockedCards:
        """Raises WireError."""
        try:
            return json.decode(content, type=cls)
        except MsgspecError as error:
            raise WireError(one_line(str(error), _CHARS_MAX)) from None

    def file(self) -> bytes:
        """The content of the file, sorted."""
        ordered = structs.replace(self, agents=dict(sorted(self.agents.items())))
        return json.format(json.encode(ordered), indent=2) + b"\n"

    def changes_to(self, read: Mapping[str, CardFacts]) -> Iterator[tuple[str, CardChange]]:
        """The differences of the cards in ``read``, each with its agent."""
        for name, now in read.items():
            if (before := self.agents.get(name)) is None:
                yield name, CardChange(text="is not in the lock")
            else:
                yield from ((name, change) for change in before.changes_to(now))


def _added(before: Collection[str], now: Collection[str]) -> list[str]:
    return [line for line in now if line not in before]


def _lines(what: str, before: Collection[str], now: Collection[str]) -> Iterator[CardChange]:
    """Changes of lines of which callers use one: a removed one breaks the callers that use it."""
    for line in _added(before, now):
        yield CardChange(text=f"{what} +{line}")
    for line in _added(now, before):
        yield CardChange(text=f"{what} -{line}", breaking=True)


def _line(text: str) -> str:
    return one_line(text, _CHARS_MAX)


def _skill(skill: AgentSkill, card: AgentCard) -> SkillFacts:
    takes, gives = skill.input_modes or card.default_input_modes, skill.output_modes or card.default_output_modes
    modes = (*(f"takes {_line(mode)}" for mode in takes), *(f"gives {_line(mode)}" for mode in gives))
    return SkillFacts(text=_line(f"{skill.name}: {skill.description}"), modes=tuple(dict.fromkeys(modes)))


def _interface(one: AgentInterface, url: str) -> str:
    own = origin_of(one.url) == origin_of(url)
    path = urlsplit(one.url).path or "/" if own else one.url
    tenant = f" tenant {one.tenant}" if one.tenant else ""
    return _line(f"{one.binding} {major_minor(one.protocol_version)} {path}{tenant}")
