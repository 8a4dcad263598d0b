"""What ``fleetsim check`` must say of released servers, as data.

``notes`` are the peers' differences as ``reference/interop.md`` (beside the project) records them in its sections
5 and 6. ``says`` must stand in a failure's reason: the right verdict for another reason counts as wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from driver.envs import Env
from driver.expected import (
    A2AKIT,
    ADK,
    AG2,
    AGENTFRAMEWORK,
    FASTA2A,
    FASTA2A06,
    JS03,
    JS10,
    PY02,
    PY03,
    PY10,
    SELECTOOLS,
    STRANDS,
)


@dataclass(frozen=True, slots=True)
class Expected:
    """A row's verdict for a peer, its reason unless it passes, and the exchange. ``after`` is a row to probe with it,
    for a row that reads the replies to others; ``kept`` is false where a probe asks until its patience ends, so that no
    two runs ask alike."""

    row: str
    verdict: str
    says: str
    seen: str
    after: str = ""
    kept: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A released server and what the check makes of it in one dialect, ``at_once`` rows at a time."""

    title: str
    env: Env
    dialect: str
    rows: tuple[Expected, ...]
    words: tuple[str, ...] = ()
    bearer: bool = False
    at_once: int = 8


def fails(row: str, says: str, seen: str, *, after: str = "", kept: bool = True) -> Expected:
    """A promise not kept."""
    return Expected(row, "fail", says, seen, after, kept)


def keeps(row: str, seen: str) -> Expected:
    """A promise kept."""
    return Expected(row, "pass", "", seen)


SLASH = fails("C-15", "HTTP 307", "RPC path with extra slash: 307")
NO_SLASH = keeps("C-15", "RPC path with extra slash: ok")
ONE_CARD = fails("C-02", "HTTP 404", "card at agent-card.json alone")
OLD_CARD = fails("C-01", "HTTP 404", "card at agent.json alone")
PARSED = keeps("E-01", "malformed JSON: -32700")
UNKNOWN_METHOD = keeps("E-06", "unknown method: -32601")
WAITS = fails("T-02", "1 s are allowed", "send, blocking not said: waits")
ALL_HISTORY = fails("T-20", "historyLength 0 gave", "historyLength 0: all")
NO_HISTORY = keeps("T-19", "historyLength 0: none")
CANCEL_ONCE = keeps("T-10", "second cancel: -32002")
CANCEL_TWICE = fails("T-10", "must be -32002, not a result", "second cancel accepted")
SNAPSHOT = keeps("S-16", "rejoin starts with a task snapshot")
HOOK_ON_CANCEL = keeps("P-17", "webhook on cancel: yes")
NO_HOOK_ON_CANCEL = fails("P-17", "no webhook reported the cancel", "webhook on cancel: no")
ONE_HEADER = fails("P-21", "no Authorization: Bearer", "the token travels as X-A2A-Notification-Token")
NO_CREDENTIALS = fails("P-20", "as a bearer", "authentication {scheme, credentials} is ignored")
TOKEN = keeps("P-19", "the token travels as X-A2A-Notification-Token")
OTHER_CONTEXT = keeps("T-13", "other contextId on a waiting task: -32602")
REFUSED_MESSAGE = keeps("T-11", "message to a finished task is refused")
NEW_TASK = fails("T-11", "gave a result", "message to a finished task: new task")
FORM = keeps("T-15", "a question in data, answered in the form it asks for")
FIRST_PIECE = keeps("S-29", "the first piece of an artifact is not appended")
REJOIN_UNKNOWN = keeps("S-18", "rejoin unknown task: -32001")

ANY_ROLE = fails("E-24", "not a result", 'a message of the role "robot": accepted')

CHECKED: Mapping[str, Checked] = {
    "py03": Checked(
        title="a2a-sdk 0.3.26",
        env=PY03,
        dialect="0.3",
        rows=(
            keeps("C-01", "card at agent-card.json"),
            keeps("C-02", "card at agent.json"),
            SLASH,
            PARSED,
            UNKNOWN_METHOD,
            keeps("E-08", "no message in send: -32602"),
            fails("E-17", "not exactly a result or an error", "push delete: neither result nor error"),
            WAITS,
            CANCEL_ONCE,
            REFUSED_MESSAGE,
            fails("T-14", "-32602", "other contextId on a waiting task: -32602"),
            ALL_HISTORY,
            REJOIN_UNKNOWN,
            keeps("S-19", "rejoin unknown task: as SSE"),
            fails("S-16", "no snapshot", "rejoin starts with a task snapshot: no"),
            keeps("P-05", "push get without config id: first"),
            NO_HOOK_ON_CANCEL,
            TOKEN,
            NO_CREDENTIALS,
            ONE_HEADER,
        ),
    ),
    "py10": Checked(
        title="a2a-sdk 1.3.0",
        env=PY10,
        dialect="1.0",
        rows=(
            keeps("C-01", "card at agent-card.json"),
            ONE_CARD,
            SLASH,
            PARSED,
            UNKNOWN_METHOD,
            keeps("E-08", "no message in send: -32602"),
            keeps("E-09", "empty parts: -32602"),
            keeps("T-05", "send, waiting not said: waits"),
            CANCEL_ONCE,
            REFUSED_MESSAGE,
            OTHER_CONTEXT,
            NO_HISTORY,
            SNAPSHOT,
            REJOIN_UNKNOWN,
            keeps("S-20", "rejoin finished task: -32004"),
            HOOK_ON_CANCEL,
            keeps("P-20", "authentication {scheme, credentials} comes back as Authorization"),
            ONE_HEADER,
        ),
    ),
    "py10-on-0.3": Checked(
        title="a2a-sdk 1.3.0 on 0.3",
        env=PY10,
        dialect="0.3",
        words=("--both",),
        rows=(
            SLASH,
            PARSED,
            fails("E-08", "-32600", "no message in send: -32600"),
            WAITS,
            CANCEL_ONCE,
            fails("T-14", "-32602", "other contextId on a waiting task: -32602"),
            ALL_HISTORY,
            REJOIN_UNKNOWN,
            SNAPSHOT,
            fails("P-05", "-32602", "push get without config id: -32602"),
            HOOK_ON_CANCEL,
            fails("P-22", "kind is missing", "webhooks are 1.0-shaped even when registered on 0.3"),
            fails("P-23", "no artifact", "the terminal callback has no artifacts"),
        ),
    ),
    "py10-http": Checked(
        title="a2a-sdk 1.3.0 over HTTP+JSON",
        env=PY10,
        dialect="1.0+http",
        words=("--http",),
        rows=(
            keeps("C-03", "the card's url is the endpoint"),
            keeps("C-06", "streams as the card says"),
            keeps("C-13", "GET /extendedAgentCard"),
            Expected("E-01", "not tested", "needs JSON-RPC", "no envelope"),
            keeps("E-08", "no message in send: INVALID_ARGUMENT"),
            keeps("E-13", "unknown task: 404 with TASK_NOT_FOUND"),
            keeps("E-18", "google.rpc.ErrorInfo in error.details"),
            keeps("M-10", "DELETE of a webhook"),
            keeps("T-05", "send, waiting not said: waits"),
            CANCEL_ONCE,
            OTHER_CONTEXT,
            NO_HISTORY,
            keeps("T-22", "GET /tasks in pages"),
            keeps("S-05", "bare events, one wrapping key"),
            SNAPSHOT,
            HOOK_ON_CANCEL,
        ),
    ),
    "py03-http": Checked(
        title="a2a-sdk 0.3.26 over HTTP+JSON",
        env=PY03,
        dialect="0.3+http",
        words=("--http",),
        rows=(
            keeps("C-03", "the card's url is the endpoint, below it /v1"),
            fails("E-08", "unknown exception", "no message in send: HTTP 500"),
            keeps("E-13", "unknown task: HTTP 404"),
            keeps("E-15", "a message for an unknown task: HTTP 404"),
            fails("M-10", "HTTP 405", "no route deletes a webhook"),
            keeps("T-01", "a send is answered by {task}"),
            CANCEL_ONCE,
            ALL_HISTORY,
            keeps("S-07", "final, left out where it is false"),
            fails("P-03", "unknown exception", "webhooks cannot be listed"),
            NO_HOOK_ON_CANCEL,
        ),
    ),
    "selectools": Checked(
        title="selectools 1.3.0",
        env=SELECTOOLS,
        dialect="0.3",
        bearer=True,
        rows=(
            OLD_CARD,
            keeps("C-02", "card at agent.json"),
            fails("C-03", "url is empty", "leaves the card's url empty"),
            fails("C-08", "0.2.6", "says 0.2.6"),
            SLASH,
            fails("C-16", "not absolute", "leaves the card's url empty"),
            keeps("A-02", "401, which is no JSON-RPC error"),
            PARSED,
            UNKNOWN_METHOD,
            keeps("E-08", "no message in send: -32602"),
            keeps("E-09", "empty parts: -32602"),
            fails("M-02", "-32601", "message/stream: -32601"),
            fails("M-06", "-32601", "rejoin: -32601"),
            fails("M-07", "-32601", "push config: -32601"),
            keeps("T-09", "cancelling a finished task: -32002"),
            NEW_TASK,
            fails("T-15", "not input-required", "it never asks: new task"),
            ALL_HISTORY,
        ),
    ),
    "js03": Checked(
        title="@a2a-js/sdk 0.3.14",
        env=JS03,
        dialect="0.3",
        rows=(
            keeps("C-01", "card at agent-card.json"),
            ONE_CARD,
            NO_SLASH,
            PARSED,
            fails("E-16", "HTTP 400", "malformed JSON: -32700 with HTTP 400"),
            UNKNOWN_METHOD,
            fails("E-08", "-32603", "no message in send: -32603"),
            fails("E-09", "not a result", "empty parts: ok"),
            WAITS,
            CANCEL_ONCE,
            REFUSED_MESSAGE,
            keeps("T-14", "other contextId on a waiting task: ok"),
            ALL_HISTORY,
            ANY_ROLE,
            keeps("T-32", "history only where historyLength asks for it"),
            SNAPSHOT,
            REJOIN_UNKNOWN,
            keeps("S-19", "rejoin unknown task: as SSE"),
            keeps("S-21", "rejoin finished task: SSE task, end"),
            HOOK_ON_CANCEL,
            TOKEN,
            NO_CREDENTIALS,
            ONE_HEADER,
        ),
    ),
    "js10": Checked(
        title="@a2a-js/sdk 1.3.0",
        env=JS10,
        dialect="1.0",
        rows=(
            ONE_CARD,
            NO_SLASH,
            PARSED,
            UNKNOWN_METHOD,
            fails("E-09", "not a result", "empty parts: ok"),
            keeps("T-05", "send, waiting not said: waits"),
            CANCEL_TWICE,
            ANY_ROLE,
            fails("P-37", "delivered 2 times", "a cancel is delivered twice"),
            REFUSED_MESSAGE,
            OTHER_CONTEXT,
            NO_HISTORY,
            SNAPSHOT,
            REJOIN_UNKNOWN,
            keeps("S-20", "rejoin finished task: -32004"),
            HOOK_ON_CANCEL,
            ONE_HEADER,
        ),
    ),
    "py02": Checked(
        title="a2a-sdk 0.2.16",
        env=PY02,
        dialect="0.3",
        rows=(
            OLD_CARD,
            SLASH,
            PARSED,
            fails("E-06", "-32600", "unknown method: -32600"),
            fails("E-08", "-32600", "no message in send: -32600"),
            WAITS,
            fails("T-09", "completed into canceled", "accepts cancelling a finished task"),
            CANCEL_TWICE,
            fails("S-14", "working", "dies with its client", kept=False),
            NO_HOOK_ON_CANCEL,
        ),
    ),
    "fasta2a": Checked(
        title="fasta2a 2.1.1",
        env=FASTA2A,
        dialect="1.0",
        at_once=1,
        rows=(
            ONE_CARD,
            fails("E-01", "HTTP 500", "malformed JSON: HTTP 500 text"),
            fails("E-06", "HTTP 500", "unknown method: HTTP 500 text"),
            keeps("T-04", "at once (always)"),
            fails("T-05", "submitted", "at once (always)"),
            fails("T-15", "not input-required", "keeps no answer to a question"),
            fails("T-17", "no zone", "its timestamps have no zone", after="T-21"),
            fails("T-21", "does not say why", "puts a failure's reason only into history"),
        ),
    ),
    "fasta2a06": Checked(
        title="fasta2a 0.6.1",
        env=FASTA2A06,
        dialect="0.3",
        rows=(
            ONE_CARD,
            fails("C-08", "preferredTransport", "no preferredTransport on the card"),
            fails("E-01", "HTTP 500", "malformed JSON: HTTP 500 text"),
            fails("T-29", "HTTP 500", "HTTP 500 to a configuration without acceptedOutputModes"),
        ),
    ),
    "strands": Checked(
        title="strands-agents 1.62.0",
        env=STRANDS,
        dialect="0.3",
        rows=(
            keeps("C-01", "card at agent-card.json"),
            keeps("C-02", "card at agent.json"),
            fails("C-07", "-32603", "push on a card that says false: -32603"),
            PARSED,
            UNKNOWN_METHOD,
            fails("E-09", "-32603", "empty parts: -32603"),
            WAITS,
            CANCEL_ONCE,
            REFUSED_MESSAGE,
            ALL_HISTORY,
            FORM,
            fails("T-31", "the second text part", "the agent's model reads the first text alone"),
            keeps("T-21", "a failure says why, in words of the framework's own"),
            fails("S-10", "appended, not whole", "streamed pieces close with an empty one, appended"),
            fails("S-16", "no snapshot", "rejoin starts with a task snapshot: no"),
            REJOIN_UNKNOWN,
            fails("S-24", "not final", "a question in a stream: final: false"),
            FIRST_PIECE,
        ),
    ),
    "adk": Checked(
        title="google-adk 2.13.0",
        env=ADK,
        dialect="1.0",
        rows=(
            keeps("C-01", "card at agent-card.json"),
            ONE_CARD,
            keeps("C-07", "push on a card that says false is refused"),
            PARSED,
            UNKNOWN_METHOD,
            keeps("E-09", "empty parts: -32602"),
            keeps("T-05", "send, waiting not said: waits"),
            CANCEL_ONCE,
            REFUSED_MESSAGE,
            FORM,
            NO_HISTORY,
            keeps("T-21", "a failure says why"),
            SNAPSHOT,
            REJOIN_UNKNOWN,
            FIRST_PIECE,
        ),
    ),
    "agentframework": Checked(
        title="agent-framework 1.23.0",
        env=AGENTFRAMEWORK,
        dialect="1.0",
        words=("--versioned",),
        rows=(
            keeps("C-01", "card at agent-card.json"),
            ONE_CARD,
            keeps("C-07", "push on a card that says false is refused"),
            PARSED,
            UNKNOWN_METHOD,
            keeps("E-09", "empty parts: -32602"),
            keeps("T-05", "send, waiting not said: waits"),
            CANCEL_ONCE,
            REFUSED_MESSAGE,
            fails("T-15", "not input-required", "it never asks: its executor completes every run"),
            NO_HISTORY,
            keeps("T-21", "a failure says why"),
            SNAPSHOT,
            REJOIN_UNKNOWN,
            FIRST_PIECE,
        ),
    ),
    "ag2": Checked(
        title="ag2 1.2.1 over HTTP+JSON",
        env=AG2,
        dialect="1.0+http",
        rows=(
            keeps("C-01", "card at agent-card.json"),
            keeps("C-02", "card at agent.json"),
            fails("C-05", "lacks tags", "the framework's skill has no tags"),
            keeps("C-07", "webhooks as the card says"),
            keeps("C-13", "no extended card, and the card says so"),
            keeps("E-08", "no message in send: INVALID_ARGUMENT"),
            keeps("E-13", "unknown task: 404 with TASK_NOT_FOUND"),
            keeps("T-05", "send, waiting not said: waits"),
            CANCEL_ONCE,
            REFUSED_MESSAGE,
            OTHER_CONTEXT,
            keeps("T-15", "a question is answered on the same task"),
            fails("T-21", "does not say why", "the framework drops a failure's reason"),
            keeps("T-31", "both text parts are read"),
            fails("T-32", "no history", "its first event is a task without the message"),
            Expected("T-19", "not tested", "T-32", "no history to cut"),
            SNAPSHOT,
            REJOIN_UNKNOWN,
            FIRST_PIECE,
            fails("P-09", "was accepted", "webhooks to private addresses are taken unless a validator is given"),
            HOOK_ON_CANCEL,
            ONE_HEADER,
        ),
    ),
    "a2akit": Checked(
        title="a2akit 0.0.32 over HTTP+JSON",
        env=A2AKIT,
        dialect="0.3+http",
        rows=(
            keeps("C-03", "the card's url is the endpoint, /v1 in it"),
            fails("C-18", "forged", "the card's url follows the Host header"),
            fails("E-08", "-32600", "no message in send: -32600"),
            fails("E-09", "not a result", "empty parts: ok"),
            keeps("E-24", 'a message of the role "robot" is refused'),
            keeps("T-02", "at once, but for blocking: true"),
            CANCEL_ONCE,
            keeps("T-20", "historyLength 0: none"),
            keeps("T-31", "both text parts are read"),
            fails("S-16", "is missing", "the snapshot of a rejoin lacks the pieces sent before"),
            keeps("P-01", "a webhook is registered flat"),
            fails("P-09", "was accepted", "private addresses are refused at the delivery, not at the registration"),
            fails("P-14", "was accepted", "a private webhook in a send is taken"),
        ),
    ),
}
"""By the name of the file that keeps the exchanges."""

APP_TITLE = "a2a-sdk 1.3.0, 1.0 and 0.3"

APP_ROWS: tuple[Expected, ...] = (
    keeps("C-04", "the card says what it must"),
    keeps("S-04", "stream events say what they are"),
    keeps("T-10", "second cancel: -32002"),
    keeps("P-26", "a webhook's body is one the dialect knows"),
    fails("H-01", "12 hours ago", "tasks in memory are kept for good"),
    fails("H-06", "no INFO line names", "deliveries are logged at debug alone"),
    keeps("H-07", "no delivery is lost to the garbage collector"),
    Expected("H-08", "not tested", "P-27", "a delivery refused with 500 is not tried again"),
)
"""What ``fleetsim check --app`` must say, of the card, tasks and webhooks, and from inside; in each dialect."""
