"""The lines of the screens, without a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import cache

import pytest
from rich.text import Text

from fleetsim.dashboard import chrome
from fleetsim.dashboard.actions import ACTIONS
from fleetsim.dashboard.chrome import Link, LinkState, ScreenName, Size
from fleetsim.dashboard.labels import MUTED, Tone
from fleetsim.dashboard.query import parse
from fleetsim.dashboard.screens import agent as agent_screen
from fleetsim.dashboard.screens import ceremonies, events, fleet, inbox, tasks
from fleetsim.dashboard.text import Column, TableRow, layout
from fleetsim.dashboard.view import View, ViewBuilder
from fleetsim.dashboard.view_tasks import TaskDetail
from fleetsim.events.request import Event
from fleetsim.model.errors import UnknownTarget
from fleetsim.model.text import neutralise
from tests.dashboard.driver import fold_view, showing
from tests.dashboard.journal import HOSTILE, NOW, Journal, an_hour

Seen = tuple[View, dict[str, TaskDetail]]


def seen(recording: list[Event], about: list[Event] | None = None) -> Seen:
    """The view of a recording, and the details of the tasks that these events are about."""
    builder = ViewBuilder()
    builder.fold_all(recording)
    keys = dict.fromkeys(event.correlation_id for event in about or recording if event.correlation_id)
    details = {key: detail for key in keys if (detail := builder.detail(key))}
    return builder.snapshot(NOW), details


def plain(lines: Iterable[Text]) -> str:
    return "\n".join(row.plain for row in lines)


@cache
def hour() -> Seen:
    events = an_hour()
    return seen(events, [event for event in events if event.topic.startswith("hitl.")] + events[-60:])


LIVE = Link(LinkState.LIVE, NOW)


@cache
def hostile() -> Seen:
    """Every text an agent or a file can put into an event, hostile."""
    j = Journal(start=NOW - timedelta(minutes=5))
    for text in HOSTILE:
        name = "a" + text[:40]
        j.say("config.loaded", agents=[name], path=text)
        j.card(name, text[:20], (text, "x" + text), warnings=[text], changed=text, auth=text, url=text)
        about = j.request(name, text, actor=text, text=text)
        j.bind(about)
        j.status(about, text)
        j.chunk(about, text)
        j.ask(about, text)
        done = j.request(name, text, actor="ceremony." + text)
        j.update(done, text, text)
        j.end(done, "failed", reason=text, text=text)
        facts = {
            "id": text,
            "name": text,
            "schedule": text,
            "timezone": text,
            "targets": [text],
            "path": text,
            "warnings": [text],
        }
        j.say("ceremony.loaded", ceremonies=[{**facts, "description": text}], errors=[{"path": text, "error": text}])
        j.say(f"ceremony.{text}.completed", runId=text, status=text, error=text)
        j.say("config.rejected", path=text, error=text)
        j.say(text, agent=text, skill=text, task_id=text, **{text: text})
        j.say("agent.card.failed", agent=name, reason=text, stale=True)
    return seen(j.events)


def everything(view: View, details: dict[str, TaskDetail], width: int) -> Iterator[Text]:
    """Every line that a screen can show at this width."""
    for name in ScreenName:
        yield chrome.header(view, chrome.link_line(LIVE, NOW), "fleet", width)
        yield chrome.tabs(name, view, width, "read only")
    for lines in fleet.cards(view, width // 4).values():
        yield from lines
    yield from fleet.notes(view, width, 9)
    now = view.now
    yield from table(fleet.columns(view.agents, "4m"), [fleet.row(row, now) for row in view.agents], width)
    yield from table(fleet.OUTCOME_COLUMNS, [fleet.outcome_row(row) for row in view.recent], width)
    for agent in view.agents:
        yield from agent_screen.facts(agent, now, width)
        yield from agent_screen.figures(agent, now, width)
        yield from table(agent_screen.SKILL_COLUMNS, [agent_screen.skill_row(row, now) for row in agent.skills], width)
    yield from table(tasks.COLUMNS, [tasks.row(row, now) for row in view.tasks[:60]], width)
    for detail in details.values():
        yield from tasks.story(detail, now, width)
        yield from tasks.live(detail, None, width)
    yield from table(inbox.OPEN_COLUMNS, [inbox.open_row(row, now) for row in view.questions], width)
    yield from table(inbox.SETTLED_COLUMNS, [inbox.settled_row(row, now) for row in view.settled], width)
    for question in (*view.questions, *view.settled):
        yield from inbox.reading(question, details.get(question.correlation_id), now, width, True)
        yield from inbox.sending(question, "x", width, 1, str)
    yield from table(ceremonies.COLUMNS, [ceremonies.row(row, now) for row in view.ceremonies], width)
    for ceremony in view.ceremonies:
        yield from ceremonies.facts(ceremony, now, width)
        yield from table(ceremonies.RUN_COLUMNS, [ceremonies.run_row(run, now) for run in ceremony.runs], width)
    for narrow in (False, True):
        columns = events.NARROW if narrow else events.COLUMNS
        yield from table(columns, [events.row(event, narrow) for event in view.events[-80:]], width)
    for event in view.events[-40:]:
        yield from events.full(event, width)


def table(columns: tuple[Column, ...], rows: list[TableRow], width: int) -> Iterator[Text]:
    found = layout(columns, width)
    yield found.head()
    yield from (found.row(row) for row in rows)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("seen", [hour, hostile])
def test_no_line_is_wider_than_its_place(seen: Callable[[], Seen], width: int) -> None:
    lines = list(everything(*seen(), width))
    assert len(lines) > 100
    assert [row.plain for row in lines if row.cell_len > width] == []


@pytest.mark.slow
def test_no_line_contains_a_control_character() -> None:
    shown = plain(everything(*hostile(), 120))
    assert neutralise(shown, limit=len(shown) + 1) == shown
    assert "[@click=app.quit]press[/]" in shown


def test_the_fleet_is_listed_worst_first_with_glyph_and_word() -> None:
    agents = hour()[0].agents
    rows = [row.plain for row in table(fleet.columns(agents, "1h"), [fleet.row(r, NOW) for r in agents], 120)]
    assert rows[1].split()[:3] == ["○", "down", "frank"]
    assert "connection refused" in rows[1]
    assert rows[2].split()[:3] == ["◐", "degraded", "flaky"]
    assert [row.split()[1] for row in rows[3:]] == ["up", "up", "up"]


def test_a_share_of_few_runs_is_grey_and_shows_them() -> None:
    j = Journal(start=NOW)
    j.card("young", "0.3", ("echo",))
    for kind in ("completed", "failed"):
        j.end(j.request("young", "echo"), kind)
    (row,) = fold_view(j.events, NOW).agents
    assert fleet.ok_share(row) == Text.assemble(("1/2", MUTED))


def test_stale_data_is_grey_with_its_age() -> None:
    j = Journal(start=NOW - timedelta(minutes=4))
    j.card("quinn", "0.3", ("echo",))
    j.later(120)
    j.say("agent.card.failed", agent="quinn", reason="connection refused", stale=True)
    (agent,) = fold_view(j.events, NOW).agents
    row = fleet.row(agent, NOW)
    assert row.faded
    assert "card is 4m old: connection refused" in plain(row.cells)
    _, drawn = table(fleet.columns([agent], "4m"), [row], 120)
    assert drawn.spans[-1] == (0, len(drawn), MUTED)


def test_a_working_task_without_updates_is_called_silent() -> None:
    silent = next(task for task in hour()[0].tasks if task.state == "working" and task.agent == "flaky")
    assert tasks.row(silent, NOW).cells[7].plain.startswith("silent ")


def test_a_question_comes_first_where_there_is_no_room() -> None:
    view, details = hour()
    question = view.questions[0]
    detail = details[question.correlation_id]
    assert "Which branch" in plain(inbox.reading(question, detail, NOW, 60, False)[:2])
    assert "Which branch" not in plain(inbox.reading(question, detail, NOW, 60, True)[:2])


def test_a_ceremony_tells_when_it_fires_and_then() -> None:
    row = hour()[0].ceremony("quinn.daily-digest")
    assert row is not None
    facts = plain(ceremonies.facts(row, NOW, 60))
    assert "00:04:00" in facts
    assert "Sun 14:00Z" in facts
    assert ceremonies.following("every tuesday", "UTC", NOW) == ()
    assert ceremonies.following("0 9 * * *", "Nowhere/Land", NOW) == ()


def test_a_lost_feed_never_looks_live() -> None:
    lost = Link(LinkState.LOST, NOW - timedelta(seconds=90), "connection lost")
    assert chrome.link_line(lost, NOW) == Text.assemble(("○ LOST 90s", Tone.BAD))
    assert chrome.link_line(LIVE, NOW) == Text.assemble(("● LIVE", Tone.GOOD))


@pytest.mark.parametrize(
    ("width", "height", "size"),
    [(39, 40, Size.TINY), (120, 11, Size.TINY), (40, 12, Size.LIST), (60, 18, Size.COMPACT), (100, 30, Size.FULL)],
)
def test_a_terminal_has_the_size_its_cells_give_it(width: int, height: int, size: Size) -> None:
    assert chrome.size_of(width, height) is size


def test_a_narrow_header_keeps_what_matters() -> None:
    header = plain([chrome.header(hour()[0], chrome.link_line(LIVE, NOW), "demo-fleet", 60)])
    assert "LIVE" in header
    assert "2 waiting" in header
    assert "err/5m" in header
    assert "help" in plain([chrome.footer(ACTIONS, 40)])


def test_the_window_of_events_is_the_filter_of_all_of_them() -> None:
    query = parse("agent=quinn level=debug")
    window = events.Window(query)
    recorded = an_hour()
    for at in range(0, len(recorded) + 50, 50):
        window.update(tuple(recorded[:at][-1000:]))
    whole = events.Window(query)
    whole.update(tuple(recorded[-1000:]))
    expected = [event for event in recorded[-1000:] if event.agent == "quinn"]
    assert list(window.rows()) == list(whole.rows()) == expected


def test_debug_events_show_only_when_asked_for() -> None:
    assert all(str(event.level) != "debug" for event in _rows(events.Window(parse(""))))
    assert any(str(event.level) == "debug" for event in _rows(events.Window(parse(""), debug=True)))
    assert any(str(event.level) == "debug" for event in _rows(events.Window(parse("level=debug"))))


def _rows(window: events.Window) -> tuple[Event, ...]:
    window.update(tuple(an_hour()))
    return window.rows()


@pytest.mark.sockets
async def test_files_and_data_of_a_task_are_listed() -> None:
    j = Journal(start=NOW)
    about = {"correlation_id": "c-1", "agent": "quinn", "skill": "echo"}
    asked = {"index": 1, "kind": "file", "name": "in.csv", "mimeType": "text/csv", "sizeBytes": 12}
    j.say("agent.skill.request", **about, text="", parts=[asked], targets=["quinn"], systemActor="user")
    j.bind(about)
    parts = [
        {"index": 1, "kind": "file", "name": "re\u202eport.pdf", "mimeType": "application/pdf", "sizeBytes": 48_211},
        {"index": 2, "kind": "data", "sizeBytes": 56},
        {"index": 3, "kind": "file", "name": "big.iso", "uri": "https://files.example/big.iso"},
        {"index": "x", "kind": ["y"], "name": 7, "sizeBytes": "many"},
        "no part",
    ]
    j.end(about, text="", parts=parts, partsTotal=9)
    view, details = seen(j.events)
    shown = plain(tasks.live(details["c-1"], None, 90))
    assert "│ file 1: in.csv, text/csv, 12 bytes" in shown
    assert "nothing said yet" not in shown
    assert view.tasks[0].last.startswith("file 1: ")
    async with showing(j.events, size=(140, 40)) as ui:
        ui.desk.error = UnknownTarget("the hub has no content of it")
        await ui.press("2", "enter")
        assert "file 1: re\N{REPLACEMENT CHARACTER}port.pdf, application/pdf, 48,211 bytes" in ui.text
        assert "data 2: 56 bytes" in ui.text
        assert "file 3: big.iso, at https://files.example/big.iso" in ui.text
        assert "and 5 more" in ui.text


def ailing() -> View:
    j = Journal(start=NOW - timedelta(hours=1))
    for name in ("frank", "mute", "quinn"):
        j.card(name, "0.3", ("echo",))
    reason = "10.0.0.7:8000: connection refused, and the agent's own log says nothing that would help"
    j.say("agent.breaker.opened", agent="frank", failures=5, retryInSeconds=90_000, reason=reason)
    j.health("frank", "down", reason)
    j.say("agent.push.degraded", agent="mute", why="silent")
    j.health("mute", "degraded", "its webhooks do not arrive")
    j.end(j.request("quinn", "echo"))
    for _ in range(6):
        j.end(j.request("quinn", "echo"), "canceled", blame="human", cause="rejected_by_person", reason="rejected")
    return fold_view(j.events, NOW)


def test_a_narrow_screen_gives_for_every_agent_why_it_is_not_up_and_since_when() -> None:
    view = ailing()
    told = [row.plain for row in fleet.notes(view, 80, 9)]
    assert any("frank is down 60m: 10.0.0.7:8000: connection refused" in row for row in told)
    assert any("mute is degraded 60m: its webhooks do not arrive" in row for row in told)
    pages = {row.name: plain(agent_screen.facts(row, NOW, 53)) for row in view.agents}
    assert "for 60m" in pages["frank"]
    assert "its webhooks do not arrive" in pages["mute"]
    assert all(word in pages["frank"] for word in ("refused", "help")), "the reason is wrapped, not cut"


def test_failures_of_others_stand_beside_an_agents_figures() -> None:
    (quinn,) = [row for row in ailing().agents if row.name == "quinn"]
    assert "6 ended by people" in plain(agent_screen.figures(quinn, NOW, 60))
    assert "rejected" not in plain([fleet.trouble(quinn, NOW)])


def test_the_skills_of_an_agent_are_counted_as_its_card_names_them() -> None:
    j = Journal(start=NOW - timedelta(minutes=5))
    j.say("config.loaded", agents=["greeter"], path="agents.yaml")
    j.card("greeter", "0.3", ("greet",))
    j.end(j.request("greeter", "chat"), "completed")
    (agent,) = fold_view(j.events, NOW).agents
    titles = [column.title for column in fleet.columns([agent], "4m")]
    assert fleet.row(agent, NOW).cells[titles.index("SKILLS")].plain == "1"


def test_a_narrow_card_shows_the_counts_above_zero_first() -> None:
    shown = fleet.counts((0, "missed", Tone.WARN), (2, "skipped", Tone.WARN))
    assert [row.plain for row in shown] == ["2 skipped", "0 missed"]


def test_an_agent_without_a_card_has_no_number_of_skills() -> None:
    j = Journal(start=NOW - timedelta(minutes=5))
    j.say("config.loaded", agents=["frank"], path="agents.yaml")
    (frank,) = fold_view(j.events, NOW).agents
    assert fleet.row(frank, NOW).cells[3].plain == "-"


@pytest.mark.parametrize(("state", "step"), [(LinkState.STALE, "connecting again"), (LinkState.LOST, "open it again")])
def test_the_next_step_of_a_broken_connection_stands_before_its_reason(state: LinkState, step: str) -> None:
    shown = chrome.status_of(Link(state, NOW, "x" * 200))
    assert shown is not None
    assert step in shown.plain[:60]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_fleet_shows_the_whole_name_of_a_dialect_over_http_json(width: int) -> None:
    j = Journal(start=NOW - timedelta(minutes=4))
    j.card("quinn", "0.3+http", ("echo",))
    agents = fold_view(j.events, NOW).agents
    assert "0.3+http" in layout(fleet.columns(agents, "4m"), width).row(fleet.row(agents[0], NOW)).plain


def test_long_names_of_agents_stay_readable_at_60_columns() -> None:
    j = Journal(start=NOW - timedelta(minutes=5))
    j.say("config.loaded", agents=["payments-review"], path="agents.yaml")
    agents = fold_view(j.events, NOW).agents
    assert "payments-review" in layout(fleet.columns(agents, "4m"), 60).row(fleet.row(agents[0], NOW)).plain
