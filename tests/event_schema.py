"""Whether events are as the published JSON Schema says, and hold nothing that it does not name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from jsonschema_rs import Draft202012Validator

from fleetsim.events.request import Event
from fleetsim.events.wire import to_wire
from fleetsim.hub.schemas import EVENTS_SCHEMA, schemas


@cache
def published() -> Mapping[str, str]:
    """The text of every schema by its file name; making them for each test takes longer than most tests."""
    return schemas()


@cache
def _schema() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(published()[EVENTS_SCHEMA])
    for part in (parsed, *parsed["$defs"].values()):
        if "properties" in part:
            part["additionalProperties"] = False
    return parsed


@cache
def _payload(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": _schema()["$defs"]})


@cache
def _envelope() -> Draft202012Validator:
    return Draft202012Validator({**_schema(), "anyOf": [{}]})


@cache
def _topics() -> dict[str, Draft202012Validator]:
    return {
        branch["properties"]["payload"]["$ref"].rpartition("/")[2]: Draft202012Validator(branch["properties"]["topic"])
        for branch in _schema()["anyOf"]
    }


def unfit(events: Iterable[Event]) -> list[str]:
    """The schema errors of the events."""
    wrong = []
    for event in events:
        name, written = type(event).__name__, json.loads(json.dumps(to_wire(event)))
        errors = [
            *_envelope().iter_errors(written),
            *_topics()[name].iter_errors(written["topic"]),
            *_payload(name).iter_errors(written["payload"]),
        ]
        wrong += [f"{name}: {error.instance_path}: {error.message}" for error in errors]
    return wrong
