"""Promises of the envelope, the error codes, the methods and the version header."""

from __future__ import annotations

from collections.abc import Mapping

from fleetsim.check.row import ALL, BOTH, ONCE, V03, V10, Section
from fleetsim.model.call import Operation

SEED = "seed: Build an A2A Agent"
CODES = f"{SEED}, 'Error code conventions'"
SURFACE = f"{SEED}, 'The endpoint surface'"
JSONRPC = "JSON-RPC 2.0"

METHOD_ROWS: Mapping[Operation, str] = {
    Operation.SEND: "M-01",
    Operation.STREAM: "M-02",
    Operation.GET: "M-04",
    Operation.CANCEL: "M-05",
    Operation.SUBSCRIBE: "M-06",
    Operation.PUSH_SET: "M-07",
    Operation.PUSH_GET: "M-08",
    Operation.PUSH_LIST: "M-09",
    Operation.PUSH_DELETE: "M-10",
    Operation.LIST: "M-11",
}
"""Which row says that a method is there: whatever leans on a missing one is not tested because of that row."""

errors = Section("Envelope and errors")
errors.must(
    "E-01",
    "A body that is no JSON is -32700",
    ALL,
    f"{JSONRPC} §5.1; seed: implement-a2a-server, step 1; A2A 0.3 §8.1",
    "POST half a JSON object.",
    "Parse inside the handler and answer -32700; do not leave it to the framework's 422 page.",
)
errors.must(
    "E-02",
    "A request without jsonrpc is -32600",
    ALL,
    f"{JSONRPC} §4, §5.1",
    'POST a request without the "jsonrpc" member.',
    'Check that jsonrpc is "2.0" before anything else.',
)
errors.must(
    "E-03",
    "A request of another JSON-RPC version is -32600",
    ALL,
    f"{JSONRPC} §4, §5.1",
    'POST a request with "jsonrpc": "1.0".',
    'Check that jsonrpc is exactly "2.0".',
)
errors.must(
    "E-04",
    "A request without a method is -32600",
    ALL,
    f"{JSONRPC} §4, §5.1; seed: implement-a2a-server, step 1",
    "POST a request without a method.",
    "Answer -32600 when method is missing or no string.",
)
errors.should(
    "E-05",
    "A body that is JSON but no object is -32600",
    ALL,
    f"{JSONRPC} §5.1",
    'POST "[]" and a bare string.',
    "Answer -32600: A2A has no batches.",
)
errors.must(
    "E-06",
    "An unknown method is -32601",
    ALL,
    CODES,
    "Call a method that does not exist.",
    "Answer -32601 with HTTP 200.",
)
errors.must(
    "E-07",
    "Params that are no object are -32602",
    ALL,
    f"{CODES}; A2A 0.3 §8.1",
    "Call the get method with an array and with a string as params.",
    "Validate params before using them.",
)
errors.must(
    "E-08",
    "A send without a message is -32602",
    ALL,
    f"{CODES}; seed: A2A Protocol (selectools), 'Error mapping'",
    "Send with empty params, and with a message that is no object.",
    "Validate params.message and answer -32602.",
)
errors.should(
    "E-09",
    "A message without parts is -32602",
    BOTH,
    f"{CODES}; A2A 1.0 §4.1.4",
    "Send a message with an empty list of parts.",
    "Refuse it: there is nothing to work on.",
)
errors.must(
    "E-10",
    "The id comes back with the same value and type",
    ALL,
    f"{JSONRPC} §5; reference interop, 'Pitfalls'",
    "Call with a number, a string and an odd string as id, for a result and for an error.",
    "Echo the id as it came; do not turn 7 into '7'.",
)
errors.must(
    "E-11",
    "An answer to what cannot be read has a null id",
    ALL,
    f"{JSONRPC} §5",
    "POST half a JSON object and read the id of the error.",
    'Answer with "id": null.',
)
errors.must(
    "E-12",
    'Every answer says "jsonrpc": "2.0"',
    ALL,
    f"{JSONRPC} §5; seed: implement-a2a-server, 'Validation'",
    "Read a result and an error.",
    'Put "jsonrpc": "2.0" into the one place that builds answers.',
)
errors.must(
    "E-13",
    "Reading an unknown task is -32001",
    ALL,
    CODES,
    "Get a task id nobody made.",
    "Answer -32001 for unknown (and for evicted) ids.",
)
errors.must(
    "E-14",
    "Cancelling an unknown task is -32001",
    ALL,
    CODES,
    "Cancel a task id nobody made.",
    "Answer -32001.",
)
errors.must(
    "E-15",
    "A message for an unknown task is -32001 and makes none",
    BOTH,
    "Reference reliability T-27; A2A 1.0 §3.4.2",
    "Send with a taskId nobody made, then try to read it.",
    "Make ids on the server; a taskId in a message only continues.",
)
errors.should(
    "E-16",
    "Errors of JSON-RPC come with HTTP 200 and application/json",
    ALL,
    "Reference interop, section 8; A2A 0.3 §3.2.1",
    "Read status and Content-Type of an error answer.",
    "Answer JSON-RPC errors with HTTP 200; several clients stop reading at any other status.",
)
errors.must(
    "E-17",
    "An answer has either a result or an error with an integer code and a message",
    ALL,
    f"{JSONRPC} §5",
    "Read a result and several errors.",
    "Write exactly one of the two; code is an integer, message a string.",
)
errors.should(
    "E-18",
    "A 1.0 error says its reason as google.rpc.ErrorInfo",
    V10,
    "A2A 1.0 §9.5",
    "Read error.data of -32001: a list with an ErrorInfo of domain a2a-protocol.org.",
    "Add data: [{@type, reason, domain}].",
)
errors.should(
    "E-19",
    "A body of many megabytes is refused before it is read",
    ONCE,
    "Seed: A2A Protocol (selectools), 'Trust model'; reference reliability section 8",
    "POST 9 MiB: HTTP 413 or -32600 is expected, or a closed connection.",
    "Cap the body (1 MiB is usual) while reading it.",
    needs=("side-effects",),
)
errors.should(
    "E-20",
    "Deeply nested JSON does not break the agent",
    ONCE,
    "Reference reliability section 8",
    "POST an array nested 5,000 deep; any clean JSON-RPC error will do.",
    "Bound the depth before parsing, and answer -32700 or -32600.",
)
errors.must(
    "E-21",
    "Wrong types in params are an error, not a crash",
    ALL,
    f"{CODES}; reference interop, 'What real clients found'",
    "Get a task whose id is a number, an object and a list; send a message whose parts are a string.",
    "Validate types; HTTP 500 is never the answer to bad params.",
)
errors.must(
    "E-22",
    "Unknown fields are ignored",
    BOTH,
    "A2A 1.0 §3.2.5, §5.6; 0.3 §1.2",
    "Send with extra fields in params, message, part and configuration.",
    "Read what you know and leave the rest.",
)
errors.should(
    "E-23",
    "Errors tell nothing of the agent's inside",
    ALL,
    "Seed: A2A Protocol (selectools), 'Sanitized errors'",
    "Look for stack traces and file paths in every answer the check has seen.",
    "Send the kind of error; keep the detail in your log.",
)

methods = Section("Methods")
SIMPLE = (
    ("M-01", "message/send, SendMessage", BOTH, ""),
    ("M-02", "message/stream, SendStreamingMessage", BOTH, ""),
    ("M-04", "tasks/get, GetTask", BOTH, ""),
    ("M-05", "tasks/cancel, CancelTask", BOTH, ""),
    ("M-06", "tasks/resubscribe, SubscribeToTask", BOTH, "selectools answers -32601 on resubscribe"),
    ("M-07", "tasks/pushNotificationConfig/set, CreateTaskPushNotificationConfig", BOTH, "Quinn PR #25"),
    ("M-08", "tasks/pushNotificationConfig/get, GetTaskPushNotificationConfig", BOTH, "Quinn PR #25"),
    ("M-09", "tasks/pushNotificationConfig/list, ListTaskPushNotificationConfigs", BOTH, "Quinn PR #25"),
    ("M-10", "tasks/pushNotificationConfig/delete, DeleteTaskPushNotificationConfig", BOTH, "Quinn PR #25"),
)
for _id, _names, _dialects, _incident in SIMPLE:
    methods.must(
        _id,
        f"There is a method {_names}",
        _dialects,
        SURFACE,
        "Call it (with a text, or for an unknown task): anything but -32601 is an answer.",
        "Route the method; what is not supported is -32003 or -32004, never -32601.",
        incident=_incident,
    )
methods.should(
    "M-03",
    "message/sendStream is taken for message/stream",
    V03,
    SURFACE,
    "Call the old name with the params of a stream.",
    "Accept the alias: protoPen-era clients still use it.",
)
methods.must(
    "M-11",
    "There is a method ListTasks",
    V10,
    "A2A 1.0 §3.1.4",
    "Call it with empty params.",
    "Route ListTasks.",
)

version = Section("Versions")
version.must(
    "V-01",
    "A 1.0 method without A2A-Version is -32009",
    V10,
    "A2A 1.0 §3.6.2 (a missing header means 0.3)",
    "Call GetTask without the header, and with an empty one.",
    "Take a missing version for 0.3, and refuse 1.0 method names under it with -32009.",
)
version.must(
    "V-02",
    "An unknown version is -32009",
    V10,
    "A2A 1.0 §3.6.2",
    "Call GetTask with A2A-Version: 99.0.",
    "Check the header before the method and answer -32009.",
)
version.should(
    "V-03",
    "0.3 methods do not mind a version header",
    V03,
    "Reference interop, section 8",
    "Call tasks/get with A2A-Version: 0.3.",
    "Check the version for 1.0 method names only.",
)

ROWS = (*errors.rows, *methods.rows, *version.rows)
