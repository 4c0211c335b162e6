"""Voyage AI and Cohere: texts to vectors by their SDKs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from aftermind import errors
from aftermind.llm.openai.client import Client


@dataclass(slots=True, kw_only=True)
class VoyageClient(Client):
    """A client of Voyage AI."""

    kind: ClassVar[str] = "voyage"
    usual_dimension: ClassVar[int] = 1024
    key_variable: ClassVar[str] = "VOYAGE_API_KEY"
    max_batch: ClassVar[int] = 128
    max_batch_tokens: ClassVar[int] = 100_000
    max_tokens: ClassVar[int] = 30_000  # of one text

    def make(self) -> Any:
        """The SDK's client. One attempt: its `max_retries` counts attempts."""
        import voyageai

        made = voyageai.AsyncClient(api_key=self.api_key, base_url=self.base_url, timeout=self.timeout, max_retries=1)
        made.close = _nothing
        return made

    async def vectors(
        self, sdk: Any, model: str, texts: Sequence[str], dimension: int | None, *, is_query: bool = False
    ) -> Sequence[Any]:
        """Vectors of texts, in order."""
        kind = "query" if is_query else "document"
        answer = await sdk.embed(list(texts), model=model, input_type=kind, output_dimension=dimension, truncation=True)
        return list(answer.embeddings)

    def error_of(self, exc: Exception) -> errors.AftermindError | None:
        """By HTTP status, as the SDK reports it."""
        from voyageai import error

        if isinstance(exc, error.Timeout):
            return self.no_answer()
        if isinstance(exc, error.VoyageError) and (exc.http_status or 0) >= 300:
            return self.refusal(exc.http_status, exc.headers, type(exc).__name__, message=str(exc))
        if isinstance(exc, error.APIConnectionError):
            return errors.ModelUnavailable(self.provider, "no connection")
        return self.unreadable(exc) if isinstance(exc, error.VoyageError) else None


@dataclass(slots=True, kw_only=True)
class CohereClient(Client):
    """A client of Cohere."""

    kind: ClassVar[str] = "cohere"
    usual_dimension: ClassVar[int] = 1024
    key_variable: ClassVar[str] = "COHERE_API_KEY"
    max_batch: ClassVar[int] = 96
    max_batch_tokens: ClassVar[int] = 100_000
    max_tokens: ClassVar[int] = 30_000  # of one text; the endpoint cuts what its model cannot read

    def make(self) -> Any:
        """The SDK's client, without retries."""
        import cohere
        import httpx

        connections = httpx.AsyncClient(timeout=self.timeout, follow_redirects=True)
        made = cohere.AsyncClientV2(
            api_key=self.api_key,
            base_url=self.base_url,
            httpx_client=connections,
            timeout=self.timeout,
            max_retries=0,
        )
        made.close = connections.aclose  # the SDK itself cannot close its connections
        return made

    async def vectors(
        self, sdk: Any, model: str, texts: Sequence[str], dimension: int | None, *, is_query: bool = False
    ) -> Sequence[Any]:
        """Vectors of texts, in order."""
        kind = "search_query" if is_query else "search_document"
        asked: dict[str, Any] = {"output_dimension": dimension} if dimension else {}
        answer = await sdk.embed(model=model, input_type=kind, texts=list(texts), embedding_types=["float"], **asked)
        return list(answer.embeddings.float_ or ())

    def error_of(self, exc: Exception) -> errors.AftermindError | None:
        """By HTTP status, as the SDK reports it."""
        import httpx
        from cohere.core.api_error import ApiError

        if isinstance(exc, httpx.TimeoutException):
            return self.no_answer()
        if isinstance(exc, httpx.HTTPError):
            return errors.ModelUnavailable(self.provider, f"no connection ({type(exc).__name__})")
        if isinstance(exc, ApiError) and exc.status_code is not None and exc.status_code >= 300:
            return self.refusal(exc.status_code, exc.headers or {}, type(exc).__name__, message=str(exc.body))
        return self.unreadable(exc) if isinstance(exc, ApiError) else None


async def _nothing() -> None:
    """Voyage AI's SDK opens a connection for each call."""
