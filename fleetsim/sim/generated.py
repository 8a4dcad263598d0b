"""A whole scenario drawn from a seed: fleet, settings, traffic, ceremonies, people and trouble. ``fleetsim sim any``.

The storms play one fleet under much trouble. Here each seed is another fleet, small enough to be played in a second or
two, with amounts that people write: a question that nobody answers, a task that takes hours, a disk that is full.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random  # noqa: TID251 - a scenario is a function of its seed
from typing import Any

from fleetsim.ceremony.written import written
from fleetsim.model.spans import in_words
from fleetsim.sim.scenario import scenario_text
from fleetsim.sim.troubles import KINDS, OF_AGENTS, OF_ONE_HUB, OF_SEVERAL_HUBS, SKEW_S
from fleetsim.wire.dialect import OVER_HTTP, OVER_JSON_RPC

ANY = "any"
"""The name of these scenarios where a scenario is asked for."""
FOLDER = "any-ceremonies"
DURATIONS_S = (300, 600, 1_200, 2_400, 3_600, 7_200)
SKILLS = ("review", "deploy", "note", "lookup")
AGENTS = ("quinn", "frank", "herald", "scribe")
TAKES = (
    *("0s", "5s", "30s", {"p50": "20s", "p95": "2m"}, {"mean": "40s"}, {"low": "1s", "high": "20s"}) * 3,
    *("20m", {"p50": "5m", "p95": "1h"}, "3h"),
)
SETTINGS: Mapping[str, tuple[Any, ...]] = {
    "poll_interval_s": (5, 120, 600),
    "card_refresh_s": (5, 60, 3_600),
    "task_limit_s": (20, 120, 900, 7_200, 172_800),
    "question_expiry": ("leave",),
    "call_s": (1, 60),
    "retry_waits_s": ([], [0.5], [1, 30, 300]),
    "calls_max": (1, 4),
    "calls_per_agent_max": (1, 2),
    "breaker_failures": (1, 2),
    "breaker_pause_s": (1, 300),
}


def generated(seed: int) -> tuple[bytes, dict[str, bytes]]:
    """The text of the scenario that ``seed`` draws, and the files of its ceremonies by name."""
    rng = Random(f"{seed}/{ANY}")
    duration_s = rng.choice(DURATIONS_S)
    fleet = {name: _agent(rng) for name in rng.sample(AGENTS, rng.choice((1, 1, 2, 3)))}
    values: dict[str, Any] = {"name": ANY, "duration": in_words(duration_s), "seed": seed, "fleet": fleet}
    values["traffic"] = [_traffic(rng, fleet, duration_s) for _ in range(rng.choice((1, 1, 2, 3)))]
    settings = {name: rng.choice(amounts) for name, amounts in SETTINGS.items() if rng.random() < 0.15}
    if rng.random() < 0.95:  # a day of waiting for people is what takes most to play
        settings["question_ttl_s"] = rng.choice((10, 60, 900, 3_600))
    asked_for = values["traffic"][0]["skill"]
    for name, amounts in (("cooldowns_s", (5, 60)), ("skill_limits_s", (10, 300))):
        if rng.random() < 0.1:
            settings[name] = {asked_for: rng.choice(amounts)}
    people = {
        "answerAfter": rng.choice(("1s", "1m", {"p50": "2m", "p95": "20m"}, "3h")),
        "never": rng.choice((0, 0, 0.3, 1)),
        "reject": rng.choice((0, 0, 0.3)),
        "cancel": rng.choice((0, 0, 0.1, 0.5)),
        "cancelAfter": rng.choice(("0s", "5s", "30s", "10m")),
    }
    values["people"] = {name: drawn for name, drawn in people.items() if drawn}
    if settings:
        values["settings"] = settings
    ceremonies = _ceremonies(rng, fleet)
    if ceremonies:
        values["ceremonies"] = FOLDER
    trouble = rng.random()
    if trouble < 0.55:
        values["weather"] = [_trouble(rng, tuple(fleet), duration_s) for _ in range(rng.choice((1, 1, 2, 4)))]
    elif trouble < 0.7:
        values["mix"] = {"scale": rng.choice((1, 5)), "off": 0.7}
    bindings = Random(f"{seed}/{ANY}/bindings")  # apart, so that the rest is that of JSON-RPC
    for agent in fleet.values():
        over_http = OVER_HTTP.get(agent["dialect"])
        if over_http is not None and bindings.random() < 0.4:
            agent["dialect"] = over_http.name
    crowd = Random(f"{seed}/{ANY}/crowd")  # apart, so that the rest is that of an even load
    if crowd.random() < 0.15:
        # Many requests of one moment wait for a slow disk, each with several writes.
        at_once = {"burst": crowd.choice((10, 40)), "within": crowd.choice(("0s", "5s"))}
        values["traffic"][0] |= {"rate": f"{2 * 3_600 / duration_s:.3g}/h", **at_once}
        slow = {"at": "0s", "lasts": in_words(duration_s), "amount": crowd.choice((0.5, 1, 3, 5))}
        values.setdefault("weather", []).append({"fault": "slow-disk", **slow})
    policies = Random(f"{seed}/{ANY}/policies")  # apart, so that the rest is that of a fleet without policies
    for name, skill in ((name, skill) for name, agent in fleet.items() for skill in agent["skills"].values()):
        if policies.random() < 0.2:
            on = policies.choice((["undeliverable"], ["unknown", "failed"], ["undeliverable", "failed"]))
            waits = policies.choice((["1s"], ["30s", "5m"]))
            skill |= {"retry": {"attempts": policies.choice((1, 3)), "on": on, "waits": waits}, "idempotent": True}
        if policies.random() < 0.2:
            skill |= {"fallback": [other for other in fleet if other != name]}
    several = Random(f"{seed}/{ANY}/hubs")  # apart, so that the rest is that of one hub
    if (hubs := several.choice((1, 1, 1, 2, 3))) > 1:
        values["hubs"] = hubs
        # A hub looks at the ledger each second, so that a day of waiting takes minutes to play.
        values["settings"] = {"question_ttl_s": 900, **settings, "lease_s": several.choice((2, 5, 30))}
        values.setdefault("weather", [])
        for _ in range(several.choice((1, 2, 4))):
            name = several.choice(sorted(OF_ONE_HUB))
            planned: dict[str, Any] = {"fault": name, "at": f"{several.randrange(duration_s * 3 // 4)}s"}
            planned |= {"lasts": several.choice(("1s", "4s", "20s", "2m")), "hub": several.randint(1, hubs)}
            if name == "clock-jump":
                planned["amount"] = several.choice((-SKEW_S, SKEW_S))
            values["weather"].append(planned)
    return scenario_text(values).encode(), ceremonies


def _agent(rng: Random) -> dict[str, Any]:
    agent: dict[str, Any] = {
        "dialect": rng.choice(sorted((*OVER_JSON_RPC, "0.3"), reverse=True)),
        "streaming": rng.random() < 0.7,
        "push": rng.random() < 0.7,
        "skills": {skill: _behaviour(rng) for skill in rng.sample(SKILLS, rng.choice((1, 1, 2)))},
    }
    if rng.random() < 0.2:
        agent["atOnce"] = rng.choice((1, 2, 5))
    if rng.random() < 0.15:
        agent["replicas"] = 2
    return agent


def _behaviour(rng: Random) -> dict[str, Any]:
    drawn: dict[str, Any] = {
        "takes": rng.choice(TAKES),
        "chunks": rng.choice((0, 0, 1, 6, 40)),
        "succeeds": rng.choice((1, 1, 0.8, 0)),
        "rejects": rng.choice((0, 0, 0, 0.3)),
        "asks": rng.choice((0, 0, 0.3, 1)),
        "asksAgain": rng.choice((0, 0.5)),
    }
    if rng.random() < 0.3:
        drawn |= {"cost": {"low": 0.01, "high": 0.03}, "confidence": {"low": 0, "high": 1}}
    return {name: amount for name, amount in drawn.items() if amount or name == "succeeds"}


def _traffic(rng: Random, fleet: Mapping[str, Any], duration_s: int) -> dict[str, Any]:
    agent = rng.choice(sorted(fleet))
    burst, turns = rng.choice((1, 1, 1, 5, 30)), rng.choice((1, 1, 1, 3))
    times = max(1, rng.choice((3, 10, 30)) // burst)
    traffic: dict[str, Any] = {
        "skill": rng.choice(sorted(fleet[agent]["skills"])),
        "rate": f"{times * 3_600 / duration_s:.3g}/h",
        "arrivals": rng.choice(("poisson", "steady")),
    }
    if rng.random() < 0.5:
        traffic["agent"] = agent
    if burst > 1:
        traffic |= {"burst": burst, "within": rng.choice(("0s", "1s", "1m"))}
    if turns > 1:
        traffic |= {"turns": turns, "pause": rng.choice(("0s", "10s", {"low": "5s", "high": "5m"}))}
    return traffic


def _ceremonies(rng: Random, fleet: Mapping[str, Any]) -> dict[str, bytes]:
    """Up to three; some of their runs take longer than the time to the next slot."""
    files: dict[str, bytes] = {}
    for name in ("rounds", "watch", "digest")[: rng.choice((0, 0, 0, 1, 3))]:
        agent = rng.choice(sorted(fleet))
        targets = [agent] if fleet[agent].get("replicas", 1) == 1 and rng.random() < 0.6 else ["all"]
        keys: dict[str, Any] = {
            "id": name,
            "name": name,
            "schedule": rng.choice(("* * * * *", "*/2 * * * *", "*/5 * * * *", "*/20 * * * *")),
            "skill": rng.choice(sorted(fleet[agent]["skills"])),
            "targets": targets,
            "overlap": rng.choice(("skip", "queue", "allow")),
            "catchUp": rng.choice(("none", "one", "all")),
            "timezone": rng.choice(("UTC", "Europe/Berlin", "Asia/Kathmandu")),
        }
        if rng.random() < 0.4:
            keys["timeoutMs"] = rng.choice((5_000, 60_000, 3_600_000))
        files[f"{name}.yaml"] = written(keys).encode()
    return files


def _trouble(rng: Random, agents: tuple[str, ...], duration_s: int) -> dict[str, Any]:
    name = rng.choice(sorted(KINDS.keys() - OF_SEVERAL_HUBS))
    kind = KINDS[name]
    trouble: dict[str, Any] = {"fault": name, "at": f"{rng.randrange(duration_s * 3 // 4)}s"}
    if rng.random() < 0.8:
        trouble["lasts"] = rng.choice(("1s", "20s", "2m", "10m"))
    if (kind.on != "process" or name in OF_AGENTS) and rng.random() < 0.5:
        trouble["agent"] = rng.choice(agents)
    if kind.on != "process" and rng.random() < 0.5:
        trouble["share"] = rng.choice((0.1, 0.5))
    if kind.amount is not None and rng.random() < 0.5:
        trouble["amount"] = kind.amount * rng.choice((0.2, 3))
    return trouble
