"""The connections of one process to model providers: shared by all its models, behind one gate, closed together."""

from typing import TYPE_CHECKING

from aftermind import extras
from aftermind.llm.rate_limit import ProviderLimiter
from aftermind.settings import Settings

if TYPE_CHECKING:
    from aftermind.llm.openai.client import Client


class Providers:
    """One client for each address and key. Constructing it connects nothing."""

    def __init__(self, gate: ProviderLimiter | None = None) -> None:
        self.gate = gate or ProviderLimiter()
        self._clients: dict[tuple[str | None, str | None, float], Client] = {}

    def openai(self, settings: Settings) -> "Client":
        """The client that the settings name."""
        extras.require("openai", "a model of OpenAI (OPENAI_API_KEY is set, or AFTERMIND_EMBEDDER names it)")
        from aftermind.llm.openai.client import Client

        key = None if settings.openai_api_key is None else settings.openai_api_key.get_secret_value()
        named = (key, settings.openai_base_url, settings.model_timeout_seconds)
        if named not in self._clients:
            self._clients[named] = Client(api_key=key, base_url=named[1], timeout=named[2], gate=self.gate)
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
