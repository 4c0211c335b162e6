"""`Mem0Index`: hosted or self-run Mem0. Needs the extra `mem0` and `MEM0_API_KEY`.

Mem0 embeds texts itself: it is given the content of episodes, and searched by the text of the question.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

from aftermind import errors
from aftermind.indexes.factory import IndexAddress
from aftermind.indexes.protocol import MARK, IndexEntry, IndexQuery
from aftermind.types import EmbedderIdentity, EpisodeId

os.environ.setdefault("MEM0_TELEMETRY", "False")  # read when its package is imported
from mem0 import MemoryClient

PAGE = 100
EPISODE = "episode"


class Mem0Index:
    """See `VectorIndex`. A user of Mem0 is an owner; a memory is an episode, stored as it is (`infer=False`).

    An episode that is written again is replaced: Mem0 chooses ids itself, so the former memory is searched for.
    """

    def __init__(self, address: IndexAddress) -> None:
        self.name, self.is_local = address.name, False
        scheme = "https" if address.is_secure else "http"
        port = f":{address.port}" if address.port else ""
        self._host = None if address.host is None else f"{scheme}://{address.host}{port}"
        self._key = address.password or os.environ.get("MEM0_API_KEY")
        if not self._key:
            raise errors.InvalidSettings("MEM0_API_KEY", None, f"the index {self.name} needs a key. Set it.")
        self._opened: Any = None  # Any: of a library that not every environment has

    def open(self, embedder: EmbedderIdentity, *, recreate: bool = False) -> None:
        if self._opened is None:
            self._opened = MemoryClient(api_key=self._key, host=self._host)
        if recreate:
            why = "memories of Mem0 are replaced one by one. Run `aftermind reindex` without --recreate."
            raise errors.InvalidSettings("recreate", True, why)

    def upsert(self, entries: Sequence[IndexEntry]) -> None:
        for owner in {each.owner for each in entries}:
            known = dict(self._memories(owner))
            for entry in (each for each in entries if each.owner == owner):
                labels = {name: value for name, value in entry.labels.items() if name != "owner"}
                self._client.add(
                    [{"role": entry.role if entry.role == "assistant" else "user", "content": entry.text}],
                    user_id=_user(owner),
                    infer=False,
                    metadata={EPISODE: str(entry.id), **labels},
                )
                if entry.id in known:
                    self._client.delete(known[entry.id])

    def delete(self, owner: str, ids: Sequence[EpisodeId] | None = None) -> None:
        wanted = None if ids is None else set(ids)
        for id_, memory in list(self._memories(owner)):
            if wanted is None or id_ in wanted:
                self._client.delete(memory)

    def search(self, query: IndexQuery) -> Sequence[EpisodeId]:
        if not query.text.strip():
            return []
        conditions: list[dict[str, Any]] = [{"user_id": _user(query.owner)}]
        conditions += [{"metadata": {name: value}} for name, value in query.equal.items() if name != "owner"]
        found = self._client.search(query.text, filters={"AND": conditions}, top_k=query.k)
        return [id_ for id_, _ in _parse(found)]

    def ids(self, owner: str) -> Iterable[EpisodeId]:
        return (id_ for id_, _ in self._memories(owner))

    def count(self, owner: str | None = None) -> int:
        if owner is not None:
            return len({id_ for id_, _ in self._memories(owner)})
        users = [each["name"] for each in self._client.users().get("results", ())]
        return sum(self.count(each.removeprefix(f"{MARK}-")) for each in users if each.startswith(f"{MARK}-"))

    def close(self) -> None:
        self._opened = None

    @property
    def _client(self) -> Any:
        if self._opened is None:
            raise errors.IndexUnavailable(self.name, "it is closed")
        return self._opened

    def _memories(self, owner: str) -> Iterator[tuple[EpisodeId, str]]:
        page = 1
        while True:
            found = self._client.get_all(filters={"AND": [{"user_id": _user(owner)}]}, page=page, page_size=PAGE)
            yield from _parse(found)
            if not found.get("next"):
                return
            page += 1


def _user(owner: str) -> str:
    return f"{MARK}-{owner}"


def _parse(found: dict[str, Any]) -> Iterator[tuple[EpisodeId, str]]:
    """Episodes and ids of memories; memories of another program are none."""
    for each in found.get("results", ()):
        try:
            yield EpisodeId(UUID(str((each.get("metadata") or {})[EPISODE]))), str(each["id"])
        except (KeyError, ValueError):
            continue
