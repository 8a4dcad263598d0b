"""Promises of the REST aliases and of the legacy dialect."""

from __future__ import annotations

from fleetsim.check.row import ONCE, V01, Section

SEED = "seed: Build an A2A Agent"
ALIASES = f"{SEED}, 'REST aliases'"
ALMANAC = "seed: implement-a2a-server"
VALID = f"{ALMANAC}, 'Validation'"

rest = Section("REST aliases")
_IF = "Optional: not applicable where the path is 404."
rest.may(
    "R-01",
    "POST /message:send sends",
    ONCE,
    ALIASES,
    f"POST a message: 202 (or 200) with the task. {_IF}",
    "Answer with the task at once.",
)
rest.may(
    "R-02",
    "POST /message:stream streams",
    ONCE,
    ALIASES,
    f"POST a message: SSE that starts with the task. {_IF}",
    "Serve the same events as JSON-RPC, without the envelope.",
    needs=("streaming",),
)
rest.may(
    "R-03",
    "GET /tasks/{id} reads",
    ONCE,
    ALIASES,
    f"GET a task and an unknown one (404). {_IF}",
    "Return the task; 404 if unknown.",
)
rest.may(
    "R-04",
    "GET /tasks/{id}:subscribe rejoins",
    ONCE,
    ALIASES,
    f"GET while the task runs: plain SSE events. {_IF}",
    "Serve the same events as resubscribe, without the envelope.",
    needs=("streaming", "slow"),
)
rest.may(
    "R-05",
    "POST /tasks/{id}:cancel cancels",
    ONCE,
    ALIASES,
    f"POST for a running task: canceled. {_IF}",
    "Use the same write path as tasks/cancel.",
    needs=("slow",),
)
rest.may(
    "R-06",
    "POST /tasks/{id}/pushNotificationConfigs registers, and refuses private addresses",
    ONCE,
    f"{ALIASES}; hardening 4",
    f"POST a private address: 4xx. {_IF}",
    "Vet the address as the JSON-RPC method does.",
    needs=("push",),
)

legacy = Section("Legacy 0.1")
legacy.must(
    "L-01",
    "tasks/send makes a task under the client's id",
    V01,
    f"{ALMANAC}, step 3",
    "Send with id and sessionId: the task comes back with both, submitted, working or finished.",
    "Use params.id as the task's id and params.sessionId as its session.",
)
legacy.must(
    "L-02",
    "Tasks go through the legacy states and messages",
    V01,
    VALID,
    "Get until terminal: states of the legacy table, parts with type, no kind.",
    "Write the dialect's own shapes: status.state, sessionId, parts with type.",
)
legacy.must(
    "L-03",
    "tasks/sendSubscribe streams status and artifact events",
    V01,
    f"{ALMANAC}, step 4; {VALID}",
    "Stream: events named status and artifact, each with jsonrpc and the id, the last with final: true.",
    "Name the SSE events and set final on the last.",
    needs=("streaming",),
)
legacy.must(
    "L-04",
    "A message for a finished task is -32002",
    V01,
    f"{ALMANAC}, step 2; {VALID}",
    "Send again under the id of a finished task.",
    "Never ignore an invalid move silently: answer -32002.",
)
legacy.must(
    "L-05",
    "tasks/pushNotification/set registers, get reads it back",
    V01,
    f"{ALMANAC}, step 5",
    "Register the listener and read it back.",
    "Store the config by task id.",
    needs=("push", "listener"),
)
legacy.must(
    "L-06",
    "Legacy webhooks to private addresses are refused",
    V01,
    f"{ALMANAC}, step 5; {SEED}, hardening 4",
    "Register http://169.254.169.254: -32602 (or -32004 where HTTPS is demanded).",
    "Vet the address in every dialect.",
    needs=("push",),
)
legacy.must(
    "L-07",
    "Legacy webhooks say taskId, eventType, status and timestamp",
    V01,
    f"{ALMANAC}, step 5.2",
    "Run a task with a registered webhook and read the bodies.",
    "POST {taskId, eventType, status, timestamp}.",
    needs=("push", "listener", "slow"),
)
legacy.must(
    "L-08",
    "A question is answered under the same id",
    V01,
    f"{ALMANAC}, step 3",
    "Send to the asking skill until input-required, send again under the id: the task goes on.",
    "Resume a task that waits for input on a send with its id.",
    needs=("ask",),
)

ROWS = (*rest.rows, *legacy.rows)
