"""The fitted models of the product, by embedder. `benchmarks/fit_ranking.py` writes `coefficients.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
import orjson

from aftermind.ranking.logistic import Model

DEFAULT = "default"  # for embedders that nothing was fitted for


@dataclass(frozen=True, slots=True)
class Models:
    """Of one embedder: words and meaning together, words alone, meaning alone, and the turn's own vector alone."""

    both: Model
    words: Model
    meaning: Model
    vector: Model


@cache
def models_of(embedder: str | None = None) -> Models:
    """The models of an embedder by its name: `hash:384` and `local:...MiniLM...` have their own."""
    fitted = _fitted()
    name = (embedder or "").casefold()
    return fitted.get(next((kind for kind in fitted if kind != DEFAULT and kind in name), DEFAULT), fitted[DEFAULT])


@cache
def _fitted() -> Mapping[str, Models]:
    kept = orjson.loads(files("aftermind.ranking").joinpath("coefficients.json").read_bytes())
    return {
        kind: Models(
            **{
                use: Model(np.array([*model["coefficients"].values()]), model["intercept"])
                for use, model in each.items()
            }
        )
        for kind, each in kept["models"].items()
    }
