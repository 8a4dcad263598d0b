// An A2A 0.3 agent made with @a2a-js/sdk 0.3.14: its own request handler, stores, sender and express routes.
import http from "node:http";
import { randomUUID } from "node:crypto";
import express from "express";
import {
  DefaultExecutionEventBusManager,
  DefaultPushNotificationSender,
  DefaultRequestHandler,
  InMemoryPushNotificationStore,
  InMemoryTaskStore,
} from "@a2a-js/sdk/server";
import { agentCardHandler, jsonRpcHandler, UserBuilder } from "@a2a-js/sdk/server/express";

const { SCRIPT, executed, serve, skillOf, sleep } = await import(`${process.env.INTEROP_SHARED}/script.mjs`);

const textPart = (text) => ({ kind: "text", text });
const costPart = () => ({ kind: "data", data: SCRIPT.cost, metadata: { mimeType: SCRIPT.cost_type } });

class Work {
  constructor(context, bus) {
    this.bus = bus;
    this.ids = { taskId: context.taskId, contextId: context.contextId };
  }
  status(state, text, final = false) {
    const message = text && {
      kind: "message", role: "agent", messageId: randomUUID(), parts: [textPart(text)], ...this.ids,
    };
    const status = { state, timestamp: new Date().toISOString(), ...(message ? { message } : {}) };
    this.bus.publish({ kind: "status-update", ...this.ids, status, final });
    if (final) this.bus.finished();
  }
  artifact(artifactId, parts, append, lastChunk) {
    const artifact = { artifactId, name: SCRIPT.artifact, parts };
    this.bus.publish({ kind: "artifact-update", ...this.ids, artifact, append, lastChunk });
  }
  answer(text) {
    this.artifact(randomUUID(), [textPart(text), costPart()], false, true);
    this.status("completed", null, true);
  }
}

const SKILLS = {
  complete: async (work, text) => work.answer(SCRIPT.echo_prefix + text),
  stream: async (work) => {
    for (const [at, chunk] of SCRIPT.chunks.entries()) {
      await sleep(SCRIPT.chunk_gap_s);
      work.artifact("streamed", [textPart(chunk)], at > 0, at === SCRIPT.chunks.length - 1);
    }
    work.status("completed", null, true);
  },
  slow: async (work, text, stopped) => {
    const end = Date.now() + SCRIPT.slow_s * 1000;
    while (Date.now() < end && !stopped()) await sleep(0.02);
    if (stopped()) work.status("canceled", null, true);
    else work.answer(SCRIPT.echo_prefix + text);
  },
  fail: async (work) => work.status("failed", SCRIPT.failure, true),
  ask: async (work) => work.status("input-required", SCRIPT.question, true),
};

class Skills {
  canceled = new Set();
  running = new Set();

  async execute(context, bus) {
    const { task, userMessage, taskId, contextId } = context;
    const work = new Work(context, bus);
    const text = userMessage.parts.map((part) => part.text ?? "").join("");
    executed(text);
    this.running.add(taskId);
    try {
      if (!task) {
        const status = { state: "submitted", timestamp: new Date().toISOString() };
        bus.publish({ kind: "task", id: taskId, contextId, status, history: [userMessage] });
      }
      work.status("working");
      if (task?.status.state === "input-required") work.answer(SCRIPT.answer_prefix + text);
      else await (SKILLS[skillOf(text)] ?? SKILLS.complete)(work, text, () => this.canceled.has(taskId));
    } finally {
      this.running.delete(taskId);
    }
  }

  cancelTask = async (taskId, bus) => {
    this.canceled.add(taskId);
    if (!this.running.has(taskId)) new Work({ taskId, contextId: "" }, bus).status("canceled", null, true);
  };
}

serve(http, (url) => {
  const card = {
    name: "js03",
    description: "@a2a-js/sdk 0.3.14",
    protocolVersion: "0.3.0",
    version: "1.0.0",
    url: `${url}/a2a`,
    preferredTransport: "JSONRPC",
    capabilities: { streaming: true, pushNotifications: true, stateTransitionHistory: false },
    defaultInputModes: ["text/plain"],
    defaultOutputModes: ["text/plain"],
    skills: [{ id: "mill", name: "Mill", description: "Does as the first word says", tags: ["interop"] }],
    supportsAuthenticatedExtendedCard: true,
  };
  const configs = new InMemoryPushNotificationStore();
  const handler = new DefaultRequestHandler(
    card,
    new InMemoryTaskStore(),
    new Skills(),
    new DefaultExecutionEventBusManager(),
    configs,
    new DefaultPushNotificationSender(configs),
    { ...card, name: "js03 extended" },
  );
  const app = express();
  app.use("/.well-known/agent-card.json", agentCardHandler({ agentCardProvider: handler }));
  app.use("/a2a", jsonRpcHandler({ requestHandler: handler, userBuilder: UserBuilder.noAuthentication }));
  return app;
});
