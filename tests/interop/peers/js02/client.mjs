// Every method of @a2a-js/sdk 0.2.5's client, run against the agent at the URL given.
import { randomUUID } from "node:crypto";
import { A2AClient } from "@a2a-js/sdk/client";

const shared = process.env.INTEROP_SHARED;
const { Adapter, BEARER, HookListener, Refused, authorized, run } = await import(`${shared}/checks.mjs`);
const { SCRIPT } = await import(`${shared}/script.mjs`);

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

/** This client returns the whole response; an error is a member of it. */
async function calling(call) {
  const response = await call();
  if (response.error) throw new Refused(response.error.message, response.error.code);
  return response.result;
}

async function* reading(stream) {
  try {
    for await (const event of stream) yield eventView(event);
  } catch (error) {
    const code = /Code: (-32\d{3})/.exec(error.message);
    throw code ? new Refused(error.message, Number(code[1])) : error;
  }
}

const message = (text, { task, context } = {}) => ({
  kind: "message",
  role: "user",
  messageId: randomUUID(),
  parts: [{ kind: "text", text }],
  ...(task ? { taskId: task } : {}),
  ...(context ? { contextId: context } : {}),
});

class Js02 extends Adapter {
  constructor(url, hooks, key) {
    super(hooks);
    this.url = url;
    // This client takes no fetch of ours, so the credential goes into the one there is. A stranger comes last.
    globalThis.fetch = authorized(key);
  }

  stranger(key) {
    return new Js02(this.url, this.hooks, key);
  }

  async discover() {
    this.client = new A2AClient(this.url);
    await this.client.getAgentCard(this.url);
    const card = await this.client.getAgentCard();
    const { streaming, pushNotifications } = card.capabilities;
    return { name: card.name, skills: card.skills.length, streaming: !!streaming, push: !!pushNotifications };
  }

  async send(text, { wait = false, hook, ...where } = {}) {
    const push = hook && { id: "inline", url: hook, token: SCRIPT.token };
    const configuration = {
      acceptedOutputModes: [], blocking: wait, ...(push ? { pushNotificationConfig: push } : {}),
    };
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
    const pushNotificationConfig = { url, token: SCRIPT.token };
    const stored = await calling(() =>
      this.client.setTaskPushNotificationConfig({ taskId, pushNotificationConfig }));
    return stored.pushNotificationConfig.id ?? "";
  }

  async pushGet(id) {
    return (await calling(() => this.client.getTaskPushNotificationConfig({ id }))).pushNotificationConfig.url;
  }
}

const [url, port] = process.argv.slice(2);
await run(new Js02(url, new HookListener(), BEARER), Number(port));
