"""The unit and the container file name options, places and endpoints that exist."""

from __future__ import annotations

import json
import re
import shlex
from configparser import ConfigParser

import click

from fleetsim.cli.up import up
from fleetsim.hub.endpoints import ENDPOINTS
from tests.house.tree import TOP


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def test_the_unit_starts_a_hub_that_may_write_only_its_state() -> None:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(TOP / "deploy/fleetsim.service")
    service = unit["Service"]
    program, verb, *words = shlex.split(service["ExecStart"])
    assert (program.rpartition("/")[2], verb) == ("fleetsim", "up")
    assert set(words) <= options(up)
    assert service["ProtectSystem"] == "strict"
    assert service["NoNewPrivileges"] == "yes"
    assert service["User"] != "root"


def test_the_container_runs_a_hub_as_a_user_without_privileges() -> None:
    text = (TOP / "deploy/Containerfile").read_text()
    (verb, *words) = json.loads(re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)[-1])
    assert verb == "up"
    assert {word for word in words if word.startswith("--")} <= options(up)
    assert re.search(r"^USER (?!root)\w+$", text, re.MULTILINE)
    path = re.search(r"127\.0\.0\.1:3000(/\w+)", text)
    assert path is not None
    assert path[1] in {endpoint.path for endpoint in ENDPOINTS}
    for source in re.findall(r"-r (\S+)", text):
        assert (TOP / source).exists()
