"""The connections of one process to model providers: shared by all its models, behind one gate, closed together."""

from importlib import import_module
from typing import TYPE_CHECKING

from pydantic import SecretStr

from aftermind import extras
from aftermind.llm.rate_limit_and_circuit_breaker import ProviderLimiter
from aftermind.settings import Settings

if TYPE_CHECKING:
    from aftermind.llm.openai.client import Client

# By kind: module and class of the client, and the SDK. Their settings are KIND_api_key and KIND_base_url.
CLIENTS = {
    "openai": ("aftermind.llm.openai.client", "Client", "openai"),
    "anthropic": ("aftermind.llm.anthropic", "AnthropicClient", "anthropic"),
    "litellm": ("aftermind.llm.litellm", "LiteLLMClient", "litellm"),
    "voyage": ("aftermind.llm.embedding_providers", "VoyageClient", "voyageai"),
    "cohere": ("aftermind.llm.embedding_providers", "CohereClient", "cohere"),
}
CHAT_KINDS = ("openai", "anthropic", "litellm")


class Providers:
    """One client for each address, key and table of prices. Constructing it connects nothing."""

    def __init__(self, gate: ProviderLimiter | None = None) -> None:
        self.gate = gate or ProviderLimiter()
        self._clients: dict[tuple[object, ...], Client] = {}

    def client(self, kind: str, settings: Settings) -> "Client":
        """The client of this kind with the key and address of the settings. Raises `ExtraMissing`."""
        module, name, package = CLIENTS[kind]
        extras.require(package, f"a model of {kind} (a setting names it, or its API key is set)")
        secret: SecretStr | None = getattr(settings, f"{kind}_api_key", None)
        key = None if secret is None else secret.get_secret_value()
        url, timeout = getattr(settings, f"{kind}_base_url"), settings.model_timeout_seconds
        named = (kind, key, url, timeout, frozenset(settings.model_prices.items()))
        if named not in self._clients:
            make = getattr(import_module(module), name)
            self._clients[named] = make(
                api_key=key, base_url=url, timeout=timeout, gate=self.gate, prices=settings.model_prices
            )
        return self._clients[named]

    async def close(self) -> None:
        """Close the running loop's connections."""
        for client in self._clients.values():
            await client.close()


def make_limiter(settings: Settings) -> ProviderLimiter:
    """A gate with the budgets of the settings, bound to nothing yet."""
    return ProviderLimiter(
        requests_per_minute=settings.model_requests_per_minute, tokens_per_minute=settings.model_tokens_per_minute
    )
