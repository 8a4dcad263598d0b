"""Reads a SARIF log as a code host does: it must fit the schema of SARIF 2.1.0."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema


@cache
def _validator() -> Any:
    return jsonschema.Draft4Validator(json.loads(Path(__file__).with_name("sarif-2.1.0.json").read_bytes()))


def run_in(text: str) -> Any:
    """The one run of a log. Raises ValidationError."""
    log = json.loads(text)
    _validator().validate(log)
    (run,) = log["runs"]
    return run
