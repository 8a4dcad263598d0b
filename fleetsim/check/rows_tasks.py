"""Promises of a task's life: sending, reading, cancelling, asking, listing; and of the store behind it."""

from __future__ import annotations

from fleetsim.check.row import ALL, BOTH, V03, V10, Section

SEED = "seed: Build an A2A Agent"
LIFE = f"{SEED}, checklist 'Transport & lifecycle'"
STORE = f"{SEED}, checklist 'Task store hygiene'"

tasks = Section("Tasks")
tasks.must(
    "T-01",
    "A send is answered by a task (or a message) in the shape of its dialect",
    ALL,
    f"{LIFE}; A2A 0.3 §7.1, 1.0 §3.1.1",
    "Send a text and read id, context and status (kind: task in 0.3, the key task in 1.0).",
    "Return the whole Task object; clients route by its shape.",
)
tasks.must(
    "T-02",
    "A send is answered within a second, whatever the work takes",
    V03,
    f"{LIFE}; {SEED}, 'Task lifecycle'",
    "Send to the slow skill without saying blocking; the answer must come within 1 s, not finished.",
    "Run the skill in a background task that the record owns, and return the task as submitted.",
    incident="Handlers that block lose timeouts, cancelling, progress and webhooks",
    needs=("slow",),
)
tasks.should(
    "T-03",
    "A send that asks to block is answered at once too",
    V03,
    f"{LIFE}; reference interop, 'The original caller on the wire'",
    "Send to the slow skill with blocking: true, as the fleet's caller and the SDKs do by default.",
    "Treat blocking as a wish on 0.3: the caller polls, streams or takes webhooks.",
    needs=("slow",),
)
tasks.must(
    "T-04",
    "returnImmediately: true is answered at once",
    V10,
    "A2A 1.0 §3.2.2",
    "Send to the slow skill with returnImmediately: true; the answer comes within 1 s, not finished.",
    "Return the task as soon as it is recorded.",
    needs=("slow",),
)
tasks.must(
    "T-05",
    "Without returnImmediately a send waits for the end",
    V10,
    "A2A 1.0 §3.2.2",
    "Send to the slow skill without it; the answer is terminal or waits for input.",
    "Wait for a terminal or interrupted state, bounded, before answering.",
    needs=("slow",),
)
tasks.must(
    "T-06",
    "A task can be read until it ends, and then holds its answer",
    ALL,
    f"{LIFE} ('GET /tasks/{{id}} reflects current state + artifact')",
    "Send, then get until terminal; the id and context stay, and a completed task has artifacts or a message.",
    "Update the record on every transition and keep the artifact on it.",
)
tasks.must(
    "T-07",
    "States are those of the protocol and never leave a terminal one",
    ALL,
    f"{SEED}, 'Task lifecycle'; seed: A2A Runtime, 'Task lifecycle states'",
    "Watch the states of every task the check made, by stream and by get.",
    "Guard every write with the table of moves.",
)
tasks.must(
    "T-08",
    "A running task can be cancelled",
    ALL,
    f"{LIFE}; seed: implement-a2a-server, 'Validation'",
    "Cancel a task of the slow skill; the answer and a later get say canceled.",
    "Stop the worker and write canceled under the store's lock.",
    needs=("slow",),
)
tasks.must(
    "T-09",
    "Cancelling a finished task is -32002 and changes nothing",
    ALL,
    f"{SEED}, 'Error code conventions' and hardening 3 'Atomic cancel'",
    "Cancel a completed task and read it again.",
    "Check and write under one lock.",
    incident="Cancels that raced the worker overwrote completed tasks",
)
tasks.must(
    "T-10",
    "A second cancel is -32002",
    ALL,
    f"{SEED}, 'Error code conventions'; A2A 1.0 §3.1.5",
    "Cancel a task twice.",
    "canceled is terminal too: answer -32002.",
    incident="@a2a-js/sdk 1.3.0 accepts the second cancel",
    needs=("slow",),
)
tasks.must(
    "T-11",
    "A finished task takes no more messages",
    BOTH,
    "Seed: A2A Runtime; A2A 0.3 §7.1 (an error), 1.0 §3.1.1 (-32004)",
    "Send a message with the taskId of a finished task.",
    "Refuse with -32602 (0.3) or -32004 (1.0); a new task needs a message without taskId.",
)
tasks.must(
    "T-12",
    "The message's contextId is kept",
    BOTH,
    "Seed: A2A Runtime, 'Multi-turn conversations'; A2A 1.0 §3.4.1",
    "Send with a contextId of our own; task, get and events must carry it.",
    "Read message.contextId; make one only if there is none.",
    incident="The original agent read params.contextId, which no SDK sends",
)
tasks.must(
    "T-13",
    "A contextId that is not the task's is refused",
    V10,
    "A2A 1.0 §3.4.3",
    "Answer the asking skill's question with another contextId: -32602.",
    "Compare contextId with the task's.",
    needs=("ask",),
)
tasks.should(
    "T-14",
    "On 0.3 the taskId decides, whatever the contextId",
    V03,
    "Reference interop, section 8; seed, 'Human-in-the-loop'",
    "Answer the asking skill's question with another contextId; the task must go on.",
    "Look tasks up by taskId alone on 0.3: the fleet's caller sends a contextId of its own.",
    needs=("ask",),
)
tasks.must(
    "T-15",
    "A question is asked as input-required and answered on the same task",
    BOTH,
    f"{SEED}, 'What you get for free' (human-in-the-loop)",
    "Send to the asking skill, read the question in status.message, answer with its taskId, in the form that a question"
    " in data asks for; the task must end.",
    "Move to input-required with the question as status.message, and resume on a message with that taskId.",
    needs=("ask",),
)
tasks.should(
    "T-16",
    "Task ids are the server's, new for each task and hard to guess",
    BOTH,
    "Seed: implement-a2a-server, 'Common Pitfalls'; reference reliability T-27",
    "Compare the ids of several tasks: distinct, 16 characters at least, not counting up.",
    "Use UUIDs.",
)
tasks.should(
    "T-17",
    "Timestamps are ISO 8601 with a zone",
    BOTH,
    "A2A 0.3 §6.2, 1.0 §5.6.1; reference interop, 'Pitfalls'",
    "Read status.timestamp of the tasks seen.",
    "Write UTC with Z; a timestamp without a zone makes some clients refuse the whole answer.",
    incident="fasta2a's timestamps have no zone",
)
tasks.must(
    "T-18",
    "status.message is a whole message with a messageId",
    BOTH,
    "Reference interop, 'What real clients found'; A2A 0.3 §6.4, 1.0 §4.1.4",
    "Read every status.message seen: messageId, role, parts (and kind in 0.3).",
    "Build whole Message objects: the SDKs refuse the event without messageId.",
    incident="Any failed task of the original agent was an exception in the SDK clients",
)
tasks.must(
    "T-19",
    "historyLength is honoured",
    V10,
    "A2A 1.0 §3.2.4",
    "Get a task with historyLength 0 (none) and 1 (at most one).",
    "Cut the history to the newest N messages; 0 means none.",
)
tasks.should(
    "T-20",
    "historyLength is honoured on 0.3",
    V03,
    "A2A 0.3 §7.3.1",
    "Get a task with historyLength 0 (none) and 1 (at most one).",
    "Cut the history to the newest N messages; 0 means none.",
)
tasks.must(
    "T-21",
    "A failure is the state failed, with its reason",
    BOTH,
    f"{SEED}, checklist 'Extensions' (success contract) and 'Health = outcomes'",
    "Run the failing skill; the state must be failed and status.message must say why.",
    "Propagate tool errors into the task's state; completed means the goal was met.",
    incident="Fleet health counted 'Error: ...' answers as successes",
    needs=("fail",),
)
tasks.must(
    "T-22",
    "ListTasks pages through all tasks once",
    V10,
    "A2A 1.0 §3.1.4",
    "Make three tasks in one context and list them with pageSize 1 to the end.",
    "Return nextPageToken ('' at the end), pageSize and totalSize; use stable cursors.",
)
tasks.must(
    "T-23",
    "ListTasks filters by context and state",
    V10,
    "A2A 1.0 §3.1.4",
    "List with contextId, and with a state the tasks are not in.",
    "Apply every filter of the request.",
)
tasks.must(
    "T-24",
    "ListTasks refuses a pageSize out of 1 to 100",
    V10,
    "A2A 1.0 §3.1.4",
    "List with pageSize 0 and 101.",
    "Answer -32602.",
)
tasks.must(
    "T-25",
    "ListTasks leaves artifacts out unless asked",
    V10,
    "A2A 1.0 §3.1.4",
    "List with and without includeArtifacts.",
    "Omit artifacts unless includeArtifacts is true.",
)
tasks.must(
    "T-26",
    "Artifacts have an artifactId and parts",
    BOTH,
    f"{SEED}, checklist 'SSE semantics'",
    "Read the artifacts of every task seen.",
    "Give each artifact an id that its events share.",
)
tasks.must(
    "T-27",
    "Text of any script is taken",
    BOTH,
    "A2A 0.3 §3.2 (UTF-8), JSON (RFC 8259)",
    "Send emoji, right-to-left text and a very long word; the history must hold it unchanged if it is kept.",
    "Read and write UTF-8 everywhere.",
)
tasks.should(
    "T-28",
    "A data part is taken, or refused as a content type",
    BOTH,
    "Seed: A2A Protocol (selectools), 'Text-first v1'; A2A 0.3 §8.2 (-32005)",
    "Send a text part with a data part.",
    "Accept data parts, or answer -32005.",
)
tasks.must(
    "T-29",
    "What the fleet's caller sends is taken",
    BOTH,
    "Reference interop, 'The original caller on the wire'; seed: A2A Runtime, 'Request shape'",
    "Send with metadata (correlationId, skillHint of a skill on the card), trace headers and no acceptedOutputModes.",
    "Ignore metadata you do not use; demand nothing that the specification does not.",
    incident="fasta2a 0.6.1 answers HTTP 500 to a configuration without acceptedOutputModes",
)
tasks.must(
    "T-30",
    "Wire fields of tasks are camelCase",
    BOTH,
    f"{SEED}, checklist 'SSE semantics'",
    "Look for keys with underscores in the tasks seen, outside of data and metadata.",
    "contextId, artifactId, messageId: only Python variables are snake case.",
)

store = Section("Task store")
store.must(
    "H-01",
    "Terminal tasks are evicted in time",
    BOTH,
    f"{STORE}; {SEED}, hardening 1",
    "Finish a task, let the time to live and a sweep pass: it is -32001.",
    "Sweep terminal tasks older than an hour.",
    incident="Agents leaked memory in proportion to their lifetime traffic",
    needs=("time",),
)
store.must(
    "H-02",
    "Tasks at work are never evicted",
    BOTH,
    f"{SEED}, hardening 1",
    "Leave a task working (or waiting) as long as it took to evict a finished one: it is still there.",
    "Evict by terminal state, never by age alone.",
    needs=("time", "slow"),
)
store.must(
    "H-03",
    "Many sends at once are many tasks",
    BOTH,
    f"{STORE}",
    "Send eight messages at once; each is a task of its own and each ends.",
    "Keep per-task state on the record, never in module variables.",
    needs=("side-effects",),
)
store.must(
    "H-04",
    "A cancel is atomic",
    BOTH,
    f"{STORE}; {SEED}, hardening 3",
    "Cancel tasks just as they end: who was told canceled finds canceled, who was told -32002 does not.",
    "Do the check and the write under the same lock.",
    needs=("side-effects",),
)
store.should(
    "H-05",
    "Aborted streams leave the agent healthy",
    BOTH,
    f"{STORE}; reference reliability T-26",
    "Open a dozen streams, drop them, and call again; the agent answers as quickly as before.",
    "Free a subscriber as soon as its connection is gone.",
    needs=("streaming", "side-effects"),
)
store.must(
    "H-06",
    "Deliveries are logged at INFO with task, state and status",
    BOTH,
    f"{STORE}; {SEED}, 'Push notifications', implementation checklist",
    "Deliver a webhook and read the agent's log.",
    "Log each attempt at INFO and install a handler that shows INFO.",
    incident="Quinn #61: a day of polling fallback, because nothing showed that deliveries were refused",
    needs=("in-process", "push", "listener"),
)
store.must(
    "H-07",
    "Neither body nor token of a webhook is logged",
    BOTH,
    f"{SEED}, 'Push notifications', implementation checklist",
    "Deliver a webhook and look for its token and text in the agent's log.",
    "Log ids, state and status alone.",
    needs=("in-process", "push", "listener"),
)
store.must(
    "H-08",
    "A delivery that waits to be retried is not collected",
    BOTH,
    f"{STORE} (strong references); {SEED}, hardening 2",
    "Refuse the first delivery with 500, run the garbage collector, and wait for the retry.",
    "Keep the delivery's task in a set until it is done.",
    incident="Python keeps only weak references to tasks; retries vanished in their back-off",
    needs=("in-process", "push", "listener"),
)

ROWS = (*tasks.rows, *store.rows)
