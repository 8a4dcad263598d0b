"""Check the golden files of A2A 1.0 against the protobuf messages of a2a-sdk 1.x.

Needs an environment with a2a-sdk 1.x, not fleetsim: ``python tests/interop/check_goldens_10.py``. Every member
must be known to the message it stands for; unknown ones are an error. The hybrid card goes through the SDK's own
reader. Prints one line per file and exits 1 if any does not fit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from a2a.client.card_resolver import parse_agent_card
from a2a.types import a2a_pb2
from google.protobuf.json_format import ParseDict, ParseError

GOLDEN = Path(__file__).parent.parent / "wire" / "golden"


def problems(doc: dict[str, Any]) -> Iterator[str]:
    """The members of one golden file that do not fit the SDK's messages."""
    proto = doc.get("proto")
    if isinstance(proto, dict):
        pairs = [("params", doc["params"], proto["params"]), ("result", doc["result"], proto["result"])]
    elif "card" in doc:
        pairs = []
        card = parse_agent_card(json.loads(json.dumps(doc["card"])))
        if [item.protocol_version for item in card.supported_interfaces] != ["1.0", "0.3"]:
            yield "card: interfaces are not read in order"
        if card.security_schemes["apiKey"].api_key_security_scheme.location != "header":
            yield "card: the key's place is not read"
    else:
        pairs = [("body", doc["body"], proto)]
    for what, value, name in pairs:
        if name is None:
            continue
        try:
            ParseDict(value, getattr(a2a_pb2, name)())
        except ParseError as error:
            yield f"{what} is no {name}: {error}"


def main() -> int:
    """Check every file that names a protobuf message."""
    bad = 0
    for path in sorted(GOLDEN.glob("*.json")):
        doc = json.loads(path.read_text())
        if "proto" not in doc:
            continue
        found = list(problems(doc))
        bad += bool(found)
        print(f"{'FAIL' if found else 'ok  '} {path.stem}", *found, sep="\n     " if found else " ")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
