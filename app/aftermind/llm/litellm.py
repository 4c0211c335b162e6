"""Every provider of LiteLLM by its SDK, which takes and gives what OpenAI's chat completions do."""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

from aftermind.llm.openai.client import Client


@dataclass(slots=True, kw_only=True)
class LiteLLMClient(Client):
    """Calls of LiteLLM. Models have its names (`gemini/gemini-2.5-flash`); keys come from each provider's variable.

    `base_url` is that of a LiteLLM proxy or of a provider; None: the provider's own. Budgets and pauses are shared by
    all models of LiteLLM.
    """

    kind: ClassVar[str] = "litellm"
    key_variable: ClassVar[str] = "the provider's own variable"

    async def sdk(self) -> Any:
        """The calls; a key is not needed here."""
        if self.api_key is None:
            self.api_key = "of the provider"
        return await Client.sdk(self)

    def make(self) -> Any:
        """LiteLLM's calls in the form of OpenAI's client."""
        import litellm

        litellm.telemetry = False
        given: dict[str, Any] = {"num_retries": 0, "timeout": self.timeout, "drop_params": True}
        if self.base_url is not None:
            given["api_base"] = self.base_url
        create = partial(litellm.acompletion, **given)
        return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)), close=_nothing)


async def _nothing() -> None:
    """LiteLLM closes its connections itself."""
