"""The fitted models: of the product by embedder, and those that a namespace has fitted to its own questions.

`benchmarks/fit_ranking.py` writes `coefficients.json`; `aftermind eval --fit` stores the others in the database.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
import orjson

from aftermind.ranking.score_probability import Model

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


@lru_cache(maxsize=1_024)
def parse_models(stored: str) -> Models | None:
    """The models of a namespace; None if they were fitted to other features than those of this release."""
    found = orjson.loads(stored)
    names = list(_file()[DEFAULT]["both"]["coefficients"])
    usable = all(list(found.get(use.name, {}).get("coefficients", ())) == names for use in fields(Models))
    return _models(found) if usable else None


def to_json(models: Models) -> dict[str, Any]:  # Any: JSON
    """The form of one entry of `coefficients.json`."""
    names = list(_file()[DEFAULT]["both"]["coefficients"])
    return {
        use.name: {
            "intercept": round(model.intercept, 3),
            "coefficients": dict(zip(names, (round(value, 3) for value in model.coefficients.tolist()), strict=True)),
        }
        for use in fields(Models)
        if isinstance(model := getattr(models, use.name), Model)
    }


@cache
def _fitted() -> Mapping[str, Models]:
    return {kind: _models(each) for kind, each in _file().items()}


def _models(data: Mapping[str, Any]) -> Models:  # Any: JSON
    return Models(
        **{
            use.name: Model(np.array([*data[use.name]["coefficients"].values()]), data[use.name]["intercept"])
            for use in fields(Models)
        }
    )


@cache
def _file() -> Mapping[str, Any]:  # Any: JSON
    found = orjson.loads(files("aftermind.ranking").joinpath("coefficients.json").read_bytes())
    models: Mapping[str, Any] = found["models"]
    return models
