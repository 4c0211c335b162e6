"""`memory.ranking`: the coefficients of the ranking that a namespace has fitted to its own questions."""

from collections.abc import Mapping
from math import isfinite
from typing import Unpack

import orjson

from aftermind import errors
from aftermind.api.memory_services import Parts
from aftermind.db.database_protocol import Transaction
from aftermind.ranking import parse_models
from aftermind.ranking.turn_features import FEATURES
from aftermind.recall import Candidates, Query, RecallOptions
from aftermind.types import Json, Scope
from aftermind.types.audit import Action

WRONG_FORM = (
    "`both`, `words`, `meaning` and `vector` each need a finite `intercept`, and `coefficients` of "
    f"{', '.join(FEATURES)}, in this order. `(await memory.ranking.candidates(…)).models_json` has the form."
)


class Ranking:
    """Ranking models of a namespace. Every call raises `InvalidScope` and `StoreUnavailable`.

    Models have the form of `Candidates.models_json`: for each kind of search an intercept and a coefficient of
    each feature. They apply to recalls whose query was embedded by the embedder with the given key ("" without one).
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def get(self, *, namespace: str | None = None) -> dict[str, Json]:
        """The fitted models by the key of their embedder; empty if the namespace uses those of the product."""
        owner = self._parts.scope(namespace=namespace)
        async with self._parts.db.transaction(namespace=owner.namespace, read_only=True) as tx:
            stored = await self._parts.store.ranking_models(tx, owner.namespace)
        return {embedder: orjson.loads(models) for embedder, models in stored.items()}

    async def set(self, models: Mapping[str, Json], *, embedder: str, namespace: str | None = None) -> None:
        """Use these models for the namespace from now on. Raises `InvalidQuery` if a feature or number is wrong."""
        owner = self._parts.scope(namespace=namespace)
        written = orjson.dumps(models).decode()
        if not _is_usable(written):
            raise errors.InvalidQuery("models", written, WRONG_FORM)

        async def work(tx: Transaction) -> None:
            await self._parts.store.set_ranking_models(tx, owner.namespace, embedder, written)
            await self._record(tx, owner, {"ranking": "set", "embedder": embedder})

        await self._parts.effects.commit(owner, work)
        await self._anchor()

    async def delete(self, *, namespace: str | None = None) -> bool:
        """Use the models of the product again; whether the namespace had any."""
        owner = self._parts.scope(namespace=namespace)

        async def work(tx: Transaction) -> bool:
            stored = await self._parts.store.ranking_models(tx, owner.namespace)
            for embedder in stored:
                await self._parts.store.set_ranking_models(tx, owner.namespace, embedder, None)
            if stored:
                await self._record(tx, owner, {"ranking": "deleted"})
            return bool(stored)

        had_models = await self._parts.effects.commit(owner, work)
        await self._anchor()
        return had_models

    async def candidates(
        self,
        query: str,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        namespace: str | None = None,
        **options: Unpack[RecallOptions],
    ) -> Candidates:
        """Every turn that a recall compares, with its features: what models are fitted to. Raises `InvalidQuery`."""
        scope = self._parts.scope(namespace=namespace, user_id=user_id, session_id=session_id, agent_id=agent_id)
        return await self._parts.recall.candidates(Query.checked(query, scope, **options))

    async def _record(self, tx: Transaction, owner: Scope, detail: dict[str, Json]) -> None:
        if self._parts.trail is not None:
            await self._parts.trail.append(tx, owner.namespace, Action.POLICY, detail=detail)

    async def _anchor(self) -> None:
        if self._parts.trail is not None:
            await self._parts.trail.anchor()


def _is_usable(models: str) -> bool:
    try:
        found = parse_models(models)
        return found is not None and all(
            isfinite(float(each.intercept)) and all(map(isfinite, each.coefficients.tolist()))
            for each in (found.both, found.words, found.meaning, found.vector)
        )
    except (ValueError, TypeError, AttributeError, KeyError):
        return False
