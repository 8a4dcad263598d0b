"""Promises of streams: what the frames look like, in which order they come, and who may leave when."""

from __future__ import annotations

from fleetsim.check.row import BOTH, V03, V10, Section

SEED = "seed: Build an A2A Agent"
SSE = f"{SEED}, checklist 'SSE semantics'"

streams = Section("Streams")
STREAMING = ("streaming",)
streams.must(
    "S-01",
    "A stream is text/event-stream",
    BOTH,
    f"{SEED}, 'Streaming'; A2A 0.3 §3.3.1, 1.0 §9.4.2",
    "Ask for a stream and read status and Content-Type.",
    "Answer HTTP 200 with Content-Type: text/event-stream.",
    needs=STREAMING,
)
streams.must(
    "S-02",
    "The first event is the task",
    BOTH,
    f"{SEED}, 'Streaming'; A2A 1.0 §3.1.2",
    "Read the first event of a stream.",
    "Send one snapshot of the task before any update: callers attach to its id.",
    needs=STREAMING,
)
streams.must(
    "S-03",
    "Every event is a JSON-RPC answer with the request's id",
    BOTH,
    "A2A 0.3 §7.2, 1.0 §9.4.2; reference interop, 'Pitfalls'",
    "Stream with a number and with a string as id and read each event.",
    "Wrap each event as {jsonrpc, id, result}; keep the id's type.",
    needs=STREAMING,
)
streams.must(
    "S-04",
    "Every event has a kind",
    V03,
    SSE,
    "Read the kind of each event: task, status-update, artifact-update or message.",
    "Add the discriminator to every frame.",
    incident="Quinn #40: events without kind were dropped silently",
    needs=STREAMING,
)
streams.must(
    "S-05",
    "Every event has exactly one wrapping key",
    V10,
    "A2A 1.0 §3.2.3",
    "Each event is one of task, message, statusUpdate, artifactUpdate.",
    "Wrap events as StreamResponse.",
    needs=STREAMING,
)
streams.must(
    "S-06",
    "Wire fields of events are camelCase",
    BOTH,
    SSE,
    "Look for keys with underscores in every event, outside of data and metadata.",
    "taskId, contextId, lastChunk, artifactId: rename at the edge.",
    needs=STREAMING,
)
streams.must(
    "S-07",
    "Status updates carry final, true on the last one",
    V03,
    SSE,
    "Read final of each status-update: a boolean, true exactly on the one that ends the stream.",
    "Write final on every status-update.",
    needs=STREAMING,
)
streams.must(
    "S-08",
    "The stream ends after the task's end",
    BOTH,
    "A2A 0.3 §7.2, 1.0 §3.1.2",
    "Read on after the terminal event; the connection must close within 2 s, with no further event.",
    "Close the response after the terminal event.",
    needs=STREAMING,
)
streams.must(
    "S-09",
    "Text comes in deltas that add up to the answer",
    BOTH,
    f"{SSE}; {SEED}, hardening 7",
    "Fold the artifact updates of the streaming skill: appended pieces must never repeat text already sent, "
    "and the result must be what get returns.",
    "Send only the new suffix with append: true.",
    incident="Clients showed duplicated text after a reconnect",
    needs=("streaming", "stream"),
)
streams.must(
    "S-10",
    "Completion is two events: the whole artifact, then the status",
    V03,
    SSE,
    "The last two events are artifact-update (append: false, lastChunk: true) and status-update (final: true).",
    "On completion send the authoritative artifact, then the final status.",
    needs=STREAMING,
)
streams.must(
    "S-11",
    "Artifacts in events have an artifactId",
    BOTH,
    SSE,
    "Read artifact.artifactId of each artifact update; the pieces of one answer share it.",
    "Make the id once per artifact.",
    needs=STREAMING,
)
streams.must(
    "S-12",
    "Events name their task and context",
    BOTH,
    f"{SSE}; A2A 0.3 §7.2.2, 1.0 §4.2",
    "Compare taskId and contextId of each update with the first event's.",
    "Write both on every update.",
    needs=STREAMING,
)
streams.should(
    "S-13",
    "There is one task event per stream",
    BOTH,
    "Reference interop, 'Pitfalls'",
    "Count the task events.",
    "Send one snapshot, then updates: a2a-sdk 0.3 clients raise on a second one.",
    needs=STREAMING,
)
streams.must(
    "S-14",
    "A reader that leaves does not stop the work",
    BOTH,
    f"{SSE}; {SEED}, hardening 6",
    "Stream from the slow skill, drop the connection after the first event, and get the task: it must complete.",
    "Let the record own the worker; the SSE generator only reads.",
    incident="a2a-sdk 0.2.16 dies with its client",
    needs=("streaming", "slow"),
)
streams.must(
    "S-15",
    "A dropped stream can be rejoined while the task runs",
    BOTH,
    f"{SEED}, checklist 'Transport & lifecycle'",
    "Drop a stream of the slow skill, resubscribe, and read to the end.",
    "Serve resubscribe from the same store as the stream.",
    needs=("streaming", "slow"),
)
streams.must(
    "S-16",
    "Whoever rejoins is told where the task stands first",
    BOTH,
    f"{SSE}; {SEED}, hardening 7; A2A 1.0 §3.1.6",
    "The first event after a rejoin is the task (0.3: or a status), with the text so far.",
    "Send a snapshot with the accumulated artifact before any delta.",
    incident="a2a-sdk 0.2 and 0.3 send no snapshot: a late joiner misses text",
    needs=("streaming", "slow"),
)
streams.should(
    "S-17",
    "Whoever rejoins sees the current progress message",
    BOTH,
    f"{SSE}; {SEED}, hardening 8",
    "Stream from the slow skill until it says what it is doing, rejoin, and look for that in the snapshot.",
    "Keep the last progress message on the record.",
    needs=("streaming", "slow"),
)
streams.must(
    "S-18",
    "Rejoining an unknown task is -32001",
    BOTH,
    f"{SEED}, 'Error code conventions'",
    "Resubscribe to an id nobody made.",
    "Look the task up before opening the stream.",
    needs=STREAMING,
)
streams.should(
    "S-19",
    "A refused stream is one SSE event on 0.3",
    V03,
    "Reference interop, 'What real clients found'",
    "Read the Content-Type of the refusal of a resubscribe.",
    "Send the error as the one event of a stream: JavaScript clients report plain JSON as a wrong content type.",
    incident="Real errors were shown as 'Invalid response Content-Type'",
    needs=STREAMING,
)
streams.must(
    "S-20",
    "Subscribing to a finished task is -32004",
    V10,
    "A2A 1.0 §3.1.6",
    "Subscribe to a completed task.",
    "Refuse with -32004.",
    needs=STREAMING,
)
streams.must(
    "S-21",
    "Rejoining a finished task ends at once",
    V03,
    f"{SEED}, hardening 6 and 8",
    "Resubscribe to a completed task: its state (or an error) must come and the stream must end within 5 s.",
    "Send the snapshot and the closing pair, or an error; never hang.",
    needs=STREAMING,
)
streams.should(
    "S-22",
    "All readers of a task see it end",
    BOTH,
    "A2A 1.0 §3.5.2; seed: implement-a2a-server, step 4.2",
    "Rejoin twice while the task runs; both must see the terminal event.",
    "Broadcast events; do not hand out one queue.",
    needs=("streaming", "slow"),
)
streams.should(
    "S-23",
    "A quiet stream shows that it lives",
    BOTH,
    f"{SEED}, hardening 6 (keepalive after 25 s)",
    "Stream from the slow skill and leave it silent for a minute: something must come every 30 s.",
    "Send an SSE comment every 15 s.",
    needs=("streaming", "slow", "time"),
)
streams.should(
    "S-24",
    "A question ends the stream with final: true",
    V03,
    "A2A 0.3 §7.2; reference interop, section 7",
    "Stream from the asking skill: the input-required update is final and the stream ends.",
    "Set final: true on input-required and close.",
    needs=("streaming", "ask"),
)
streams.must(
    "S-25",
    "Events come while the work goes on",
    BOTH,
    f"{SEED}, 'Streaming'; seed: implement-a2a-server, 'Validation'",
    "The first event of the slow skill's stream must come within 2 s, well before the last.",
    "Flush each event; switch off buffering in front of the agent.",
    needs=("streaming", "slow"),
)
streams.must(
    "S-26",
    "A cancel ends open streams with canceled",
    BOTH,
    f"{SSE}; {SEED}, hardening 3",
    "Cancel a task while a stream of it is open.",
    "Publish the terminal update from the one write path.",
    needs=("streaming", "slow"),
)
streams.should(
    "S-27",
    "Streams are not cached",
    BOTH,
    "Seed: implement-a2a-server, step 4",
    "Read Cache-Control of the stream.",
    "Send Cache-Control: no-cache (or no-store).",
    needs=STREAMING,
)
streams.must(
    "S-28",
    "A slow reader still gets the end",
    BOTH,
    f"{SSE}; reference reliability T-26",
    "Open a stream, read nothing for two seconds, then read all: the closing events must be there.",
    "Bound each subscriber's buffer by coalescing, and never drop the terminal pair.",
    needs=STREAMING,
)
streams.should(
    "S-29",
    "The first piece of an artifact is no append",
    BOTH,
    f"A2A 0.3 §7.2.3, 1.0 §4.2.2; {SEED}, hardening 7 (append: true on every subsequent update)",
    "Read append of the first artifact-update of each artifact that the stream's first event did not hold.",
    "Send append: false (or leave it out) with the first piece, true with every later one.",
    incident="Strict clients refuse an append to an artifact they were never given; the original agent sent one",
    needs=STREAMING,
)

ROWS = tuple(streams.rows)
