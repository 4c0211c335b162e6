// For each line of standard input, a user and a question in JSON, what the model is sent: instructions and prompt.

import { createInterface } from "node:readline";

import { createAftermind } from "aftermind";

import { answer } from "../src/chat.js";
import { model } from "./model.js";

const memory = createAftermind({
  baseUrl: process.env["MEMORY_URL"] ?? "",
  token: process.env["MEMORY_KEY"] ?? "",
});

for await (const line of createInterface({ input: process.stdin })) {
  const { userId, question } = JSON.parse(line) as { userId: string; question: string };
  const mock = model();
  await (await answer({ memory, model: mock, userId, sessionId: "s1", question, recall: { mode: "recency" } })).text;
  const sent = { instructions: "", prompt: "" };
  for (const { role, content } of mock.doStreamCalls[0]?.prompt ?? []) {
    if (role === "system") sent.instructions += content;
    else sent.prompt += content.map((part) => (part.type === "text" ? part.text : "")).join("\n");
  }
  console.log(JSON.stringify(sent));
}
