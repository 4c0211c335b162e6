"""loomflow's `Memory` protocol on a memory."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from aftermind.api.turn_builder import limits
from aftermind.integrations.framework_imports import extra
from aftermind.integrations.framework_store_urls import MemoryPlace, Place
from aftermind.integrations.loomflow_facts import MAX_FACTS, AftermindFacts, to_fact, utc
from aftermind.integrations.loomflow_recall import RECORDS, episode_id, search_weighted
from aftermind.integrations.message_records import read_session, without_undone
from aftermind.recall import RecallOptions
from aftermind.types import Episode as Said
from aftermind.types import EpisodeId
from aftermind.types.message import keyed_ids
from aftermind.types.scope import Scope

with extra("loomflow"):
    from loomflow.core.types import (
        Episode,
        EpisodeMatch,
        Fact,
        MemoryBlock,
        MemoryExport,
        MemoryProfile,
        Message,
        Role,
    )

PAGE = 1_000
_TAG = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class AftermindMemory(MemoryPlace):
    """loomflow's `Memory` on Aftermind: `Agent(memory=AftermindMemory("postgresql://…"))`.

    `remember` returns as fast as `aftermind.Memory.remember`; the next recall sees the episode, in any process. Facts
    are extracted by Aftermind's workers. The input and the output of an episode are two messages of its session.
    """

    def __init__(self, memory: Place | None = None, *, namespace: str | None = None) -> None:
        super().__init__(memory, namespace=namespace)
        self.facts = AftermindFacts(self.memory, namespace)

    async def working(self, *, user_id: str | None = None) -> list[MemoryBlock]:
        """The user's blocks."""
        found = await self.memory.blocks.list(**self.whose(user_id))
        return [
            EscapedBlock(name=each.name, content=each.content, updated_at=each.updated_at, pinned_order=place)
            for place, each in enumerate(found)
        ]

    async def update_block(self, name: str, content: str, *, user_id: str | None = None) -> None:
        """Replace a block."""
        await self.memory.blocks.set(name, content, **self.whose(user_id))

    async def append_block(self, name: str, content: str, *, user_id: str | None = None) -> None:
        """Add a line to a block, creating it if there is none."""
        await self.memory.blocks.append(name, content, **self.whose(user_id))

    async def remember(self, episode: Episode) -> str:
        """Hand an episode over; its id. An episode with an existing id is not stored again."""
        record = episode.model_dump(mode="json", exclude={"embedding", "output", "user_id"})
        at = utc(episode.occurred_at)
        halves = (record, {"id": episode.id, "output": episode.output})
        turn = [RECORDS.to_message(each, limits(self.memory.settings)) for each in halves]
        await self.memory.remember(
            [{**each, "occurred_at": at} for each in turn],
            session_id=episode.session_id,
            idempotency_key=_key(episode.id),
            **self.whose(episode.user_id),
        )
        return episode.id

    async def recall(
        self,
        query: str,
        *,
        kind: str = "episodic",
        limit: int = 5,
        time_range: tuple[datetime, datetime] | None = None,
        user_id: str | None = None,
    ) -> list[Episode]:
        """The episodes that fit a query, best first."""
        found = await self.recall_scored(query, kind=kind, limit=limit, time_range=time_range, user_id=user_id)
        return [each.episode for each in found]

    async def recall_scored(
        self,
        query: str,
        *,
        kind: str = "episodic",
        limit: int = 5,
        time_range: tuple[datetime, datetime] | None = None,
        user_id: str | None = None,
        alpha: float = 0.5,
    ) -> list[EpisodeMatch]:
        """Episodes with their scores, best first. `alpha` is the weight of meaning; see `search_weighted`."""
        options = RecallOptions()
        if time_range is not None:
            options["since"], options["until"] = map(utc, time_range)
        found = await search_weighted(self.memory, query, options, alpha=alpha, limit=limit, **self.whose(user_id))
        matches = list(found.values())
        episodes = await self._episodes([match.item for match in matches], user_id)  # type: ignore[misc]
        return [
            EpisodeMatch(
                episode=episode,
                score=match.score,
                vector_score=match.vector_score,
                bm25_score=match.lexical_score,
                rerank_score=match.rerank_score,
            )
            for episode, match in zip(episodes, matches, strict=True)
        ]

    async def recall_facts(
        self, query: str, *, limit: int = 5, valid_at: datetime | None = None, user_id: str | None = None
    ) -> list[Fact]:
        """Facts that fit a query."""
        return await self.facts.recall_text(query, limit=limit, valid_at=valid_at, user_id=user_id)

    async def consolidate(self) -> None:
        """Nothing: workers extract facts of every episode."""

    async def session_messages(self, session_id: str, *, user_id: str | None = None, limit: int = 20) -> list[Message]:
        """The newest messages of a session, oldest first; after an input the tool calls that an agent persists."""
        said = await read_session(self.memory, session_id, limit, **self.whose(user_id))
        return [message for each in said for message in _messages(each)]

    async def profile(self, *, user_id: str | None = None) -> MemoryProfile:
        """Counts, recent sessions and sample facts of a user."""
        episodes, facts = await self._all(user_id), await self.facts.query(limit=MAX_FACTS, user_id=user_id)
        return MemoryProfile(
            user_id=user_id,
            episode_count=len(episodes),
            fact_count=len(facts),
            last_seen=max((each.occurred_at for each in episodes), default=None),
            recent_sessions=list(dict.fromkeys(each.session_id for each in reversed(episodes)))[:10],
            sample_facts=facts[:10],
        )

    async def forget(
        self, *, user_id: str | None = None, session_id: str | None = None, before: datetime | None = None
    ) -> int:
        """Delete everything of a user, of a session or before a time; how many episodes, facts and blocks."""
        at = None if before is None else utc(before)
        episodes = [
            each
            for each in await self._all(user_id)
            if session_id in (None, each.session_id) and (at is None or utc(each.occurred_at) < at)
        ]
        gone = await self.memory.forget(session_id=session_id, before=at, **self.whose(user_id))
        return len(episodes) + gone.rows.get("facts", 0) + gone.rows.get("blocks", 0)

    async def export(self, *, user_id: str | None = None) -> MemoryExport:
        """Everything of a user."""
        whole = await self.memory.export(**self.whose(user_id))
        return MemoryExport(
            user_id=user_id,
            episodes=await self._all(user_id),
            facts=[to_fact(each) for each in whole.facts],
            blocks=await self.working(user_id=user_id),
        )

    aclose = MemoryPlace.close

    async def _all(self, user_id: str | None) -> list[Episode]:
        said = await read_session(self.memory, None, None, **self.whose(user_id))
        firsts = {episode_id(each): each for each in reversed(said)}
        return await self._episodes([each for each in said if firsts[episode_id(each)] is each], user_id)

    async def _episodes(self, found: Sequence[Said], user_id: str | None) -> list[Episode]:
        """The episode of each message, with its other half."""
        scope = Scope(namespace=self.namespace or self.memory.namespace, user_id=user_id)
        halves = {each.id: keyed_ids(scope, _key(episode_id(each)), 2)[1] for each in found}
        wanted = [id_ for both in halves.values() for id_ in both]
        known: dict[EpisodeId, Said] = {}
        for start in range(0, len(wanted), PAGE):
            page = await self.memory.get(*wanted[start : start + PAGE], **self.whose(user_id))
            known |= {each.id: each for each in without_undone(each for each in page if each is not None)}
        return [_to_episode(each, [known.get(id_) for id_ in halves[each.id]], user_id) for each in found]


class EscapedBlock(MemoryBlock):
    """A block that is data of a prompt: neither its name nor its text can close its element."""

    def format(self) -> str:
        """The text for a prompt: an element of its name, as loomflow's, if the name is one of an element."""
        tag = self.name if _TAG.fullmatch(self.name) else "block"
        name = "" if tag == self.name else f" name={quoteattr(self.name)}"
        return f"<{tag}{name}>\n{escape(self.content)}\n</{tag}>"


def _key(episode_id: str) -> str:
    return f"loomflow:{episode_id}"


def _messages(said: Said) -> list[Message]:
    record = RECORDS.from_episode(said) or {}
    text = str(record.get("input", record.get("output", said.content)))
    messages = [Message(role=Role(said.role.value), content=text)] if text else []
    return messages + [Message.model_validate(each) for each in record.get("tool_transcript") or ()]


def _to_episode(found: Said, halves: Sequence[Said | None], user_id: str | None) -> Episode:
    said = [each for each in halves if each is not None]
    if not said:  # remembered by another part of the program: a message has one half only
        texts = {"input": "", "output": "", ("output" if found.role.value == "assistant" else "input"): found.content}
        return Episode(
            id=str(found.id),
            session_id=found.scope.session_id or "",
            user_id=user_id,
            occurred_at=found.occurred_at,
            **texts,
        )
    record: dict[str, Any] = {"output": "", "input": "", "session_id": found.scope.session_id or ""}
    for each in said:
        record |= RECORDS.from_episode(each) or {}
    return Episode.model_validate({**record, "user_id": user_id})
