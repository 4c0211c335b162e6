"""Anthropic, LiteLLM, Voyage AI and Cohere by their own SDKs, against local servers with the documented formats."""

import json
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from aftermind import Message, Settings, errors
from aftermind.llm import factory
from aftermind.llm.protocols import ChatReply, Embedder, ExtractionRequest, TurnText, embedder_identity
from aftermind.llm.provider_connections import Providers
from aftermind.recall.query_embeddings import QueryVectors
from aftermind.types import EpisodeId, Role
from tests.support.chat_reply import reply_of
from tests.support.scripted_openai import ScriptedOpenAI, scripted_openai

SAID_AT = datetime(2024, 6, 12, tzinfo=UTC)
CLAIM = {
    "subject": "user",
    "predicate": "lives_in",
    "object": "Oslo",
    "operation": "assert",
    "cardinality": "single",
    "valid_from": None,
    "valid_to": None,
    "confidence": 0.9,
    "sources": [1],
    "quote": "I moved to Oslo.",
}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
LOOKED = [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}}]
USAGE = {"input_tokens": 11, "output_tokens": 7}


class Provider:
    """Routes of three providers. `answers` are given in order; `seen` are the requests."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.seen: list[tuple[dict[str, str], dict[str, Any]]] = []
        routes = [("/v1/messages", self.messages), ("/embeddings", self.voyage), ("/v2/embed", self.cohere)]
        app = Starlette(routes=[Route(path, work, methods=["POST"]) for path, work in routes])
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))

    async def read(self, request: Request) -> tuple[dict[str, Any], Any]:
        body = await request.json()
        self.seen.append((dict(request.headers), body))
        return body, self.answers.pop(0) if self.answers else None

    async def messages(self, request: Request) -> Response:
        """Anthropic's Messages API."""
        body, answer = await self.read(request)
        if isinstance(answer, Response):
            return answer
        content = answer if isinstance(answer, list) else [{"type": "text", "text": answer or "Fine."}]
        whole = {"id": "m", "type": "message", "role": "assistant", "model": body["model"], "content": content}
        whole |= {"stop_reason": "end_turn", "stop_sequence": None, "usage": USAGE}
        if body.get("stream"):
            return StreamingResponse(_events(whole), media_type="text/event-stream")
        return JSONResponse(whole)

    async def voyage(self, request: Request) -> Response:
        """Voyage AI's embeddings: base64 where it is asked for."""
        import base64

        body, answer = await self.read(request)
        if isinstance(answer, Response):
            return answer
        vectors = [_vector(text, body.get("output_dimension") or 1024) for text in body["input"]]
        is_base64 = body.get("encoding_format") == "base64"
        shown = [base64.b64encode(each.tobytes()).decode() if is_base64 else each.tolist() for each in vectors]
        data = [{"object": "embedding", "index": at, "embedding": each} for at, each in enumerate(shown)]
        return JSONResponse({"object": "list", "data": data, "model": body["model"], "usage": {"total_tokens": 3}})

    async def cohere(self, request: Request) -> Response:
        """Cohere's embed of version 2."""
        body, answer = await self.read(request)
        if isinstance(answer, Response):
            return answer
        size = body.get("output_dimension") or 1536
        vectors = [_vector(text, size).tolist() for text in body["texts"]]
        return JSONResponse({"id": "e", "texts": body["texts"], "embeddings": {"float": vectors}, "meta": None})


def _vector(text: str, size: int) -> Any:
    return np.random.default_rng(len(text)).standard_normal(size).astype(np.float32)


def _events(whole: dict[str, Any]) -> Iterator[bytes]:
    def event(kind: str, **fields: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()

    yield event("message_start", message={**whole, "content": [], "stop_reason": None})
    for at, part in enumerate(whole["content"]):
        is_text = part["type"] == "text"
        yield event(
            "content_block_start", index=at, content_block={**part, **({"text": ""} if is_text else {"input": {}})}
        )
        said = part["text"] if is_text else json.dumps(part["input"])
        for piece in (said[:3], said[3:]):
            name, kind = ("text", "text_delta") if is_text else ("partial_json", "input_json_delta")
            yield event("content_block_delta", index=at, delta={"type": kind, name: piece})
        yield event("content_block_stop", index=at)
    yield event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage=USAGE)
    yield event("message_stop")


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    thread = threading.Thread(target=made.server.run, kwargs={"sockets": [made.socket]}, daemon=True)
    thread.start()
    yield made
    made.server.should_exit = True
    thread.join()
    made.socket.close()


@pytest.fixture
def openai_server() -> Iterator[ScriptedOpenAI]:
    with scripted_openai() as server:
        yield server


def settings_of(url: str, **changed: Any) -> Settings:
    keys = {f"{kind.upper()}_API_KEY": "right" for kind in ("anthropic", "voyage", "cohere")}
    urls = {f"{kind.upper()}_BASE_URL": url for kind in ("anthropic", "voyage", "cohere", "litellm")}
    return Settings(**{**keys, **urls, "model_timeout_seconds": 30, **changed})


def request() -> ExtractionRequest:
    said = TurnText(
        id=EpisodeId(uuid4()), role=Role.USER, name=None, content="I moved to Oslo.", occurred_at=SAID_AT, trusted=True
    )
    return ExtractionRequest(turns=[said], now=SAID_AT)


async def test_claude_extracts_summarises_and_profiles_by_strict_schemas(provider: Provider) -> None:
    settings = settings_of(provider.url, extractor="anthropic:claude-sonnet-5")
    provider.answers = [
        json.dumps({"claims": [CLAIM], "reason_empty": None}),
        json.dumps({"summary": "They moved."}),
        json.dumps({"traits": [{"name": "city", "value": '"Oslo"', "evidence": [1]}]}),
    ]
    extractor, summariser, profiler = (
        make(settings) for make in (factory.extractor, factory.summariser, factory.profiler)
    )

    found = await extractor.extract(request())
    summary = await summariser.summarise(None, request().turns)
    traits = await profiler.profile({}, request().turns, None)

    assert [each.object for each in found.claims] == ["Oslo"]
    assert (found.usage.tokens_in, found.usage.tokens_out) == (11, 7)
    assert (summary.text, traits.values) == ("They moved.", {"city": "Oslo"})
    assert extractor.name == "anthropic:claude-sonnet-5"
    headers, body = provider.seen[0]
    assert "right" in (headers.get("x-api-key") or headers["authorization"])
    assert body["output_config"]["format"]["type"] == "json_schema"
    assert body["output_config"]["format"]["schema"]["additionalProperties"] is False
    assert "system" in body
    assert [each["role"] for each in body["messages"]] == ["user"]
    assert factory.replayable(settings) == {"anthropic:claude-sonnet-5", "rules"}


async def test_claude_calls_tools_and_gets_their_results(provider: Provider) -> None:
    chat = factory.chat_model(settings_of(provider.url), "anthropic:claude-sonnet-5")
    provider.answers = [LOOKED]
    asked: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Look."}]

    first = await reply_of(chat, asked, [TOOL])
    calls = [
        {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
        for each in first.tool_calls
    ]
    results = [{"role": "tool", "tool_call_id": "t1", "content": "a cat"}, {"role": "user", "content": "And?"}]
    called = {"role": "assistant", "content": first.content, "tool_calls": calls}
    second = await reply_of(chat, [*asked, called, *results])

    assert (first.content, json.loads(first.tool_calls[0].arguments)) == ("I look.", {"a": 1})
    assert second.content == "Fine."
    assert provider.seen[0][1]["tools"][0]["input_schema"] == {"type": "object"}
    assert provider.seen[1][1]["system"] == "Be brief."
    assert [(each["role"], [part["type"] for part in each["content"]]) for each in provider.seen[1][1]["messages"]] == [
        ("user", ["text"]),
        ("assistant", ["text", "tool_use"]),
        ("user", ["tool_result", "text"]),
    ]


async def test_claude_is_given_the_names_of_speakers(provider: Provider) -> None:
    chat = factory.chat_model(settings_of(provider.url), "anthropic:claude-sonnet-5")
    said = [Message.user("I live in Oslo.", name="alice"), Message.user("I live in Lima.", name="cy lee")]
    answer = Message(role=Role.ASSISTANT, content="Noted.", name="bot")

    await reply_of(chat, [each.to_chat() for each in (*said, answer)])

    users, assistant = provider.seen[0][1]["messages"]
    assert [each["text"] for each in users["content"]] == ["alice:", "I live in Oslo.", "cy_lee:", "I live in Lima."]
    assert [each["text"] for each in assistant["content"]] == ["Noted."]


async def test_claude_sees_images(provider: Provider) -> None:
    chat = factory.chat_model(settings_of(provider.url), "anthropic:claude-sonnet-5")
    urls = ("https://example.com/cat.png", "data:image/png;base64,QUJD")
    pictures = [{"type": "image_url", "image_url": {"url": urls[0]}}, {"type": "input_image", "image_url": urls[1]}]
    look = [{"type": "text", "text": "Look."}]

    await reply_of(
        chat,
        [
            {"role": "system", "content": look},
            {"role": "user", "content": [*look, *pictures]},
            {"role": "tool", "content": "4"},
        ],
    )

    text, linked, inline, result = provider.seen[0][1]["messages"][0]["content"]
    assert provider.seen[0][1]["system"] == "Look."
    assert (text, result) == (look[0], {"type": "text", "text": "4"})
    assert linked["source"] == {"type": "url", "url": urls[0]}
    assert inline["source"] == {"type": "base64", "media_type": "image/png", "data": "QUJD"}


async def test_claude_streams_text_and_calls(provider: Provider) -> None:
    chat = factory.chat_model(settings_of(provider.url), "anthropic:claude-sonnet-5")
    provider.answers = [LOOKED]

    pieces = [each async for each in chat.stream([{"role": "user", "content": "Look."}], [TOOL])]

    *texts, reply = pieces
    assert texts == ["I l", "ook."]
    assert isinstance(reply, ChatReply)
    assert (reply.content, reply.tool_calls[0].name, reply.tool_calls[0].arguments) == ("I look.", "look", '{"a": 1}')
    assert (reply.usage.tokens_in, reply.usage.tokens_out) == (11, 7)


async def test_litellm_extracts_and_talks(openai_server: ScriptedOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "right")  # of the provider that LiteLLM calls
    settings = settings_of("", LITELLM_BASE_URL=openai_server.url, extractor="litellm:openai/gpt-4o-mini")
    openai_server.script.facts = {"I moved to Oslo.": [{"subject": "user", "predicate": "lives_in", "object": "Oslo"}]}

    found = await factory.extractor(settings).extract(request())  # type: ignore[union-attr]
    chat = factory.chat_model(settings, "litellm:openai/gpt-4o-mini")
    answer = await reply_of(chat, [{"role": "user", "content": "Hello."}])
    *texts, reply = [each async for each in chat.stream([{"role": "user", "content": "Hello."}])]

    assert [each.object for each in found.claims] == ["Oslo"]
    assert found.usage.tokens_in > 0
    assert answer.content == reply.content == "".join(map(str, texts)) == "You said: Hello."


@pytest.mark.parametrize(
    ("kind", "model", "dimension"), [("voyage", "voyage-3.5", 1024), ("cohere", "embed-v4.0", 1536)]
)
async def test_texts_become_unit_vectors_in_their_order(
    provider: Provider, kind: str, model: str, dimension: int
) -> None:
    settings = settings_of(provider.url, embedder=f"{kind}:{model}")
    embedder = factory.embedder(settings)
    assert embedder is not None

    vectors = await embedder.embed(["one", "", "three"])

    assert vectors.shape == (3, dimension)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    wanted = _vector("three", dimension)
    assert np.allclose(vectors[2], wanted / np.linalg.norm(wanted), atol=1e-5)
    assert embedder.name == f"{kind}:{model}"
    assert provider.seen[0][0]["authorization"] == "Bearer right"
    small = factory.embedder(settings_of(provider.url, embedder=f"{kind}:{model}", embedding_dimension=256))
    assert small is not None
    assert (await small.embed(["one"])).shape == (1, 256)
    again = factory.make_embedder_for(embedder_identity(small), settings_of(provider.url))
    assert again is not None
    assert again.name == f"{kind}:{model}:256"


@pytest.mark.parametrize(
    ("kind", "model", "kinds"),
    [
        ("voyage", "voyage-3.5", ["document", "query"]),
        ("cohere", "embed-v4.0", ["search_document", "search_query"]),
    ],
)
async def test_texts_are_embedded_as_documents_and_questions_as_queries(
    provider: Provider, kind: str, model: str, kinds: list[str]
) -> None:
    embedder = factory.embedder(settings_of(provider.url, embedder=f"{kind}:{model}"))
    assert embedder is not None

    (document,) = await embedder.embed(["I live in Oslo."])
    query, why = await QueryVectors(embedder, budget_seconds=30).vector("I live in Oslo.")

    assert [body["input_type"] for _, body in provider.seen] == kinds
    assert why is None
    assert query is not None
    assert np.allclose(query, document), "the server's vectors depend on the text alone"


async def test_a_server_that_streams_nothing_is_an_error_of_ours(provider: Provider) -> None:
    chat = factory.chat_model(settings_of(provider.url), "anthropic:claude-sonnet-5")
    provider.answers = [JSONResponse({"id": "m", "type": "message", "role": "assistant", "content": []})]

    with pytest.raises(errors.BadModelAnswer, match="a stream was asked for"):
        _ = [each async for each in chat.stream([{"role": "user", "content": "Hello."}])]


def refusal(status: int) -> JSONResponse:
    body = {"type": "error", "error": {"type": "scripted", "message": "no"}, "detail": "no"}
    return JSONResponse(body, status_code=status, headers={"retry-after": "3"})


REFUSED = [
    (lambda: refusal(429), errors.RateLimited),
    (lambda: refusal(401), errors.ModelKeyRefused),
    (lambda: refusal(500), errors.ModelUnavailable),
    (lambda: refusal(400), errors.BadModelRequest),
    (lambda: Response("<html>", media_type="application/json"), errors.BadModelAnswer),
]


@pytest.mark.parametrize("kind", ["anthropic", "voyage", "cohere"])
@pytest.mark.parametrize(("answer", "wanted"), REFUSED, ids=["429", "401", "500", "400", "garbage"])
async def test_a_refusal_is_an_error_of_ours_after_one_attempt(
    provider: Provider, kind: str, answer: Any, wanted: type[errors.AftermindError]
) -> None:
    provider.answers = [answer()] * 3
    with pytest.raises(wanted) as raised:
        await call(kind, settings_of(provider.url))

    assert len(provider.seen) == 1
    assert "Oslo" not in str(raised.value)
    if isinstance(raised.value, errors.RateLimited):
        assert raised.value.retry_after == timedelta(seconds=3)


@pytest.mark.parametrize("kind", ["anthropic", "voyage", "cohere"])
async def test_a_server_that_is_not_there_is_unavailable(provider: Provider, kind: str) -> None:
    with pytest.raises(errors.ModelUnavailable):
        await call(kind, settings_of("http://127.0.0.1:9"))


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("429", errors.RateLimited), ("500", errors.ModelUnavailable), ("400", errors.BadModelRequest)],
)
async def test_a_refusal_through_litellm_is_an_error_of_ours_after_one_attempt(
    openai_server: ScriptedOpenAI, kind: str, wanted: type[errors.AftermindError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "right")
    openai_server.script.plan = [kind] * 3

    with pytest.raises(wanted):
        await call("litellm", settings_of("", LITELLM_BASE_URL=openai_server.url))

    assert sum(openai_server.calls.by_kind.values()) == 1


@pytest.mark.parametrize("kind", ["anthropic", "voyage", "cohere"])
async def test_a_missing_key_is_named(provider: Provider, kind: str) -> None:
    settings = settings_of(provider.url, **{f"{kind.upper()}_API_KEY": None})
    with pytest.raises((errors.ModelKeyRefused, errors.InvalidSettings), match=f"{kind.upper()}_API_KEY"):
        await call(kind, settings)


async def call(kind: str, settings: Settings) -> None:
    providers = Providers()
    try:
        await call_with(providers, kind, settings)
    finally:
        await providers.close()


async def call_with(providers: Providers, kind: str, settings: Settings) -> None:
    if kind in ("anthropic", "litellm"):
        model = "anthropic:claude-sonnet-5" if kind == "anthropic" else "litellm:openai/gpt-4o-mini"
        chat = factory.chat_model(settings, model, providers=providers)
        await reply_of(chat, [{"role": "user", "content": "I moved to Oslo."}])
    else:
        model = {"voyage": "voyage:voyage-3.5", "cohere": "cohere:embed-v4.0"}[kind]
        named = settings.model_copy(update={"embedder": model})
        embedder: Embedder | None = factory.embedder(named, providers=providers)
        assert embedder is not None
        await embedder.embed(["I moved to Oslo."])


async def test_connections_are_closed_with_their_process(provider: Provider) -> None:
    providers = Providers()
    chat = factory.chat_model(settings_of(provider.url), "anthropic:claude-sonnet-5", providers=providers)
    await reply_of(chat, [{"role": "user", "content": "Hello."}])

    await providers.close()

    assert (await reply_of(chat, [{"role": "user", "content": "Hello."}])).content == "Fine."
    await providers.close()
