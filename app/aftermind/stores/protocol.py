"""The `Store` protocol: what every backend keeps, in the caller's transaction."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from aftermind.db.database_protocol import Transaction
from aftermind.types import (
    Block,
    Cardinality,
    EmbedderIdentity,
    Episode,
    EpisodeId,
    ExtractionResult,
    Fact,
    FactId,
    JobId,
    JobKind,
    Json,
    Profile,
    Role,
    Scope,
    StoredEmbedders,
    Summary,
    Trait,
)
from aftermind.types.assertion import RecordedAssertion
from aftermind.types.message import UNDONE
from aftermind.types.session_order import Counted
from aftermind.types.tombstone import Tombstone

Vector = NDArray[np.float32]
EVERY_FACT = 100_000  # of a user: what is read where rows have to be compared in the process


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFilter:
    """Which episodes of an owner are meant; what is None does not filter.

    `metadata` is containment (every given key has the given value, nested likewise). Times are half-open, of
    `occurred_at`. `before_position` pages backwards through a history; with `before_id`, also through episodes of the
    same position, which sessions of one user can share. `undone` False leaves out what was undone; a search for a
    question never finds it.
    """

    session_id: str | None = None
    agent_id: str | None = None
    roles: frozenset[Role] | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)
    since: datetime | None = None
    until: datetime | None = None
    before_position: int | None = None
    before_id: EpisodeId | None = None
    undone: bool = True

    @property
    def is_open(self) -> bool:
        """Whether every episode fits."""
        named = (self.session_id, self.agent_id, self.roles, self.since, self.until, self.before_position)
        return not self.metadata and all(value is None for value in named)

    def fits(self, episode: Episode) -> bool:
        """Whether the episode is meant; what the stores ask of their databases, for episodes at hand."""
        return (
            (self.session_id is None or episode.scope.session_id == self.session_id)
            and (self.agent_id is None or episode.scope.agent_id == self.agent_id)
            and (self.roles is None or episode.role in self.roles)
            and (self.since is None or episode.occurred_at >= self.since)
            and (self.until is None or episode.occurred_at < self.until)
            and self._is_before(episode)
            and (self.undone or episode.mark != UNDONE)
            and contains(episode.metadata, self.metadata)
        )

    def _is_before(self, episode: Episode) -> bool:
        if self.before_position is None:
            return True
        if self.before_id is None:
            return episode.position < self.before_position
        return (episode.position, episode.id) < (self.before_position, self.before_id)


def contains(there: Json, wanted: Json) -> bool:
    """Containment as Postgres's `jsonb @>` has it: objects by key, arrays as sets, everything else by equality."""
    if isinstance(wanted, Mapping):
        return isinstance(there, Mapping) and all(
            key in there and contains(there[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        return isinstance(there, list | tuple) and all(any(contains(each, item) for each in there) for item in wanted)
    return bool(there == wanted and isinstance(there, bool) == isinstance(wanted, bool))


class ExtractionOutcome(StrEnum):
    """What came of mining an episode. One without an outcome waits, or its job is dead."""

    FACTS = "facts"
    EMPTY = "empty by decision"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MiningOutcome:
    """How an episode was mined: by which extractor, in which job, and why nothing came of it, if nothing did."""

    episode_id: EpisodeId
    outcome: ExtractionOutcome
    extractor: str
    reason: str | None = None
    facts: int = 0
    job_id: JobId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionBatch:
    """Episodes that a model was shown together, by the job that asked it: each may have changed what came of all."""

    job_id: JobId
    kind: JobKind
    session_id: str | None
    shown: tuple[EpisodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNeighbours:
    """Other episodes that models saw together with the given ones: `mined` for facts, `profiled` for traits.

    Each profile update also sees the current traits, so `profiled` has the episodes of every update since the first one
    that saw one of the given episodes.
    """

    mined: frozenset[EpisodeId] = frozenset()
    sessions: tuple[str | None, ...] = ()  # of `mined`
    profiled: frozenset[EpisodeId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session of an owner: the number of its episodes and their times."""

    session_id: str | None
    episodes: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UserInfo:
    """A user with stored content.

    `last_at` is when the newest episode was stored, by the store's clock; None without any.
    """

    user_id: str | None
    last_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrewOn:
    """Derived memories that a forget deletes or changes although they have other sources too.

    Sessions of deleted summaries, the remaining episodes of the evidence of deleted traits, and the subject and
    predicate of each assertion that loses a source.
    """

    sessions: tuple[str | None, ...] = ()
    evidence: tuple[EpisodeId, ...] = ()
    claims: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionState:
    """State of a node that decides about an owner's turns before they are stored."""

    stones: Sequence[Tombstone] = ()
    counted: Mapping[str | None, Counted] = field(default_factory=dict)  # the newest of each session that has any
    # Turns that were stored before an erasure of the owner, with the hash of their content.
    erased_after: Mapping[JobId, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredItem:
    """An item as it is stored: `name` has path and key (`types.items.to_name`), `content` is JSON.

    `ttl` and `expires_at` None: it does not expire.
    """

    name: str
    content: str
    created_at: datetime
    updated_at: datetime
    vectors: Vector | None = field(default=None, compare=False, repr=False)  # one a row
    ttl: timedelta | None = None
    expires_at: datetime | None = None


class Store(Protocol):
    """Every method takes the caller's transaction and an owner; labels of the scope do not widen the result.

    All raise `StoreUnavailable` if the database does not answer. Results are in session order (`position`) unless
    stated otherwise.
    """

    async def now(self, tx: Transaction) -> datetime:
        """The clock of the store, which decides about expiry."""

    # writing turns

    async def tombstones(self, tx: Transaction, owners: Sequence[Scope]) -> list[Tombstone]:
        """Lock each owner against a concurrent forget (FOR SHARE) until the transaction ends; their tombstones."""

    async def admission_state(
        self,
        tx: Transaction,
        owner: Scope,
        sessions: Collection[str | None],
        *,
        generation: int | None = None,
        turns: Collection[JobId] = (),
    ) -> AdmissionState:
        """State that decides about new turns: tombstones since a generation (None: none are read), the count state of
        each session, and those of the turns that were stored before an erasure.
        """

    async def hold(self, tx: Transaction, owner: Scope, name: str) -> None:
        """Lock a name of the owner against other transactions that hold it, until this one ends."""

    async def find_session_shift(
        self, tx: Transaction, owner: Scope, session_id: str | None, counted_from: int
    ) -> int | None:
        """The shift of the newest episode of a session that was counted from there; None where there is none."""

    async def add_episodes(
        self,
        tx: Transaction,
        given: Sequence[Episode],
        vectors: Mapping[EpisodeId, Vector] | None = None,
        *,
        counted: Mapping[EpisodeId, Counted] | None = None,
    ) -> frozenset[EpisodeId]:
        """Store episodes of any owners, with their lexical entries and the given vectors; returns the new ids.

        An existing id of the owner is not changed. `counted` is how their positions were assigned.
        """

    async def stored_embedders(self, tx: Transaction, *, hold: bool = False) -> StoredEmbedders | None:
        """The embedders whose vectors the store holds; None for a store that has a single one for its life.

        With `hold` they stay the same until the transaction ends: ask before writing vectors.
        """

    async def set_vectors(
        self,
        tx: Transaction,
        vectors: Mapping[tuple[Scope, EpisodeId], Vector],
        *,
        embedder: EmbedderIdentity | None = None,
    ) -> int:
        """Give stored episodes their vectors of that embedder; how many were written.

        None are written if the store does not hold vectors of that embedder. Without one the caller has asked already,
        and the vectors are the active embedder's. Writing the same again changes nothing.
        """

    async def unembedded(
        self, tx: Transaction, owner: Scope, embedder: EmbedderIdentity, *, after_position: int, limit: int
    ) -> list[Episode]:
        """The owner's first episodes from a position on that lack a vector of that embedder, by position."""

    # reading episodes

    async def episodes(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[Episode]:
        """Those of the owner that exist, in the order asked for."""

    async def history(self, tx: Transaction, owner: Scope, wanted: EpisodeFilter, *, limit: int) -> list[Episode]:
        """The newest `limit` that fit, oldest first."""

    async def sessions(self, tx: Transaction, owner: Scope, *, limit: int = 100) -> list[SessionInfo]:
        """The owner's sessions, the latest first."""

    async def session_span(
        self, tx: Transaction, owner: Scope, session_id: str | None, *, after_position: int, limit: int
    ) -> list[Episode]:
        """A session's episodes after a position, oldest first: what a rolling job has not seen yet."""

    async def embedded(
        self,
        tx: Transaction,
        owner: Scope,
        ids: Sequence[EpisodeId],
        *,
        embedder: EmbedderIdentity | None = None,
    ) -> frozenset[EpisodeId]:
        """Which of them have a vector of that embedder; without one, of the active embedder."""

    async def vectors(
        self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId] | None = None
    ) -> dict[EpisodeId, Vector]:
        """The vectors of these episodes of the owner, or of all."""

    # mining

    async def unmined(self, tx: Transaction, owner: Scope, session_id: str | None, *, limit: int) -> list[Episode]:
        """A session's episodes without an outcome, oldest first."""

    async def note_outcomes(self, tx: Transaction, owner: Scope, outcomes: Sequence[MiningOutcome]) -> None:
        """Record the outcome of extraction; a later outcome of the same episode replaces the earlier one."""

    async def outcomes(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[MiningOutcome]:
        """What came of mining those of them that were mined."""

    async def mined_in(self, tx: Transaction, owner: Scope, job_id: JobId) -> list[Episode]:
        """The owner's episodes of which that job had the last word, in session order."""

    async def extraction_results(
        self, tx: Transaction, owner: Scope, session_id: str | None, *, limit: int
    ) -> list[ExtractionResult]:
        """What came of each of the owner's newest episodes (of a session, if named), oldest first: the one query.

        Every episode has a state: facts, empty by decision, not needed, waiting or dead; the last four with a reason.
        """

    async def owners(
        self, tx: Transaction, namespace: str, *, since: datetime | None = None, limit: int = 10_000
    ) -> list[Scope]:
        """The owners of a namespace with episodes (that occurred since then), by id."""

    async def users(
        self,
        tx: Transaction,
        namespace: str,
        *,
        prefix: str = "",
        after: str | None = None,
        limit: int = 100,
        groups: bool = False,
    ) -> list[UserInfo]:
        """Users (with `groups` also groups) of a namespace with stored content, by id: those that start with `prefix`
        and follow `after`.

        The anonymous user has the empty id, and is therefore the first.
        """

    async def note_batch(self, tx: Transaction, owner: Scope, batch: ExtractionBatch) -> None:
        """Record the episodes that a model saw, with the outcome. Kept until they are forgotten."""

    async def list_batch_neighbours(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> BatchNeighbours:
        """What models were shown together with these episodes; what was undone before is left out."""

    # facts

    async def hold_beliefs(self, tx: Transaction, owner: Scope) -> None:
        """Lock the owner's facts against other writers until the transaction ends; call it before reading them.

        Otherwise two concurrent readers would both add a fact: two homes of one user, each as the only one.
        """

    async def add_facts(self, tx: Transaction, given: Sequence[Fact]) -> int:
        """Insert rows as they are; deciding what they supersede is `ledger`-free logic of the caller."""

    async def supersede_facts(
        self, tx: Transaction, owner: Scope, ids: Sequence[FactId], *, at: datetime, by_id: FactId | None = None
    ) -> int:
        """End our belief in them at `at`. Rows stay."""

    async def delete_facts(self, tx: Transaction, owner: Scope, ids: Sequence[FactId]) -> None:
        """Delete rows: only an erasure does."""

    async def strengthen_fact(
        self, tx: Transaction, owner: Scope, fact_id: FactId, *, sources: Sequence[EpisodeId], confidence: float
    ) -> None:
        """Repeat an assertion of an existing fact: strength plus one, sources joined, the greater confidence kept."""

    async def facts(
        self,
        tx: Transaction,
        owner: Scope,
        *,
        subject: str | None = None,
        predicate: str | None = None,
        as_of: datetime | None = None,
        known_at: datetime | None = None,
        history: bool = False,
        limit: int = 1_000,
    ) -> list[Fact]:
        """Facts of the owner, newest belief first.

        By default those believed now and valid now. `as_of` asks for another moment of the world, `known_at` for
        another moment of our knowledge, `history=True` for every row whatever its times.
        """

    async def fact(self, tx: Transaction, owner: Scope, fact_id: FactId) -> Fact | None:
        """One fact by id, superseded or not."""

    async def existing_ids(self, tx: Transaction, owner: Scope, ids: Collection[UUID]) -> set[UUID]:
        """Those that are ids of the owner's episodes or facts."""

    async def facts_from(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[Fact]:
        """Facts, believed now, that have one of the episodes among their sources."""

    async def recorded_assertions(
        self, tx: Transaction, owner: Scope, subjects: Collection[str] | None = None
    ) -> list[RecordedAssertion]:
        """Every claim that was kept of the subjects, as they are compared; of all subjects where none are named."""

    async def put_assertions(
        self, tx: Transaction, owner: Scope, given: Sequence[RecordedAssertion], *, unsaid: Sequence[UUID]
    ) -> None:
        """Keep claims, and those that are `unsaid` no longer. An id that is kept already is left as it is."""

    async def cardinalities(self, tx: Transaction, namespace: str) -> dict[str, Cardinality]:
        """The cardinalities that the namespace has set for predicates."""

    async def set_cardinality(
        self, tx: Transaction, namespace: str, predicate: str, cardinality: Cardinality | None
    ) -> None:
        """Set the cardinality of a predicate in the namespace; None removes it."""

    # ranking

    async def ranking_models(self, tx: Transaction, namespace: str) -> dict[str, str]:
        """The models that the namespace has fitted, as JSON, by the key of their embedder ("" without one)."""

    async def set_ranking_models(self, tx: Transaction, namespace: str, embedder: str, models: str | None) -> None:
        """Set the models of the namespace for an embedder; None removes them."""

    # blocks, items, summaries, profiles

    async def block(self, tx: Transaction, owner: Scope, name: str) -> Block | None:
        """One block, or None."""

    async def blocks(self, tx: Transaction, owner: Scope) -> list[Block]:
        """All blocks of the owner, by name."""

    async def put_block(self, tx: Transaction, block: Block, *, expected_version: int | None) -> Block:
        """Create or replace; the stored block with its new version.

        `expected_version` 0 means that it must not exist yet, None that it does not matter. Raises `BlockConflict`.
        """

    async def delete_block(self, tx: Transaction, owner: Scope, name: str) -> bool:
        """Whether there was one."""

    async def put_items(self, tx: Transaction, owner: Scope, given: Sequence[StoredItem]) -> None:
        """Create or replace items, and delete the owner's expired ones; `created_at` of an existing one stays."""

    async def delete_items(self, tx: Transaction, owner: Scope, names: Sequence[str]) -> int:
        """Delete items by name; how many there were."""

    async def items(self, tx: Transaction, owner: Scope, names: Sequence[str]) -> list[StoredItem]:
        """Those of the names that exist, in any order."""

    async def items_under(
        self, tx: Transaction, owner: Scope, path: Sequence[str], *, limit: int | None = None
    ) -> list[StoredItem]:
        """Items of a path and of all paths below it, the last written first; an empty path: all."""

    async def item_paths(self, tx: Transaction, owner: Scope) -> list[tuple[str, ...]]:
        """Every path that has items, in order."""

    async def renew_items(self, tx: Transaction, owner: Scope, names: Sequence[str]) -> None:
        """Let the time to live of these items begin again."""

    async def summary(self, tx: Transaction, owner: Scope, session_id: str | None) -> Summary | None:
        """The session's latest summary, or None."""

    async def summaries(self, tx: Transaction, owner: Scope, *, limit: int = 20) -> list[Summary]:
        """The latest summary of each session, the latest updated first."""

    async def put_summary(self, tx: Transaction, summary: Summary, *, over: int | None = None) -> bool:
        """Keep it, unless a stored one covers more of the session; whether it was kept.

        `over` is the version of a stored one that it takes the place of whatever that covers.
        """

    async def session_size(self, tx: Transaction, owner: Scope, session_id: str | None, *, up_to: int) -> int:
        """How many episodes a session has up to a position: more than its summary covers where some came late."""

    async def want_profiled(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> None:
        """Let the next profile update draw on those of them that exist."""

    async def unprofiled(self, tx: Transaction, owner: Scope, *, limit: int) -> list[Episode]:
        """What the next profile update draws on, oldest first."""

    async def profiled(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> None:
        """The profile has drawn on these."""

    async def profile(self, tx: Transaction, owner: Scope) -> Profile | None:
        """The owner's profile, or None."""

    async def merge_profile(
        self, tx: Transaction, owner: Scope, traits: Mapping[str, Trait | None], *, at: datetime, replace: bool = False
    ) -> Profile:
        """Set the named traits, or delete those that are None, and leave every other as it is, or with `replace` delete
        it; the whole profile.
        """

    # forgetting, exporting, counting

    async def undo(
        self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId], *, beside: BatchNeighbours
    ) -> dict[str, int]:
        """Mark episodes as undone and delete derived memories: summaries, traits, answers that are not applied yet.

        Episodes that were shown `beside` them wait for a new extraction, and traits from those are deleted too. Facts
        are resolved and superseded before; the current ones lose these episodes as sources. A job with a running model
        call loses its lease. Returns counts of `summaries` and `traits`.
        """

    async def drew_on(self, tx: Transaction, stone: Tombstone) -> DrewOn:
        """What `forget` will delete that can be made again from the episodes that stay. Asked before it."""

    async def begin_erasure(self, tx: Transaction, owner: Scope, *, known: int = 0) -> int:
        """Lock the owner against concurrent effects until the transaction ends; the generation of the erasure.

        It is above every number that was given so far, and above `known`.
        """

    async def forget(self, tx: Transaction, tombstone: Tombstone) -> dict[str, int]:
        """Write the tombstone and delete everything stored that it fits, whatever its times, with derived facts that
        lose their last source. Times that only deleted assertions gave are removed from the facts that stay. Counts by
        kind of row. After `begin_erasure`."""

    async def undelivered(self, tx: Transaction, namespace: str) -> list[Tombstone]:
        """Erasures of a namespace that Redis may not have."""

    async def delivered(self, tx: Transaction, tombstone: Tombstone) -> None:
        """Redis has it."""

    async def counts(self, tx: Transaction, owner: Scope) -> dict[str, int]:
        """Rows of the owner by kind: episodes, embedded, facts, blocks, items, summaries, profiles."""
