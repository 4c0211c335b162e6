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
    """The price of a model `KIND:MODEL` (of an embedder also `KIND:MODEL:DIMENSION`); None if there is none.

    Given prices precede published ones. Each may be of the whole name, or of one without the kind or the dimension; the
    whole name has precedence.
    Accounts have language models without their kind, so `MODEL` also has a price that is given for `KIND:MODEL`.
    """
    kind, _, name = model.partition(":")
    if kind in LOCAL_KINDS:
        return ModelPrice(input=0.0)
    whole, _, dimension = model.rpartition(":")
    shorter = (whole, whole.partition(":")[2]) if dimension.isdecimal() else ()
    names = (model, name, *shorter, *(each for each in given if each.endswith(f":{model}")))
    return next((prices[name] for prices in (given, PUBLISHED) for name in names if name in prices), None)


def describe_cost(cost_usd: float, *, is_cost_unknown: bool) -> str:
    """A cost in a table, in dollars. `is_cost_unknown`: a model without a price is left out of it."""
    if not is_cost_unknown:
        return f"{cost_usd:.4f}"
    return f"{cost_usd:.4f} + unknown" if cost_usd else "unknown"


def is_unknown(model: str | None, cost_usd: float, tokens: int, given: Mapping[str, ModelPrice]) -> bool:
    """Whether a cost of 0 is one that could not be computed: the model had no price when it was called."""
    price = price_of(model or "", given)
    is_free = price is not None and not price.input and not price.output
    return not cost_usd and tokens > 0 and not is_free
