// The checks of checks.py for clients in JavaScript: same names, same meaning, same report lines.
import http from "node:http";
import { FULL_TEXT, SCRIPT, sleep } from "./script.mjs";

const CHECK_LIMIT_S = 15;
const POLL_S = 0.05;
const TERMINAL = new Set(["completed", "failed", "canceled", "rejected"]);
const BODY_BYTES_MAX = 1_000_000;
const OUR_AGENT = "fleetsim";
const OURS = process.env.INTEROP_OURS;
export const BEARER = process.env.INTEROP_BEARER;
export const HINT = process.env.INTEROP_SKILL ? { skillHint: process.env.INTEROP_SKILL } : undefined;
const ONLY = process.env.INTEROP_OPERATIONS?.split(",");
const plainFetch = globalThis.fetch;
let lastStatus;
const WRONG_KEY = "not-the-key";

/** The SDKs' form of a credential: a fetch that adds it. */
export function authorized(key) {
  return async (url, init = {}) => {
    const headers = new Headers(init.headers);
    if (key) headers.set("authorization", `Bearer ${key}`);
    const response = await plainFetch(url, { ...init, headers });
    lastStatus = response.status;
    return response;
  };
}

/** The client has no such method, or the card says the agent does not offer it. */
export class Absent extends Error {}

/** A JSON-RPC error; `code` is undefined when the client hides it. */
export class Refused extends Error {
  constructor(message, code) {
    super(code === undefined ? message : `${code}: ${message}`);
    this.code = code;
  }
}

/** A webhook listener that keeps what came and answers 200. */
export class HookListener {
  constructor() {
    this.hooks = [];
    this.server = http.createServer((request, response) => {
      const pieces = [];
      let size = 0;
      request.on("data", (piece) => {
        size += piece.length;
        if (size <= BODY_BYTES_MAX) pieces.push(piece);
      });
      request.on("end", () => {
        let body = null;
        try {
          body = JSON.parse(Buffer.concat(pieces).toString("utf8"));
        } catch {
          body = null;
        }
        this.hooks.push({ path: request.url, headers: request.headers, body });
        response.writeHead(200, { "content-length": "0" }).end();
      });
    });
  }

  async open(port) {
    await new Promise((resolve) => this.server.listen(port, "127.0.0.1", resolve));
    this.base = `http://127.0.0.1:${port}`;
  }

  async wait(path, state, limitS = 8) {
    const deadline = Date.now() + limitS * 1000;
    while (Date.now() < deadline) {
      const found = this.hooks.find((hook) => hook.path === path && hookState(hook.body) === state);
      if (found) return found;
      await sleep(0.03);
    }
    const seen = this.hooks.filter((hook) => hook.path === path).map((hook) => JSON.stringify(hook.body).slice(0, 200));
    throw new Error(`no such webhook in ${limitS} s; ${seen.length} came: ${seen.slice(-3)}`);
  }

  close() {
    this.server.close();
    this.server.closeAllConnections();
  }
}

/** The state a webhook body speaks of, in the 0.3 spelling. */
export function hookState(body) {
  const inner = body?.task ?? body?.statusUpdate ?? body;
  return stateWord(inner?.status?.state ?? "");
}

export function stateWord(state) {
  return String(state).replace(/^TASK_STATE_/, "").toLowerCase().replaceAll("_", "-");
}

/** What a client's script extends. What stays as here is absent. */
export class Adapter {
  constructor(hooks) {
    this.hooks = hooks;
    this.card = null;
  }
  async discover() { throw new Absent("no discovery in this client"); }
  async send() { throw new Absent("no send in this client"); }
  async *stream() { throw new Absent("no streaming in this client"); }
  async get() { throw new Absent("no task query in this client"); }
  async cancel() { throw new Absent("no cancel in this client"); }
  async *subscribe() { throw new Absent("no resubscribe in this client"); }
  async pushSet() { throw new Absent("no webhook registration in this client"); }
  async pushGet() { throw new Absent("no webhook query in this client"); }
  async pushList() { throw new Absent("no webhook listing in this client"); }
  async pushDelete() { throw new Absent("no webhook removal in this client"); }
  async list() { throw new Absent("no task listing in this client"); }
  async extendedCard() { throw new Absent("no extended card in this client"); }
  /** The same client with a wrong credential. */
  /** Read a webhook body with the client's own types, if it has any. */
  readHook() {}
  stranger() { throw new Absent("no credential in this client"); }
}

export function expect(value, wanted, what) {
  if (JSON.stringify(value) !== JSON.stringify(wanted)) {
    throw new Error(`${what}: wanted ${JSON.stringify(wanted)}, got ${JSON.stringify(value)}`);
  }
}

function demand(adapter, flag) {
  if (adapter.card && !adapter.card[flag]) throw new Absent(`the card says ${flag} false`);
}

async function until(adapter, task, wanted) {
  while (!wanted.includes(task.state)) {
    if (TERMINAL.has(task.state)) throw new Error(`ended ${task.state} (${task.said}) before ${wanted}`);
    await sleep(POLL_S);
    task = await adapter.get(task.id);
  }
  return task;
}

async function refused(call, codes, absent) {
  let got;
  try {
    got = await call();
  } catch (why) {
    if (!(why instanceof Refused)) throw why;
    if (codes && why.code !== undefined && !codes.includes(why.code)) {
      throw new Error(`refused with ${why.message}, wanted ${codes}`);
    }
    if (absent) throw new Absent(`${absent} (${why.code})`);
    return `refused, ${why.code ?? why.message}`;
  }
  throw new Absent(`not refused: ${got?.state ?? got}`);
}

export async function gather(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

function lastState(events) {
  return events.map((event) => event.state).filter(Boolean).at(-1) ?? "none";
}

function hookText(body) {
  const parts = ((body?.task ?? body)?.artifacts ?? []).flatMap((artifact) => artifact.parts);
  return parts.map((part) => part.text ?? "").join("");
}

/** How the end was told: the body read with the client's types, the token's headers; ours brings all of it. */
function told(adapter, hook) {
  adapter.readHook(hook.body);
  const names = tokenHeaders(hook.headers);
  if (adapter.card.name === OUR_AGENT) {
    expect(names.length, 2, "headers with the token");
    expect(hookText(hook.body), FULL_TEXT, "text in the webhook");
  }
  return names.join(" and ");
}

function tokenHeaders(headers) {
  const names = [];
  if (headers["x-a2a-notification-token"] === SCRIPT.token) names.push("X-A2A-Notification-Token");
  if (headers.authorization === `Bearer ${SCRIPT.token}`) names.push("Authorization");
  if (names.length === 0) throw new Error("no token in the webhook's headers");
  return names;
}

async function withSlow(adapter, body) {
  const running = await adapter.send("slow");
  try {
    return await body(running.id);
  } finally {
    await adapter.cancel(running.id);
  }
}

export const CHECKS = {
  discover: async (a) => {
    a.card = await a.discover();
    if (!a.card.name || a.card.skills < 1) throw new Error(`name ${a.card.name}, ${a.card.skills} skills`);
    return `${a.card.name}, ${a.card.skills} skill(s), streaming ${a.card.streaming}, webhooks ${a.card.push}`;
  },
  complete: async (a) => {
    const first = await a.send("complete alpha");
    const done = await until(a, first, ["completed"]);
    expect(done.text, SCRIPT.echo_prefix + "complete alpha", "text");
    return `${first.state} first`;
  },
  cost: async (a) => {
    const done = await until(a, await a.send("complete cost"), ["completed"]);
    if (done.costUsd === undefined) throw new Absent("no cost part");
    expect(done.costUsd, SCRIPT.cost.costUsd, "cost in US dollars");
    return `${done.costUsd} USD`;
  },
  wait: async (a) => {
    const reply = await a.send("complete beta", { wait: true });
    if (["submitted", "working"].includes(reply.state)) throw new Absent(`answers ${reply.state} at once`);
    expect(reply.state, "completed", "state in the reply");
    expect(reply.text, SCRIPT.echo_prefix + "complete beta", "text");
    return "completed in the reply";
  },
  stream: async (a) => {
    demand(a, "streaming");
    const events = await gather(a.stream("stream epsilon"));
    const pieces = events.filter((event) => event.kind === "artifact");
    if (pieces.length < 2) throw new Error(`${pieces.length} artifact events in ${events.map((e) => e.kind)}`);
    const joined = pieces.map((event) => event.text).join("");
    if (joined !== FULL_TEXT && pieces.at(-1).text !== FULL_TEXT) throw new Error(`text ${JSON.stringify(joined)}`);
    expect(lastState(events), "completed", "last state");
    if (events.at(-1).final === false) throw new Error("the last event is not final");
    return `${events.length} events, ${events[0].kind} first`;
  },
  "dropped-stream": async (a) => {
    demand(a, "streaming");
    let task = "";
    for await (const event of a.stream("stream nu")) {
      task ||= event.task;
      if (event.kind === "artifact") break;
    }
    const done = await until(a, await a.get(task), ["completed"]);
    expect(done.text, FULL_TEXT, "text");
    return "done without us";
  },
  fail: async (a) => {
    const done = await until(a, await a.send("fail please"), ["failed"]);
    if (!done.said) throw new Error("no reason in status.message");
    return done.said;
  },
  ask: async (a) => {
    const waiting = await until(a, await a.send("ask"), ["input-required", "completed"]);
    if (waiting.state === "completed") throw new Absent("never asks");
    expect(waiting.said, SCRIPT.question, "question");
    let reply = await a.send("blue", { task: waiting.id, context: waiting.context });
    if (reply.id !== waiting.id) throw new Absent("the answer became another task");
    while (reply.state === "input-required") {
      await sleep(POLL_S);
      reply = await a.get(reply.id);
    }
    const done = await until(a, reply, ["completed"]);
    expect(done.text, SCRIPT.answer_prefix + "blue", "text");
    return waiting.said;
  },
  "stream-ask": async (a) => {
    demand(a, "streaming");
    const events = await gather(a.stream("ask"));
    if (lastState(events) === "completed") throw new Absent("never asks");
    expect(lastState(events), "input-required", "last state");
    expect(events.at(-1).text, SCRIPT.question, "question");
    await a.cancel(events.at(-1).task);
    return "ends with the question";
  },
  cancel: async (a) => {
    const running = await a.send("slow");
    if (TERMINAL.has(running.state)) {
      return refused(() => a.cancel(running.id), [-32002], "tasks end within the request");
    }
    const stopped = await a.cancel(running.id);
    if (stopped.state === "completed") throw new Absent("canceled only after its end");
    expect(stopped.state, "canceled", "state in the reply");
    expect((await a.get(running.id)).state, "canceled", "state afterwards");
    return "canceled";
  },
  "cancel-again": async (a) => {
    const running = await a.send("slow");
    if (!TERMINAL.has(running.state)) await a.cancel(running.id);
    return refused(() => a.cancel(running.id), [-32002]);
  },
  "finished-task": async (a) => {
    const done = await until(a, await a.send("complete delta"), ["completed"]);
    return refused(() => a.send("complete again", { task: done.id, context: done.context }));
  },
  get: async (a) => {
    const done = await until(a, await a.send("complete gamma"), ["completed"]);
    const again = await a.get(done.id);
    expect([again.id, again.state, again.text], [done.id, "completed", done.text], "task");
    return again.state;
  },
  "unknown-task": (a) => refused(() => a.get("no-such-task"), [-32001]),
  list: async (a) => {
    const done = await until(a, await a.send("complete kappa"), ["completed"]);
    const ids = await a.list(done.context);
    if (!ids.includes(done.id)) throw new Error(`task ${done.id} not among ${ids}`);
    return `${ids.length} in the context`;
  },
  resubscribe: async (a) => {
    demand(a, "streaming");
    const running = await a.send("stream zeta");
    const events = await gather(a.subscribe(running.id));
    expect(lastState(events), "completed", "last state");
    if (!events.some((event) => event.kind === "artifact")) {
      throw new Error(`no artifact in ${events.map((event) => event.kind)}`);
    }
    return `${events.length} events, ${events[0].kind} first`;
  },
  snapshot: async (a) => {
    demand(a, "streaming");
    const running = await a.send("stream eta");
    const events = await gather(a.subscribe(running.id));
    if (events[0].kind !== "task") throw new Absent(`the rejoined stream begins with ${events[0].kind}`);
    return "task first";
  },
  "resubscribe-unknown": async (a) => {
    demand(a, "streaming");
    return refused(() => gather(a.subscribe("no-such-task")), [-32001]);
  },
  webhook: async (a) => {
    demand(a, "push");
    const running = await a.send("stream theta");
    const config = await a.pushSet(running.id, `${a.hooks.base}/hook/set`);
    const hook = await a.hooks.wait("/hook/set", "completed");
    return `${told(a, hook)}; config ${Boolean(config)}`;
  },
  "webhook-inline": async (a) => {
    demand(a, "push");
    await a.send("stream iota", { hook: `${a.hooks.base}/hook/inline` });
    return told(a, await a.hooks.wait("/hook/inline", "completed"));
  },
  "webhook-cancel": async (a) => {
    demand(a, "push");
    const running = await a.send("slow");
    await a.pushSet(running.id, `${a.hooks.base}/hook/cancel`);
    await a.cancel(running.id);
    try {
      await a.hooks.wait("/hook/cancel", "canceled", 3);
    } catch {
      throw new Absent("no webhook on cancel");
    }
    return "canceled";
  },
  "push-get": async (a) => {
    demand(a, "push");
    const url = `${a.hooks.base}/hook/get`;
    await withSlow(a, async (id) => {
      const config = await a.pushSet(id, url);
      expect(await a.pushGet(id, config), url, "url");
    });
    return "the url registered";
  },
  "push-list": async (a) => {
    demand(a, "push");
    const url = `${a.hooks.base}/hook/list`;
    await withSlow(a, async (id) => {
      await a.pushSet(id, url);
      expect(await a.pushList(id), [url], "urls");
    });
    return "one config";
  },
  "push-delete": async (a) => {
    demand(a, "push");
    await withSlow(a, async (id) => {
      const config = await a.pushSet(id, `${a.hooks.base}/hook/delete`);
      await a.pushDelete(id, config);
      expect(await a.pushList(id), [], "urls left");
    });
    return "gone";
  },
  "extended-card": async (a) => {
    const { name, skills } = await a.extendedCard();
    if (name === OUR_AGENT && skills <= a.card.skills) throw new Error(`${skills} skill(s), no more than the public card`);
    return `${name}, ${skills} skill(s)`;
  },
};

async function webhookLate(a) {
  demand(a, "push");
  const done = await until(a, await a.send("stream xi"), ["completed"]);
  await a.pushSet(done.id, `${a.hooks.base}/hook/late`);
  return told(a, await a.hooks.wait("/hook/late", "completed"));
}

async function wrongKey(adapter) {
  const stranger = adapter.stranger(WRONG_KEY);
  await stranger.discover();
  try {
    await stranger.send("complete secret");
  } catch (why) {
    if (lastStatus !== 401) throw new Error(`HTTP ${lastStatus}, refused with ${why.message}`);
    return `HTTP 401, told as "${why.message}"`;
  }
  throw new Error("every key is taken");
}

/** Run every check, one after the other, report each, and leave. */
export async function run(adapter, port, extra = {}) {
  await adapter.hooks.open(port);
  for (const [op, check] of Object.entries({ ...CHECKS, ...(OURS ? { "webhook-late": webhookLate } : {}), ...extra, ...(BEARER ? { "wrong-key": wrongKey } : {}) })) {
    if (ONLY && !ONLY.includes(op)) continue;
    const started = Date.now();
    let result = "works";
    let detail = "";
    let timer;
    try {
      const limit = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error(`no end within ${CHECK_LIMIT_S} s`)), CHECK_LIMIT_S * 1000);
      });
      detail = await Promise.race([check(adapter), limit]);
    } catch (why) {
      result = why instanceof Absent ? "absent" : "fails";
      detail = why instanceof Absent ? why.message : `${why?.name}: ${why?.message}`;
    } finally {
      clearTimeout(timer);
    }
    const took = Math.round((Date.now() - started) / 10) / 100;
    process.stdout.write(JSON.stringify({ op, result, detail: String(detail).replace(/\s+/g, " ").slice(0, 300), s: took }) + "\n");
  }
  adapter.hooks.close();
  process.exitCode = 0;
  setTimeout(() => process.exit(0), 200).unref();
}
