import assert from "node:assert/strict";
import test from "node:test";

import { AftermindError, createAftermind, unwrap, type MemoryEvent } from "../src/index.js";

const baseUrl = process.env["MEMORY_URL"] ?? "";
const token = process.env["MEMORY_KEY"] ?? "";
const client = createAftermind({ baseUrl, token });

async function nextOf(events: AsyncGenerator<MemoryEvent>, name: MemoryEvent["event"]): Promise<MemoryEvent> {
  for await (const each of events) if (each.event === name) return each;
  throw new Error(`the stream ended before ${name}`);
}

test("a turn is remembered, recalled, mined and heard of", async () => {
  const user_id = `ts-${Date.now()}/ä`;
  const path = { user_id };
  const stop = new AbortController();
  const stream = client.events(user_id, { after: "0", signal: stop.signal });

  const receipt = await unwrap(client.POST("/v1/users/{user_id}/turns", {
    params: { path }, body: { messages: "I live in Lisbon." },
  }));
  const block = await unwrap(client.POST("/v1/users/{user_id}/recall", {
    params: { path }, body: { query: "Where do I live?" },
  }));
  const mined = await nextOf(stream, "MemoryFactsExtracted");
  stop.abort();

  assert.equal(receipt.episode_ids.length, 1);
  assert.match(block.text, /Lisbon/);
  assert.ok(mined.event === "MemoryFactsExtracted" && mined.added === 1);
  const facts = await unwrap(client.GET("/v1/users/{user_id}/facts", { params: { path } }));
  assert.deepEqual(facts.items.map((each) => each.object), ["Lisbon"]);
});

test("an address may end with the version, and has to be one", async () => {
  const again = createAftermind({ baseUrl: `${baseUrl}/v1/`, token });
  const path = { user_id: `ts-address-${Date.now()}` };

  await unwrap(again.POST("/v1/users/{user_id}/turns", { params: { path }, body: { messages: "I have a cat." } }));

  assert.throws(() => createAftermind({ baseUrl: "", token }), /baseUrl="": it has to be the service's address/);
});

test("a misspelt field or option is an error of the compiler, and of the service", async () => {
  const params = { path: { user_id: `ts-typo-${Date.now()}` } };
  const refused = await Promise.all([
    // @ts-expect-error: session_id
    client.POST("/v1/users/{user_id}/turns", { params, body: { messages: "x", sesion_id: "s" } }),
    // @ts-expect-error: token_budget
    client.POST("/v1/users/{user_id}/recall", { params, body: { query: "x", budget: 5 } }),
    // @ts-expect-error: everything
    client.POST("/v1/users/{user_id}/forget", { params, body: { everthing: true } }),
    // @ts-expect-error: body
    client.POST("/v1/users/{user_id}/recall", { params, boddy: { query: "x" } }),
    // @ts-expect-error: a body is needed
    client.POST("/v1/users/{user_id}/recall", { params }),
  ]);
  assert.deepEqual(refused.map((each) => each.response.status), [422, 422, 422, 422, 422]);

  const facts = await client.GET("/v1/users/{user_id}/facts", { params });
  assert.deepEqual(facts.data?.items, []);
  const users = await client.GET("/v1/users");
  assert.ok(users.data);
  // @ts-expect-error: of the answer
  assert.equal(facts.data.itms, undefined);
});

test("a listener that comes again gets what it missed, in order and once", async () => {
  const user_id = `ts-again-${Date.now()}`;
  const path = { user_id };
  const send = (messages: string) =>
    unwrap(client.POST("/v1/users/{user_id}/turns", { params: { path }, body: { messages } }));
  await send("I have a cat.");
  const first = await nextOf(client.events(user_id, { after: "0" }), "MemoryUpdateCompleted");
  assert.ok(first.cursor);
  const second = await send("I have a dog.");

  const stop = new AbortController();
  const seen: MemoryEvent[] = [];
  for await (const each of client.events(user_id, { after: first.cursor, signal: stop.signal })) {
    seen.push(each);
    if (each.event === "MemoryUpdateCompleted" && each.job_id === second.job_id) break;
  }
  stop.abort();

  const cursors = seen.flatMap((each) => (each.cursor ? [Number(each.cursor)] : []));
  assert.deepEqual(cursors, [...new Set(cursors)].sort((a, b) => a - b));
  assert.ok(cursors.every((each) => each > Number(first.cursor)));
});

test("a stream token opens the events of its user and nothing else", async () => {
  const user_id = `ts-token-${Date.now()}`;
  const path = { user_id };
  const made = await unwrap(client.POST("/v1/users/{user_id}/stream-token", { params: { path }, body: {} }));
  const page = createAftermind({ baseUrl, token: made.token });
  await unwrap(client.POST("/v1/users/{user_id}/turns", { params: { path }, body: { messages: "I have a newt." } }));

  const heard = await nextOf(page.events(user_id, { after: "0" }), "MemoryUpdateCompleted");

  assert.equal(heard.user_id, user_id);
  await assert.rejects(nextOf(page.events("other"), "MemoryUpdateCompleted"), AftermindError);
  await assert.rejects(unwrap(page.GET("/v1/users/{user_id}/episodes", { params: { path } })), AftermindError);
});

test("a refusal is an error with the reason", async () => {
  const refused = client.POST("/v1/users/{user_id}/turns", {
    params: { path: { user_id: "u" } }, body: { messages: [{ role: "guest", content: "x" }] },
  });

  await assert.rejects(unwrap(refused), (error: unknown) => {
    assert.ok(error instanceof AftermindError);
    assert.equal(error.status, 422);
    assert.match(error.message, /role/);
    return true;
  });
});
