"""The panel of the limits of agents.yaml."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fleetsim.api.health import LimitFacts
from fleetsim.api.state import HubState
from fleetsim.dashboard.widgets import Grid
from fleetsim.events.fleet import StateRead
from tests.dashboard.driver import showing
from tests.dashboard.journal import NOW


def limit(name: str, **facts: Any) -> LimitFacts:
    usual = {"subject": "fleet", "unit": "usd", "per": "day", "zone": "UTC", "most": 50.0, "raised": 0.0, "used": 12.5}
    rest = {"reserved": 0.5, "left": 37.0, "share": 0.26, "resets_at": NOW + timedelta(hours=5)}
    return LimitFacts(**{**usual, **rest, "name": name, **facts})


async def test_limits_have_a_panel_with_their_use_and_their_reset() -> None:
    async with showing(size=(120, 36)) as ui:
        assert not ui.app.query_one("#limits", Grid).display
        full = limit("ci", subject="key ci", unit="requests", most=500.0, used=500.0, reserved=0.0, left=0.0, share=1.0)
        await ui.say(StateRead.of(HubState(seq=1, at=NOW, limit_uses=(limit("daily"), full))))
        daily, keys = (text for text in ui.text.splitlines() if "daily" in text or "key ci" in text)
        assert all(word in daily for word in ("fleet", "$12.50", "$0.50", "$50.00/day", "26%", "5h"))
        assert all(word in keys for word in ("500 requests/day", "100%"))
