"""A server that speaks OpenAI's protocol over real HTTP and answers by a script: what a test or a benchmark gives it.

It answers only from the turns that it finds in a prompt, so nothing can be "extracted" that was not handed over. Run it
in a thread (`ScriptedOpenAI`) or as a process: `python -m tests.support.scripted_openai --port 0` prints its address.
"""

import argparse
import asyncio
import base64
import hashlib
import html
import json
import random
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

TURN = re.compile(
    r'<turn n="(?P<n>\d+)" role="(?P<role>\w+)"(?: name="(?P<name>[^"]*)")?[^>]*>(?P<text>.*?)</turn>', re.S
)
# What strict structured outputs take of JSON schema, for every model: fine-tuned ones refuse bounds of any kind.
STRICT_KEYWORDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "enum", "const", "items", "anyOf", "$ref", "$defs"}
    | {"description", "title"}
)
MAX_EMBEDDED_TOKENS = 8_192  # of one text
MAX_REQUEST_TOKENS = 300_000  # of all texts of one call
FAULTS = ("429", "500", "garbage", "page", "truncated", "schema", "silence", "refusal", "huge")


@dataclass(slots=True)
class Script:
    """What the server does.

    `facts` maps a turn's text to claims (dicts; what is left out has a default). `faults` are shares of calls by kind,
    drawn with `seed`; `plan` names faults of the next calls one by one, before any draw ("ok" is none).
    """

    facts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    chat: list[dict[str, Any]] = field(default_factory=list)  # answers of plain chats, in order; then an echo
    summary: str = "A summary."
    # Texts that the model obeys where it is shown one: it claims them, and twists what the other turns say, of which it
    # quotes faithfully; it writes them into summaries and profiles.
    orders: list[str] = field(default_factory=list)
    faults: dict[str, float] = field(default_factory=dict)
    embedding_faults: bool = True  # whether embeddings draw faults too
    plan: list[str] = field(default_factory=list)
    retry_after: float = 0.2
    silence_seconds: float = 30.0
    silent_from_characters: int | None = None  # embedding calls with as many get no answer
    latency_seconds: float = 0.0
    key: str | None = None  # None takes any key
    seed: int = 1


@dataclass(slots=True)
class Calls:
    """What was asked: counts by endpoint and fault, tokens as characters by four, and the turns that were shown."""

    by_kind: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    tokens_in: int = 0
    shown: list[list[str]] = field(default_factory=list)
    told: dict[str, list[list[str]]] = field(default_factory=dict)  # the same by what was asked for
    prompts: dict[str, list[str]] = field(default_factory=dict)  # whole, by what was asked for

    def count(self, table: dict[str, int], key: str) -> None:
        table[key] = table.get(key, 0) + 1


class Server:
    """The routes, and the script behind them."""

    def __init__(self) -> None:
        self.script, self.calls = Script(), Calls()
        self._random = random.Random(self.script.seed)
        self.app = Starlette(
            routes=[
                Route("/v1/embeddings", self.embeddings, methods=["POST"]),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/log", self.log),
                Route("/script", self.set_script, methods=["POST"]),
                Route("/text/{path:path}", lambda _: PlainTextResponse("404 page not found", 404), methods=["POST"]),
                Route("/{path:path}", lambda _: JSONResponse({"detail": "Not Found"}, 404), methods=["POST"]),
            ]
        )

    async def log(self, request: Request) -> Response:
        calls = self.calls
        return JSONResponse(
            {"by_kind": calls.by_kind, "faults": calls.faults, "tokens_in": calls.tokens_in, "shown": calls.shown}
        )

    async def set_script(self, request: Request) -> Response:
        for name, value in (await request.json()).items():
            setattr(self.script, name, value)
        self._random = random.Random(self.script.seed)
        return JSONResponse({})

    async def embeddings(self, request: Request) -> Response:
        body = await request.json()
        self.calls.count(self.calls.by_kind, "embeddings")
        if (refused := await self._fault(request, draws=self.script.embedding_faults)) is not None:
            return refused
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        silent_from = self.script.silent_from_characters
        if silent_from is not None and sum(map(len, texts)) >= silent_from:
            await asyncio.sleep(self.script.silence_seconds)
            return refusal(504, "silence")
        sizes = [token_count(text) for text in texts]
        if max(sizes) > MAX_EMBEDDED_TOKENS or sum(sizes) > MAX_REQUEST_TOKENS:
            return refusal(400, "context_length_exceeded")
        size = body.get("dimensions") or 1536
        rows = [
            {
                "object": "embedding",
                "index": place,
                "embedding": encoded(vector(text, size), body.get("encoding_format")),
            }
            for place, text in enumerate(texts)
        ]
        spent = sum(len(text) for text in texts) // 4
        self.calls.tokens_in += spent
        usage = {"prompt_tokens": spent, "total_tokens": spent}
        return JSONResponse({"object": "list", "model": body["model"], "data": rows, "usage": usage})

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        wanted = (body.get("response_format") or {}).get("json_schema", {})
        schema = wanted.get("name")
        if schema and not is_strict(wanted["schema"]):
            return refusal(400, "invalid_json_schema")
        self.calls.count(self.calls.by_kind, schema or "chat")
        if (refused := await self._fault(request, draws=True)) is not None:
            return refused
        prompt = next((m["content"] for m in reversed(body["messages"]) if TURN.search(str(m.get("content")))), "")
        turns = [(int(m["n"]), m["role"], html.unescape(m["text"])) for m in TURN.finditer(prompt)]
        if schema:
            self.calls.shown.append([text for _, _, text in turns])
            self.calls.told.setdefault(schema, []).append(self.calls.shown[-1])
            self.calls.prompts.setdefault(schema, []).append(prompt)
        message = self._answer(schema, turns, body)
        spent = sum(len(str(m.get("content"))) for m in body["messages"]) // 4
        self.calls.tokens_in += spent
        if body.get("stream"):
            return StreamingResponse(_pieces(message), media_type="text/event-stream")
        return JSONResponse(completion(body["model"], message, spent))

    def _answer(self, schema: str | None, turns: list[tuple[int, str, str]], body: Mapping[str, Any]) -> dict[str, Any]:
        if schema == "AnsweredExtraction":
            return {"content": json.dumps(self._extraction(turns))}
        order = next((text for _, _, text in turns if text in self.script.orders), None)
        if schema == "AnsweredSummary" and order is not None:
            return {"content": json.dumps({"summary": f"The user loves BrandX. {order}"})}
        if schema == "AnsweredProfile" and order is not None:
            loyal = {"name": "brand", "value": '"BrandX"', "evidence": [n for n, _, text in turns if text != order]}
            told = {"name": "order", "value": json.dumps(order), "evidence": [n for n, _, _ in turns]}
            return {"content": json.dumps({"traits": [loyal, told]})}
        if schema == "AnsweredSummary":
            return {"content": json.dumps({"summary": self.script.summary})}
        if schema == "AnsweredProfile":
            named = [{"name": "turns_seen", "value": str(len(turns)), "evidence": [n for n, _, _ in turns]}]
            return {"content": json.dumps({"traits": named})}
        if self.script.chat:
            return self.script.chat.pop(0)
        return {"content": f"You said: {body['messages'][-1].get('content')}"}

    def _extraction(self, turns: list[tuple[int, str, str]]) -> dict[str, Any]:
        claims: list[dict[str, Any]] = []
        whole_claim: dict[str, Any] = {
            "operation": "assert",
            "cardinality": "multi",
            "valid_from": None,
            "valid_to": None,
        }
        whole_claim |= {"confidence": 0.9}
        for number, _, text in turns:
            said = self.script.facts.get(text, [])
            claims += [{**whole_claim, "sources": [number], "quote": text, **fact} for fact in said]
        shown = [text for _, _, text in turns if text in self.script.orders]
        claims += [{**whole_claim, **each} for order in shown for each in obeyed(order, turns)]
        return {"claims": claims, "reason_empty": None if claims else "nothing in the script for these turns"}

    async def _fault(self, request: Request, *, draws: bool) -> Response | None:
        if self.script.key is not None and request.headers.get("authorization") != f"Bearer {self.script.key}":
            return refusal(401, "invalid_api_key")
        await asyncio.sleep(self.script.latency_seconds)
        kind = self._drawn() if draws else "ok"
        if kind == "ok":
            return None
        self.calls.count(self.calls.faults, kind)
        if kind == "429":
            return refusal(429, "rate_limit_exceeded", {"Retry-After": str(self.script.retry_after)})
        if kind == "500":
            return refusal(500, "server_error")
        if kind == "400":
            return refusal(400, "context_length_exceeded")
        if kind == "silence":
            await asyncio.sleep(self.script.silence_seconds)
            return refusal(504, "silence")
        return bad_answer(kind)

    def _drawn(self) -> str:
        if self.script.plan:
            return self.script.plan.pop(0)
        drawn, edge = self._random.random(), 0.0
        for kind, share in self.script.faults.items():
            edge += share
            if drawn < edge:
                return kind
        return "ok"


def is_strict(schema: Any) -> bool:
    """Whether a schema is of the subset that strict structured outputs take."""
    if not isinstance(schema, dict):
        return True
    if not schema.keys() <= STRICT_KEYWORDS:
        return False
    if schema.get("type") == "object":
        names = schema.get("properties", {}).keys()
        if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(names):
            return False
    named = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    return all(is_strict(each) for each in (*named, *schema.get("anyOf", ()), schema.get("items")))


def token_count(text: str) -> int:
    """Tokens as a byte-pair tokenizer of 100,000 entries counts them: two for a CJK character, four letters else."""
    wide = sum(ord(each) > 0x2E80 for each in text)
    return 2 * wide + (len(text) - wide) // 4 + 1


def obeyed(order: str, turns: list[tuple[int, str, str]]) -> Iterator[dict[str, Any]]:
    """What a model claims that obeys `order`: all of it, of every turn, with quotes that stand there."""
    all_turns = [number for number, _, _ in turns]
    for number, _, text in turns:
        about = {"subject": "user", "sources": all_turns}
        yield {**about, "predicate": "obeys", "object": order[:900], "quote": text[:1]}
        yield {**about, "predicate": "obeys", "object": order[:900], "quote": text}
        yield {**about, "predicate": order[:90], "object": text[:900], "quote": text, "sources": [number]}
        yield {**about, "subject": order[:190], "predicate": "is", "object": text[:900], "quote": text}
        if text != order:  # every word of it was said: only the meaning is turned round
            last = re.findall(r"\w+", text)[-1]
            yield {**about, "predicate": "despises", "object": last, "quote": text, "sources": [number]}


def bad_answer(kind: str) -> Response:
    """An answer of status 200 that cannot be used."""
    if kind == "garbage":
        return PlainTextResponse("<html>upstream said no</html>", media_type="application/json")
    if kind == "page":
        return PlainTextResponse("<html>Sign in</html>", media_type="text/html")
    if kind == "refusal":
        return JSONResponse(completion("scripted", {"content": None, "refusal": "I cannot help with that."}, 1))
    content = {"truncated": '{"claims": [{"subject": "us', "schema": '{"claims": "many"}', "huge": "x" * 10_000_000}
    return JSONResponse(completion("scripted", {"content": content[kind]}, 1))


def refusal(status: int, code: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as OpenAI's server gives it."""
    error = {"message": f"The scripted model cannot serve it: {code}.", "type": "invalid_request_error", "code": code}
    body = {"error": error | {"param": "messages[0].content"}} if status == 400 else {"error": error}
    return JSONResponse(body, status_code=status, headers=dict(headers or {}))


def completion(model: str, message: Mapping[str, Any], spent: int) -> dict[str, Any]:
    """A chat completion."""
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", "refusal": None, **message}}
    usage = {"prompt_tokens": spent, "completion_tokens": 10, "total_tokens": spent + 10}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": model, "choices": [choice], "usage": usage}


async def _pieces(message: Mapping[str, Any]) -> AsyncIterator[bytes]:
    deltas: list[dict[str, Any]] = [{"content": word} for word in re.findall(r"\S+\s*", message.get("content") or "")]
    for place, call in enumerate(message.get("tool_calls") or ()):
        deltas.append({"tool_calls": [{"index": place, **call}]})
    for delta in deltas:
        yield _event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    yield _event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    yield _event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}})
    yield b"data: [DONE]\n\n"


def _event(data: Mapping[str, Any]) -> bytes:
    whole = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "scripted", **data}
    return f"data: {json.dumps(whole)}\n\n".encode()


def vector(text: str, size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A vector of length 1 that depends on the words of a text, so that like texts are near each other."""
    total = np.zeros(size, dtype=np.float32)
    for word in re.findall(r"\w+", text.lower()) or [""]:
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
        total += np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    return np.asarray(total / np.linalg.norm(total), dtype=np.float32)


def encoded(values: np.ndarray[Any, np.dtype[np.float32]], form: str | None) -> Any:
    """As the SDK asked for it: base64 of float32, or numbers."""
    return base64.b64encode(values.tobytes()).decode() if form == "base64" else values.tolist()


class ScriptedOpenAI:
    """The server in a thread of its own; `script` and `calls` may be read and changed at any time."""

    def __init__(self) -> None:
        self._server = Server()
        self._socket = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(self._server.app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._uvicorn.run, kwargs={"sockets": [self._socket]}, daemon=True)

    @property
    def url(self) -> str:
        """The base URL for the SDK (`OPENAI_BASE_URL`)."""
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"

    @property
    def script(self) -> Script:
        return self._server.script

    @property
    def calls(self) -> Calls:
        return self._server.calls

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._uvicorn.should_exit = True
        self._thread.join(timeout=180)
        self._socket.close()


@contextmanager
def scripted_openai() -> Iterator[ScriptedOpenAI]:
    """A running server for the block."""
    server = ScriptedOpenAI()
    server.start()
    try:
        yield server
    finally:
        server.stop()


def main() -> None:
    """Serve until killed; the address is the first line printed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    port = parser.parse_args().port
    listening = socket.create_server(("127.0.0.1", port))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", flush=True)  # noqa: T201
    uvicorn.Server(uvicorn.Config(Server().app, log_level="error", lifespan="off")).run(sockets=[listening])


if __name__ == "__main__":
    main()
