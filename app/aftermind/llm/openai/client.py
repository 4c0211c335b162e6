"""One client of a provider's SDK per process and loop, with Aftermind's deadline and errors, without its retries."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from aftermind import errors
from aftermind.llm import prices, token_count
from aftermind.llm.protocols import Usage
from aftermind.llm.rate_limit_and_circuit_breaker import ProviderLimiter, provider_name
from aftermind.settings import ModelPrice
from aftermind.telemetry import tracing

NO_CODE = "no code"
_PARAMETER = re.compile(r"[\w.\[\]-]{1,80}")  # the name of a parameter of a request, never its value


@dataclass(slots=True, kw_only=True)
class Client:
    """How to reach the provider. `timeout` is the deadline of a whole call, in seconds.

    The SDK's own retries are off: a job that fails waits in the ledger, not in a worker. Clients of other SDKs are
    subclasses: their `sdk()` takes and returns what OpenAI's does, or embeds texts.
    """

    kind: ClassVar[str] = "openai"  # in the names of models
    key_variable: ClassVar[str] = "OPENAI_API_KEY"
    max_batch: ClassVar[int] = 2_048  # texts of one embedding call, as OpenAI's limit is
    max_batch_tokens: ClassVar[int] = 250_000  # OpenAI's limit is 300,000
    max_tokens: ClassVar[int] = 8_000  # of one text; the endpoint refuses more than 8,192: the end is left out
    usual_dimension: ClassVar[int] = 1536

    api_key: str | None = field(repr=False)
    base_url: str | None = None
    timeout: float = 60.0
    gate: ProviderLimiter = field(default_factory=ProviderLimiter, repr=False)
    prices: Mapping[str, ModelPrice] = field(default_factory=dict, repr=False)
    _by_loop: "WeakKeyDictionary[asyncio.AbstractEventLoop, Any]" = field(default_factory=WeakKeyDictionary, repr=False)

    @property
    def provider(self) -> str:
        """What errors and budgets call it."""
        return provider_name(self.kind, self.base_url)

    def usage(self, model: str, tokens_in: int, tokens_out: int, started: float, *, calls: int = 1) -> Usage:
        """What calls cost together, `started` being `time.monotonic()` before the first."""
        price = prices.price_of(f"{self.kind}:{model}", self.prices)
        return Usage(
            model=model,
            calls=calls,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            latency_ms=(time.monotonic() - started) * 1_000,
            cost_usd=None if price is None else (tokens_in * price.input + tokens_out * price.output) / 1_000_000,
        )

    async def sdk(self) -> Any:
        """The SDK's client of the running loop. Raises `ModelKeyRefused` where there is no key."""
        if not self.api_key:
            raise errors.ModelKeyRefused(self.provider, f"no key is set ({self.key_variable})")
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            # In a thread: the import alone is a second of computing, which would hold an agent's loop up.
            self._by_loop.setdefault(loop, await asyncio.to_thread(self.make))
        return self._by_loop[loop]

    def make(self) -> Any:
        """The SDK's own client, without retries; its slow modules are imported."""
        import openai

        made = openai.AsyncOpenAI(api_key=self.api_key, base_url=self.base_url, timeout=self.timeout, max_retries=0)
        _ = made.embeddings, made.chat.completions  # separate modules, imported at first access
        return made

    async def vectors(
        self, sdk: Any, model: str, texts: Sequence[str], dimension: int | None, *, is_query: bool = False
    ) -> Sequence[Any]:
        """Vectors of texts, in order. OpenAI's are the same for questions."""
        asked = {"dimensions": dimension} if dimension is not None else {}
        try:
            answer = await sdk.embeddings.create(model=model, input=list(texts), **asked)
        except AttributeError:  # the SDK itself reads the vectors of a page
            answer = ""
        answer = self.checked(answer)
        return [row.embedding for row in sorted(answer.data, key=lambda row: row.index)]

    def checked(self, answer: Any) -> Any:  # Any: the SDK's types
        """The answer. Raises `ModelUnavailable` for the page of a proxy or a login, which the SDK returns as text."""
        if isinstance(answer, str | bytes):
            why = "it answered with a page that is no JSON. Check its address"
            raise errors.ModelUnavailable(self.provider, why)
        return answer

    async def close(self) -> None:
        """Close the running loop's connections. It can be used again afterwards."""
        client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    @asynccontextmanager
    async def call(self, model: str, *, tokens: int = 0) -> AsyncIterator[Any]:
        """The SDK's client for one call with an estimated number of tokens, if the rate limit admits it.

        Applies the deadline, raises errors of `aftermind.errors`; `ProviderPaused` if the provider is paused.
        """
        await self.gate.admit(self.provider, tokens=tokens)
        try:
            async with self._called() as sdk:
                with tracing.span("aftermind.model", **_described(self.kind, self.provider, model)):
                    yield sdk
        except errors.AftermindError as exc:
            exc.model = model
            await self.gate.report(self.provider, exc, tokens=tokens)
            raise
        await self.gate.report(self.provider, None, tokens=tokens)

    @asynccontextmanager
    async def _called(self) -> AsyncIterator[Any]:
        """The call itself. Messages have status and kind, never request or response, which contain user content."""
        client = await self.sdk()
        try:
            async with asyncio.timeout(self.timeout):
                yield client
        except TimeoutError as exc:
            raise self.no_answer() from exc
        except ValueError as exc:  # a body that is no JSON
            raise self.unreadable(exc) from exc
        except Exception as exc:
            error = self.error_of(exc)
            if error is None:
                raise
            raise error from exc

    def error_of(self, exc: Exception) -> errors.AftermindError | None:
        """Our error for one of the SDK; None for an exception that is not the SDK's."""
        import openai

        return self.classify(exc, openai)

    def classify(self, exc: Exception, sdk: Any) -> errors.AftermindError | None:
        """Our error for one of OpenAI's SDK, or of a module with the same exceptions."""
        if isinstance(exc, sdk.APITimeoutError):
            return self.no_answer()
        if isinstance(exc, sdk.APIConnectionError):
            return errors.ModelUnavailable(self.provider, f"no connection ({type(exc.__cause__).__name__})")
        if isinstance(exc, sdk.APIStatusError):
            code, path = _code(exc), self._path(exc.response.request.url)
            return self.refusal(exc.status_code, exc.response.headers, code, path=path, message=_message(exc))
        if type(exc) is sdk.APIError and _error_of_body(exc):  # an event of a stream, after its status of success
            code = _code(exc)
            if code.isdecimal() or "content" in code or "context_length" in code:
                return self.refusal(int(code) if code.isdecimal() else 400, {}, code, message=_message(exc))
            return errors.ModelUnavailable(self.provider, f"it sent an error in its stream: {code}")
        return self.unreadable(exc) if isinstance(exc, sdk.APIError) else None

    def refusal(
        self, status: int, headers: Mapping[str, str], code: str, *, path: str = "", message: str | None = None
    ) -> errors.AftermindError:
        """Our error for an HTTP status that is none of success; `message` is the provider's own."""
        if status == 404 and code == NO_CODE and self.base_url is not None:
            code = f"{code}. Check {self.kind.upper()}_BASE_URL"
            code += ": does it end in /v1?" if self.kind == Client.kind else ""
        if status == 429:
            return errors.RateLimited(self.provider, _retry_after(headers))
        if status in (401, 403):
            return errors.ModelKeyRefused(self.provider, f"the key was refused ({status})")
        if status in (408, 409, 425) or status >= 500:
            return errors.ModelUnavailable(self.provider, f"it answered {status}")
        if "content" in code and ("filter" in code or "policy" in code):
            return errors.ModelRefused(self.provider, code)
        return errors.BadModelRequest(self.provider, status, code, path=path, answer=message)

    def _path(self, url: Any) -> str:  # Any: httpx's
        """The path of a request to this provider. LiteLLM's errors name addresses that it did not request."""
        return str(url.path) if provider_name(self.kind, str(url)) == self.provider else ""

    def no_answer(self) -> errors.ModelUnavailable:
        """The deadline has passed."""
        return errors.ModelUnavailable(self.provider, f"no answer within {self.timeout:g} s")

    def unreadable(self, exc: Exception) -> errors.BadModelAnswer:
        """The answer is not of the provider's format."""
        return errors.BadModelAnswer(self.provider, f"{type(exc).__name__} while it was read")


def _code(exc: Any) -> str:  # Any: an `APIStatusError` of OpenAI's SDK or of one with the same exceptions
    """What was wrong, by the provider's identifiers: its code, and the parameter if it names one."""
    body = _error_of_body(exc)
    code = getattr(exc, "code", None) or body.get("code") or getattr(exc, "type", None) or body.get("type")
    parameter = getattr(exc, "param", None) or body.get("param")
    is_name = isinstance(parameter, str) and _PARAMETER.fullmatch(parameter)
    return f"{code or NO_CODE} ({parameter})" if is_name else str(code or NO_CODE)


def _message(exc: Any) -> str:  # Any: as in `_code`
    """The provider's own message, or the body where it has none in OpenAI's format."""
    return str(_error_of_body(exc).get("message") or exc.body or exc)


def _error_of_body(exc: Any) -> Mapping[str, Any]:  # Any: as in `_code`; JSON
    body = exc.body if isinstance(exc.body, dict) else {}
    inner = body.get("error")
    return inner if isinstance(inner, dict) else body


def _described(kind: str, provider: str, model: str) -> dict[str, str]:
    """By OpenTelemetry's names for model calls."""
    return {"gen_ai.request.model": model, "gen_ai.provider.name": kind, "server.address": provider}


def prompt_tokens(messages: Iterable[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> int:
    """About how many tokens the texts of a chat call have, and its tools; images are not counted."""
    texts: list[Any] = [json.dumps(tools)] if tools else []  # Any: the provider's own message format
    for message in messages:
        content = message.get("content")
        texts += [content] if isinstance(content, str) else [part.get("text") for part in content or ()]
        texts += [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return token_count.estimate("\n".join(text for text in texts if isinstance(text, str)))


def _retry_after(headers: Mapping[str, str]) -> timedelta | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        try:
            if value is not None:
                return timedelta(seconds=max(0.0, float(value) * unit))
        except (ValueError, OverflowError):
            continue  # the HTTP date form: our own back-off serves
    return None
