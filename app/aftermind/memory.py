"""`Memory`: recall, remember, history, facts, blocks, events, forget. It delegates, and decides nothing."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from aftermind import errors
from aftermind.events.types import MemoryEvent
from aftermind.faces import addresses, asking, forgetting, health, reading, remains, turns, undoing
from aftermind.faces.asking import Asked, Mode
from aftermind.faces.blocks import Blocks
from aftermind.faces.facts import Facts
from aftermind.faces.forgetting import Export, Forgot
from aftermind.faces.health import Health, Progress
from aftermind.faces.jobs import Jobs
from aftermind.faces.keys import Keys
from aftermind.faces.operating import Operating
from aftermind.faces.parts import Parts
from aftermind.faces.undoing import Undone
from aftermind.faces.watch import Watch
from aftermind.faces.ways import Accept
from aftermind.faces.webhooks import Webhooks
from aftermind.faces.wiring import open_parts
from aftermind.ledger.base import Spending
from aftermind.ledger.replays import DeadLetters, Replays
from aftermind.llm.base import Embedder, Extractor
from aftermind.recall import Query
from aftermind.recall.reranking import Reranker
from aftermind.receipt import Receipt
from aftermind.settings import Settings
from aftermind.stores.base import SessionInfo, UserInfo
from aftermind.telemetry import tracing
from aftermind.types import Episode, EpisodeId, Json, Learned, Match, Profile, RecallBlock, Summary
from aftermind.types.normalise import Given
from aftermind.types.remains import Remains

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Memory(Operating):
    """What an agent remembers, of all its users.

    `store` is a URL (`postgresql://…`, `inmemory`) or None: what `AFTERMIND_*` says, else the embedded stack that is up
    in the state folder. `broker` and `redis` are URLs, each standing in for the other where it can; `replicas` are
    streaming replicas of the store. `embedder` and `extractor` take the place of those that the settings name.
    `save` and `load` say which of history, facts, summary and profile are kept and recalled where a call names none;
    `load` follows `save`. `metrics` is a registry of `prometheus_client` that is told of recalls and turns; with None
    nobody is. Constructing connects nothing, and raises `InvalidSettings` for what cannot work.

    A memory may be used from several event loops and threads, and after a fork. `async with` has the embedder load in
    the background what the first recall would not wait for; leaving it, or `close()`, closes the memory.
    """

    def __init__(
        self,
        store: str | None = None,
        *,
        broker: str | None = None,
        redis: str | None = None,
        replicas: Sequence[str] = (),
        namespace: str | None = None,
        settings: Settings | None = None,
        embedder: str | Embedder | None = None,
        extractor: str | Extractor | None = None,
        reranker: Reranker | None = None,
        save: Iterable[str] | None = None,
        load: Iterable[str] | None = None,
        metrics: "CollectorRegistry | None" = None,
    ) -> None:
        self.settings = settings or Settings()  # type: ignore[call-arg]  # every field has a default
        self.namespace = self.settings.namespace if namespace is None else namespace
        self._save = turns.kinds("save", save, turns.KINDS)
        self._load = turns.loaded(load, save)
        self._bounds = turns.limits(self.settings)
        self._parts: Parts = open_parts(
            addresses.resolve(self.settings, url=store, broker=broker, redis=redis, replicas=replicas),
            self.settings,
            namespace=self.namespace,
            embedder=embedder,
            extractor=extractor,
            reranker=reranker,
        )
        self._watch = Watch(metrics)
        if self.settings.tracing:
            tracing.switch_on()
        self.facts = Facts(self._parts)
        self.blocks = Blocks(self._parts)
        self.jobs = Jobs(self._parts)
        self.keys = Keys(self._parts)
        self.webhooks = Webhooks(self._parts)

    # the two that every agent needs

    async def remember(
        self,
        messages: Given | Iterable[Given],
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        namespace: str | None = None,
        idempotency_key: str | None = None,
        save: Iterable[str] | None = None,
        accept: Accept | None = None,
    ) -> Receipt:
        """Hand a turn over: a text (what the user said), a `Message`, a chat message as a dict, or several of them.

        When this returns the turn is safe, and the next recall sees it; storing, embedding and fact extraction follow
        in the background. The same `idempotency_key` again (per user) is the same turn: nothing is stored twice. With
        other content, or for another session, it raises `IdempotencyConflict`. Raises `InvalidScope`,
        `InvalidMessage`, `QueueFull`, `SpoolFull`.
        """
        scope = self._parts.scope(namespace=namespace, user_id=user_id, session_id=session_id, agent_id=agent_id)
        outbox = self._parts.ways.way(accept)
        turn = turns.make_turn(
            messages,
            scope,
            self._bounds,
            keep=turns.kinds("save", save, self._save),
            idempotency_key=idempotency_key,
            position=outbox.position,
        )
        return self._parts.receipt(turn, await self._watch.send(outbox, turn))

    async def recall(
        self,
        query: str,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        namespace: str | None = None,
        token_budget: int | None = None,
        mode: Mode = "hybrid",
        limit: int | None = None,
        in_session: str | None = None,
        by_agent: str | None = None,
        roles: Iterable[str] | None = None,
        metadata: Mapping[str, Json] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        as_of: datetime | None = None,
        min_score: float = 0.0,
        diversity: float = 0.0,
        load: Iterable[str] | None = None,
        rerank: bool = False,
    ) -> RecallBlock:
        """What is remembered that fits a question, as a block for the system prompt, within a token budget.

        `session_id` is the session that asks: its turns come first among equals, others are not left out. What
        filters is `in_session`, `by_agent`, `roles`, `metadata` (containment), `since` and `until`. `as_of` asks for
        what was believed then. Never raises for a store that does not answer: the block is `degraded` then.
        Raises `InvalidScope` and `InvalidQuery`.
        """
        asked = self._query(
            query,
            user_id=user_id,
            session_id=session_id,
            agent_id=agent_id,
            namespace=namespace,
            token_budget=token_budget,
            mode=mode,
            limit=limit,
            in_session=in_session,
            by_agent=by_agent,
            roles=roles,
            metadata=metadata,
            since=since,
            until=until,
            as_of=as_of,
            min_score=min_score,
            diversity=diversity,
            load=load,
            rerank=rerank,
        )
        return await self._watch.recall(self._parts.recall, asked)

    async def recall_scored(self, query: str, **asked: Unpack[Asked]) -> list[Match]:
        """Every match with its scores and ranks, best first, whatever tokens it takes.

        Takes what `recall` takes, but for the budget. Raises `StoreUnavailable` where a block would be degraded.
        """
        return await self._parts.recall.scored(self._query(query, **asked))

    # rows instead of a block

    async def history(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        namespace: str | None = None,
        limit: int = 100,
        before: Episode | int | None = None,
    ) -> list[Episode]:
        """The newest `limit` episodes, oldest first, those on their way included; of a session or agent if named.

        `before` pages back: pass the first one that you have, or its position. Raises `InvalidScope` and
        `StoreUnavailable`.
        """
        scope = self._parts.scope(namespace=namespace, user_id=user_id, session_id=session_id, agent_id=agent_id)
        return await reading.history(self._parts, scope, limit=limit, before=before)

    async def context_window(
        self,
        max_tokens: int,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        namespace: str | None = None,
    ) -> list[Episode]:
        """The newest episodes that fit into so many tokens together, oldest first. Otherwise as `history`."""
        scope = self._parts.scope(namespace=namespace, user_id=user_id, session_id=session_id, agent_id=agent_id)
        return await reading.context_window(self._parts, scope, max_tokens=max_tokens)

    async def search(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        namespace: str | None = None,
        roles: Iterable[str] | None = None,
        metadata: Mapping[str, Json] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        before: Episode | int | None = None,
    ) -> list[Episode]:
        """The newest `limit` episodes that fit every filter, oldest first. Filters are those of `recall`.

        `before` pages back, as in `history`.
        """
        scope = self._parts.scope(namespace=namespace, user_id=user_id, session_id=session_id, agent_id=agent_id)
        wanted = Query.checked(
            "",
            scope,
            roles=roles,
            metadata=metadata,
            since=since,
            until=until,
            in_session=session_id,
            by_agent=agent_id,
        ).wanted
        return await reading.search(self._parts, scope, reading.paged(wanted, before), limit=limit)

    async def sessions(
        self, *, user_id: str | None = None, namespace: str | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        """The user's sessions that are stored, the latest first."""
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        return await reading.sessions(self._parts, owner, limit=limit)

    async def users(
        self, *, namespace: str | None = None, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> list[UserInfo]:
        """Users of whom something is kept, by id: those that begin with `prefix`, from the one behind `after` on.

        The anonymous bucket (`user_id` None) comes first; an empty `after` leaves it out.
        """
        return await reading.users(self._parts, self._parts.scope(namespace=namespace), prefix, after, limit=limit)

    async def summary(
        self, *, user_id: str | None = None, session_id: str | None = None, namespace: str | None = None
    ) -> Summary | None:
        """The session's latest summary, or None."""
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        return await reading.summary(self._parts, owner, session_id)

    async def profile(self, *, user_id: str | None = None, namespace: str | None = None) -> Profile | None:
        """What has been learned about the user, or None."""
        return await reading.profile(self._parts, self._parts.scope(namespace=namespace, user_id=user_id))

    async def learned(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        namespace: str | None = None,
        limit: int = 100,
    ) -> list[Learned]:
        """What came of each of the newest `limit` episodes (of a session, if named) as a source of facts, oldest first.

        Every one has a state: `facts`, `empty by decision`, `not wanted`, `waiting` or `dead`, and all but the first a
        reason.
        """
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        return await reading.learned(self._parts, owner, session_id, limit=limit)

    async def spending(
        self,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        since: date | None = None,
        everybody: bool = False,
    ) -> list[Spending]:
        """What models have cost a user, or `everybody` of the namespace, from a day on (UTC; None: today).

        By day, user, kind of job and model. `AFTERMIND_NAMESPACE_TOKENS_PER_DAY` and `_USD_PER_DAY` bound it.
        """
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        day = datetime.now(UTC).date() if since is None else since
        return await self._parts.ledger.spending(owner.namespace, since=day, owner=None if everybody else owner)

    # what happens, and how it is

    async def events(
        self, *, user_id: str | None = None, namespace: str | None = None, after: str | None = None
    ) -> AsyncIterator[MemoryEvent]:
        """The user's events as they come, for as long as it is iterated.

        `after` is the `cursor` of the last one seen: those since then come first, and a `MemoryGap` where some are too
        old to be had.
        """
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        async for event in self._parts.events.subscribe(owner, after=after):
            yield event

    async def past_events(
        self, *, after: str = "0", user_id: str | None = None, namespace: str | None = None, limit: int = 500
    ) -> list[MemoryEvent]:
        """The user's kept events after a cursor, oldest first, without waiting for more; 500 at a time.

        A `MemoryGap` comes first where some are too old to be had. Raises `InvalidQuery` and `StoreUnavailable`.
        """
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        return await self._parts.events.past(owner, after=after, limit=limit)

    async def event_cursor(self, *, user_id: str | None = None, namespace: str | None = None) -> str:
        """The cursor of the user's newest event: `events(after=…)` tells what happens from here on, and misses nothing.

        Raises `StoreUnavailable`.
        """
        return await self._parts.events.last(self._parts.scope(namespace=namespace, user_id=user_id))

    async def progress(self, *, user_id: str | None = None, namespace: str | None = None) -> Progress:
        """How far the user's turns have come: stored, embedded, mined for facts."""
        return await health.progress(self._parts, self._parts.scope(namespace=namespace, user_id=user_id))

    async def health(self) -> Health:
        """How every component is, and what waits to be done. Takes two seconds at most, and never raises."""
        return await health.health(self._parts)

    # forgetting

    async def forget(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        namespace: str | None = None,
        before: datetime | None = None,
        ids: Iterable[EpisodeId | str] | None = None,
        prove: bool = False,
    ) -> Forgot:
        """Delete everything of the user; of a session, before a time or by ids of episodes where those are named.

        Covers what is stored, what was derived from it, what is pending or spooled, and jobs on their way. It is gone
        when this returns: what still runs for it writes nothing. Raises `StoreUnavailable`, and then nothing is gone.

        `prove` looks everywhere for a canary and ids of the user's, before and after: `Forgot.proof` (see `remains`).
        """
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        if prove:
            if session_id is not None or before is not None or ids is not None:
                raise errors.InvalidQuery(
                    "prove", prove, "a proof is of everything of a user; forget the rest without."
                )
            return await remains.forget_and_prove(self._parts, owner)
        return await forgetting.forget(self._parts, owner, session_id=session_id, before=before, ids=ids)

    async def undo(
        self,
        *ids: EpisodeId | str,
        user_id: str | None = None,
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> Undone:
        """Undo everything that was derived from these messages: poisoned ones, or ones that were never true.

        Facts that rest on them alone are believed no more, and what those had ended goes on; summaries and traits that
        drew on them are made anew from the rest. The messages stay in the history, marked: recall does not show them,
        and nothing is drawn from them again. Nothing is deleted (`forget` does that). Raises `InvalidQuery` for an id
        that the user has no stored message of, and `StoreUnavailable`.
        """
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        return await undoing.undo(self._parts, owner, ids, dry_run=dry_run)

    async def remains(self, *texts: str, user_id: str | None = None, namespace: str | None = None) -> Remains:
        """Where something of the user is found, and any of the texts: in tables and replicas, Redis, spool and logs.

        It looks by the owner's role where `AFTERMIND_MIGRATOR_URL` names it, else at the tenant's rows, and needs a
        Redis user who may look through keys; `Place.missing` says what it could not see. Slow: it reads every row.
        Raises `InvalidQuery`, `StoreUnavailable`, and `InvalidSettings` where jobs run in this process.
        """
        return await remains.remains(self._parts, self._parts.scope(namespace=namespace, user_id=user_id), texts)

    async def export(
        self, *, user_id: str | None = None, namespace: str | None = None, vectors: bool = False
    ) -> Export:
        """Everything of the user: episodes, what came of each, facts with their history, blocks, summaries, profile,
        unfinished jobs and dead letters, what models have cost; with `vectors` the embeddings as well.
        """
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        return await forgetting.export(self._parts, owner, vectors=vectors)

    @property
    def dead(self) -> DeadLetters:
        """Jobs that failed for good. Raises `InvalidSettings` where jobs run in this process."""
        return self._parts.kept(self._parts.dead)

    @property
    def replays(self) -> Replays:
        """Plans that bring dead letters back. Raises `InvalidSettings` where jobs run in this process."""
        return self._parts.kept(self._parts.replays)

    # life

    async def close(self) -> None:
        """Send what this process still has to send, and let go of every connection. It can be used again afterwards."""
        await self._parts.close()

    async def __aenter__(self) -> Self:
        self._parts.recall.prepare()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _query(self, text: str, *, token_budget: int | None = None, **asked: Unpack[Asked]) -> Query:
        budget = self.settings.recall_token_budget if token_budget is None else token_budget
        return asking.query(self._parts, text, asked, token_budget=budget, load=self._load)
