"""Promises of webhooks: registering, refusing, delivering, retrying."""

from __future__ import annotations

from fleetsim.check.row import BOTH, V03, V10, Section

SEED = "seed: Build an A2A Agent"
PUSH = f"{SEED}, 'Push notifications'"
SSRF = f"{SEED}, hardening 4 'SSRF guard'; reference reliability T-20, T-21"

push = Section("Webhooks")
REG = ("push",)
OUT = ("push", "listener")
push.must(
    "P-01",
    "Registering a webhook returns it",
    BOTH,
    f"{SEED}, 'The endpoint surface'; A2A 0.3 §7.5, 1.0 §3.1.7",
    "Register and read url and task of the answer.",
    "Return the stored config.",
    needs=OUT,
)
push.must(
    "P-02",
    "A registered webhook can be read",
    BOTH,
    f"{SEED}, 'The endpoint surface'",
    "Get it by task and config id.",
    "Serve get from the live record.",
    incident="The original wanted params.taskId; every SDK sends params.id",
    needs=OUT,
)
push.must(
    "P-03",
    "Registered webhooks can be listed",
    BOTH,
    f"{SEED}, 'The endpoint surface'; A2A 0.3 §7.7, 1.0 §3.1.9",
    "List: an array in 0.3, {configs: [...]} in 1.0, with the registered url.",
    "Return all configs of the task.",
    needs=OUT,
)
push.must(
    "P-04",
    "A deleted webhook is gone",
    BOTH,
    f"{SEED}, 'The endpoint surface'; A2A 0.3 §7.8, 1.0 §3.1.10",
    "Delete it while the slow task runs, list, and see that nothing is delivered at the end.",
    "Remove the config from the live record.",
    needs=("push", "listener", "slow"),
)
push.should(
    "P-05",
    "A webhook without a config id is read without one",
    V03,
    "Reference interop, 'What the official conformance kit expects'",
    "Register without an id, get with the task alone.",
    "Fall back to the only config there is.",
    needs=OUT,
)
push.should(
    "P-06",
    "Deleting a webhook twice is no error",
    V10,
    "A2A 1.0 §3.1.10",
    "Delete the same config twice.",
    "Make delete idempotent.",
    needs=OUT,
)
push.must(
    "P-07",
    "A webhook for an unknown task is -32001",
    BOTH,
    f"{SEED}, 'Error code conventions'",
    "Register for a task id nobody made.",
    "Look the task up first.",
    needs=REG,
)
push.must(
    "P-08",
    "Loopback webhooks are refused",
    BOTH,
    SSRF,
    "Register http://127.0.0.1, http://localhost and http://[::1] on a port nobody allowed: -32602.",
    "Resolve the host and refuse loopback addresses unless the operator allowed host and port.",
    needs=REG,
)
push.must(
    "P-09",
    "Webhooks in private networks are refused",
    BOTH,
    SSRF,
    "Register addresses of 10/8, 172.16/12, 192.168/16, 100.64/10 and fc00::/7: -32602.",
    "Check every resolved address against the private ranges.",
    needs=REG,
)
push.must(
    "P-10",
    "Link-local webhooks (cloud metadata) are refused",
    BOTH,
    SSRF,
    "Register http://169.254.169.254 and http://[fe80::1]: -32602.",
    "Check every resolved address against the link-local ranges.",
    needs=REG,
)
push.must(
    "P-11",
    "Webhooks of other schemes are refused",
    BOTH,
    SSRF,
    "Register file:, javascript:, gopher: and ftp: addresses: -32602.",
    "Accept http and https alone.",
    needs=REG,
)
push.must(
    "P-12",
    "Webhooks whose host does not resolve are refused",
    BOTH,
    SSRF,
    "Register a host under .invalid: -32602.",
    "Resolve at registration and refuse what does not resolve.",
    needs=REG,
)
push.must(
    "P-13",
    "Odd spellings of a private host are refused",
    BOTH,
    SSRF,
    "Register 127.1, 2130706433, 0x7f000001, 0177.0.0.1, 0.0.0.0, [::ffff:127.0.0.1], user@ and percent forms.",
    "Decide on the resolved address, never on the text.",
    needs=REG,
)
push.must(
    "P-39",
    "An allow-list opens what it names and nothing beside it",
    BOTH,
    f"{SEED}, checklist 'Task store hygiene' (Quinn #53); reference reliability T-22",
    "With webhooks to the listener allowed, register private addresses that merely contain its name: -32602.",
    "Compare the host of the parsed address as a whole, and decide on the resolved address, never on the text.",
    needs=OUT,
)
push.must(
    "P-14",
    "A refused webhook is refused aloud, inline too",
    BOTH,
    SSRF,
    "Send with a private webhook in the configuration: the send is -32602; a refused one is not listed.",
    "Vet the inline config before the task is made; never drop it silently.",
    needs=REG,
)
push.must(
    "P-15",
    "The end of a task is delivered",
    BOTH,
    f"{PUSH}; {SEED}, checklist 'Transport & lifecycle'",
    "Register on a running task and wait for the terminal webhook.",
    "Notify on every terminal transition.",
    needs=("push", "listener", "slow"),
)
push.should(
    "P-16",
    "working is delivered",
    BOTH,
    PUSH,
    "Register inline with the send and look for a webhook before the terminal one.",
    "Notify on every transition the caller cares about.",
    needs=("push", "listener", "slow"),
)
push.must(
    "P-17",
    "A cancel is delivered",
    BOTH,
    f"{PUSH}; {SEED}, checklist 'Transport & lifecycle'",
    "Register, cancel, and wait for the canceled webhook.",
    "Notify from the cancel path as well.",
    incident="Quinn PR #19; a2a-sdk 0.3.26 sends none",
    needs=("push", "listener", "slow"),
)
push.must(
    "P-18",
    "A failure is delivered",
    BOTH,
    PUSH,
    "Run the failing skill with an inline webhook and wait for the failed webhook.",
    "Notify from the failure path as well.",
    needs=("push", "listener", "fail"),
)
push.must(
    "P-19",
    "A top-level token comes back with the webhook",
    BOTH,
    f"{PUSH}, 'Token parsing'",
    "Register {url, token}: the delivery carries it as Authorization: Bearer or X-A2A-Notification-Token.",
    "Store the token and send it.",
    incident="Quinn #61",
    needs=OUT,
)
push.must(
    "P-20",
    "A token in authentication.credentials comes back with the webhook",
    BOTH,
    f"{PUSH}, 'Token parsing'",
    "Register {url, authentication}: the delivery carries the credentials as Authorization: Bearer.",
    "Read both shapes; the top-level token wins.",
    incident="Quinn #61: one shape only, 401 on each delivery",
    needs=OUT,
)
push.should(
    "P-21",
    "The token is sent in both headers",
    BOTH,
    f"{PUSH}, implementation checklist; A2A 0.3 §9.5; reference interop, 'Pitfalls'",
    "Read Authorization and X-A2A-Notification-Token of a delivery.",
    "Send both: receivers look at one or the other.",
    needs=OUT,
)
push.must(
    "P-22",
    "A webhook's body has the shape of its dialect",
    BOTH,
    f"{PUSH}; A2A 1.0 §4.3.3",
    "0.3: kind, the task's id and status; 1.0: one of task, message, statusUpdate, artifactUpdate.",
    "Send the event as it goes over the stream.",
    incident="Quinn #40",
    needs=OUT,
)
push.should(
    "P-23",
    "The terminal webhook carries the answer",
    V03,
    f"{PUSH}; reference interop, 'What real clients found'",
    "Read artifact (or artifacts) of the completed webhook.",
    "Add the artifact, and an artifacts list for older callers.",
    incident="The original caller got an empty answer from the original agent",
    needs=OUT,
)
push.should(
    "P-38",
    "The terminal webhook carries the answer as an artifacts list too",
    V03,
    f"{PUSH}; reference workstacean-facts, 'Callbacks'",
    "Read artifacts of the completed webhook.",
    "Add artifacts: [artifact] beside artifact.",
    incident="Workstacean's tracker reads only artifacts: its callers got empty answers from agents that send artifact",
    needs=OUT,
    binding_for=("workstacean",),
)
push.must(
    "P-24",
    "A webhook registered after the send is used",
    BOTH,
    f"{SEED}, hardening 5 and checklist 'Task store hygiene'",
    "Send without one, register while it runs, and wait for the terminal webhook.",
    "Read the config from the live record on every delivery.",
    incident="Configs closed over at submit time: later registrations did nothing",
    needs=("push", "listener", "slow"),
)
push.should(
    "P-25",
    "A webhook registered after the end is called at once",
    BOTH,
    "Reference interop, section 8; DESIGN section 3",
    "Register on a finished task and wait for the webhook.",
    "Deliver the terminal state when a config arrives late: the caller may just have missed it.",
    needs=OUT,
)
push.must(
    "P-26",
    "A webhook given with the send is used",
    BOTH,
    "A2A 0.3 §7.1.1, 1.0 §3.2.2",
    "Send with the config inside configuration and wait for the terminal webhook.",
    "Read configuration.pushNotificationConfig (0.3) or taskPushNotificationConfig (1.0).",
    needs=OUT,
)
push.must(
    "P-27",
    "A delivery answered with 500 is tried again",
    BOTH,
    f"{PUSH}, implementation checklist",
    "Answer the first delivery with 500 and wait for the second.",
    "Retry after 1, 3 and 9 seconds.",
    needs=OUT,
)
push.must(
    "P-28",
    "A delivery answered with 4xx is not tried again",
    BOTH,
    f"{PUSH}, implementation checklist",
    "Answer a delivery with 400 and wait 6 s: no second attempt of it.",
    "Give up on 4xx (but 408, 425 and 429).",
    needs=OUT,
)
push.must(
    "P-29",
    "Redirects of a webhook are not followed",
    BOTH,
    "Reference reliability T-20",
    "Answer a delivery with 307 to another path of the listener: nothing may arrive there.",
    "Switch redirects off in the delivering client.",
    needs=OUT,
)
push.must(
    "P-30",
    "A re-registered webhook is used with its new token",
    BOTH,
    f"{SEED}, hardening 5 and checklist 'Task store hygiene'",
    "Register twice under one id with different tokens while the task runs: the end comes with the second.",
    "Read the config from the live record on every delivery.",
    needs=("push", "listener", "slow"),
)
push.should(
    "P-31",
    "Webhooks come in the order of the states",
    BOTH,
    PUSH,
    "No state may be delivered after the terminal one.",
    "Deliver one after the other per config.",
    needs=("push", "listener", "slow"),
)
push.must(
    "P-32",
    "Webhooks are JSON",
    BOTH,
    f"{PUSH}; A2A 1.0 §4.3.3",
    "Read the Content-Type: application/json or application/a2a+json.",
    "Set the Content-Type.",
    needs=OUT,
)
push.must(
    "P-33",
    "A broken receiver does not touch the task",
    BOTH,
    "Seed: implement-a2a-server, step 5",
    "Answer deliveries with 500 until the task has ended: it must complete all the same.",
    "Deliver beside the task, never inside it.",
    needs=OUT,
)
push.should(
    "P-34",
    "Retries stop after three, further and further apart",
    BOTH,
    f"{PUSH}, implementation checklist (1 s / 3 s / 9 s)",
    "Answer every delivery with 500 for 20 s and look at the attempts: two to four, with growing gaps.",
    "Back off exponentially and stop.",
    needs=OUT,
)
push.should(
    "P-35",
    "Webhooks per task are bounded",
    BOTH,
    "Reference reliability T-23",
    "Register 30 configs on one task: at some point it must be refused.",
    "Allow five or so: one small send must not make many large POSTs.",
    needs=("push", "listener", "side-effects"),
)
push.should(
    "P-36",
    "Every registered webhook is called",
    BOTH,
    "A2A 0.3 §7.5, 1.0 §3.1.7",
    "Register two under different ids; both must hear of the end.",
    "Keep a list of configs.",
    needs=("push", "listener", "slow"),
)
push.should(
    "P-37",
    "The end is told once",
    BOTH,
    f"{SEED}, hardening 3; {PUSH}",
    "Cancel a task with a webhook and count the terminal deliveries after a while.",
    "Notify from the one place where the state changes.",
    incident="@a2a-js/sdk 1.3.0 delivers a cancel twice",
    needs=("push", "listener", "slow"),
)

ROWS = tuple(push.rows)
