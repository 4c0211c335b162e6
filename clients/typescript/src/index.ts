/** Client of the Aftermind service. Requests and responses are typed by the service's OpenAPI document. */

import { EventSourceParserStream } from "eventsource-parser/stream";
import createClient, { type Client, type ClientPathsWithMethod, type FetchResponse, type MaybeOptionalInit } from "openapi-fetch";

import type { components, paths } from "./schema.js";

export type { components, paths } from "./schema.js";
export type MemoryEvent = components["schemas"]["MemoryEvent"];
export type Problem = components["schemas"]["Problem"];

const FIRST_RETRY_MS = 250;
const MAX_RETRY_MS = 15_000;

export interface Options {
  /** Address of the service, like `https://memory.example`. */
  baseUrl: string;
  /** An API key for a backend, or a stream token for a page, which may only listen to its user's events. */
  token: string;
  fetch?: typeof fetch;
}

export interface EventOptions {
  /** Events after this cursor first; without it, events from now on. */
  after?: string;
  /** Ends the stream. */
  signal?: AbortSignal;
  /** Listen to the anonymous user; `userId` is ignored then. */
  anonymous?: boolean;
}

/** A request that the service refused. `problem` has the reason and what to do; `status` is the HTTP status. */
export class AftermindError extends Error {
  constructor(readonly status: number, readonly problem: Problem) {
    super(problem.detail);
    this.name = "AftermindError";
  }
}

type Method = "get" | "put" | "post" | "patch" | "delete";

/**
 * A request whose options are exactly those of its path. The one of openapi-fetch infers their type from what is given,
 * so that it takes a misspelt field of a body.
 */
type Call<M extends Method> = <Path extends ClientPathsWithMethod<Client<paths>, M>>(
  url: Path,
  ...init: undefined extends MaybeOptionalInit<paths[Path], M>
    ? [init?: MaybeOptionalInit<paths[Path], M>]
    : [init: MaybeOptionalInit<paths[Path], M>]
) => Promise<FetchResponse<paths[Path][M] & Record<string | number, unknown>, MaybeOptionalInit<paths[Path], M>, "application/json">>;

export type Aftermind = Omit<Client<paths>, Uppercase<Method>> & {
  [M in Method as Uppercase<M>]: Call<M>;
} & {
  /**
   * The events of a user, in order and without gaps. Reconnects by itself and gets the missed ones first; a `MemoryGap`
   * means that some of them were too old. Throws `AftermindError` if the service refuses, for example an ended token.
   */
  events(userId: string, options?: EventOptions): AsyncGenerator<MemoryEvent, void, void>;
};

/** A client with `GET`, `POST`, `PUT`, `PATCH` and `DELETE` of every path of the service, and `events`. */
export function createAftermind(options: Options): Aftermind {
  const send = options.fetch ?? fetch;
  const baseUrl = address(options.baseUrl);
  const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${options.token}` }, fetch: send });
  return Object.assign(client as unknown as Omit<Aftermind, "events">, {  // the same methods, with narrower types
    events: (userId: string, more: EventOptions = {}) => listen({ ...options, baseUrl }, send, userId, more),
  });
}

/** The address without a slash or `/v1` at its end: the paths begin with it. */
function address(given: string): string {
  if (!/^https?:\/\//.test(given)) {
    throw new TypeError(`baseUrl=${JSON.stringify(given)}: it has to be the service's address, like "http://127.0.0.1:8377".`);
  }
  return given.replace(/\/+$/, "").replace(/\/v1$/, "");
}

/** The data of an answer. Throws `AftermindError` for a problem: `const turns = await unwrap(client.GET(…))`. */
export async function unwrap<T>(answer: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  const { data, error, response } = await answer;
  if (!response.ok) throw new AftermindError(response.status, error as Problem);
  return data as T;
}

async function* listen(
  { baseUrl, token }: Options, send: typeof fetch, userId: string, { after, signal, anonymous }: EventOptions,
): AsyncGenerator<MemoryEvent, void, void> {
  const url = new URL(`${baseUrl}/v1/users/${anonymous ? "-" : encodeURIComponent(userId)}/events`);
  if (anonymous) url.searchParams.set("anonymous", "true");
  let last = after;
  let wait = FIRST_RETRY_MS;
  while (!signal?.aborted) {
    try {
      const headers: Record<string, string> = { Authorization: `Bearer ${token}` };
      if (last !== undefined) headers["Last-Event-ID"] = last;
      const answer = await send(url, { headers, ...(signal ? { signal } : {}) });
      if (!answer.ok) {
        const problem = (await answer.json()) as Problem;
        if (answer.status < 500 && answer.status !== 429) throw new AftermindError(answer.status, problem);
      } else if (answer.body) {
        const pieces = answer.body.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream());
        const reader = pieces.getReader();
        try {
          for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
            wait = FIRST_RETRY_MS;
            if (piece.value.id) last = piece.value.id;
            yield JSON.parse(piece.value.data) as MemoryEvent;
          }
        } finally {
          await reader.cancel().catch(() => undefined);
        }
      }
    } catch (error) {
      if (signal?.aborted) return;
      if (error instanceof AftermindError || error instanceof SyntaxError) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(wait * 2, MAX_RETRY_MS);
  }
}
