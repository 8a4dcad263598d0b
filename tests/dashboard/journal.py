"""A made-up hour of a fleet's life, for tests and pictures: five agents, ceremonies, questions, failures."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from msgspec.structs import replace

from fleetsim.events.request import Event, Level
from tests.recorded import recorded

NOW = datetime(2026, 11, 21, 13, 55, 59, 400_000, tzinfo=UTC)

HOSTILE = (
    "\x1b]52;c;cHduZWQ=\x07",
    "\x1b]0;owned\x07",
    "\x1b[2J\x1b[H\x1b[31mred",
    "\x1bP$qm\x1b\\",
    "\x9b31m\x9d52;c;AAAA\x9c",
    "bell\x07back\x08\x08tab\x0b\x0c",
    "\u202egnp.exe\u202c\u2066x\u2069",
    "zero\u200bwidth\u2060\ufeff",
    "[@click=app.quit]press[/]",
    "[@click=app.bell]x[/]",
    "[/nope]",
    "[$evil]x[/]",
    "[bold red]x",
    "[link=file:///etc/passwd]x[/link]",
    "z\u0300\u0301\u0302\u0303\u0304\u0305\u0306\u0307algo",
    "\ud800 lone",
    "tags \U000e0041\U000e0042",
    "line\u2028sep\u2029para",
    "漢字 wide 🦊",
    "a\nb\r\nc\td",
    "{curly} %s %(x)s \\ [[]] [ ]",
    "x" * 5000,
    "<img src=x onerror=alert(1)><script>alert(1)</script>",
    "see https://evil.example/x?y=1 and file:///etc/passwd now",
    "[evil](javascript:alert(1)) <https://evil.example> ![x](https://evil.example/x.png)",
)


class Journal:
    """Writes events in order. ``at`` is the time of the next one."""

    def __init__(self, start: datetime = NOW - timedelta(hours=1), seed: int = 42) -> None:
        self.at = start
        self.chance = random.Random(seed)
        self.events: list[Event] = []
        self._ids = 0

    def later(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)

    def new_id(self) -> str:
        self._ids += 1
        return f"{self.chance.getrandbits(32):08x}-{self._ids:04x}"

    def say(self, topic: str, level: Level = Level.INFO, **fields: Any) -> Event:
        envelope = {key: fields.pop(key, None) for key in ("correlation_id", "parent_id", "agent", "skill", "task_id")}
        event = recorded(topic, fields, seq=len(self.events) + 1, at=self.at, level=level, **envelope)
        self.events.append(event)
        return event

    def card(self, agent: str, dialect: str, skills: tuple[str, ...], **fields: Any) -> None:
        url = f"http://127.0.0.1:{7100 + len(agent)}"
        defaults: dict[str, Any] = {"streaming": True, "pushNotifications": True, "auth": "X-API-Key", "latencyMs": 41}
        given = {"url": url, "rpcUrl": url + "/a2a", "dialect": dialect, "skills": list(skills)}
        self.say("agent.card.updated", agent=agent, **{**defaults, **given, **fields})

    def health(self, agent: str, word: str, why: str = "") -> Event:
        level = Level.WARN if word in {"down", "degraded"} else Level.INFO
        since = self.at.isoformat() if level is Level.WARN else None
        return self.say("agent.health.changed", level, agent=agent, health=word, why=why, since=since)

    def request(
        self, agent: str, skill: str, *, actor: str = "user", text: str = "", cid: str = "", **fields: Any
    ) -> dict[str, Any]:
        about = {"correlation_id": cid or self.new_id(), "agent": agent, "skill": skill}
        said = text or f"Please run {skill}."
        self.say(
            "agent.skill.request",
            **about,
            text=said,
            targets=[agent],
            systemActor=actor,
            source=actor.split(".")[0],
            **fields,
        )
        return about

    def bind(self, about: dict[str, Any], *, via: str = "reply", dialect: str = "0.3") -> None:
        about["task_id"] = "t-" + about["correlation_id"][:8]
        context = "engagement-" + about["correlation_id"][:3]
        self.say("agent.skill.dispatched", **about, state="submitted", contextId=context, dialect=dialect, via=via)

    def update(self, about: dict[str, Any], state: str, text: str = "", via: str = "push") -> None:
        self.say("agent.skill.update", **about, state=state, previous="submitted", via=via, text=text)

    def chunk(self, about: dict[str, Any], text: str, append: bool = True) -> None:
        self.say(
            "agent.chat.inbound", Level.DEBUG, **about, type="artifact", text=text, append=append, artifactId="answer"
        )

    def status(self, about: dict[str, Any], text: str, state: str = "working") -> None:
        self.say("agent.chat.inbound", Level.DEBUG, **about, type="status", text=text, state=state)

    def end(self, about: dict[str, Any], kind: str = "completed", *, ms: int = 1200, **fields: Any) -> None:
        success = kind == "completed"
        actor = fields.pop("actor", "user")
        payload: dict[str, Any] = {
            "kind": kind,
            "success": success,
            "blame": "nobody" if success else "agent",
            "reason": "" if success else "HTTP 503 after 3 tries (1s 3s 9s)",
            "text": "Done. Nothing else needs your attention." if success else "",
            "taskState": kind,
            "durationMs": ms,
            "usage": {"input_tokens": 2100, "output_tokens": 320},
            "costUsd": 0.0104 if success else None,
            "confidence": 0.82 if success else None,
            "systemActor": actor,
            "via": "push",
            **fields,
        }
        level = Level.INFO if success else Level.ERROR
        self.say(f"autonomous.outcome.{actor}.{about['skill']}", level, **about, **payload)
        self.say(f"agent.skill.response.{about['correlation_id']}", Level.DEBUG, **about, taskState=kind)

    def ask(self, about: dict[str, Any], question: str, *, kind: str = "input-required", ttl_s: float = 3600) -> str:
        key = "q-" + about["correlation_id"][:8]
        self.update(about, kind, question)
        self.say(
            f"hitl.request.{about['correlation_id']}",
            Level.WARN,
            **about,
            questionId=key,
            kind=kind,
            question=question,
            expiresAt=(self.at + timedelta(seconds=ttl_s)).isoformat(),
            checkpoint=1,
            contextId="engagement-001",
            systemActor="user",
        )
        return key

    def answered(self, about: dict[str, Any], key: str, decision: str = "answer", by: str = "operator") -> None:
        self.say(f"hitl.response.{about['correlation_id']}", **about, questionId=key, decision=decision, decidedBy=by)


FLEET = {
    "quinn": ("0.3", ("pr_review", "bug_triage", "qa_report", "security_triage", "release_notes", "sitrep", "digest")),
    "protomaker": ("0.3", ("board_health", "manage_feature", "sitrep", "plan")),
    "protopen": ("0.3", ("scan", "approve", "port_map", "report", "harden")),
    "flaky": ("1.0", ("echo", "fetch")),
}
CEREMONIES = (
    {
        "id": "quinn.daily-digest",
        "name": "Quinn Daily QA Digest",
        "schedule": "0 14 * * *",
        "timezone": "UTC",
        "skill": "qa_report",
        "targets": ["quinn"],
        "enabled": True,
        "timeoutMs": 120_000,
        "notifyChannel": "1469080556720623699",
        "path": "ceremonies/quinn.daily-digest.yaml",
        "nextFireAt": "2026-11-21T14:00:00+00:00",
    },
    {
        "id": "quinn.hourly-sweep",
        "name": "Triage sweep",
        "schedule": "*/5 9-21 * * *",
        "timezone": "UTC",
        "skill": "bug_triage",
        "targets": ["quinn"],
        "enabled": True,
        "path": "ceremonies/quinn.hourly-sweep.yaml",
        "nextFireAt": "2026-11-21T14:00:00+00:00",
    },
    {
        "id": "board.pr-audit",
        "name": "Board audit of open pull requests",
        "schedule": "30 1 * * *",
        "timezone": "America/New_York",
        "skill": "board_health",
        "targets": ["protomaker"],
        "enabled": True,
        "nextFireAt": "2026-11-22T06:30:00+00:00",
    },
    {
        "id": "weekly-retro",
        "name": "Weekly retrospective",
        "schedule": "0 9 * * 1",
        "timezone": "UTC",
        "skill": "sitrep",
        "targets": ["all"],
        "enabled": False,
    },
)


def _begin(j: Journal) -> None:
    j.say("hub.started", url="http://127.0.0.1:7700", pid=4242)
    j.say("config.loaded", agents=[*FLEET, "frank"], path="agents.yaml")
    errors = [{"path": "ceremonies/broken.sweep.yaml", "error": "broken.sweep.yaml:2:11 hour 25 is not 0-23"}]
    j.say("ceremony.loaded", ceremonies=list(CEREMONIES), errors=errors)
    j.later(0.1)
    for name, (dialect, skills) in FLEET.items():
        j.card(name, dialect, skills, pushNotifications=name != "protopen", streaming=name != "protopen")
        j.health(name, "up")
    j.say("agent.card.failed", Level.WARN, agent="frank", reason="connection refused", stale=False)
    j.health("frank", "down", "connection refused")


def _run(j: Journal, ceremony: str, agent: str, skill: str, took_ms: int, ok: bool = True) -> None:
    run_id = j.new_id()
    j.say(
        f"ceremony.{ceremony}.execute",
        runId=run_id,
        scheduledAt=j.at.isoformat(),
        trigger="cron",
        targets=[agent],
        latenessMs=3,
    )
    about = j.request(agent, skill, actor=f"ceremony.{ceremony}")
    j.bind(about)
    j.later(took_ms / 1000)
    j.end(about, "completed" if ok else "failed", ms=took_ms, actor=f"ceremony.{ceremony}")
    j.say(
        f"ceremony.{ceremony}.completed",
        runId=run_id,
        status="success" if ok else "failure",
        durationMs=took_ms,
        error="" if ok else "HTTP 503 after 3 tries",
        correlationIds=[about["correlation_id"]],
    )


def _work(j: Journal) -> None:
    """One ordinary request from start to end."""
    agent = j.chance.choices(list(FLEET), weights=(5, 4, 2, 2))[0]
    dialect, skills = FLEET[agent]
    skill = j.chance.choice(skills[:3])
    about = j.request(agent, skill, actor=j.chance.choice(("user", "user", "api", "ceremony.board.pr-audit")))
    j.bind(about, dialect=dialect)
    ms = int(j.chance.lognormvariate({"quinn": 7.2, "protomaker": 8.0, "protopen": 8.6, "flaky": 7.0}[agent], 0.7))
    j.update(about, "working", via="stream")
    for piece in ("Looking at the change. ", "Two findings so far. ", "Writing them up."):
        j.chunk(about, piece)
    j.later(ms / 1000)
    failing = j.chance.random() < {"flaky": 0.3, "protomaker": 0.03}.get(agent, 0.01)
    if agent != "protopen" and not failing:
        j.say("agent.push.accepted", Level.DEBUG, **about, state="completed", duplicate=False, parked=False)
    j.end(about, "failed" if failing else "completed", ms=ms, via="poll" if agent == "protopen" else "push")


def _now(j: Journal) -> None:
    """Work that is still under way at the end."""
    j.at = NOW - timedelta(minutes=18)
    j.health("flaky", "degraded", "under 95 % succeeded")
    review = j.request(
        "quinn", "pr_review", actor="ceremony.quinn.daily-digest", text="Review PR 911 before the release."
    )
    j.bind(review)
    j.status(review, "tool: read_diff")
    j.chunk(review, "I have read the diff of PR 911. ")
    j.ask(
        review,
        "Which branch should I compare against? main has moved 14 commits since the PR opened.\n\n"
        "  1  main at the time the PR opened\n  2  main now\n  3  skip this PR",
    )
    j.at = NOW - timedelta(minutes=6)
    scan = j.request("protopen", "scan", text="Scan staging.")
    j.bind(scan)
    j.ask(scan, "Approve the target 10.20.0.0/24?", kind="auth-required", ttl_s=600)
    j.later(120)
    j.card("quinn", "0.3", FLEET["quinn"][1], changed="skills +1 (release_notes), description edited")
    j.at = NOW - timedelta(seconds=118)
    silent = j.request("flaky", "echo", actor="api")
    j.bind(silent, dialect="1.0")
    j.update(silent, "working", via="poll")
    j.say("agent.skill.retry", Level.WARN, **silent, attempt=2, inSeconds=3, reason="HTTP 503")
    j.say("agent.push.rejected", Level.WARN, why="token mismatch", peer="127.0.0.1")
    j.at = NOW - timedelta(seconds=59)
    j.say(
        "ceremony.quinn.hourly-sweep.execute",
        runId="run-now",
        scheduledAt=j.at.isoformat(),
        trigger="cron",
        targets=["quinn"],
        latenessMs=3,
    )
    triage = j.request("quinn", "bug_triage", actor="ceremony.quinn.hourly-sweep", text="Triage the newest bug.")
    j.bind(triage, via="stream")
    j.later(6)
    j.status(triage, "tool gh_search")
    j.later(25)
    for piece in (
        "## Triage\n\nFound 3 candidate duplicates:\n",
        "- #412 (0.91) login loop on Safari\n",
        "- #398 (0.74) session cookie not renewed\n",
        "- #377 (0.52) stale CSRF\n\nChecking whether #412 covers the new trace",
    ):
        j.chunk(triage, piece)
        j.later(2)
    plan = j.request("protomaker", "plan", actor="api", text="Plan the week.")
    j.bind(plan)
    j.later(1)
    j.status(plan, "reading the board")
    queued = j.request("flaky", "echo", actor="api")
    j.bind(queued, dialect="1.0")


@cache
def an_hour(minutes: int = 60) -> list[Event]:
    """The whole hour, or its last ``minutes`` (20 at least), ending just before ``NOW``."""
    j = Journal(start=NOW - timedelta(minutes=minutes))
    _begin(j)
    stop, slot = NOW - timedelta(minutes=1), j.at + timedelta(minutes=2)
    history = 0
    while j.at < stop:
        if j.at >= slot:
            slot += timedelta(minutes=5)
            history += 1
            _run(j, "quinn.hourly-sweep", "quinn", "bug_triage", 2200, ok=history != 8)
            if history % 4 == 0:
                _run(j, "quinn.daily-digest", "quinn", "qa_report", 2000 + 100 * history)
                j.say(
                    "ceremony.board.pr-audit.skipped",
                    scheduledAt=j.at.isoformat(),
                    why="overlap: the run before is still going",
                )
        _work(j)
        j.later(j.chance.expovariate(1 / 4))
    answered = j.request("quinn", "pr_review")
    j.bind(answered)
    key = j.ask(answered, "Squash or merge?")
    j.answered(answered, key)
    j.end(answered)
    rejected = j.request("protopen", "scan")
    j.bind(rejected)
    key = j.ask(rejected, "Scan production?")
    j.answered(rejected, key, decision="reject", by="ava")
    j.end(rejected, "canceled", reason="rejected by ava", blame="human")
    _now(j)
    ordered = [event for event in sorted(j.events, key=lambda event: (event.at, event.seq)) if event.at <= NOW]
    return [replace(event, seq=at) for at, event in enumerate(ordered, start=1)]


def flood(count: int, tasks: int = 200) -> Iterator[Event]:
    """Many events in little time: requests, chunks and outcomes of ``tasks`` at once."""
    about = [
        {"correlation_id": f"{n:08x}", "agent": f"agent-{n % 20}", "skill": f"skill-{n % 5}"} for n in range(tasks)
    ]
    for n in range(count):
        who = dict(about[n % tasks])
        who["correlation_id"] += f"-{n // (tasks * 5)}"
        at, phase = NOW + timedelta(seconds=n / 10_000), n // tasks % 5
        if phase == 0:
            yield recorded("agent.skill.request", {"text": "x", "systemActor": "user"}, seq=n + 1, at=at, **who)
        elif phase < 4:
            payload = {"type": "artifact", "text": "some text ", "append": True, "artifactId": "a"}
            yield recorded("agent.chat.inbound", payload, seq=n + 1, at=at, level=Level.DEBUG, **who)
        else:
            payload = {"kind": "completed", "success": True, "durationMs": n % 900, "systemActor": "user", "text": "ok"}
            yield recorded("autonomous.outcome.user.s", payload, seq=n + 1, at=at, **who)
