// Sends a request that asks, waits for its question, answers it, and lists what ended. The types are the document's.
import createClient from "openapi-fetch";
import type { paths } from "./schema.js";

declare const process: { argv: string[] };

const [baseUrl, key] = process.argv.slice(2) as [string, string];
const hub = createClient<paths>({ baseUrl, headers: { "X-API-Key": key } });

const sent = await hub.POST("/api/requests", { body: { text: "go", skill: "ask", targets: ["quinn"] } });
const id: string = sent.data!.data.correlationIds[0]!;
const wait = { params: { path: { id }, query: { wait: 30 } } };
const asked = (await hub.GET("/api/tasks/{id}", wait)).data!.data;
if (!asked.open || asked.questionId === null) throw new Error(`it asks nothing: ${asked.state}`);
const question = (await hub.GET("/api/inbox")).data!.data.questions[0]!;
const answer = { params: { path: { id: asked.questionId } }, body: { text: "main" } };
const taken = (await hub.POST("/api/inbox/{id}/answer", answer)).data!.data;
const ended = (await hub.GET("/api/tasks/{id}", wait)).data!.data;
const listed = (await hub.GET("/api/tasks")).data!.data.recent.map((one) => one.correlationId);
const health: string = (await hub.GET("/api/health")).data!.data.agents[0]!.health;
const words = [question.question, taken.questionId === asked.questionId, ended.state, ended.text, health];
console.log(JSON.stringify([...words, listed.includes(id)]));
