"""agents.yaml and a first ceremony, written from what the cards of agents say. Pure.

The texts of a card are hostile: in a comment one is a harmless line, as a value it is quoted so that it means exactly
what the card said, and what cannot be written so is left out.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from fleetsim.model.card import AgentCard, AgentSkill
from fleetsim.model.errors import FleetsimError, HttpRefused
from fleetsim.model.security import in_words, requested_schemes
from fleetsim.model.text import one_line
from fleetsim.model.work import ALL, ID

SCHEMA_FOLDER, AGENTS_SCHEMA, CEREMONY_SCHEMA = ".fleetsim", "agents.schema.json", "ceremony.schema.json"
CEREMONIES_FOLDER = "ceremonies"

_WIDTH = 100
_SKILLS_SHOWN = 12
_SKILL_CHARS_MAX = 200
_PROMPT_CHARS_MAX = 500
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*", re.ASCII)
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableAgent:
    """An agent whose card was read. ``dialect`` and ``rpc_url`` are how it would be called."""

    name: str
    url: str
    card: AgentCard
    dialect: str
    rpc_url: str
    warnings: tuple[str, ...] = ()
    api_key_env: str | None = None
    bearer_env: str | None = None
    auth: str | None = None
    proxy: str | None = None
    ca: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableAgent:
    """An address where no card could be read, and why."""

    url: str
    error: FleetsimError


def agent_name(wanted: str, taken: Collection[str]) -> str:
    """A valid name for agents.yaml, as near to ``wanted`` as may be, that none of ``taken`` has."""
    base = _slug(wanted)[:60] or "agent"
    if base == ALL:
        base = "agent"
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base[: 63 - len(str(count))]}-{count}"
    return name


def agents_yaml(read: Sequence[ReadableAgent], unread: Sequence[UnreadableAgent] = ()) -> str:
    """The text of agents.yaml for these agents; without any, one to start from."""
    agents = entries(read, unread) if read else _STARTER
    return f"# yaml-language-server: $schema={SCHEMA_FOLDER}/{AGENTS_SCHEMA}\n{_HEAD}agents:\n{agents}{_FOOT}"


def entries(read: Sequence[ReadableAgent], unread: Sequence[UnreadableAgent] = ()) -> str:
    """The items of ``agents:``; addresses where nothing could be read stand commented out."""
    names = {agent.name for agent in read}
    items = [_entry(agent) for agent in read]
    for unreadable in unread:
        name = agent_name(urlsplit(unreadable.url).hostname or "agent", names)
        names.add(name)
        lines = _comment(f"Not read: {one_line(str(unreadable.error), 300)}")
        lines += [f"  # - name: {yaml_text(name)}", f"  #   url: {_url(unreadable.url)}"]
        if isinstance(unreadable.error, HttpRefused) and unreadable.error.status == 404:
            lines += ['  #   dialect: "0.3" # an agent without a card: say its dialect and its skills']
            lines += ["  #   skills: [chat]"]
        items.append("\n".join(lines) + "\n")
    return "\n".join(items)


def ceremony(read: Sequence[ReadableAgent]) -> tuple[str, str] | None:
    """A first ceremony, as the name of its file and its text, for the first skill that can be asked for."""
    for agent in read:
        for skill in agent.card.skills:
            if 0 < len(skill.skill_id) <= _SKILL_CHARS_MAX and _writable(skill.skill_id):
                return _ceremony(agent.name, skill)
    return None


def starter_ceremony() -> tuple[str, str]:
    """A first ceremony for the agent of the starter file."""
    skill = AgentSkill(
        skill_id="echo", name="Echo", description="Repeats the text of the request", examples=("Good morning",)
    )
    return _ceremony("reference", skill)


def yaml_text(text: str) -> str:
    """``text`` as one YAML scalar on one line that is read back as exactly this text."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    quoted = ""
    for character in text:
        code = ord(character)
        if character in {'"', "\\"}:
            quoted += f"\\{character}"
        elif character == one_line(character) and character.isprintable():
            quoted += character
        else:
            quoted += f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
    return f'"{quoted}"'


# ------------------------------------------------------------------ parts


def _entry(agent: ReadableAgent) -> str:
    card = agent.card
    about = one_line(card.description, 300).strip()
    title = one_line(card.name, 80).strip() or agent.name
    skills = [one_line(skill.skill_id, 40) for skill in card.skills]
    more = f" and {len(skills) - _SKILLS_SHOWN} more" if len(skills) > _SKILLS_SHOWN else ""
    able = ["streams"] * card.capabilities.streaming + ["takes webhooks"] * card.capabilities.push_notifications
    lines = [
        *_comment(f"{title}: {about}" if about else title),
        *_comment(f"A2A {agent.dialect} at {one_line(agent.rpc_url, 200)}" + "".join(f"; {word}" for word in able)),
        *_comment(f"Skills: {', '.join(skills[:_SKILLS_SHOWN])}{more}" if skills else "Its card names no skills."),
        *(line for warning in agent.warnings for line in _comment(f"Note: {warning}")),
        f"  - name: {yaml_text(agent.name)}",
        f"    url: {_url(agent.url)}",
    ]
    lines += [f"    proxy: {yaml_text(agent.proxy)}"] if agent.proxy else []
    lines += [f"    ca: {yaml_text(agent.ca)}"] if agent.ca else []
    return "\n".join([*lines, *(f"    {line}" for line in _credential(agent))]) + "\n"


def _credential(agent: ReadableAgent) -> list[str]:
    """The lines about the secret: those asked for, or a placeholder where the card wants one."""
    if agent.api_key_env:
        return [f"apiKeyEnv: {yaml_text(agent.api_key_env)} # the variable that holds the key, never the key"]
    if agent.bearer_env:
        name = yaml_text(agent.bearer_env)
        return [f"auth: {{ scheme: bearer, credentialsEnv: {name} }} # the variable that holds the token"]
    if agent.auth:
        return [f"auth: {agent.auth}"]
    requested = requested_schemes(agent.card)
    if not requested:
        return []
    words = one_line(in_words(requested), 300)
    if text := suggested_entry(agent.card, agent.name):
        return [f"# Its card requests {words}. Put it into a variable, name that here, and remove the #:", f"# {text}"]
    return [f"# Its card requests {words}, which fleetsim cannot send."]


def suggested_entry(card: AgentCard, name: str) -> str:
    """The line of agents.yaml for the first alternative of the card that fleetsim can send; "" if it can send none."""
    from fleetsim.fleet.auth import entry_text  # not for those who only read help

    variable = re.sub(r"[^A-Z0-9]", "_", name.upper())
    variable = variable if variable[0].isalpha() else f"AGENT_{variable}"
    texts = (entry_text(schemes, variable) for schemes in requested_schemes(card))
    return next((f"auth: {text}" for text in texts if text), "")


def _ceremony(agent: str, skill: AgentSkill) -> tuple[str, str]:
    key = f"{agent}.{_slug(skill.skill_id)[:60] or 'skill'}"
    assert ID.fullmatch(key)
    name = one_line(skill.name, 120).strip() or one_line(skill.skill_id, 120)
    about = one_line(skill.description, 300).strip()
    comment = _comment(f"{agent} says of this skill: {about}") if about else []
    example = next((text for text in skill.examples if text.strip() and _writable(text)), "")
    text = _CEREMONY.format(
        schema=f"../{SCHEMA_FOLDER}/{CEREMONY_SCHEMA}",
        about="".join(f"{line.strip()}\n" for line in comment),
        key=key,
        id=yaml_text(key),
        name=yaml_text(f"{name}, by {agent}"),
        skill=yaml_text(skill.skill_id),
        agent=yaml_text(agent),
        prompt=f"prompt: {yaml_text(example[:_PROMPT_CHARS_MAX])} # the text for the agent; an example from its card"
        if example
        else "# prompt: the text for the agent; by default a text with the keys of this file",
    )
    return f"{CEREMONIES_FOLDER}/{key}.yaml", text


def _comment(text: str) -> list[str]:
    """One harmless line of text, wrapped, as comments at an entry's depth."""
    return [f"  # {line}" for line in textwrap.wrap(one_line(text, 1_000), _WIDTH)]


def _url(url: str) -> str:
    """An address as agents.yaml holds it: whatever looks like a reference to a variable is not one."""
    text = url.replace("${", "$${")
    return text if re.fullmatch(r"https?://[A-Za-z0-9_.~/\-]+(:[0-9]+)?[A-Za-z0-9_.~/\-]*", text) else yaml_text(text)


def _slug(words: str) -> str:
    """ASCII letters, digits, dots, dashes and underscores of a text, small, beginning with a letter or digit."""
    plain = unicodedata.normalize("NFKD", words[:1_000]).encode("ascii", "ignore").decode("ascii").lower()
    return re.sub(r"[^a-z0-9_.]+", "-", plain).strip("-._")


def _writable(text: str) -> bool:
    """Whether YAML can hold it: lone surrogates are not text."""
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


_HEAD = """\
#
# The fleet that `fleetsim up` runs. A name and a url are enough for an agent; the rest comes from its card.
# Every key has its sentence in .fleetsim/agents.schema.json; an editor that knows YAML shows them as you type.
# A secret is never written here: an entry names the environment variable that holds it.

"""

_STARTER = """\
  # The agent that `fleetsim agent` runs on this machine: start it, then `fleetsim up`. Put yours in its place.
  - name: reference
    url: http://127.0.0.1:9000

  # With a key, somewhere else:
  # - name: quinn
  #   url: https://quinn.example/a2a
  #   apiKeyEnv: QUINN_API_KEY # or: auth: { scheme: bearer, credentialsEnv: QUINN_TOKEN }
"""

_FOOT = """
# How the hub treats the fleet; what stands here is what it does anyway.
# fleet:
#   poll_interval_s: 30 # seconds between two polls of a task without other news
#   question_ttl_s: 86400 # how long an agent's question waits for a person
#   base_url: https://hub.example # where agents on other machines reach the hub's webhooks
"""

_CEREMONY = """\
# yaml-language-server: $schema={schema}
#
# A request that a schedule makes. The hub reads a change within seconds. Set enabled to true, then try it with:
#   fleetsim ceremony run {key} --wait
{about}id: {id}
name: {name}
schedule: "0 9 * * MON-FRI" # minute, hour, day of month, month, day of week
timezone: UTC # or an IANA name such as Europe/Berlin
skill: {skill}
targets: [{agent}] # or [all]: every agent that offers the skill
{prompt}
enabled: false # nothing fires, by schedule or by hand, until this is true
"""
