"""The units, the container files and the proxy name options, places and endpoints that exist."""

from __future__ import annotations

import json
import re
import shlex
from configparser import ConfigParser

import click
import pytest
import yaml

from fleetsim.channels.links import ANSWER_PATH
from fleetsim.cli.up import up
from fleetsim.hub.endpoints import A2A_PATH, ENDPOINTS
from fleetsim.hub.http import WAIT_S_MAX
from fleetsim.hub.streams import KEEPALIVE_S
from fleetsim.ledger.postgres.secrets import FILE_VARIABLE, VARIABLE
from fleetsim.runtime.limits import ServerLimits
from tests.house.tree import TOP


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


UNITS = ("fleetsim.service", "fleetsim@.service")


def unit(name: str) -> ConfigParser:
    parsed = ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read(TOP / "deploy" / name)
    return parsed


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_starts_a_hub_that_may_write_only_its_state(name: str) -> None:
    service = unit(name)["Service"]
    program, verb, *words = shlex.split(service["ExecStart"])
    assert (program.rpartition("/")[2], verb) == ("fleetsim", "up")
    assert {word for word in words if word.startswith("--")} <= options(up)
    assert service["ProtectSystem"] == "strict"
    assert service["NoNewPrivileges"] == "yes"
    state = service["StateDirectory"]
    assert service["Environment"].split() == [f"FLEETSIM_STATE=/var/lib/{state}", f"HOME=/var/lib/{state}"]
    assert service["ProtectHome"] == "yes", "so HOME has to be another folder: the driver of PostgreSQL looks into it"
    assert service["User"] != "root"


def test_a_hub_of_several_differs_from_a_single_hub_only_in_its_place() -> None:
    alone, several = (unit(name)["Service"] for name in UNITS)
    differ = {key for key in alone if alone[key].replace("/%i", "") != several.get(key, "").replace("/%i", "")}
    assert differ == {"EnvironmentFile", "ExecStart"}
    assert several["ExecStart"] == alone["ExecStart"] + " --port 300%i"
    assert several["StateDirectory"] == alone["StateDirectory"] + "/%i"


def test_the_composed_hubs_match_their_proxy() -> None:
    composed = yaml.safe_load((TOP / "deploy/compose.yaml").read_text())
    services, secrets = composed["services"], composed["secrets"]
    hubs = [service for name, service in services.items() if name.startswith("hub-")]
    assert len(hubs) == 2
    for service in services.values():
        assert set(service.get("secrets", [])) <= set(secrets)
        for value in service.get("environment", {}).values():
            assert value.removeprefix("/run/secrets/") in secrets or not value.startswith("/run/secrets/")
    for hub in hubs:
        assert (TOP / "deploy" / hub["build"]["context"] / hub["build"]["dockerfile"]).exists()
        assert [variable for variable in (VARIABLE, FILE_VARIABLE) if variable in hub["environment"]] == [FILE_VARIABLE]
    proxied = {services["proxy"]["environment"][variable] for variable in ("HUB_1", "HUB_2")}
    assert proxied == {f"{name}:3000" for name in services if name.startswith("hub-")}
    assert all(port.startswith("127.0.0.1:") for port in services["proxy"]["ports"]), "only with TLS in front"


def test_the_proxy_uses_endpoints_and_limits_of_the_hub() -> None:
    text = (TOP / "deploy/haproxy.cfg").read_text()
    assert set(re.findall(r"uri (/\S+)", text)) == {"/readyz"} <= {endpoint.path for endpoint in ENDPOINTS}
    assert f"path {A2A_PATH} " in text
    assert sum(map(int, re.findall(r" maxconn (\d+)", text))) < ServerLimits().connections_per_peer_max
    (silent_s,) = {int(seconds) for seconds in re.findall(r"^  timeout (?:client|server) (\d+)s", text, re.MULTILINE)}
    assert silent_s > max(KEEPALIVE_S, WAIT_S_MAX)


def test_nginx_uses_the_address_and_the_limits_of_the_hub() -> None:
    text = (TOP / "deploy/nginx.conf").read_text()
    assert f"location ~ ^{A2A_PATH}(/|$)" in text
    assert re.search(rf"location \^~ {ANSWER_PATH} {{\n +access_log off;", text), "the path is a secret"
    (silent_s,) = {int(seconds) for seconds in re.findall(r"proxy_read_timeout (\d+)s;", text)}
    assert silent_s > max(KEEPALIVE_S, WAIT_S_MAX)


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
