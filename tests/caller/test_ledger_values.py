"""What a row means that was written before its newer fields were thought of."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict, replace

from fleetsim.caller.ledger import (
    CardSnapshot,
    OtherWay,
    Phase,
    QuestionRecord,
    QuestionState,
    RequestRecord,
    RunRecord,
    RunStatus,
    SlotClaim,
)
from fleetsim.caller.ledger.bodies import decoder, encode
from fleetsim.model.work import SkillRequest
from tests.caller.ledgers import START, at, question

REQUEST = SkillRequest(correlation_id="c-1", targets=("a",))
CLAIM = SlotClaim(ceremony_id="daily", scheduled_at=START, run_id="r-1")


@pytest.mark.parametrize(
    ("value", "told", "meant"),
    [
        (
            RequestRecord(
                request=REQUEST, agent="a", skill="echo", accepted_at=START, deadline_at=at(9), message_id="m-1"
            ),
            {"request", "agent", "skill", "accepted_at", "deadline_at", "message_id", "declared"},
            {
                "phase": Phase.INTENT,
                "url": "",
                "dialect": None,
                "rpc_url": "",
                "tenant": None,
                "other": None,
                "other_taken": False,
                "hint": None,
                "streaming": False,
                "rejoin": True,
                "push": False,
                "register_push": False,
                "token_epoch": 1,
                "task": None,
                "bound_at": None,
                "answers": 0,
                "over": (),
                "over_at": None,
                "cancel_wanted": False,
                "earlier": "",
                "warnings": (),
                "rejected": False,
                "shortened": False,
                "agent_s": 0.0,
                "agent_since": None,
            },
        ),
        (OtherWay(dialect="0.3", rpc_url="http://a.test"), {"dialect", "rpc_url"}, {"tenant": None, "rejoin": True}),
        (
            QuestionRecord(question=question("q-1", "c-1")),
            {"question"},
            {"state": QuestionState.OPEN, "answer": None, "answered_at": None},
        ),
        (CLAIM, {"ceremony_id", "scheduled_at", "run_id"}, {"trigger": "cron"}),
        (
            RunRecord(claim=CLAIM, started_at=START),
            {"claim", "started_at"},
            {"status": RunStatus.RUNNING, "ended_at": None, "children": (), "error": "", "late": False, "count": 1},
        ),
        (
            CardSnapshot(agent="a", url="http://a.test", fetched_at=START),
            {"agent", "url", "fetched_at"},
            {"card": {}, "found_at": "", "spoken": ""},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_row_does_not_say_is_as_it_was_before_anybody_could_say_it(
    value: Any, told: set[str], meant: dict[str, Any]
) -> None:
    assert {name: field for name, field in asdict(value).items() if name not in told} == meant
    assert decoder(type(value))(encode(value)) == value


def test_work_is_at_the_agents_address_or_where_it_was_sent_to_before_that_was_noted() -> None:
    record = RequestRecord(
        request=REQUEST, agent="a", skill="", accepted_at=START, deadline_at=START, message_id="m", rpc_url="http://b"
    )
    assert record.sent_to == "http://b"
    assert replace(record, url="http://a").sent_to == "http://a"
