// Every method of @a2a-js/sdk 0.3.14's client, run against the agent at the URL given.
import { randomUUID } from "node:crypto";
import { A2AClient, ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory } from "@a2a-js/sdk/client";

const shared = process.env.INTEROP_SHARED;
const { Absent, Adapter, BEARER, HINT, authorized, HookListener, Refused, expect, gather, run } = await import(`${shared}/checks.mjs`);
const { SCRIPT } = await import(`${shared}/script.mjs`);

const CODES = {
  TaskNotFoundError: -32001,
  TaskNotCancelableError: -32002,
  PushNotificationNotSupportedError: -32003,
  UnsupportedOperationError: -32004,
  AuthenticatedExtendedCardNotConfiguredError: -32007,
};

const textOf = (parts) => (parts ?? []).map((part) => part.text ?? "").join("");

function view(task) {
  if (task.kind !== "task") throw new Error(`no task but ${task.kind}`);
  const parts = (task.artifacts ?? []).flatMap((artifact) => artifact.parts);
  const cost = parts.find((part) => part.metadata?.mimeType === SCRIPT.cost_type);
  return {
    id: task.id,
    context: task.contextId,
    state: task.status.state,
    text: textOf(parts),
    said: textOf(task.status.message?.parts),
    costUsd: cost?.data.costUsd,
  };
}

function eventView(event) {
  if (event.kind === "task") return { kind: "task", state: event.status.state, task: event.id };
  if (event.kind === "artifact-update") {
    return { kind: "artifact", text: textOf(event.artifact.parts), task: event.taskId };
  }
  if (event.kind === "status-update") {
    const text = textOf(event.status.message?.parts);
    return { kind: "status", state: event.status.state, text, task: event.taskId, final: event.final };
  }
  return { kind: event.kind, text: textOf(event.parts) };
}

/** Turn the SDK's error into the checks' own. */
function translated(error) {
  const said = String(error.message);
  const inText = /\(?[Cc]ode:? (-32\d{3})\)?/.exec(said);
  const code = CODES[error.name] ?? CODES[error.constructor?.name] ?? (inText ? Number(inText[1]) : undefined);
  if (code !== undefined || error.errorResponse) return new Refused(said, code ?? error.errorResponse?.error?.code);
  return error;
}

async function calling(call) {
  try {
    return await call();
  } catch (error) {
    throw translated(error);
  }
}

async function* reading(stream) {
  try {
    for await (const event of stream) yield eventView(event);
  } catch (error) {
    throw translated(error);
  }
}

const message = (text, { task, context } = {}) => ({
  kind: "message",
  role: "user",
  messageId: randomUUID(),
  parts: [{ kind: "text", text }],
  ...(task ? { taskId: task } : {}),
  ...(context ? { contextId: context } : {}),
  ...(HINT ? { metadata: HINT } : {}),
});

class Js03 extends Adapter {
  constructor(url, hooks, key) {
    super(hooks);
    this.url = url;
    this.fetchImpl = authorized(key);
  }

  stranger(key) {
    return new Js03(this.url, this.hooks, key);
  }

  async discover() {
    const { fetchImpl } = this;
    const options = {
      transports: [new JsonRpcTransportFactory({ fetchImpl })],
      cardResolver: new DefaultAgentCardResolver({ fetchImpl }),
    };
    this.client = await new ClientFactory(options).createFromUrl(this.url);
    const card = await options.cardResolver.resolve(this.url);
    this.offersExtended = card.supportsAuthenticatedExtendedCard;
    const { streaming, pushNotifications } = card.capabilities;
    return { name: card.name, skills: card.skills.length, streaming: !!streaming, push: !!pushNotifications };
  }

  async send(text, { wait = false, hook, ...where } = {}) {
    const push = hook && { id: "inline", url: hook, token: SCRIPT.token };
    const configuration = { blocking: wait, ...(push ? { pushNotificationConfig: push } : {}) };
    return view(await calling(() => this.client.sendMessage({ message: message(text, where), configuration })));
  }

  stream(text) {
    return reading(this.client.sendMessageStream({ message: message(text) }));
  }

  async get(id) {
    return view(await calling(() => this.client.getTask({ id, historyLength: 5 })));
  }

  async cancel(id) {
    return view(await calling(() => this.client.cancelTask({ id })));
  }

  subscribe(id) {
    return reading(this.client.resubscribeTask({ id }));
  }

  async pushSet(taskId, url) {
    const pushNotificationConfig = { id: "hook-1", url, token: SCRIPT.token };
    const stored = await calling(() =>
      this.client.setTaskPushNotificationConfig({ taskId, pushNotificationConfig }));
    return stored.pushNotificationConfig.id;
  }

  async pushGet(id, pushNotificationConfigId) {
    const found = await calling(() => this.client.getTaskPushNotificationConfig({ id, pushNotificationConfigId }));
    return found.pushNotificationConfig.url;
  }

  async pushList(id) {
    const found = await calling(() => this.client.listTaskPushNotificationConfig({ id }));
    return found.map((config) => config.pushNotificationConfig.url);
  }

  async pushDelete(id, pushNotificationConfigId) {
    await calling(() => this.client.deleteTaskPushNotificationConfig({ id, pushNotificationConfigId }));
  }

  async extendedCard() {
    if (!this.offersExtended) throw new Absent("the card offers no extended card");
    const card = await calling(() => this.client.getAgentCard());
    return { name: card.name, skills: card.skills.length };
  }
}

/** The methods of the SDK's older class, which fleets still use. */
async function legacy(a) {
  const client = await A2AClient.fromCardUrl(`${a.url}/.well-known/agent-card.json`, { fetchImpl: a.fetchImpl });
  const configuration = { blocking: false };
  const { id } = await done(client.sendMessage({ message: message("stream lambda"), configuration }));
  const pushNotificationConfig = { id: "hook-1", url: `${a.hooks.base}/hook/legacy`, token: SCRIPT.token };
  await done(client.setTaskPushNotificationConfig({ taskId: id, pushNotificationConfig }));
  const found = await done(client.getTaskPushNotificationConfig({ id }));
  expect(found.pushNotificationConfig.url, pushNotificationConfig.url, "webhook");
  expect((await done(client.listTaskPushNotificationConfig({ id }))).length, 1, "webhooks");
  await client.deleteTaskPushNotificationConfig({ id, pushNotificationConfigId: "hook-1" });
  const joined = await gather(client.resubscribeTask({ id }));
  expect((await done(client.getTask({ id }))).status.state, "completed", "state");
  const events = await gather(client.sendMessageStream({ message: message("stream mu") }));
  expect((await client.cancelTask({ id })).error.code, -32002, "cancel of a finished task");
  return `${joined.length} events rejoined, ${events.length} streamed`;
}

async function done(call) {
  const response = await call;
  if (response.error) throw new Error(JSON.stringify(response.error));
  return response.result;
}

const [url, port] = process.argv.slice(2);
await run(new Js03(url, new HookListener(), BEARER), Number(port), { legacy });
