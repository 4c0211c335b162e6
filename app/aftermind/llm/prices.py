"""What models cost: published prices, those of `AFTERMIND_MODEL_PRICES`, and costs that no price gives."""

from collections.abc import Mapping

from aftermind.settings import ModelPrice

SETTING = "AFTERMIND_MODEL_PRICES"
LOCAL_KINDS = ("hash", "local")  # embedders of this process, which cost nothing

# As published in 2025; embedders have no output.
PUBLISHED: Mapping[str, ModelPrice] = {
    "gpt-5": ModelPrice(input=1.25, output=10.0),
    "gpt-5-mini": ModelPrice(input=0.25, output=2.0),
    "gpt-5-nano": ModelPrice(input=0.05, output=0.4),
    "gpt-4.1-mini": ModelPrice(input=0.4, output=1.6),
    "gpt-4o-mini": ModelPrice(input=0.15, output=0.6),
    "text-embedding-3-small": ModelPrice(input=0.02),
    "text-embedding-3-large": ModelPrice(input=0.13),
    "voyage-3.5": ModelPrice(input=0.06),
    "voyage-3.5-lite": ModelPrice(input=0.02),
    "voyage-3-large": ModelPrice(input=0.18),
    "embed-v4.0": ModelPrice(input=0.12),
}


def price_of(model: str, given: Mapping[str, ModelPrice]) -> ModelPrice | None:
    """The price of a model, the given one first; None if there is none.

    An embedder may have its kind before its name, and its dimension after it, as vectors are stored under it.
    """
    kind, _, rest = model.partition(":")
    if kind in LOCAL_KINDS:
        return ModelPrice(input=0.0)
    names = (model, rest, rest.rpartition(":")[0])
    return next((prices[name] for prices in (given, PUBLISHED) for name in names if name in prices), None)


def describe_cost(cost_usd: float, *, is_partial: bool) -> str:
    """A cost in a table, in dollars. `is_partial`: a model without a price is left out of it."""
    if not is_partial:
        return f"{cost_usd:.4f}"
    return f"{cost_usd:.4f} + unknown" if cost_usd else "unknown"


def is_unknown(model: str | None, cost_usd: float, tokens: int, given: Mapping[str, ModelPrice]) -> bool:
    """Whether a cost of 0 is one that could not be computed: the model had no price when it was called."""
    price = price_of(model or "", given)
    is_free = price is not None and not price.input and not price.output
    return not cost_usd and tokens > 0 and not is_free
