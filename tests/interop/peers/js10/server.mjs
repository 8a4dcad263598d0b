// An A2A 1.0 agent made with @a2a-js/sdk 1.3.0: its own request handler, stores, sender and express routes.
import http from "node:http";
import { randomUUID } from "node:crypto";
import express from "express";
import { Role, TaskState } from "@a2a-js/sdk";
import {
  AgentEvent,
  DefaultExecutionEventBusManager,
  DefaultPushNotificationSender,
  DefaultRequestHandler,
  InMemoryPushNotificationStore,
  InMemoryTaskStore,
} from "@a2a-js/sdk/server";
import { agentCardHandler, jsonRpcHandler, UserBuilder } from "@a2a-js/sdk/server/express";

const { SCRIPT, serve, skillOf, sleep } = await import(`${process.env.INTEROP_SHARED}/script.mjs`);

const part = ($case, value, metadata) => ({ content: { $case, value }, metadata, filename: "", mediaType: "" });
const costPart = () => part("data", SCRIPT.cost, { mimeType: SCRIPT.cost_type });

class Work {
  constructor(taskId, contextId, bus) {
    this.bus = bus;
    this.ids = { taskId, contextId };
  }
  status(state, text, last = false) {
    const message = text ? {
      messageId: randomUUID(), role: Role.ROLE_AGENT, parts: [part("text", text)], ...this.ids,
      metadata: undefined, extensions: [], referenceTaskIds: [],
    } : undefined;
    const status = { state, message, timestamp: new Date().toISOString() };
    this.bus.publish(AgentEvent.statusUpdate({ ...this.ids, status, metadata: undefined }));
    if (last) this.bus.finished();
  }
  artifact(artifactId, parts, append, lastChunk) {
    const artifact = {
      artifactId, name: SCRIPT.artifact, description: "", parts, metadata: undefined, extensions: [],
    };
    this.bus.publish(AgentEvent.artifactUpdate({ ...this.ids, artifact, append, lastChunk, metadata: undefined }));
  }
  answer(text) {
    this.artifact(randomUUID(), [part("text", text), costPart()], false, true);
    this.status(TaskState.TASK_STATE_COMPLETED, null, true);
  }
}

const SKILLS = {
  complete: async (work, text) => work.answer(SCRIPT.echo_prefix + text),
  stream: async (work) => {
    for (const [at, chunk] of SCRIPT.chunks.entries()) {
      await sleep(SCRIPT.chunk_gap_s);
      work.artifact("streamed", [part("text", chunk)], at > 0, at === SCRIPT.chunks.length - 1);
    }
    work.status(TaskState.TASK_STATE_COMPLETED, null, true);
  },
  slow: async (work, text, stopped) => {
    const end = Date.now() + SCRIPT.slow_s * 1000;
    while (Date.now() < end && !stopped()) await sleep(0.02);
    if (stopped()) work.status(TaskState.TASK_STATE_CANCELED, null, true);
    else work.answer(SCRIPT.echo_prefix + text);
  },
  fail: async (work) => work.status(TaskState.TASK_STATE_FAILED, SCRIPT.failure, true),
  ask: async (work) => work.status(TaskState.TASK_STATE_INPUT_REQUIRED, SCRIPT.question, true),
};

class Skills {
  canceled = new Set();
  running = new Map();

  async execute(context, bus) {
    const { task, userMessage, taskId, contextId } = context;
    const work = new Work(taskId, contextId, bus);
    const text = userMessage.parts.map((p) => (p.content?.$case === "text" ? p.content.value : "")).join("");
    this.running.set(taskId, contextId);
    try {
      if (!task) {
        const status = {
          state: TaskState.TASK_STATE_SUBMITTED, message: undefined, timestamp: new Date().toISOString(),
        };
        bus.publish(AgentEvent.task({
          id: taskId, contextId, status, artifacts: [], history: [userMessage], metadata: undefined,
        }));
      }
      work.status(TaskState.TASK_STATE_WORKING);
      const asked = task?.status?.state === TaskState.TASK_STATE_INPUT_REQUIRED;
      if (asked) work.answer(SCRIPT.answer_prefix + text);
      else await (SKILLS[skillOf(text)] ?? SKILLS.complete)(work, text, () => this.canceled.has(taskId));
    } finally {
      this.running.delete(taskId);
    }
  }

  cancelTask = async (taskId, bus) => {
    this.canceled.add(taskId);
    if (!this.running.has(taskId)) new Work(taskId, "", bus).status(TaskState.TASK_STATE_CANCELED, null, true);
  };
}

serve(http, (url) => {
  const face = { url: `${url}/a2a`, protocolBinding: "JSONRPC", tenant: "", protocolVersion: "1.0" };
  const card = {
    name: "js10",
    description: "@a2a-js/sdk 1.3.0",
    version: "1.0.0",
    supportedInterfaces: [face],
    provider: undefined,
    capabilities: { streaming: true, pushNotifications: true, extensions: [], extendedAgentCard: true },
    securitySchemes: {},
    securityRequirements: [],
    defaultInputModes: ["text/plain"],
    defaultOutputModes: ["text/plain"],
    skills: [{
      id: "mill", name: "Mill", description: "Does as the first word says", tags: ["interop"],
      examples: [], inputModes: [], outputModes: [], securityRequirements: [],
    }],
    signatures: [],
  };
  const configs = new InMemoryPushNotificationStore();
  const handler = new DefaultRequestHandler(
    card,
    new InMemoryTaskStore(),
    new Skills(),
    new DefaultExecutionEventBusManager(),
    configs,
    new DefaultPushNotificationSender(configs),
    { ...card, name: "js10 extended" },
  );
  const app = express();
  app.use("/.well-known/agent-card.json", agentCardHandler({ agentCardProvider: handler }));
  app.use("/a2a", jsonRpcHandler({ requestHandler: handler, userBuilder: UserBuilder.noAuthentication }));
  return app;
});
