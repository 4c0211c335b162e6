"""`Memory`: recall, remember, history, facts, blocks, events, forget. It delegates, and decides nothing."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from datetime import date, datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack
from uuid import UUID

from aftermind import errors
from aftermind.api import (
    address_resolution,
    context_window,
    erasure_verification,
    feedback_validation,
    groups,
    health,
    session_metadata,
    store_from_url,
    turn_builder,
)
from aftermind.api import conversation_history as api_history
from aftermind.api import forget_and_export as api_forget
from aftermind.api import jobs as api_jobs
from aftermind.api import reindex as api_reindex
from aftermind.api import undo as api_undo
from aftermind.api.api_keys import ApiKeys
from aftermind.api.blocks import Blocks
from aftermind.api.checkpoints import Checkpoints
from aftermind.api.context_window import ContextWindow, Summarise
from aftermind.api.facts import Facts
from aftermind.api.forget_and_export import Export, Forgot
from aftermind.api.groups import Groups
from aftermind.api.health import Health, Progress
from aftermind.api.instrumentation import Instrument
from aftermind.api.items import Items
from aftermind.api.job_admin import JobAdmin
from aftermind.api.jobs import Jobs
from aftermind.api.memory_services import Parts
from aftermind.api.multi_database_calls import route
from aftermind.api.outbox_per_accept_mode import Accept
from aftermind.api.ranking import Ranking
from aftermind.api.reindex import Reindexed
from aftermind.api.retention.policies import Retention
from aftermind.api.tenants import Tenants
from aftermind.api.undo import UndoResult
from aftermind.api.webhooks import Webhooks
from aftermind.api.wiring import open_parts
from aftermind.db.record_store_journals.protocol import AnyJournal
from aftermind.events.types import MemoryEvent
from aftermind.indexes.protocol import VectorIndex
from aftermind.ledger.protocol import DailyUsage
from aftermind.llm import prices
from aftermind.llm.protocols import Embedder, Extractor, check_required_attributes
from aftermind.outbox.protocol import Outbox
from aftermind.recall import Query, RecallOptions
from aftermind.recall.query import time_of_recall
from aftermind.recall.reranker import Reranker
from aftermind.receipt import Receipt
from aftermind.settings import Settings
from aftermind.stores.protocol import SessionInfo, UserInfo
from aftermind.telemetry import tracing
from aftermind.telemetry.logger import get_logger
from aftermind.types import (
    Episode,
    EpisodeId,
    ExtractionResult,
    Json,
    Match,
    Profile,
    RecallBlock,
    RecallExplanation,
    RecallId,
    Summary,
    Turn,
)
from aftermind.types.erasure_report import ErasureReport
from aftermind.types.validation import Given

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


log = get_logger(__name__)

INDEX_CHECK_SECONDS = 5.0  # that opening a memory waits for its index


class Memory:
    """What an agent remembers, of all its users.

    `store` is a URL (`postgresql://…`, `sqlite:./bot.db`, `inmemory`), a dict (`{"backend": "sqlite", "path": …}`), a
    journal, or None: `AFTERMIND_*`, else the embedded stack that runs in the state folder. `index` is an external
    vector index (`qdrant://…`, `chroma:./folder`, or your own object); workers get it by `AFTERMIND_INDEX_URL`.
    `broker` and `redis` are URLs, each the default of the other if possible (a store of several processes without
    Postgres takes `broker` alone, and leaves jobs to its Celery workers); `replicas` are streaming replicas of the
    store. `embedder` and `extractor` replace those of the settings; a store whose jobs run in Celery workers takes no
    `extractor`. `save` and `load` select history, facts, summary
    and profile for storing and recall if a call names none; `load` follows `save`. `metrics` is a registry of
    `prometheus_client` for recalls and turns; None: no metrics. Constructing connects nothing, and raises
    `InvalidSettings` for an invalid configuration.

    A memory may be used from several event loops and threads, and after a fork. `async with` loads slow parts of the
    embedder in the background, for which the first recall would not wait; leaving it, or `close()`, closes the memory.
    """

    def __init__(
        self,
        store: str | Mapping[str, Any] | AnyJournal | None = None,  # Any: values of a dict, checked in `store_from_url`
        *,
        index: str | VectorIndex | None = None,
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
        if isinstance(store, Mapping):
            chosen = store_from_url.read_options(store)
            store = chosen.store
            namespace = chosen.namespace if namespace is None else namespace
            embedder = chosen.embedder if embedder is None else embedder
            index = chosen.index if index is None else index
            if save is None and not chosen.with_facts:
                save = turn_builder.KINDS - {"facts"}
        for field, given in (("embedder", embedder), ("extractor", extractor)):
            if given is not None and not isinstance(given, str):
                check_required_attributes(field, given)
        settings = settings or Settings()
        self.namespace = settings.namespace if namespace is None else namespace
        if settings.databases and any(each is not None for each in (store, broker, redis, *replicas)):
            # One store, whatever the map of databases is.
            settings = settings.model_copy(update={"databases": {}, "placement": {}})
        if settings.databases and index is not None:
            why = "there are several databases: name an index for each, by `index_url` in AFTERMIND_DATABASES."
            raise errors.InvalidSettings("index", "…", why)
        self.settings = settings.of_database(settings.database_for(self.namespace)) if settings.databases else settings
        self._save = turn_builder.kinds("save", save, turn_builder.KINDS)
        self._defaults: RecallOptions = {
            "token_budget": self.settings.recall_token_budget,
            "limit": self.settings.recall_limit,
            "load": turn_builder.loaded(load, None if save is None else self._save),
        }
        self._bounds = turn_builder.limits(self.settings)

        def open_(settings: Settings) -> Parts:
            return open_parts(
                address_resolution.resolve(
                    settings, url=store, index=index, broker=broker, redis=redis, replicas=replicas
                ),
                settings,
                namespace=self.namespace,
                embedder=embedder,
                extractor=extractor,
                reranker=reranker,
            )

        self._instrument = Instrument(metrics)
        if self.settings.tracing:
            tracing.switch_on()
        self._attach(open_(self.settings))
        if self.settings.databases:
            for name in self.settings.database_names:  # refused now, not at the first call of a tenant
                address_resolution.resolve(self.settings.of_database(name))
            alone = copy(self)
            route(self, alone, lambda name: alone._beside(open_(self.settings.of_database(name))))

    def _beside(self, parts: Parts) -> Self:
        """The same memory in another database."""
        other = copy(self)
        other.settings = parts.settings
        other._attach(parts)
        return other

    def _attach(self, parts: Parts) -> None:
        self._parts = parts
        self.facts, self.blocks, self.items, self.jobs = Facts(parts), Blocks(parts), Items(parts), Jobs(parts)
        self.ranking, self.checkpoints, self.groups = Ranking(parts), Checkpoints(parts), Groups(parts)
        self.api_keys, self.webhooks = ApiKeys(parts), Webhooks(parts)
        self.dead_letters, self.replays, self.job_admin = parts.dead_letters, parts.replays, JobAdmin(parts)
        self.audit, self.encryption = parts.audit, parts.encryption
        self.reembedding = parts.reembedding
        self.tenants = Tenants(parts.settings)
        self.retention = Retention(
            db=parts.db,
            store=parts.store,
            ledger=parts.ledger,
            keeping=parts.policies,
            effect=parts.commit_and_wake,
            namespace=parts.namespace,
            trail=parts.trail,
            is_indexed=parts.index is not None,
        )

    # the two that every agent needs

    async def remember(
        self,
        messages: Given | Iterable[Given],
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        namespace: str | None = None,
        group: str | None = None,
        idempotency_key: str | None = None,
        save: Iterable[str] | None = None,
        accept: Accept | None = None,
        recalled: RecallBlock | int | None = None,
    ) -> Receipt:
        """Hand a turn over: a text (a message of the user), a `Message`, a chat message as a dict, or several of them.

        When this returns the turn is safe, and the next recall includes it; storing, embedding and fact extraction
        follow in the background. A repeated `idempotency_key` (per user) is the same turn: nothing is stored twice.
        With other content, or for another session, it raises `IdempotencyConflict`. Raises `InvalidScope`,
        `InvalidMessage`, `QueueFull`, `SpoolFull`. With `group` the turn belongs to all members of that group
        (`memory.groups`), and `user_id` is the writing member. So do the other calls that take `group`: they raise
        `NotThere` if the user is no member, `GroupReadOnly` if a reader writes, and `StoreUnavailable`.

        `recalled` is the block from which the answer in it was made, or the block's `last_erasure`: if the user or the
        session is forgotten after that recall, also before this call, nothing of the turn is stored.
        """
        parts = self._parts
        scope = await groups.scope_of(
            self._parts,
            group,
            namespace=namespace,
            user_id=user_id,
            session_id=session_id,
            agent_id=agent_id,
            role="writer",
        )
        if group is not None:
            member = str(user_id)
            messages = groups.attributed(messages, member, self._bounds)
            idempotency_key = None if idempotency_key is None else f"{len(member)}:{member}:{idempotency_key}"
        if parts.index is not None:
            await parts.check_index(seconds=self.settings.index_budget_seconds)
        outbox = parts.outboxes.get(accept)
        turn = turn_builder.make_turn(
            messages,
            scope,
            self._bounds,
            keep=turn_builder.kinds("save", save, self._save),
            idempotency_key=idempotency_key,
            position=outbox.positions.take,
            recalled=turn_builder.last_erasure_before(recalled),
        )
        return await self._send(outbox, turn)

    async def _send(self, outbox: Outbox, turn: Turn) -> Receipt:
        parts = self._parts
        sent = await (self._instrument.send(outbox, turn) if self._instrument.is_on() else outbox.send(turn))
        return Receipt(
            turn,
            spooled=sent.spooled,
            ledger=parts.ledger,
            news=parts.events,
            confirm=parts.confirm,
            is_pending=partial(api_jobs.is_pending, parts),
            follow=parts.follow_move if self.settings.databases else None,
        )

    async def recall(
        self,
        query: str,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        namespace: str | None = None,
        group: str | None = None,
        **options: Unpack[RecallOptions],
    ) -> RecallBlock:
        """Recall what fits a question, as a block for the system prompt within a token budget.

        `session_id` is the current session: its turns come first among equals, others are not left out. `options` are
        those of `RecallOptions`. Never raises for a store that does not answer: the block is `degraded` then.
        Raises `InvalidScope` and `InvalidQuery`.
        """
        scope = await groups.scope_of(
            self._parts, group, namespace=namespace, user_id=user_id, session_id=session_id, agent_id=agent_id
        )
        asked, recall = Query.checked(query, scope, defaults=self._defaults, **options), self._parts.recall
        block = await (self._instrument.recall(recall, asked) if self._instrument.is_on() else recall.recall(asked))
        log.debug("recall", extra={"recall_id": block.id, "served_by": block.served_by, "ms": block.duration_ms})
        if self._parts.recall_counts is not None:
            self._parts.recall_counts.add(block)
        return block

    async def feedback(
        self,
        block: RecallBlock | None = None,
        *,
        helpful: Iterable[UUID | str | Match] = (),
        unhelpful: Iterable[UUID | str | Match] = (),
        user_id: str | None = None,
        namespace: str | None = None,
        group: str | None = None,
        idempotency_key: str | None = None,
        accept: Accept | None = None,
    ) -> Receipt:
        """Count which episodes and facts of a block helped to answer, and which did not; handed over as a turn is.

        They are named by their ids, or by matches of the block. `block` None: the ids are not compared with a block.
        Feedback changes the confidence of learned procedures, and the order of matches if `recall_feedback_weight` is
        set. What is about no episode or fact of the user has no effect and leaves no row. Raises `InvalidFeedback`, and
        the errors of `remember`.
        """
        given = feedback_validation.checked(block, helpful, unhelpful)
        scope = await groups.scope_of(self._parts, group, namespace=namespace, user_id=user_id, role="writer")
        member = None if group is None else str(user_id)
        if member is not None and idempotency_key is not None:
            idempotency_key = f"{len(member)}:{member}:{idempotency_key}"
        outbox = self._parts.outboxes.get(accept)
        turn = turn_builder.make_feedback_turn(
            given,
            scope,
            self._bounds,
            member=member,
            idempotency_key=idempotency_key,
            position=outbox.positions.take,
        )
        return await self._send(outbox, turn)

    async def recall_scored(
        self,
        query: str,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        namespace: str | None = None,
        group: str | None = None,
        **options: Unpack[RecallOptions],
    ) -> list[Match]:
        """Every match with its scores and ranks, best first, whatever tokens it takes; the budget is not used.

        At most `limit` episodes and `limit` facts, and in addition other messages of an episode's burst.

        Raises `StoreUnavailable` where a block would be degraded for want of a store. Where the reranker failed, the
        matches have no `rerank_score`.
        """
        scope = await groups.scope_of(
            self._parts, group, namespace=namespace, user_id=user_id, session_id=session_id, agent_id=agent_id
        )
        return await self._parts.recall.scored(Query.checked(query, scope, defaults=self._defaults, **options))

    async def explain(
        self,
        query: str,
        *,
        recall_id: RecallId | str | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        namespace: str | None = None,
        group: str | None = None,
        **options: Unpack[RecallOptions],
    ) -> RecallExplanation:
        """Why a block has what it has: the block for a question, and the candidates that it left out, with reasons.

        `recall_id` is the `id` of an earlier block: with the same question and options, the recall is repeated as of
        its time, and its block has the same id. What was deleted since is missing then, and so are a profile, summary
        or block that changed since. Nothing is kept of a recall, so nothing of it has to be erased. Reads as `recall`
        does, and takes up to twice its time with filters. Raises `InvalidScope` and `InvalidQuery`.
        """
        scope = await groups.scope_of(
            self._parts, group, namespace=namespace, user_id=user_id, session_id=session_id, agent_id=agent_id
        )
        if recall_id is not None:
            if options.get("known_at") is not None:
                why = "the id of a recall has its time. Leave out `known_at` or `recall_id`."
                raise errors.InvalidQuery("known_at", options["known_at"], why)
            options["known_at"] = time_of_recall(recall_id)
        found = await self._parts.recall.explain(Query.checked(query, scope, defaults=self._defaults, **options))
        if recall_id is None:
            return found
        return replace(found, block=replace(found.block, id=RecallId(UUID(str(recall_id)))))

    # rows instead of a block

    async def history(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        namespace: str | None = None,
        group: str | None = None,
        limit: int = 100,
        offset: int = 0,
        roles: Iterable[str] | None = None,
        before: Episode | tuple[int, EpisodeId] | int | None = None,
    ) -> list[Episode]:
        """The newest `limit` episodes, oldest first, pending ones included; of a session, agent or roles if given.

        `offset` skips that many of the newest. `before` pages back further: pass the first episode that you have, its
        position and id, or its position, which messages of two sessions can share. Raises `InvalidScope`,
        `InvalidQuery` and `StoreUnavailable`.
        """
        scope = await groups.scope_of(
            self._parts, group, namespace=namespace, user_id=user_id, session_id=session_id, agent_id=agent_id
        )
        chosen = None if roles is None else context_window.checked_roles(roles)
        return await api_history.history(self._parts, scope, limit=limit, offset=offset, roles=chosen, before=before)

    async def context_window(
        self,
        max_tokens: int | None = None,
        *,
        max_messages: int | None = None,
        roles: Iterable[str] | None = None,
        summary: bool | Summarise = False,
        tool_results: bool = True,
        user_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        namespace: str | None = None,
        group: str | None = None,
    ) -> ContextWindow:
        """The newest episodes within tokens, messages or both, oldest first; `to_chat()` makes chat messages of them.

        A tool call and its results are included together or not at all; `tool_results` False leaves out both.
        `summary` True adds the stored summary of the session, at most a quarter of the tokens. A callable gets the
        summary so far (or None) and the stored episodes that the window has no space for, and returns the new summary,
        which is stored without sentences that resemble instructions: it is called and awaited here, for new ones only.
        Raises `InvalidScope`, `InvalidQuery`, `StoreUnavailable`, and the errors of the callable.
        """
        scope = await groups.scope_of(
            self._parts, group, namespace=namespace, user_id=user_id, session_id=session_id, agent_id=agent_id
        )
        bounds = context_window.Bounds.checked(max_tokens, max_messages, roles, tool_results=tool_results)
        return await context_window.window(self._parts, scope, bounds, summary=summary)

    async def search(
        self,
        query: str | None = None,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        namespace: str | None = None,
        group: str | None = None,
        roles: Iterable[str] | None = None,
        metadata: Mapping[str, Json] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        undone: bool = True,
        before: Episode | tuple[int, EpisodeId] | int | None = None,
    ) -> list[Episode]:
        """Episodes that fit every filter: the best matches of a query first, then others; without one, oldest first.

        A query ranks and excludes nothing: after its matches come the newest other episodes, newest first, up to
        `limit`. `recall_scored(query, min_score=…)` gives only matches. Without a query these are the newest episodes,
        oldest first: `before` pages back, as in `history`, and `undone` False leaves out what was undone
        (`Memory.undo`), which a query never finds. Filters are those of `recall`, and `session_id` and `agent_id`.
        Raises `InvalidScope`, `InvalidQuery` and `StoreUnavailable`.
        """
        scope = await groups.scope_of(
            self._parts, group, namespace=namespace, user_id=user_id, session_id=session_id, agent_id=agent_id
        )
        filters = RecallOptions(
            roles=roles, metadata=metadata, since=since, until=until, in_session=session_id, by_agent=agent_id
        )
        if query is not None and query.strip():
            if before is not None:
                raise errors.InvalidQuery("before", before, "matches of a query have no pages. Raise `limit` instead.")
            chosen: RecallOptions = {**filters, "limit": limit, "load": ("history",)}
            asked = Query.checked(query, scope, **chosen)
            scored = await self._parts.recall.scored(asked)
            matches = [each.item for each in scored if isinstance(each.item, Episode)]
            if len(matches) == limit:
                return matches
            newest = await api_history.search(self._parts, scope, replace(asked.wanted, undone=False), limit=limit)
            known = {each.id for each in matches}
            return [*matches, *(each for each in reversed(newest) if each.id not in known)][:limit]
        wanted = replace(Query.checked("", scope, **filters).wanted, undone=undone)
        return await api_history.search(self._parts, scope, api_history.paged(wanted, before), limit=limit)

    async def get(
        self, *ids: EpisodeId | str, user_id: str | None = None, namespace: str | None = None, group: str | None = None
    ) -> list[Episode | None]:
        """Episodes by id, pending ones included; None for each that the user does not have.

        Raises `InvalidQuery` for a text that is no id, and `StoreUnavailable`.
        """
        owner = await groups.scope_of(self._parts, group, namespace=namespace, user_id=user_id)
        return await api_history.get(self._parts, owner, [api_forget.episode_id(each) for each in ids])

    async def sessions(
        self, *, user_id: str | None = None, namespace: str | None = None, group: str | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        """The user's sessions that are stored, the latest first."""
        owner = await groups.scope_of(self._parts, group, namespace=namespace, user_id=user_id)
        return await api_history.sessions(self._parts, owner, limit=limit)

    async def session_metadata(
        self,
        *,
        session_id: str | None = None,
        user_id: str | None = None,
        namespace: str | None = None,
        group: str | None = None,
    ) -> dict[str, Json]:
        """The metadata of a session, a JSON object; empty if none was set."""
        scope = await groups.scope_of(self._parts, group, namespace=namespace, user_id=user_id, session_id=session_id)
        return await session_metadata.get(self._parts, scope)

    async def update_session_metadata(
        self,
        values: Mapping[str, Json],
        *,
        session_id: str | None = None,
        user_id: str | None = None,
        namespace: str | None = None,
        group: str | None = None,
        replace: bool = False,
    ) -> dict[str, Json]:
        """Set fields of a session's metadata, None removes one; the whole afterwards. `replace`: drop all others.

        Bounded like the metadata of a message. Raises `InvalidScope`, `InvalidItem` and `StoreUnavailable`.
        """
        scope = await groups.scope_of(
            self._parts, group, namespace=namespace, user_id=user_id, session_id=session_id, role="writer"
        )
        return await session_metadata.update(self._parts, scope, values, self._bounds, replace=replace)

    async def users(
        self,
        *,
        namespace: str | None = None,
        prefix: str = "",
        after: str | None = None,
        limit: int = 100,
        groups: bool = False,
    ) -> list[UserInfo]:
        """Users with stored content, by id: those that start with `prefix`, after the id `after`.

        The anonymous user (`user_id` None) is first; an empty `after` leaves it out. With `groups` also groups, each
        with the id `group:NAME`: `memory.groups` has their calls.
        """
        space = self._parts.scope(namespace=namespace)
        return await api_history.users(self._parts, space, prefix, after, limit=limit, groups=groups)

    async def summary(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        namespace: str | None = None,
        group: str | None = None,
    ) -> Summary | None:
        """The session's latest summary, or None. Without `session_id`: of the messages without a session.

        `export(user_id=…)` has the summaries of all sessions.
        """
        owner = await groups.scope_of(self._parts, group, namespace=namespace, user_id=user_id)
        return await api_history.summary(self._parts, owner, session_id)

    async def profile(
        self, *, user_id: str | None = None, namespace: str | None = None, group: str | None = None
    ) -> Profile | None:
        """What has been learned about the user, or None."""
        return await api_history.profile(
            self._parts, await groups.scope_of(self._parts, group, namespace=namespace, user_id=user_id)
        )

    async def extraction(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        namespace: str | None = None,
        limit: int = 100,
    ) -> list[ExtractionResult]:
        """What came of each of the newest `limit` episodes (of a session, if named) as a source of facts, oldest first.

        Every one has a state: `facts`, `empty by decision`, `not needed`, `waiting` or `dead`, and all but the first a
        reason.
        """
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        return await api_history.extraction_results(self._parts, owner, session_id, limit=limit)

    async def spending(
        self,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        since: date | None = None,
        everybody: bool = False,
    ) -> list[DailyUsage]:
        """What models have cost a user, or `everybody` of the namespace, from a day on (UTC; None: today).

        By day, user, kind of job and model. `AFTERMIND_NAMESPACE_TOKENS_PER_DAY` and `_USD_PER_DAY` bound it.
        """
        if since is not None and not isinstance(since, date):
            raise errors.InvalidQuery("since", since, "it is a date, such as date(2026, 11, 1).")
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        found = await self._parts.ledger.spending(owner.namespace, since=since, owner=None if everybody else owner)
        given = self._parts.settings.model_prices
        return [
            replace(
                each,
                is_cost_unknown=prices.is_unknown(
                    each.spent.model, each.spent.cost_usd, each.spent.tokens_in + each.spent.tokens_out, given
                ),
            )
            for each in found
        ]

    # what happens, and how it is

    async def events(
        self, *, user_id: str | None = None, namespace: str | None = None, after: str | None = None
    ) -> AsyncGenerator[MemoryEvent, None]:
        """The user's events as they come, for as long as it is iterated.

        `after` is the `cursor` of the last one seen: those since then come first, and a `MemoryGap` where some are too
        old to be had.
        """
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        async with aclosing(self._parts.events.subscribe(owner, after=after)) as events:  # ends with this iteration
            async for event in events:
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
        """The cursor of the user's newest event: `events(after=…)` returns all events from here on.

        Raises `StoreUnavailable`.
        """
        return await self._parts.events.last(self._parts.scope(namespace=namespace, user_id=user_id))

    async def progress(self, *, user_id: str | None = None, namespace: str | None = None) -> Progress:
        """How far the user's turns have come: stored, embedded, mined for facts.

        Raises `StoreUnavailable`, and `RedisUnavailable` while Redis is away; the status of a receipt does not need it.
        """
        return await health.progress(self._parts, self._parts.scope(namespace=namespace, user_id=user_id))

    async def drain(
        self,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        group: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Wait until everything that was remembered of a user is stored, embedded and mined for facts.

        For tests and scripts. Raises `DrainTimeout` after `timeout` seconds, and `StoreUnavailable`.
        """
        owner = await groups.scope_of(self._parts, group, namespace=namespace, user_id=user_id)
        await health.drain(self._parts, owner, timeout_seconds=timeout)

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
        group: str | None = None,
        note: str | None = None,
    ) -> Forgot:
        """Delete everything of the user; of a session, before a time (both: of that session before it), or by ids of
        episodes alone. Raises `InvalidQuery` for ids with a session or a time.

        Without `user_id` it is the memory of the anonymous user, which has what was remembered without one.
        Covers stored and derived content, pending and spooled turns, and running jobs. Deletion is complete when this
        returns: running jobs for it write nothing. Raises `StoreUnavailable`, and then nothing of the user's own memory
        was deleted.

        Everything of a user includes what the user wrote in groups. With `group` only that is meant, of that group,
        whether the user is still a member or not. `memory.groups.delete` erases a whole group.

        `prove` searches every place for a canary and the user's ids, before and after, and is only possible for a whole
        user: `Forgot.proof.after.is_erased` has the result. `note` (up to 500 characters, such as the number of a
        request) is kept with the deletion in the audit trail, which stores other than Postgres lack.
        """
        if note is not None and (not isinstance(note, str) or len(note) > api_forget.MAX_NOTE):
            raise errors.InvalidQuery("note", note, f"it is a text of up to {api_forget.MAX_NOTE} characters.")
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        if prove:
            if any(each is not None for each in (session_id, before, ids, group)):
                raise errors.InvalidQuery(
                    "prove",
                    prove,
                    "only the erasure of a whole user is proved. Leave it out, or the other options.",
                )
            return await groups.forget_user(
                self._parts,
                owner,
                lambda: erasure_verification.forget_and_prove(self._parts, owner, note=note),
                note=note,
            )
        asked = api_forget.requested(owner, session_id=session_id, before=before, ids=ids)
        if asked is None:
            return Forgot()
        if group is not None:
            return await groups.forget_member(self._parts, owner, group, asked, note=note)
        if asked.is_whole:
            return await groups.forget_user(
                self._parts, owner, lambda: api_forget.forget(self._parts, asked, note=note), note=note
            )
        return await api_forget.forget(self._parts, asked, note=note)

    async def undo(
        self,
        *ids: EpisodeId | str,
        user_id: str | None = None,
        namespace: str | None = None,
        group: str | None = None,
        dry_run: bool = False,
    ) -> UndoResult:
        """Undo everything that was derived from these messages: poisoned ones, or ones that were never true.

        Facts with no other source are retracted, and facts that they had ended are valid again; summaries and traits
        that used them are rebuilt from the rest. The messages stay in the history, marked: recall leaves them out, and
        nothing is derived from them again. Nothing is deleted (`forget` does that). Raises `InvalidQuery` for an id
        without a stored message of the user, and `StoreUnavailable`.
        """
        owner = await groups.scope_of(self._parts, group, namespace=namespace, user_id=user_id, role="writer")
        return await api_undo.undo(self._parts, owner, ids, dry_run=dry_run)

    async def verify_erasure(
        self, *texts: str, user_id: str | None = None, namespace: str | None = None
    ) -> ErasureReport:
        """Where something of the user is found, and any of the texts: in tables and replicas, Redis, spool and logs.

        A store of one process searches its rows, and the vector index; bytes that its file may keep are not searched.
        Uses the owner's role if `AFTERMIND_MIGRATOR_URL` is set, else reads the tenant's rows, and needs a Redis user
        that may scan keys; `SearchedPlace.missing` is the reason if a place was not searched. Slow: it reads every row.
        Raises `InvalidQuery` and `StoreUnavailable`.
        """
        return await erasure_verification.remains(
            self._parts, self._parts.scope(namespace=namespace, user_id=user_id), texts
        )

    async def reindex(
        self,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        after: str | None = None,
        recreate: bool = False,
    ) -> AsyncGenerator[Reindexed, None]:
        """Rewrite the vector index from the store: of one user, or of all users by id, those after `after`.

        Returns each user when its entries agree with the store, so that a run can be continued. `recreate` deletes the
        collection first, also one of another embedder; it must be of Aftermind. Raises `InvalidSettings` without an
        index, `IndexUnavailable` and `IndexMismatch`.
        """
        whole = self._parts.scope(namespace=namespace)
        owner = None if user_id is None else self._parts.scope(namespace=namespace, user_id=user_id)
        async for each in api_reindex.reindex(self._parts, owner, whole, after=after, recreate=recreate):
            yield each

    async def export(
        self, *, user_id: str | None = None, namespace: str | None = None, vectors: bool = False
    ) -> Export:
        """Everything of the user: episodes (those in groups too), the outcome of each, facts with their history,
        blocks, summaries, profile, unfinished jobs and dead letters, what models have cost; with `vectors` also the
        embeddings.
        """
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        found = await api_forget.export(self._parts, owner, vectors=vectors)
        written = await groups.written_in_groups(self._parts, owner)
        return replace(found, episodes=(*found.episodes, *written)) if written else found

    @property
    def keeps_audit(self) -> bool:
        """Whether there is an audit log; an in-memory store has none."""
        return self._parts.trail is not None

    # life

    async def close(self) -> None:
        """Send remaining turns of this process, and close all connections. It can be used again afterwards."""
        await self._parts.close()

    async def __aenter__(self) -> Self:
        await self._parts.open_store()
        await self._parts.check_index(seconds=INDEX_CHECK_SECONDS)
        self._parts.recall.prepare()
        self._parts.outboxes.get().find_orphans()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
