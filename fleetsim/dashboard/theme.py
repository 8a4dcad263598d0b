"""Colours by role, and where everything stands in each size of terminal."""

from __future__ import annotations

from textual.theme import Theme

_DARK = {
    "foreground": "#d3dae3",
    "background": "#0e1319",
    "surface": "#0e1319",
    "panel": "#2b3542",
    "dark": True,
}
_DARK_VARIABLES = {
    "quiet": "#7f8b99",
    "calm": "#3f7f66",
    "cursor-row": "#1d2733",
    "scrollbar": "#2b3542",
    "scrollbar-background": "#0e1319",
    "scrollbar-corner-color": "#0e1319",
    "scrollbar-hover": "#4a5a6d",
    "scrollbar-active": "#6cb6ff",
    "scrollbar-background-hover": "#0e1319",
    "scrollbar-background-active": "#0e1319",
    "block-cursor-text-style": "none",
}

NIGHT = Theme(
    name="fleetsim-night",
    primary="#6cb6ff",
    secondary="#7ee0d0",
    accent="#d7a6ff",
    success="#5fcf98",
    warning="#e6b450",
    error="#f4726b",
    variables=_DARK_VARIABLES,
    **_DARK,  # type: ignore[arg-type]
)
BLUE_ORANGE = Theme(
    name="fleetsim-blue-orange",
    primary="#9ecbff",
    secondary="#b8c4d0",
    accent="#ffffff",
    success="#4ea3ff",
    warning="#f2c14e",
    error="#ff8f3f",
    variables={**_DARK_VARIABLES, "calm": "#35689c"},
    **_DARK,  # type: ignore[arg-type]
)
DAY = Theme(
    name="fleetsim-day",
    primary="#0b63c5",
    secondary="#0b7d6e",
    accent="#8430c9",
    success="#13763f",
    warning="#8a5a00",
    error="#b5261e",
    foreground="#1d242c",
    background="#fbfcfd",
    surface="#fbfcfd",
    panel="#cfd7df",
    dark=False,
    variables={
        "quiet": "#5d6975",
        "calm": "#5aa580",
        "cursor-row": "#e3eefb",
        "scrollbar": "#cfd7df",
        "scrollbar-background": "#fbfcfd",
        "scrollbar-corner-color": "#fbfcfd",
        "scrollbar-background-hover": "#fbfcfd",
        "scrollbar-background-active": "#fbfcfd",
        "block-cursor-text-style": "none",
    },
)
THEMES = (NIGHT, BLUE_ORANGE, DAY)
"""Night, one pair of colours that everybody can tell apart, and day."""

CSS = """
Screen { background: $background; color: $foreground; scrollbar-size-vertical: 1; }
* { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
#header, #status, #keys { height: 1; }
#tabs { height: 2; border-bottom: solid $panel; }
#body { height: 1fr; }
#tiny { display: none; height: 1fr; padding: 1; }
#filter { display: none; height: 1; border: none; padding: 0 1; background: $cursor-row; }
#filter.-shown { display: block; }
PaneBase { height: 1fr; }
Page, Grid { background: $background; height: 1fr; overflow-x: hidden; }

.framed {
    border: round $panel; border-title-color: $foreground; border-subtitle-color: $quiet;
    border-title-align: left; border-subtitle-align: right;
}
.framed:focus { border: round $primary; }
.card, Page { padding: 0 1; }

#cards { height: 6; margin-bottom: 1; }
.card { width: 1fr; height: 6; }
#agents { height: auto; max-height: 60%; min-height: 2; }
#notes { display: none; height: auto; margin-top: 1; }
#recent { margin-top: 1; min-height: 3; }

#agent-top { height: 45%; min-height: 8; }
#agent-facts, #agent-figures { width: 1fr; }

#tasks-list { height: 2fr; }
#task { height: 3fr; }
#story { width: 48; }
#live { width: 1fr; }
TasksPane.-opened #tasks-list { display: none; }
TasksPane.-opened #task { height: 1fr; }

#inbox-left { width: 50; }
#inbox-right { width: 1fr; }
#questions { height: auto; min-height: 6; max-height: 60%; }
#settled { height: 1fr; }
#answer { height: 7; padding: 0 1; background: $background; }
#answer:focus { border: round $accent; background: $background; }
#sending { height: 2; padding: 0 2; }
#answer, #sending { display: none; }
InboxPane.-question #answer, InboxPane.-question #sending { display: block; }
InboxPane.-veto #answer { display: none; }

#ceremony-list { height: auto; max-height: 50%; min-height: 3; }
#ceremony { height: 1fr; margin-top: 1; }
#ceremony-facts { width: 1fr; }
#runs { width: 1fr; }

#event-list { height: 1fr; }
#event-full { height: 10; }
EventsPane.-opened #event-full { height: 60%; }

HelpScreen, ConfirmScreen { align: center middle; background: $background 60%; }
#help { width: 78; max-width: 96%; height: auto; max-height: 92%; }
#help-page { height: auto; max-height: 92vh; }
#confirm { width: 64; max-width: 96%; height: auto; }
#confirm-lines { height: auto; padding: 0 1; border: round $warning; background: $background; }

.-compact #cards { display: none; }
.-compact #notes { display: block; }
.-compact #story { display: none; }
.-compact #inbox-all { layout: vertical; }
.-compact #inbox-left { width: 1fr; height: auto; max-height: 7; }
.-compact InboxPane.-opened #inbox-left { display: none; }
.-compact #inbox-right { width: 1fr; height: 1fr; }
.-compact #settled { display: none; }
.-compact #questions { height: auto; min-height: 4; max-height: 7; }
.-compact #answer { height: 4; }
.-compact #sending, .-list #sending { height: 1; }
.-compact InboxPane.-question #answer, .-compact InboxPane.-question #sending { display: none; }
.-compact InboxPane.-question.-opened #answer, .-compact InboxPane.-question.-opened #sending { display: block; }
.-compact #ceremony-facts { display: none; }
.-compact #event-full { display: none; }
.-compact EventsPane.-opened #event-full { display: block; }
.-compact #agent-top { layout: vertical; height: 60%; }
.-compact TasksPane.-opened #task { layout: vertical; }
.-compact TasksPane.-opened #story { display: block; width: 1fr; height: 40%; }
.-compact #agent-facts, .-compact #agent-figures { height: 1fr; }

.-list #cards, .-list #recent, .-list #task, .-list #ceremony, .-list #event-full, .-list #settled { display: none; }
.-list #notes { display: block; margin-top: 0; dock: bottom; }
.-list #questions { height: 1fr; max-height: 100%; }
.-list #agents { height: 1fr; max-height: 100%; }
.-list #tasks-list, .-list #ceremony-list { height: 1fr; max-height: 100%; }
.-list #story { display: none; }
.-list TasksPane.-opened #task, .-list CeremoniesPane.-opened #ceremony { display: block; height: 1fr; }
.-list CeremoniesPane.-opened #ceremony-list { display: none; }
.-list #ceremony-facts { display: none; }
.-list EventsPane.-opened #event-full { display: block; }
.-list #inbox-left { width: 1fr; }
.-list #inbox-right { display: none; }
.-list InboxPane.-opened #inbox-left { display: none; }
.-list InboxPane.-opened #inbox-right { display: block; }
.-list #answer { height: 3; }
.-list #agent-top { layout: vertical; height: 60%; }

.-short #tabs { height: 1; border-bottom: none; }
.-short #recent { display: none; }
.-short #agents { max-height: 70%; }
.-list.-short #agents { max-height: 100%; }
.-short #event-full { display: none; }
.-short EventsPane.-opened #event-full { display: block; }
.-short #cards { height: 5; margin-bottom: 0; }

.-tiny #header, .-tiny #tabs, .-tiny #body, .-tiny #status, .-tiny #keys { display: none; }
.-tiny #tiny { display: block; }

.-ascii * { scrollbar-size-vertical: 0; }
.-ascii .framed { border: ascii $panel; }
.-ascii #tabs { height: 1; border-bottom: none; }
.-ascii .framed:focus { border: ascii $primary; }
"""
