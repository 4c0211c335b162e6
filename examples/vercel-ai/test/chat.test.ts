import assert from "node:assert/strict";
import test from "node:test";

import { createAftermind, unwrap } from "aftermind";

import { answer } from "../src/chat.js";
import { model } from "./model.js";

const memory = createAftermind({
  baseUrl: process.env["MEMORY_URL"] ?? "",
  token: process.env["MEMORY_KEY"] ?? "",
});

async function said(userId: string): Promise<string[]> {
  const page = await unwrap(memory.GET("/v1/users/{user_id}/episodes", { params: { path: { user_id: userId } } }));
  return page.items.map((each) => each.content);
}

/** Waits: the write follows the end of the answer. */
async function until(holds: () => boolean | Promise<boolean>): Promise<void> {
  const end = Date.now() + 60_000;
  while (!(await holds())) {
    assert.ok(Date.now() < end, "within 60 seconds");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

test("what was said in one session is data of the user's role in the next, and each turn is written once", async () => {
  const userId = `vercel-${Date.now()}`;
  const mock = model();

  for (const [sessionId, question] of [["s1", "I live in Oslo."], ["s2", "Where do I live?"]] as const) {
    const stream = await answer({ memory, model: mock, userId, sessionId, question });
    assert.equal(await stream.text, "Noted.");
    await until(async () => (await said(userId)).includes(question));
  }

  const [first, second] = mock.doStreamCalls;
  assert.ok(first && second);
  assert.equal(first.prompt[1]?.content.length, 1);
  const [system, user] = second.prompt;
  assert.ok(system?.role === "system" && user?.role === "user");
  assert.doesNotMatch(JSON.stringify(system), /Oslo/);
  assert.match(JSON.stringify(user.content[0]), /I live in Oslo\./);
  assert.deepEqual(user.content[1], { ...user.content[1], type: "text", text: "Where do I live?" });
  assert.deepEqual((await said(userId)).sort(), ["I live in Oslo.", "Noted.", "Noted.", "Where do I live?"]);
});

test("a model answers also while memory does not", async (context) => {
  const errors = context.mock.method(console, "error", () => {});
  const unreachable = createAftermind({ baseUrl: "http://127.0.0.1:1", token: "x" });

  const stream = await answer({ memory: unreachable, model: model(), userId: "u", sessionId: "s", question: "Hello." });

  assert.equal(await stream.text, "Noted.");
  await until(() => errors.mock.callCount() === 2);
});
