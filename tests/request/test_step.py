"""The decision about one request, signal by signal."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from fleetsim.model.errors import (
    AuthRefused,
    ConnectionLost,
    EmptyStream,
    FleetsimError,
    HttpRefused,
    InternalError,
    InvalidParams,
    LimitReached,
    MethodNotFound,
    NotAccepting,
    RpcError,
    TaskNotCancelable,
    TaskNotFound,
    TimedOut,
    Unreachable,
    UnsupportedOperation,
    VersionNotSupported,
    WireError,
)
from fleetsim.model.task import DataPart, Task, TaskStatus
from fleetsim.model.work import Answer, Decision, OutcomeKind, UpdateSource
from fleetsim.request.machine import new_track
from fleetsim.request.records import OtherWay, Phase
from fleetsim.request.signals import (
    Answered,
    Ask,
    Begin,
    Cancel,
    CancelAsked,
    CancelFailed,
    Found,
    Left,
    Poll,
    PollFailed,
    RegisterPush,
    Replied,
    ResolveQuestion,
    Resume,
    Resumed,
    ResumeFailed,
    Send,
    SendFailed,
    StreamEnded,
    Subscribe,
)
from fleetsim.request.track import Now
from tests.request.steps import START, C, F, Hand, I, S, W, bound, chunk, message, record, status, task


def asking(via: UpdateSource = UpdateSource.POLL) -> Hand:
    return bound().hear(task(I, said="which branch?", said_id="q1"), via)


def only_outcome(hand: Hand) -> OutcomeKind:
    assert len(hand.outcomes) == 1
    return hand.outcomes[0].kind


def test_a_send_answered_with_a_finished_task_ends_at_once() -> None:
    hand = Hand.begun().tell(Replied(reply=task(C, "done", cost=True), began=0.0))
    assert only_outcome(hand) is OutcomeKind.COMPLETED
    assert (hand.outcomes[0].text, hand.outcomes[0].cost_usd, hand.outcomes[0].success) == ("done", 0.5, True)


def test_a_submitted_task_is_polled_until_it_ends() -> None:
    hand = bound()
    assert hand.track.record.phase is Phase.ACCEPTED
    assert len(hand.wait(31).asked_for(Poll)) == 1
    hand.hear(task(W), UpdateSource.POLL).wait(34)
    assert len(hand.asked_for(Poll)) == 1
    hand.hear(task(C, "done"), UpdateSource.POLL)
    assert only_outcome(hand) is OutcomeKind.COMPLETED


def test_at_most_one_poll_is_under_way_however_long_it_takes() -> None:
    hand = bound()
    assert len(hand.wait(600).asked_for(Poll)) == 1


def test_a_webhook_that_lands_during_a_poll_leaves_one_outcome() -> None:
    hand = bound(push=True).wait(31)
    hand.hear(task(C, "done"), UpdateSource.PUSH)
    hand.hear(task(C, "done"), UpdateSource.POLL, began=15.0)
    assert only_outcome(hand) is OutcomeKind.COMPLETED


def test_a_bare_terminal_webhook_owes_a_poll_and_the_outcome_has_its_text_and_cost() -> None:
    hand = bound(push=True).hear(status(C, final=True), UpdateSource.PUSH)
    assert not hand.outcomes
    assert len(hand.wait(0.1).asked_for(Poll)) == 1
    hand.hear(task(C, "all of it", cost=True), UpdateSource.POLL)
    assert (hand.outcomes[0].text, hand.outcomes[0].cost_usd) == ("all of it", 0.5)


def test_webhooks_never_postpone_the_safety_poll_beyond_two_intervals() -> None:
    hand, polls = bound(push=True), 0
    for _ in range(1200):
        hand.hear(status(W), UpdateSource.PUSH)
        polls += len(hand.wait(0.1).asked_for(Poll))
        if polls and hand.track.polling.began is not None:
            hand.hear(task(W), UpdateSource.POLL)
    assert polls >= 2


def test_a_poll_begun_before_the_last_event_is_not_applied() -> None:
    hand = bound(push=True)
    hand.mono = 10.0
    hand.hear(status(W, "step 2", said_id="s2"), UpdateSource.PUSH)
    hand.hear(task(S), UpdateSource.POLL, began=9.0)
    assert hand.track.task is not None
    assert hand.track.task.state is W


def test_a_webhook_that_overtakes_the_reply_is_kept_for_it() -> None:
    hand = Hand.begun(push=True).hear(task(C, "quick"), UpdateSource.PUSH)
    assert not hand.outcomes
    hand.tell(Replied(reply=task(S), began=0.0))
    assert only_outcome(hand) is OutcomeKind.COMPLETED
    assert hand.outcomes[0].text == "quick"


def test_news_of_another_task_is_ignored() -> None:
    hand = bound(push=True).hear(replace(task(C, "theirs"), task_id="t-2"), UpdateSource.PUSH)
    assert not hand.outcomes


def test_a_stream_with_its_closing_pair_needs_no_poll() -> None:
    hand = Hand.begun(streaming=True)
    assert hand.asked_for(Send) == [Send(stream=True)]
    for event in (task(S), status(W), chunk("one "), chunk("two"), chunk("one two", append=False, last=True)):
        hand.hear(event, UpdateSource.STREAM)
    hand.hear(status(C, final=True), UpdateSource.STREAM)
    assert only_outcome(hand) is OutcomeKind.COMPLETED
    assert hand.outcomes[0].text == "one two"


def test_a_stream_of_chunks_without_a_closing_artifact_owes_a_poll() -> None:
    hand = Hand.begun(streaming=True).hear(task(S), UpdateSource.STREAM).hear(chunk("half"), UpdateSource.STREAM)
    hand.hear(status(C, final=True), UpdateSource.STREAM)
    assert not hand.outcomes
    hand.wait(0.1).hear(task(C, "half and half"), UpdateSource.POLL)
    assert hand.outcomes[0].text == "half and half"


def test_a_broken_stream_is_polled_if_rejoining_could_double_its_text() -> None:
    hand = Hand.begun(streaming=True, rejoin=False).hear(task(W), UpdateSource.STREAM)
    hand.tell(StreamEnded(error=ConnectionLost("cut"))).wait(2)
    assert hand.asked_for(Subscribe) == []
    assert len(hand.asked_for(Poll)) == 1


def test_after_a_gap_chunks_wait_for_a_snapshot_so_no_text_is_doubled() -> None:
    hand = Hand.begun(streaming=True).hear(task(W), UpdateSource.STREAM).hear(chunk("ab"), UpdateSource.STREAM)
    hand.tell(StreamEnded()).hear(chunk("zz"), UpdateSource.STREAM)
    assert hand.track.task is not None
    assert hand.track.task.text == "ab"
    hand.hear(task(W, "abc"), UpdateSource.STREAM).hear(chunk("d"), UpdateSource.STREAM)
    assert hand.track.task.text == "abcd"


def test_streaming_refused_falls_back_to_one_plain_send() -> None:
    hand = Hand.begun(streaming=True).tell(SendFailed(error=MethodNotFound()))
    assert hand.asked_for(Send) == [Send(stream=False)]
    hand.tell(SendFailed(error=MethodNotFound()))
    assert only_outcome(hand) is OutcomeKind.UNDELIVERABLE


OTHER = OtherWay(dialect="1.0", rpc_url="http://a.example/v1", tenant="blue", rejoin=False)


def unsure(**kind: bool) -> Hand:
    """A record whose agent may turn out to speak another dialect than its card names."""
    made = replace(record(**kind), other=OTHER, rpc_url=OTHER.rpc_url)
    return Hand(track=new_track(made, Now(0.0, START))).tell(Begin())


@pytest.mark.parametrize("error", [MethodNotFound(), VersionNotSupported()])
@pytest.mark.parametrize("streaming", [True, False])
def test_a_send_of_an_unknown_method_is_repeated_once_in_the_other_dialect(
    error: FleetsimError, streaming: bool
) -> None:
    hand = unsure(streaming=streaming)
    if streaming and isinstance(error, MethodNotFound):
        hand.tell(SendFailed(error=error))
        assert (hand.asked_for(Send), hand.track.record.dialect) == ([Send(stream=False)], "0.3")
    hand.tell(SendFailed(error=error))
    assert hand.asked_for(Send) == [Send(stream=False)]
    sent = hand.tell(Left()).track.record
    assert (sent.dialect, sent.rpc_url, sent.tenant, sent.rejoin) == ("1.0", "http://a.example/v1", "blue", False)
    assert sent.phase is Phase.SENDING
    kept = hand.tell(Replied(reply=task(W), began=0.0)).track.record
    assert ["called in 1.0" in told for told in kept.warnings] == [True]


@pytest.mark.parametrize("error", [MethodNotFound(), VersionNotSupported()])
def test_an_agent_that_knows_neither_dialect_gets_one_send_in_each(error: FleetsimError) -> None:
    hand = unsure().tell(SendFailed(error=error)).tell(SendFailed(error=error))
    assert hand.asked_for(Send) == []
    assert only_outcome(hand) is OutcomeKind.UNDELIVERABLE
    assert "in each way" in hand.outcomes[0].reason
    assert hand.outcomes[0].warnings == ()


def test_the_cards_interfaces_are_tried_one_after_the_other() -> None:
    last = OtherWay(dialect="0.3", rpc_url="http://a.example/rpc")
    chain = replace(unsure().track.record, rpc_url="http://a.example/rest", other=replace(OTHER, other=last))
    hand = Hand(track=new_track(chain, Now(0.0, START))).tell(Begin())
    hand = hand.tell(SendFailed(error=VersionNotSupported())).tell(SendFailed(error=HttpRefused("x", status=404)))
    assert (hand.track.record.rpc_url, hand.track.record.other) == (last.rpc_url, None)
    assert len(hand.asked_for(Send)) == 1
    hand = hand.tell(SendFailed(error=HttpRefused("gone", status=404)))
    assert only_outcome(hand) is OutcomeKind.UNDELIVERABLE


@pytest.mark.parametrize(
    "error",
    [
        *(InvalidParams(), InternalError(), UnsupportedOperation(), TaskNotFound(), RpcError("x", code=-32000)),
        *(TimedOut("x", sent=True), ConnectionLost("x"), WireError("x"), HttpRefused("x", status=500)),
        *(HttpRefused("x", status=404), AuthRefused("x", status=403), EmptyStream(), LimitReached("x")),
    ],
)
def test_no_other_reply_causes_a_send_in_another_dialect(error: FleetsimError) -> None:
    hand = unsure().tell(SendFailed(error=error))
    assert hand.asked_for(Send) == []
    assert (hand.track.record.dialect, hand.track.record.other_taken) == ("0.3", False)


def test_a_send_that_the_ledger_did_not_record_waits_for_the_ledger_without_end() -> None:
    hand, sends = Hand.begun(), 1
    for _ in range(100):
        hand.tell(SendFailed(error=NotAccepting("PostgreSQL does not answer")))
        assert hand.track.record.phase is Phase.INTENT
        sends += len(hand.wait(3).asked_for(Send))
    assert sends == 101
    assert not hand.outcomes
    for _ in range(4):
        hand.tell(SendFailed(error=Unreachable("refused"))).wait(10)
    assert only_outcome(hand) is OutcomeKind.UNDELIVERABLE


def test_retry_after_is_obeyed_and_clamped() -> None:
    busy = HttpRefused("busy", status=503, retry_after_s=20)
    hand = Hand.begun().tell(SendFailed(error=busy))
    assert not hand.wait(19).asked_for(Send)
    assert hand.wait(2).asked_for(Send)
    forever = HttpRefused("busy", status=503, retry_after_s=1e9)
    hand.tell(SendFailed(error=forever))
    assert hand.wait(121).asked_for(Send)


@pytest.mark.parametrize(
    "error",
    [
        TimedOut("silent"),
        ConnectionLost("reset"),
        HttpRefused("proxy", status=502),
        HttpRefused("proxy", status=504),
        HttpRefused("switching protocols", status=101),
        HttpRefused("no such class", status=600),
        HttpRefused("no such class", status=999),
    ],
)
def test_a_lost_reply_is_searched_and_never_sent_again(error: FleetsimError) -> None:
    hand = Hand.begun().tell(SendFailed(error=error))
    hand.wait(30).tell(Found(task=None, error=TimedOut("silent"))).wait(1000)
    assert not hand.asked_for(Send)
    assert only_outcome(hand) is OutcomeKind.UNKNOWN
    assert "may have run" in hand.outcomes[0].reason


def test_a_lost_reply_is_not_given_up_before_a_search_for_its_task_has_ended() -> None:
    hand = Hand.begun().tell(SendFailed(error=TimedOut("silent")))
    for _ in range(20):  # the search waits for its turn at a busy agent
        hand.wait(31)
    assert hand.outcomes == []
    hand.tell(Found(task=task(W))).wait(200)
    assert hand.outcomes == []
    assert hand.asked_for(Poll)


def test_a_webhook_binds_a_task_whose_reply_was_lost() -> None:
    hand = Hand.begun(push=True).tell(SendFailed(error=TimedOut("silent")))
    hand.hear(task(C, "it did run"), UpdateSource.PUSH)
    assert only_outcome(hand) is OutcomeKind.COMPLETED


def test_a_task_the_agent_forgot_is_lost_after_a_second_look() -> None:
    hand = bound()
    hand.mono = 100.0
    hand.wait(1).tell(PollFailed(error=TaskNotFound()))
    assert not hand.outcomes
    hand.wait(6).tell(PollFailed(error=TaskNotFound()))
    assert only_outcome(hand) is OutcomeKind.LOST


def test_a_young_task_may_be_missing_three_times() -> None:
    hand = bound().wait(16)
    for _ in range(3):
        hand.tell(PollFailed(error=TaskNotFound())).wait(6)
    assert not hand.outcomes
    hand.tell(PollFailed(error=TaskNotFound()))
    assert only_outcome(hand) is OutcomeKind.LOST


def test_an_unreachable_agent_is_polled_further() -> None:
    hand = bound()
    for _ in range(20):
        hand.wait(61).tell(PollFailed(error=Unreachable("down")))
    assert not hand.outcomes


@pytest.mark.parametrize("via", [UpdateSource.POLL, UpdateSource.PUSH, UpdateSource.STREAM])
def test_input_required_opens_one_question_from_any_channel(via: UpdateSource) -> None:
    hand = asking(via)
    (ask,) = hand.asked_for(Ask)
    assert ask.question.text == "which branch?"
    hand.hear(task(I, said="which branch?", said_id="q1"), via)
    assert not hand.asked_for(Ask)


def test_input_required_in_the_first_reply_opens_a_question() -> None:
    hand = Hand.begun().tell(Replied(reply=task(I, said="name?"), began=0.0))
    assert hand.asked_for(Ask)
    assert not hand.outcomes


def test_one_answer_makes_one_resume_on_the_agents_own_context() -> None:
    hand = asking()
    question = hand.track.asking.question
    answer = Answer(question_id=question.question_id, text="main")
    hand.tell(Answered(answer=answer))
    assert hand.asked_for(Resume) == [Resume(answer=answer)]
    assert hand.tell(Answered(answer=answer)).effects == ()
    hand.tell(Resumed(reply=task(W), began=hand.mono))
    assert [e.state for e in hand.asked_for(ResolveQuestion)] == ["delivered"]
    hand.hear(task(C, "merged"), UpdateSource.POLL)
    assert only_outcome(hand) is OutcomeKind.COMPLETED


def answered_hand() -> Hand:
    hand = asking()
    hand.tell(Answered(answer=Answer(question_id=hand.question.question_id, text="main")))
    return hand.tell(Resumed(reply=task(I, said="which branch?", said_id="q1"), began=hand.mono))


def test_the_same_question_in_the_reply_to_our_answer_is_not_asked_again() -> None:
    hand = answered_hand()
    assert hand.track.asking.question is None


def test_the_same_question_is_new_once_a_later_poll_reports_it() -> None:
    hand = answered_hand().wait(1.1)
    hand.hear(task(I, said="which branch?", said_id="q1"), UpdateSource.POLL)
    assert hand.question.checkpoint == 2


@pytest.mark.parametrize("streaming", [True, False])
def test_a_question_without_its_words_after_our_answer_is_not_asked_again(streaming: bool) -> None:
    """a2a-sdk 0.3 removes the message from the status when an answer comes; the state stays a while."""
    asks = task(I, said="which branch?")
    asks = replace(asks, status=replace(asks.status, timestamp=START))
    taken = replace(task(I, "merging main"), status=TaskStatus(state=I, timestamp=START))
    hand = bound(streaming=streaming).hear(asks, UpdateSource.POLL)
    hand.tell(Answered(answer=Answer(question_id=hand.question.question_id, text="main")))
    hand.tell(Resumed(reply=taken, began=hand.mono))
    assert hand.track.asking.question is None
    hand.wait(1.1).hear(taken, UpdateSource.POLL)
    assert hand.track.asking.question is None
    hand.wait(60)
    assert hand.asked_for(Poll)
    later = replace(taken, status=TaskStatus(state=I, timestamp=START + timedelta(seconds=1)))
    hand.hear(later, UpdateSource.POLL)
    hand.hear(task(C, "merged"), UpdateSource.POLL)
    assert only_outcome(hand) is OutcomeKind.COMPLETED


def test_a_question_that_the_agent_dropped_is_withdrawn() -> None:
    hand = asking()
    hand.mono += 1
    hand.hear(task(W), UpdateSource.POLL)
    assert [e.state for e in hand.asked_for(ResolveQuestion)] == ["withdrawn"]


def test_an_answer_that_found_no_connection_is_sent_again() -> None:
    hand = asking()
    hand.tell(Answered(answer=Answer(question_id=hand.question.question_id, text="main")))
    hand.tell(ResumeFailed(error=Unreachable("down")))
    assert hand.wait(2).asked_for(Resume)


def test_an_answer_whose_reply_was_lost_is_not_sent_again() -> None:
    hand = asking()
    hand.tell(Answered(answer=Answer(question_id=hand.question.question_id, text="main")))
    hand.tell(ResumeFailed(error=TimedOut("silent"))).wait(60)
    assert not hand.asked_for(Resume)
    assert hand.asked_for(Poll)


def test_a_cancel_that_races_completion_ends_as_the_agent_reports() -> None:
    hand = bound().tell(CancelAsked())
    assert hand.asked_for(Cancel)
    hand.tell(CancelFailed(error=TaskNotCancelable()))
    hand.wait(0.1).hear(task(C, "too late"), UpdateSource.POLL)
    assert only_outcome(hand) is OutcomeKind.COMPLETED


def test_cancel_before_the_reply_is_sent_once_the_task_is_known() -> None:
    hand = Hand.begun().tell(CancelAsked())
    assert not hand.asked_for(Cancel)
    hand.tell(Replied(reply=task(S), began=0.0))
    assert hand.asked_for(Cancel)


def test_a_failed_tasks_reason_is_its_message_not_its_partial_output() -> None:
    hand = bound().hear(task(F, "partial output", said="disk full"), UpdateSource.POLL)
    assert hand.outcomes[0].reason == "disk full"


def test_silent_webhooks_lead_to_one_registration() -> None:
    hand = bound(push=True).wait(31).hear(task(W), UpdateSource.POLL)
    assert len(hand.asked_for(RegisterPush)) == 1
    hand.wait(70).hear(task(W), UpdateSource.POLL)
    assert not hand.asked_for(RegisterPush)


def test_an_appended_last_piece_may_follow_lost_ones_and_causes_a_poll_at_once() -> None:
    hand = (
        Hand.begun(streaming=True)
        .hear(task(S), UpdateSource.STREAM)
        .hear(chunk("one ", append=False), UpdateSource.STREAM)
    )
    hand.hear(chunk("", last=True), UpdateSource.STREAM).hear(status(C, final=True), UpdateSource.STREAM)
    assert not hand.outcomes
    hand.wait(0.1).hear(task(C, "one two"), UpdateSource.POLL)
    assert hand.outcomes[0].text == "one two"


def test_a_question_with_other_data_replaces_the_one_before() -> None:
    def asks(page: int) -> Task:
        parts = (DataPart(data={"page": page}),)
        form = replace(message("", "s-1"), parts=parts)
        return replace(task(I), status=TaskStatus(state=I, message=form))

    hand = bound().hear(asks(1), UpdateSource.POLL)
    (first,) = hand.asked_for(Ask)
    assert not hand.hear(asks(1), UpdateSource.POLL).asked_for(Ask)
    hand.mono += 1
    hand.hear(asks(2), UpdateSource.POLL)
    (second,) = hand.asked_for(Ask)
    assert hand.asked_for(ResolveQuestion) == [
        ResolveQuestion(question_id=first.question.question_id, state="withdrawn")
    ]
    assert '"page": 2' in second.question.text


def test_a_response_in_place_of_a_reply_is_the_reason_in_the_agents_words() -> None:
    hand = Hand.begun().tell(SendFailed(error=HttpRefused("a: HTTP 500, 'the disk is full'", status=500)))
    hand.tell(Found(task=None, possible=False))
    (outcome,) = hand.outcomes
    assert outcome.kind is OutcomeKind.UNKNOWN
    assert outcome.reason.startswith("a: HTTP 500, 'the disk is full'")


def test_the_reason_of_an_expired_request_contains_the_response_in_place_of_a_reply() -> None:
    hand = Hand(track=new_track(record(limit_s=20, push=True), Now(0.0, START)))
    hand.tell(Begin()).tell(Left()).tell(SendFailed(error=HttpRefused("a: HTTP 500, 'the disk is full'", status=500)))
    hand.wait(25)
    assert hand.outcomes[0].kind is OutcomeKind.EXPIRED
    assert "the disk is full" in hand.outcomes[0].reason


def test_a_poll_begun_at_the_moment_of_the_answer_does_not_repeat_the_question() -> None:
    hand = asking()
    (ask,) = hand.asked_for(Ask)
    answer = Answer(question_id=ask.question.question_id, decision=Decision.ANSWER, text="main", by="ada")
    hand.tell(Answered(answer=answer))
    hand.mono = 5.0
    hand.tell(Resumed(reply=task(W), began=0.0))
    hand.hear(task(I, said="which branch?", said_id="q1"), UpdateSource.POLL, began=5.0)
    assert not hand.asked_for(Ask)
    hand.mono = 9.0
    hand.hear(task(I, said="which branch?", said_id="q1"), UpdateSource.POLL, began=5.1)
    assert hand.asked_for(Ask)


def test_an_answer_does_not_rejoin_an_open_stream() -> None:
    hand = Hand.begun(streaming=True).hear(task(I, said="which branch?", said_id="q1"), UpdateSource.STREAM)
    (ask,) = hand.asked_for(Ask)
    answer = Answer(question_id=ask.question.question_id, decision=Decision.ANSWER, text="main", by="ada")
    hand.tell(Answered(answer=answer)).tell(Resumed(reply=task(W), began=0.0))
    assert not hand.asked_for(Subscribe)
    assert not hand.wait(3).asked_for(Subscribe), "it is open"
