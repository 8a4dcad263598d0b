"""JSON Schemas of the hub's files, API bodies and events, generated from their classes, in ``docs/reference/schemas``
and in the wheel (``fleetsim/shipped/schemas``). ``fleetsim init`` writes those of the YAML files for editors.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, get_type_hints

from pydantic import BaseModel, Field, create_model
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from fleetsim.api.answer import camel
from fleetsim.ceremony.file import CeremonyFile
from fleetsim.events.request import ENVELOPE, Event, Excerpt, JsonForm
from fleetsim.events.wire import PAYLOAD_MEMBERS, event_classes
from fleetsim.fleet.config import AgentsFile
from fleetsim.fleet.written import AGENTS_SCHEMA, CEREMONY_SCHEMA
from fleetsim.hub.keys import AgentKeysFile, PeopleFile
from fleetsim.hub.openapi import bodies, document
from fleetsim.model.extensions import Usage
from fleetsim.model.parts import ListedPart

AGENT_KEYS_SCHEMA, PEOPLE_SCHEMA = "agent-keys.schema.json", "people.schema.json"
API_SCHEMA = "api.schema.json"
EVENTS_SCHEMA = "events.schema.json"
OPENAPI = "openapi.json"


class _Plain(GenerateJsonSchema):
    """Without pydantic's titles, such as ``Apikeyenv``, which do not help a reader."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def file_schemas() -> dict[str, str]:
    """The schemas of the files that people write, as text by file name."""
    files: tuple[tuple[str, type[BaseModel], str], ...] = (
        (AGENTS_SCHEMA, AgentsFile, "agents.yaml of fleetsim"),
        (CEREMONY_SCHEMA, CeremonyFile, "A ceremony of fleetsim: ceremonies/*.yaml"),
    )
    return {name: of_file(model, title) for name, model, title in files}


def of_file(model: type[BaseModel], title: str) -> str:
    return _text(title, model.model_json_schema(schema_generator=_Plain), keep_descriptions=False)


def schemas() -> dict[str, str]:
    """Every schema as text by its file name."""
    _, schema = models_json_schema([(body, "validation") for body in bodies()], schema_generator=_Plain)
    either = [{"$ref": f"#/$defs/{body.__name__}"} for body in bodies()]
    title = "Bodies of the hub's API"
    return {
        **file_schemas(),
        AGENT_KEYS_SCHEMA: of_file(AgentKeysFile, "agent-keys.yaml of fleetsim"),
        PEOPLE_SCHEMA: of_file(PeopleFile, "people.yaml of fleetsim"),
        API_SCHEMA: _text(title, {"anyOf": either, **schema}),
        EVENTS_SCHEMA: _of_events(),
        OPENAPI: json.dumps(document(), indent=2, ensure_ascii=False) + "\n",
    }


def _text(title: str, schema: dict[str, Any], *, keep_descriptions: bool = True) -> str:
    for part in (schema, *schema.get("$defs", {}).values()):
        part.pop("title", None)
        if not keep_descriptions:
            part.pop("description", None)
        for key in part.get("properties", {}).values():
            if key.get("default") is None or isinstance(key["default"], dict):
                key.pop("default", None)
            if "description" in key:
                key["description"] = " ".join(key["description"].split())
    return json.dumps({"title": title, **schema}, indent=2, ensure_ascii=False) + "\n"


class PartNote(BaseModel):
    """A file or data, without its content."""

    index: int
    kind: Literal["file", "data"]
    name: str | None = None
    mime_type: str | None = Field(None, alias="mimeType")
    size_bytes: int | None = Field(None, alias="sizeBytes")
    uri: str | None = None
    truncated: bool | None = None


_USAGE: Any = create_model("Usage", __doc__=Usage.__doc__, **dict.fromkeys(Usage.__struct_fields__, (int, 0)))  # type: ignore[call-overload]
_HINTS: dict[Any, Any] = {
    tuple[ListedPart, ...]: list[PartNote],
    Usage | None: _USAGE | None,
    Excerpt: str,
    Excerpt | None: str,
}
"""The types of members whose JSON has another form."""


def payload_model(kind: type[Event]) -> type[BaseModel]:
    """The payload of a class of events, as ``to_wire`` writes it."""
    keys: dict[str, Any] = {}
    for member in PAYLOAD_MEMBERS[kind]:
        keys[member.key] = _HINTS.get(member.kind, member.kind), None if JsonForm.OMIT_NONE in member.marks else ...
        if member.kind in {Excerpt, Excerpt | None}:
            keys |= {"truncated": (bool, None), "textChars": (int, None)}
    return create_model(kind.__name__, __doc__=kind.__doc__, **keys)


def _of_events() -> str:
    """The envelope with the payload of each topic; ``$defs`` has the payloads by class name."""
    envelope = {camel(name): (hint, ...) for name, hint in get_type_hints(Event).items() if name in ENVELOPE}
    written = create_model("Event", **envelope, topic=(str, ...), payload=(dict[str, Any], ...))  # type: ignore[call-overload]
    models = [written, *map(payload_model, event_classes())]
    _, schema = models_json_schema([(model, "serialization") for model in models], schema_generator=_Plain)
    whole = schema["$defs"].pop("Event")
    whole["anyOf"] = [
        {"properties": {"topic": _topic(kind.TOPIC), "payload": {"$ref": f"#/$defs/{kind.__name__}"}}}
        for kind in event_classes()
    ]
    return _text("Events of fleetsim: GET /api/events, the journal and `fleetsim events --json`", whole | schema)


def _topic(template: str) -> dict[str, str]:
    """The topics of a class of events; the variable parts may be any text."""
    if "{" not in template:
        return {"const": template}
    before, *between = (re.escape(text) for text in re.split(r"(?:\.?{\w+})+", template))
    return {"pattern": "^" + r"\..*".join([before, *between]).removesuffix(".*") + ("$" if between[-1] else "")}
