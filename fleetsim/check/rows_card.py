"""Promises of the agent card, of credentials and of declared extensions."""

from __future__ import annotations

from fleetsim.check.row import BOTH, ONCE, V03, V10, Section

SEED = "seed: Build an A2A Agent"
ALMANAC = "seed: implement-a2a-server"

card = Section("Agent card")
card.must(
    "C-01",
    "The card is served at /.well-known/agent-card.json",
    ONCE,
    f"{SEED}, checklist 'Transport & lifecycle'; A2A 0.3 §5.3, 1.0 §8.2",
    "GET the path; it must answer 200 with a JSON object that names the agent.",
    "Serve the card at /.well-known/agent-card.json, where clients look first.",
)
card.should(
    "C-02",
    "The same card is served at /.well-known/agent.json",
    ONCE,
    f"{SEED}, 'The agent card', gotcha 2",
    "GET the old path and compare the card with the one at the new path.",
    "Mount the same handler at /.well-known/agent.json: older clients look only there.",
)
card.must(
    "C-03",
    "The card's url is the JSON-RPC endpoint",
    ONCE,
    f"{SEED}, 'The agent card', gotcha 1",
    "POST a JSON-RPC request to every JSONRPC url of the card; each must answer in JSON-RPC.",
    "Set the card's url to the endpoint that takes POSTs (e.g. http://host/a2a), not to the server's root.",
    incident="Quinn PR #6: dispatches died silently on HTTP 405",
)
card.must(
    "C-04",
    "The card has every required field",
    ONCE,
    "A2A 0.3 §5.5, 1.0 §4.4.1",
    "Read name, description, version, capabilities, defaultInputModes, defaultOutputModes, skills.",
    "Add the missing fields: clients refuse the whole card without them.",
)
card.must(
    "C-05",
    "Every skill has an id of its own, a name, a description and tags",
    ONCE,
    "A2A 0.3 §5.5.4, 1.0 §4.4.5",
    "Read the card's skills.",
    "Give each skill a unique id, a name, a description and at least one tag.",
)
card.must(
    "C-06",
    "capabilities.streaming is the truth",
    BOTH,
    f"{SEED}, 'The agent card', gotcha 3, and checklist 'Transport & lifecycle'",
    "Ask for a stream: if the card says true it must come as SSE, otherwise it must be refused with -32004.",
    "Set capabilities.streaming to what is really mounted; callers choose their transport by it.",
)
card.must(
    "C-07",
    "capabilities.pushNotifications is the truth",
    BOTH,
    f"{SEED}, 'The agent card', gotcha 3, and checklist 'Transport & lifecycle'",
    "Register a webhook: if the card says true it must be taken (or refused for its address with -32602), "
    "otherwise refused with -32003.",
    "Set capabilities.pushNotifications to what is really mounted; callers stop polling because of it.",
)
card.should(
    "C-08",
    "The card names its protocolVersion and preferredTransport",
    V03,
    "A2A 0.3 §5.5; reference interop, 'What real clients found'",
    "Read protocolVersion (0.3.x) and preferredTransport (JSONRPC).",
    'Add "protocolVersion": "0.3.0" and "preferredTransport": "JSONRPC".',
    incident="A card of version 0.2 makes 1.x clients give up or speak the wrong dialect",
)
card.should(
    "C-09",
    "The card may be read from a browser of another origin",
    ONCE,
    f"{ALMANAC}, step 6.2",
    "GET the card with an Origin header; Access-Control-Allow-Origin must allow it.",
    "Answer the card's paths with Access-Control-Allow-Origin: *.",
)
card.should(
    "C-10",
    "The card may be cached: Cache-Control and ETag",
    ONCE,
    "A2A 1.0 §8.6",
    "GET the card and read Cache-Control (max-age) and ETag; a conditional GET must give 304.",
    "Send Cache-Control with max-age and an ETag, and answer If-None-Match with 304.",
)
card.must(
    "C-11",
    "Every security requirement names a declared scheme",
    ONCE,
    "A2A 0.3 §5.5.3, 1.0 §4.5",
    "Compare the names in security (or securityRequirements) with securitySchemes.",
    "Declare the scheme, or take the requirement out.",
)
card.must(
    "C-12",
    "supportedInterfaces says where 1.0 is spoken",
    V10,
    "A2A 1.0 §4.4.6",
    "Read an entry with protocolBinding JSONRPC, protocolVersion 1.x and an absolute url.",
    "List the endpoint in supportedInterfaces with its binding and version.",
)
card.must(
    "C-13",
    "The extended card exists exactly if the card says so",
    BOTH,
    "A2A 0.3 §7.10, 1.0 §3.1.11",
    "Call the method: with the flag it must return a card, without it an error (-32007 or -32004), never -32601.",
    "Serve the method, or set the flag to false and answer -32007 (0.3) or -32004 (1.0).",
)
card.should(
    "C-14",
    "The card is sent as application/json",
    ONCE,
    "A2A 0.3 §5.3, 1.0 §8.2",
    "Read the Content-Type of the card.",
    "Send the card as application/json (or application/a2a+json).",
)
card.should(
    "C-15",
    "The endpoint answers with an extra slash too, without a redirect",
    ONCE,
    "Reference interop, 'What the official conformance kit expects'",
    "POST to the endpoint with a slash appended (or without the one it ends with).",
    "Mount the endpoint with and without the trailing slash; POSTs are not redirected by clients.",
)
card.must(
    "C-16",
    "The card's url is absolute",
    ONCE,
    "A2A 0.3 §5.5, 1.0 §4.4.6",
    "Parse url and every interface's url: http or https, with a host.",
    "Write the whole address as callers reach it, scheme and host included.",
)
card.must(
    "C-17",
    "The card's fields are camelCase",
    ONCE,
    "A2A 0.3 §5.5, 1.0 §5.5",
    "Look for keys with underscores outside of free-form objects.",
    "Serialise with camelCase names; push_notifications is a flag nobody reads.",
)

card.should(
    "C-18",
    "The card's address does not follow a forged Host",
    ONCE,
    "Reference reliability T-31",
    "GET the card with the Host of somebody else: no address in it may be there.",
    "Write the configured address, or the socket's own; never build it from the request's Host header.",
)
card.must(
    "C-19",
    "Every dialect the card offers is one the agent speaks",
    ONCE,
    "A2A 0.3 §5.5, 1.0 §3.6 and §4.4.6",
    "Read and cancel a task that is none, in each dialect of the card: neither may be an unknown method or version.",
    "Give each supportedInterfaces entry the protocolVersion that is served there (without one, clients read 0.3), "
    "and list only what is served.",
)

auth = Section("Credentials")
auth.must(
    "A-01",
    "The card is public although calls need credentials",
    ONCE,
    f"{ALMANAC}, step 6.3; seed: A2A Protocol (selectools), 'Endpoints'",
    "GET the card without credentials.",
    "Leave the card's paths out of the authentication.",
    needs=("auth",),
)
auth.must(
    "A-02",
    "A call without credentials is refused with HTTP 401",
    ONCE,
    f"{ALMANAC}, step 6.3; seed: A2A Protocol (selectools), 'Error mapping'",
    "POST a call without credentials.",
    "Answer 401 before anything of the call is looked at.",
    needs=("auth",),
)
auth.must(
    "A-03",
    "A call with wrong credentials is refused with HTTP 401 or 403",
    ONCE,
    f"{ALMANAC}, step 6.3",
    "POST a call with credentials that are off by a character.",
    "Compare the whole secret in constant time, as bytes.",
    needs=("auth",),
)
auth.should(
    "A-04",
    "A 401 names the scheme in WWW-Authenticate",
    ONCE,
    "A2A 0.3 §4.4, 1.0 §7.4; RFC 9110 §11.6.1",
    "Read the header of the refusal.",
    "Send WWW-Authenticate with every 401.",
    needs=("auth",),
)
auth.must(
    "A-05",
    "Credentials that are demanded are declared on the card, and the other way round",
    ONCE,
    "A2A 0.3 §4.3, 1.0 §7.3",
    "Compare how a call without credentials is answered with the card's securitySchemes.",
    "Declare what is demanded; demand what is declared.",
)
auth.must(
    "A-06",
    "Another caller's task looks like no task",
    BOTH,
    "Reference reliability T-24; A2A 1.0 §13.1",
    "Read and cancel one caller's task with a second caller's credentials: -32001, as for an unknown id.",
    "Filter by owner inside the look-up, so that a foreign task and a missing one are answered alike.",
    needs=("auth", "second-key"),
)

extensions = Section("Extensions")
extensions.must(
    "X-01",
    "Declared extensions are well formed",
    ONCE,
    "A2A 0.3 §5.5.2.1, 1.0 §4.4.4",
    "Read capabilities.extensions: an array of objects with a uri.",
    "Write each extension as {uri, description, required, params}.",
)
extensions.should(
    "X-02",
    "effect-domain-v1 lists effects of skills that exist",
    ONCE,
    f"{SEED}, checklist 'Extensions'",
    "Read the extension's params.skills: every key is a skill of the card, every effect has domain and path.",
    "Declare effects under the ids of the card's skills.",
)
extensions.should(
    "X-03",
    "A changed world is reported as declared (worldstate-delta-v1)",
    BOTH,
    f"{SEED}, checklist 'Extensions'",
    "Run a skill with declared effects; the terminal task carries a delta part that agrees with them.",
    "Emit the delta on the terminal task whenever a tool with known effects succeeds.",
    needs=("side-effects",),
)
extensions.should(
    "X-04",
    "cost-v1: what a task cost is on the terminal task",
    BOTH,
    f"{SEED}, checklist 'Extensions' (Quinn PR #56)",
    "Run a skill that declares cost; its terminal task carries a data part with usage and durationMs.",
    "Add {usage, durationMs} as a data part of the terminal artifact whenever usage was tracked.",
)
extensions.should(
    "X-05",
    "confidence-v1: confidence is a number from 0 to 1",
    BOTH,
    f"{SEED}, checklist 'Extensions'",
    "Run a skill that declares confidence and read the data part of its terminal task.",
    "Send {confidence, explanation} with confidence between 0 and 1.",
)
extensions.must(
    "X-06",
    "An extension nobody knows is ignored",
    BOTH,
    "A2A 0.3 §3.3, 1.0 §4.6",
    "Send with an extension header that names an unknown URI; the call must work.",
    "Activate the extensions you know and ignore the rest.",
)

ROWS = (*card.rows, *auth.rows, *extensions.rows)
