// Every method of @a2a-js/sdk 1.3.0's client against the agent at the URL given; "0.3" as last word pins its old layer.
import { randomUUID } from "node:crypto";
import { Role, StreamResponse, TaskState, taskStateToJSON } from "@a2a-js/sdk";
import { ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory } from "@a2a-js/sdk/client";

const shared = process.env.INTEROP_SHARED;
const { Absent, Adapter, BEARER, HINT, authorized, HookListener, Refused, run, stateWord } = await import(`${shared}/checks.mjs`);
const { SCRIPT } = await import(`${shared}/script.mjs`);

const CODES = {
  TaskNotFoundError: -32001,
  TaskNotCancelableError: -32002,
  PushNotificationNotSupportedError: -32003,
  UnsupportedOperationError: -32004,
  ExtendedAgentCardNotConfiguredError: -32007,
  RequestMalformedError: -32602,
};

const textOf = (parts) =>
  (parts ?? []).map((part) => (part.content?.$case === "text" ? part.content.value : "")).join("");
const word = (state) => stateWord(taskStateToJSON(state));

function view(task) {
  if (!task?.status) throw new Error(`no task but ${JSON.stringify(task)}`);
  const parts = task.artifacts.flatMap((artifact) => artifact.parts);
  const cost = parts.find((part) => part.content?.$case === "data" && part.content.value?.costUsd !== undefined);
  return {
    id: task.id,
    context: task.contextId,
    state: word(task.status.state),
    text: textOf(parts),
    said: textOf(task.status.message?.parts),
    costUsd: cost?.content.value.costUsd,
  };
}

function eventView({ payload }) {
  const { $case: kind, value } = payload;
  if (kind === "task") return { kind: "task", state: word(value.status.state), task: value.id };
  if (kind === "artifactUpdate") return { kind: "artifact", text: textOf(value.artifact.parts), task: value.taskId };
  if (kind === "statusUpdate") {
    const text = textOf(value.status.message?.parts);
    return { kind: "status", state: word(value.status.state), text, task: value.taskId };
  }
  return { kind, text: textOf(value.parts) };
}

/** Turn the SDK's error into the checks' own; its 0.3 layer tells a stream's error in words alone. */
function translated(error) {
  const inText = /Code: (-32\d{3})/.exec(error.message);
  const code = [error.code, error.envelopeCode, CODES[error.name], inText && Number(inText[1])]
    .find((found) => typeof found === "number");
  return code === undefined ? error : new Refused(`${error.name} ${error.message}`, code);
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
  messageId: randomUUID(),
  role: Role.ROLE_USER,
  parts: [{ content: { $case: "text", value: text }, metadata: undefined, filename: "", mediaType: "" }],
  taskId: task ?? "",
  contextId: context ?? "",
  metadata: HINT,
  extensions: [],
  referenceTaskIds: [],
});

const pushConfig = (taskId, id, url) => ({
  tenant: "", taskId, id, url, token: SCRIPT.token, authentication: undefined,
});

class Js10 extends Adapter {
  constructor(url, hooks, version, key) {
    super(hooks);
    this.url = url;
    this.version = version;
    this.fetchImpl = authorized(key);
  }

  readHook(body) {
    if (!("kind" in body) && !StreamResponse.fromJSON(body).payload) throw new Error("no event in the webhook");
  }

  stranger(key) {
    return new Js10(this.url, this.hooks, this.version, key);
  }

  async discover() {
    const old = this.version === "0.3";
    const options = { fetchImpl: this.fetchImpl, ...(old ? { legacyCompat: { enabled: true } } : {}) };
    const resolver = new DefaultAgentCardResolver(options);
    const transports = [new JsonRpcTransportFactory(options)];
    const card = await resolver.resolve(this.url);
    if (old) card.supportedInterfaces = card.supportedInterfaces.filter((i) => i.protocolVersion.startsWith("0."));
    this.client = await new ClientFactory({ transports }).createFromAgentCard(card);
    this.offersExtended = card.capabilities?.extendedAgentCard;
    const { streaming, pushNotifications } = card.capabilities;
    return { name: card.name, skills: card.skills.length, streaming: !!streaming, push: !!pushNotifications };
  }

  request(text, { wait = false, hook, ...where } = {}) {
    const taskPushNotificationConfig = hook ? pushConfig("", "inline", hook) : undefined;
    return {
      tenant: "",
      message: message(text, where),
      configuration: { acceptedOutputModes: [], taskPushNotificationConfig, returnImmediately: !wait },
      metadata: undefined,
    };
  }

  async send(text, options) {
    return view(await calling(() => this.client.sendMessage(this.request(text, options))));
  }

  stream(text) {
    return reading(this.client.sendMessageStream(this.request(text, { wait: true })));
  }

  async get(id) {
    return view(await calling(() => this.client.getTask({ tenant: "", id, historyLength: 5 })));
  }

  async cancel(id) {
    return view(await calling(() => this.client.cancelTask({ tenant: "", id, metadata: undefined })));
  }

  subscribe(id) {
    return reading(this.client.resubscribeTask({ tenant: "", id }));
  }

  async pushSet(taskId, url) {
    const config = pushConfig(taskId, "hook-1", url);
    return (await calling(() => this.client.createTaskPushNotificationConfig(config))).id;
  }

  async pushGet(taskId, id) {
    return (await calling(() => this.client.getTaskPushNotificationConfig({ tenant: "", taskId, id }))).url;
  }

  async pushList(taskId) {
    const wanted = { tenant: "", taskId, pageSize: 10, pageToken: "" };
    return (await calling(() => this.client.listTaskPushNotificationConfig(wanted))).configs.map((c) => c.url);
  }

  async pushDelete(taskId, id) {
    await calling(() => this.client.deleteTaskPushNotificationConfig({ tenant: "", taskId, id }));
  }

  async list(contextId) {
    if (this.version === "0.3") throw new Absent("the 0.3 layer has no task listing over JSON-RPC");
    const wanted = {
      tenant: "", contextId, status: TaskState.TASK_STATE_UNSPECIFIED, pageSize: 10, pageToken: "",
      statusTimestampAfter: undefined,
    };
    return (await calling(() => this.client.listTasks(wanted))).tasks.map((task) => task.id);
  }

  async extendedCard() {
    if (!this.offersExtended) throw new Absent("the card offers no extended card");
    const card = await calling(() => this.client.getAgentCard());
    return { name: card.name, skills: card.skills.length };
  }
}

const [url, port, version = "1.0"] = process.argv.slice(2);
await run(new Js10(url, new HookListener(), version, BEARER), Number(port));
