"""Agent cards: any shape read, the hybrid of 0.3 and 1.0 written. Missing and mistyped members are left out; only a
document that is no card is an error. Security is kept in the 0.3 (OpenAPI) shape. Nothing a card points at is followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleetsim.model.card import AgentCard, AgentExtension, AgentInterface, AgentSkill, Capabilities
from fleetsim.model.errors import WireError
from fleetsim.model.task import JsonObject
from fleetsim.wire.json import present
from fleetsim.wire.reading import ID_CHARS_MAX, URL_CHARS_MAX, camel_case

ITEMS_MAX = 1000
"""Most skills, interfaces or extensions taken from one card."""

_CURRENT_MARKS = frozenset({"supportedInterfaces", "supported_interfaces"})
"""Members of 1.0's cards alone, which are ProtoJSON and so may be in snake_case."""

_MARKS = frozenset({"url", "skills", "capabilities", "protocolVersion"}) | _CURRENT_MARKS


def read_card(value: Any) -> AgentCard:
    """A card of any version. Raises WireError if it is none: no object, or without a name and any known member; or if
    a card of 1.0 has a member in both spellings of ProtoJSON."""
    if not isinstance(value, Mapping) or not (isinstance(value.get("name"), str) and _MARKS & value.keys()):
        raise WireError("not an agent card: an object with a name and skills, url or interfaces is expected")
    if _CURRENT_MARKS & value.keys():
        value = camel_case(value)
    provider, capabilities = _object(value, "provider"), _object(value, "capabilities")
    extended = capabilities.get("extendedAgentCard") is True or value.get("supportsAuthenticatedExtendedCard") is True
    # ``supportedInterfaces`` first, then the 0.3 members; each address, binding and version once.
    version = _text(value, "protocolVersion", 64) or "0.3.0"
    interfaces: dict[tuple[str, str, str], AgentInterface] = {}
    for url, binding, spoken, tenant in _addresses(value):
        if not url or len(url) > URL_CHARS_MAX:
            continue
        interface = AgentInterface(
            url=url, binding=binding or "JSONRPC", protocol_version=spoken or version, tenant=tenant or None
        )
        key = (url, interface.binding.upper(), major_minor(interface.protocol_version))
        interfaces.setdefault(key, interface)
    return AgentCard(
        name=_text(value, "name"),
        description=_text(value, "description"),
        version=_text(value, "version"),
        interfaces=tuple(interfaces.values()),
        capabilities=Capabilities(
            streaming=capabilities.get("streaming") is True,
            push_notifications=capabilities.get("pushNotifications") is True,
            state_transition_history=capabilities.get("stateTransitionHistory") is True,
            extended_card=extended,
            extensions=tuple(
                AgentExtension(
                    uri=uri,
                    description=_text(item, "description") or None,
                    required=item.get("required") is True,
                    params=_object(item, "params"),
                )
                for item in _objects(capabilities, "extensions")
                if (uri := _text(item, "uri", URL_CHARS_MAX))
            ),
        ),
        skills=_skills(value),
        default_input_modes=_texts(value, "defaultInputModes") or ("text/plain",),
        default_output_modes=_texts(value, "defaultOutputModes") or ("text/plain",),
        provider_organization=_text(provider, "organization") or None,
        provider_url=_text(provider, "url") or None,
        documentation_url=_text(value, "documentationUrl") or None,
        icon_url=_text(value, "iconUrl") or None,
        security_schemes=read_schemes(value.get("securitySchemes")),
        security=read_requirements(value),
    )


def _text(obj: JsonObject, name: str, chars_max: int = 65_536) -> str:
    value = obj.get(name)
    return value[:chars_max] if isinstance(value, str) else ""


def _texts(obj: JsonObject, name: str) -> tuple[str, ...]:
    value = obj.get(name)
    return tuple(item for item in value[:ITEMS_MAX] if isinstance(item, str)) if isinstance(value, list) else ()


def _object(obj: JsonObject, name: str) -> JsonObject:
    value = obj.get(name)
    return value if isinstance(value, Mapping) else {}


def _objects(obj: JsonObject, name: str) -> Iterator[JsonObject]:
    value = obj.get(name)
    for item in value[:ITEMS_MAX] if isinstance(value, list) else ():
        if isinstance(item, Mapping):
            yield item


def _addresses(card: JsonObject) -> Iterator[tuple[str, str, str, str]]:
    for item in _objects(card, "supportedInterfaces"):
        binding = _text(item, "protocolBinding", 64) or _text(item, "transport", 64)
        version = _text(item, "protocolVersion", 64)
        yield _text(item, "url"), binding, version, _text(item, "tenant", ID_CHARS_MAX)
    yield _text(card, "url"), _text(card, "preferredTransport", 64), "", ""
    for item in _objects(card, "additionalInterfaces"):
        yield _text(item, "url"), _text(item, "transport", 64), "", ""


def major_minor(version: str) -> str:
    """The first two numbers of a version; the rest does not count in negotiation (A2A 1.0 section 3.6)."""
    return ".".join(version.strip().split(".")[:2])


def _skills(card: JsonObject) -> tuple[AgentSkill, ...]:
    """The first of each id."""
    skills: dict[str, AgentSkill] = {}
    for item in _objects(card, "skills"):
        skill_id = _text(item, "id", ID_CHARS_MAX) or _text(item, "name", ID_CHARS_MAX)
        if skill_id and skill_id not in skills:
            skills[skill_id] = AgentSkill(
                skill_id=skill_id,
                name=_text(item, "name") or skill_id,
                description=_text(item, "description"),
                tags=_texts(item, "tags"),
                examples=_texts(item, "examples"),
                input_modes=_texts(item, "inputModes"),
                output_modes=_texts(item, "outputModes"),
            )
    return tuple(skills.values())


def write_card(card: AgentCard, *, older: bool | None = None, current: bool | None = None) -> dict[str, Any]:
    """The card for every client at once (interop.md section 8).

    The 0.3 shape (``older``) is written when an interface below 1.0 is offered, the 1.0 shape (``current``)
    when one of 1.0 is; so a card for one dialect is exactly that dialect's. Either can be chosen instead.
    """
    offered = [item for item in card.interfaces if not is_current(item)]
    older = bool(offered or not card.interfaces) if older is None else older
    current = len(offered) < len(card.interfaces) if current is None else current
    capabilities, written = card.capabilities, dict[str, Any]()
    if older and offered:  # 0.3.0 sections 5.5 and 5.6: one address, and all of them again as additional ones
        numbers = offered[0].protocol_version.split(".")
        written = {
            "protocolVersion": ".".join([*numbers, "0", "0"][: max(3, len(numbers))]),
            "url": offered[0].url,
            "preferredTransport": offered[0].binding,
            "additionalInterfaces": [{"transport": item.binding, "url": item.url} for item in offered],
        }
    if current:  # 1.0 section 4.4.6
        written["supportedInterfaces"] = [
            {
                "url": item.url,
                "protocolBinding": item.binding,
                "protocolVersion": major_minor(item.protocol_version),
                **present(tenant=item.tenant),
            }
            for item in card.interfaces
        ]
    provider = {"organization": card.provider_organization or "", "url": card.provider_url or ""}
    return {
        "name": card.name,
        "description": card.description,
        "version": card.version,
        **written,
        "capabilities": {
            "streaming": capabilities.streaming,
            "pushNotifications": capabilities.push_notifications,
            **({"stateTransitionHistory": capabilities.state_transition_history} if older else {}),
            **({"extendedAgentCard": capabilities.extended_card} if current else {}),
            **present(
                extensions=[
                    {
                        "uri": item.uri,
                        **present(description=item.description),
                        "required": item.required,
                        **present(params=dict(item.params)),
                    }
                    for item in capabilities.extensions
                ]
            ),
        },
        "defaultInputModes": list(card.default_input_modes),
        "defaultOutputModes": list(card.default_output_modes),
        "skills": [_write_skill(skill) for skill in card.skills],
        **present(
            provider=provider
            if any(given is not None for given in (card.provider_organization, card.provider_url))
            else None,
            documentationUrl=card.documentation_url,
            iconUrl=card.icon_url,
        ),
        **({"supportsAuthenticatedExtendedCard": capabilities.extended_card} if older else {}),
        **write_schemes(card.security_schemes, older=older, current=current),
        **write_requirements(card.security, older=older, current=current),
    }


def is_current(interface: AgentInterface) -> bool:
    """Whether an interface speaks 1.0 or newer. A version that is not a number counts as older."""
    major = interface.protocol_version.strip().split(".")[0]
    return major.isascii() and major.isdigit() and int(major[:9]) >= 1


def _write_skill(skill: AgentSkill) -> dict[str, Any]:
    return {
        "id": skill.skill_id,
        "name": skill.name,
        "description": skill.description,
        "tags": list(skill.tags),
        **present(
            examples=list(skill.examples), inputModes=list(skill.input_modes), outputModes=list(skill.output_modes)
        ),
    }


# -- security -----------------------------------------------------------------------------------------------------
# The OpenAPI shape of 0.3 and the wrapped shape of 1.0 share one member, ``securitySchemes``. In a hybrid card each
# scheme carries both: readers of either version take the members they know and pass over the rest, which is how SDK
# servers of 1.x that also speak 0.3 write it, and which SDK clients of both versions were seen to accept.

SCHEMES_MAX = 100
"""Most schemes or requirements taken from one card."""

_WRAPPED = {
    "apiKey": "apiKeySecurityScheme",
    "http": "httpAuthSecurityScheme",
    "oauth2": "oauth2SecurityScheme",
    "openIdConnect": "openIdConnectSecurityScheme",
    "mutualTLS": "mtlsSecurityScheme",
}


def read_schemes(value: Any) -> dict[str, Any]:
    """Schemes by name, in the 0.3 shape whatever shape they came in; unreadable ones are left out."""
    if not isinstance(value, Mapping):
        return {}
    schemes = {str(name): _read_scheme(scheme) for name, scheme in list(value.items())[:SCHEMES_MAX]}
    return {name: scheme for name, scheme in schemes.items() if scheme}


def _read_scheme(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("type"), str):
        return {name: item for name, item in value.items() if name not in _WRAPPED.values()}
    for kind, wrapper in _WRAPPED.items():
        inner = value.get(wrapper)
        if isinstance(inner, Mapping):
            renamed = {("in" if kind == "apiKey" and name == "location" else name): inner[name] for name in inner}
            return {"type": kind, **renamed}
    return None


def read_requirements(card: JsonObject) -> tuple[JsonObject, ...]:
    """The credentials a caller must send, as 0.3 writes them: alternatives, each a map of scheme name to scopes."""
    value = card.get("security") or card.get("securityRequirements")
    alternatives = []
    for item in value[:SCHEMES_MAX] if isinstance(value, list) else ():
        if not isinstance(item, Mapping):
            continue
        schemes = item.get("schemes")
        named = schemes if isinstance(schemes, Mapping) else item
        alternatives.append({str(name): _scopes(scopes) for name, scopes in list(named.items())[:SCHEMES_MAX]})
    return tuple(alternatives)


def _scopes(value: Any) -> list[str]:
    listed = value.get("list") if isinstance(value, Mapping) else value
    return [item for item in listed[:SCHEMES_MAX] if isinstance(item, str)] if isinstance(listed, list) else []


def write_schemes(schemes: JsonObject, *, older: bool, current: bool) -> dict[str, Any]:
    """The ``securitySchemes`` member for a card of 0.x (``older``), of 1.0 (``current``) or of both."""
    written: dict[str, Any] = {}
    for name, scheme in schemes.items():
        if isinstance(scheme, Mapping):
            written[name] = dict(scheme) if older else {}
            if current and (wrapper := _WRAPPED.get(str(scheme.get("type")))) is not None:
                members = {("location" if key == "in" else key): scheme[key] for key in scheme if key != "type"}
                written[name][wrapper] = members
    return {"securitySchemes": written} if written else {}


def write_requirements(security: tuple[JsonObject, ...], *, older: bool, current: bool) -> dict[str, Any]:
    """The ``security`` (0.x) and ``securityRequirements`` (1.0) members."""
    written: dict[str, Any] = {}
    if security and older:
        written["security"] = [{name: list(scopes) for name, scopes in item.items()} for item in security]
    if security and current:
        written["securityRequirements"] = [
            {"schemes": {name: {"list": list(scopes)} for name, scopes in item.items()}} for item in security
        ]
    return written
