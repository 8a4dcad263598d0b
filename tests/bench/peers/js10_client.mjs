// @a2a-js/sdk 1.3.0's client as its documentation makes it: `sends` URL. Turns as in turns.py.
import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";
import { Role, TaskState } from "@a2a-js/sdk";
import { ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory } from "@a2a-js/sdk/client";

const TEXT = "Please look at the last run and tell me in a few words what is wrong with it, and what to do first. ".repeat(2);
const [, url] = process.argv.slice(2);
const card = await new DefaultAgentCardResolver().resolve(`${url}/`, ".well-known/agent-card.json"); // the path would go without
const client = await new ClientFactory({ transports: [new JsonRpcTransportFactory()] }).createFromAgentCard(card);

const request = () => ({
  tenant: "",
  message: {
    messageId: randomUUID(), contextId: "", taskId: "", role: Role.ROLE_USER,
    parts: [{ content: { $case: "text", value: TEXT }, metadata: undefined, filename: "", mediaType: "" }],
    metadata: undefined, extensions: [], referenceTaskIds: [],
  },
  configuration: { acceptedOutputModes: [], taskPushNotificationConfig: undefined, returnImmediately: true },
  metadata: undefined,
});

async function inFlight(units, most, one) {
  let left = units;
  await Promise.all(Array.from({ length: most }, async () => { while (left-- > 0) await one(); }));
}

async function send() {
  const result = await client.sendMessage(request());
  const task = result.payload?.value ?? result;
  if (task.status.state !== TaskState.TASK_STATE_SUBMITTED) throw new Error(JSON.stringify(result));
}

let began;
console.log("{}");
for await (const line of createInterface({ input: process.stdin })) {
  const [word, units] = line.split(" ");
  if (word === "begin") {
    began = process.cpuUsage();
    console.log("{}");
  } else {
    await inFlight(Number(units), 64, send);
    const { user, system } = process.cpuUsage(began);
    console.log(JSON.stringify({ cpu_s: (user + system) / 1e6 }));
  }
}
