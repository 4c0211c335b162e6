"""`AftermindStore`: LangGraph's long-term store on `memory.items`.

A read includes every put that has returned, from any process and through any replica. A batch is atomic for each user.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from aftermind import errors
from aftermind.api import blocking_portal
from aftermind.api.blocking_portal import to_async
from aftermind.integrations.framework_imports import extra
from aftermind.memory import Memory
from aftermind.sync import Memory as SyncMemory
from aftermind.types import Item, ItemWrite

with extra("langgraph"):
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        IndexConfig,
        ListNamespacesOp,
        MatchCondition,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
        TTLConfig,
        ensure_embeddings,
        get_text_at_path,
        validate_op_namespace,
    )
    from langgraph.store.base import Item as StoreItem

Vectors = Mapping[str, Sequence[float]]  # by text

WHOLE_VALUE = ["$"]
ASYNC = "Use the store's aput, aget, adelete, asearch, alist_namespaces or abatch."


class AftermindStore(BaseStore):
    """LangGraph's store for the items of one user, or with `user_label` of the user that each namespace names.

    `user_label` is the position of the user's id in a namespace: 1 for `("memories", user_id)`. Every call then needs a
    namespace that has it, `memory.forget(user_id=…)` deletes the user's items, and no call reaches two users. Without
    it all items belong to `user_id`. `index` is LangGraph's: `embed`, `dims` and `fields`; without it a query does not
    rank. `ttl` is LangGraph's; expired items are never returned.
    """

    supports_ttl = True

    def __init__(
        self,
        memory: Memory | SyncMemory,
        *,
        user_id: str | None = None,
        user_label: int | None = None,
        namespace: str | None = None,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> None:
        self.memory = to_async(memory)
        self.index_config, self.ttl_config = index, ttl
        self._user_id, self._user_label, self._namespace = user_id, user_label, namespace
        self.embeddings = None if index is None else ensure_embeddings(index["embed"])
        self._fields = None if index is None else index.get("fields") or WHOLE_VALUE

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """See `BaseStore.batch`. Raises `InvalidInput` in a running event loop: use `abatch` there."""
        given = list(ops)
        documents, queries = self._documents(given), self._queries(given)
        vectors: dict[str, Sequence[float]] = {}
        asked: dict[str, Sequence[float]] = {}
        if self.embeddings is not None:
            if documents:
                vectors |= dict(zip(documents, self.embeddings.embed_documents(documents), strict=True))
            asked |= {query: self.embeddings.embed_query(query) for query in queries}
        return blocking_portal.call(lambda: self._run(given, vectors, asked), instead=ASYNC)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """See `BaseStore.abatch`."""
        given = list(ops)
        documents, queries = self._documents(given), self._queries(given)
        vectors: dict[str, Sequence[float]] = {}
        asked: dict[str, Sequence[float]] = {}
        if self.embeddings is not None:
            if documents:
                vectors |= dict(zip(documents, await self.embeddings.aembed_documents(documents), strict=True))
            asked |= {query: await self.embeddings.aembed_query(query) for query in queries}
        return await self._run(given, vectors, asked)

    def _documents(self, ops: Sequence[Op]) -> list[str]:
        return sorted({text for op in ops if isinstance(op, PutOp) for text in self._texts(op)})

    def _queries(self, ops: Sequence[Op]) -> list[str]:
        return sorted({op.query for op in ops if isinstance(op, SearchOp) and op.query})

    def _texts(self, op: PutOp) -> list[str]:
        """What is embedded of a value."""
        if self._fields is None or op.value is None or op.index is False:
            return []
        return [text for path in op.index or self._fields for text in get_text_at_path(op.value, path)]

    async def _run(self, ops: Sequence[Op], vectors: Vectors, asked: Vectors) -> list[Result]:
        """Reads first, then the writes of each user in one transaction, as LangGraph's own stores do."""
        for op in ops:
            validate_op_namespace(op)
        results: list[Result] = [None] * len(ops)
        gets: dict[tuple[str | None, bool], list[int]] = {}
        puts: dict[str | None, list[PutOp]] = {}
        for place, op in enumerate(ops):
            if isinstance(op, GetOp):
                gets.setdefault((self._user_of(op.namespace), op.refresh_ttl), []).append(place)
            elif isinstance(op, SearchOp):
                results[place] = await self._search(op, asked)
            elif isinstance(op, ListNamespacesOp):
                results[place] = await self._list(op)
            else:
                puts.setdefault(self._user_of(op.namespace), []).append(op)
        for (user_id, renew), places in gets.items():
            names = [(ops[place].namespace, ops[place].key) for place in places]
            items = await self.memory.items.get(*names, renew=renew, user_id=user_id, namespace=self._namespace)
            for place, item in zip(places, items, strict=True):
                results[place] = item and StoreItem(**_fields(item))
        for user_id, given in puts.items():
            writes = [self._to_write(op, vectors) for op in given]
            await self.memory.items.write(writes, user_id=user_id, namespace=self._namespace)
        return results

    async def _search(self, op: SearchOp, asked: Vectors) -> list[SearchItem]:
        items = await self.memory.items.search(
            op.namespace_prefix,
            filter=op.filter,
            vector=asked.get(op.query) if op.query else None,
            limit=op.limit,
            offset=op.offset,
            renew=op.refresh_ttl,
            user_id=self._user_of(op.namespace_prefix),
            namespace=self._namespace,
        )
        return [SearchItem(**_fields(item), score=item.score) for item in items]

    async def _list(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        conditions = op.match_conditions or ()
        prefix = max((each.path for each in conditions if each.match_type == "prefix"), key=len, default=())
        paths = await self.memory.items.paths(user_id=self._user_of(prefix), namespace=self._namespace)
        fitting = (path for path in paths if all(_fits(path, each) for each in conditions))
        return sorted({path[: op.max_depth] for path in fitting})[op.offset : op.offset + op.limit]

    def _to_write(self, op: PutOp, vectors: Vectors) -> ItemWrite:
        ttl = None if op.ttl is None else timedelta(minutes=op.ttl)
        texts = [vectors[text] for text in self._texts(op)]
        return ItemWrite(path=op.namespace, key=op.key, value=op.value, vectors=texts, ttl=ttl)

    def _user_of(self, namespace: Sequence[str]) -> str | None:
        if self._user_label is None:
            return self._user_id
        if len(namespace) <= self._user_label or namespace[self._user_label] == "*":
            why = f"label {self._user_label} of the namespace must name the user."
            raise errors.InvalidScope("user_id", tuple(namespace), why)
        return namespace[self._user_label]


def _fields(item: Item) -> dict[str, Any]:  # Any: of two classes of LangGraph
    return {
        "namespace": item.path,
        "key": item.key,
        "value": dict(item.value),
        "created_at": item.created_at,
        "updated_at": item.updated_at,
    }


def _fits(path: tuple[str, ...], condition: MatchCondition) -> bool:
    """Whether a path begins, or ends, with the labels of the condition; `*` matches any label."""
    wanted, is_prefix = condition.path, condition.match_type == "prefix"
    part = path[: len(wanted)] if is_prefix else path[-len(wanted) :]
    return len(path) >= len(wanted) and all(label in ("*", there) for label, there in zip(wanted, part, strict=True))
