"""JSON Schemas of the files people write, made from the models that read them: editors check as they type.

``docs/reference/schemas`` holds them as files; ``fleetsim init`` writes them beside the files it makes.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from fleetsim.caller.ceremonies.ceremony import CeremonyFile
from fleetsim.caller.config import AgentsFile

AGENTS_SCHEMA = "agents.schema.json"
CEREMONY_SCHEMA = "ceremony.schema.json"


class _Plain(GenerateJsonSchema):
    """Without titles: pydantic makes them of the keys, and ``Apikeyenv`` tells nobody anything."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schemas() -> dict[str, str]:
    """The text of each schema by its file name."""
    return {
        AGENTS_SCHEMA: _text(AgentsFile, "agents.yaml of fleetsim"),
        CEREMONY_SCHEMA: _text(CeremonyFile, "A ceremony of fleetsim: ceremonies/*.yaml"),
    }


def _text(model: type[BaseModel], title: str) -> str:
    schema = model.model_json_schema(schema_generator=_Plain)
    for part in (schema, *schema.get("$defs", {}).values()):
        part.pop("title", None)
        part.pop("description", None)
        for key in part["properties"].values():
            if key.get("default") is None or isinstance(key["default"], dict):
                key.pop("default", None)
    return json.dumps({"title": title, **schema}, indent=2, ensure_ascii=False) + "\n"
