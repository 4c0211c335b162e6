"""`memory.facts`: query, add and retract facts, and show their sources."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import UUID

from aftermind import errors
from aftermind.api import groups
from aftermind.api.forget_and_export import episode_id
from aftermind.api.memory_services import Parts
from aftermind.db.database_protocol import Transaction
from aftermind.facts import entities, predicates
from aftermind.facts.bitemporal_resolution import Changes, decide
from aftermind.facts.graph import FactGraph, neighbourhood
from aftermind.facts.learned_procedures import PROCEDURE, with_feedback
from aftermind.facts.profile_amendment import amended_traits
from aftermind.facts.replaced_facts import replaced_facts
from aftermind.llm.profile_schema import ANY_TRAITS, ProfileSchema, profile_schema
from aftermind.stores import apply_fact_changes, feedback_counts
from aftermind.stores.protocol import EVERY_FACT
from aftermind.types import Cardinality, Episode, EpisodeId, Fact, FactId, Scope
from aftermind.types.assertion import BY_USER, Assertion, Operation
from aftermind.types.scope import GROUP_PREFIX
from aftermind.types.timestamps import why_unusable
from aftermind.types.uuid7 import uuid7
from aftermind.types.whole_number import check_whole_number

UNDATED = datetime.min.replace(tzinfo=UTC)  # of an assertion until `_believe` dates it
FACT_BYTES = 8_192  # of subject, predicate or object each: a sentence, not a document
MAX_HOPS = 5  # of a graph: most facts of a user are within three of each other


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The sources of a fact: its episodes, its extractor (`user`: stated by a call), and the facts that it replaced.

    `replaced` has the former object of a single-valued predicate, which ended when this fact began, and the fact that a
    correction put this one in the place of.
    """

    fact: Fact
    episodes: tuple[Episode, ...]
    extractor: str
    replaced: tuple[Fact, ...] = ()


class Facts:
    """The facts of a user. Every call raises `InvalidScope`, `InvalidFact` and `StoreUnavailable`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def query(
        self,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        group: str | None = None,
        subject: str | None = None,
        predicate: str | None = None,
        as_of: datetime | None = None,
        known_at: datetime | None = None,
        limit: int = 1_000,
    ) -> list[Fact]:
        """Facts, newest belief first: by default those that we believe now and that are true now.

        `as_of` asks for another moment of the world, `known_at` for another moment of our knowledge. Subject and
        predicate are found however they were put: "the Ann" and "ann", `moved_to` and `lives_in`.
        With `group` those of the group, for its member `user_id`.
        """
        check_whole_number(limit, most=EVERY_FACT, error=errors.InvalidFact)
        owner = await groups.scope_of(self._parts, group, namespace=namespace, user_id=user_id)
        _zoned(as_of=as_of, known_at=known_at)
        async with self._parts.db.transaction(namespace=owner.namespace, read_only=True) as tx:
            found = await self._parts.store.facts(
                tx, owner, predicate=_named(predicate), as_of=as_of, known_at=known_at, limit=_read(subject, limit)
            )
            if procedures := [fact.id for fact in found if fact.predicate == PROCEDURE]:
                counts = await feedback_counts.counts(self._parts.store, tx, owner, procedures)
                found = [with_feedback(fact, counts) for fact in found]
            return _about(found, subject, await self._aliases(tx, owner, subject))[:limit]

    async def history(
        self,
        subject: str | None = None,
        predicate: str | None = None,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        group: str | None = None,
        limit: int = 1_000,
    ) -> list[Fact]:
        """Every row about a subject and predicate, whatever its times: what was believed, and until when.

        A fact that was retracted or corrected in the extraction that first had it is superseded when it is recorded.
        """
        check_whole_number(limit, most=EVERY_FACT, error=errors.InvalidFact)
        owner = await groups.scope_of(self._parts, group, namespace=namespace, user_id=user_id)
        async with self._parts.db.transaction(namespace=owner.namespace, read_only=True) as tx:
            found = await self._parts.store.facts(
                tx, owner, predicate=_named(predicate), history=True, limit=_read(subject, limit)
            )
            return _about(found, subject, await self._aliases(tx, owner, subject))[:limit]

    async def graph(
        self,
        entity: str,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        hops: int = 2,
        as_of: datetime | None = None,
        limit: int = 1_000,
    ) -> FactGraph:
        """The facts and entities at most `hops` (1 to 5) from an entity, true now or at `as_of`.

        A hop leads from the subject of a fact to its object or back. At most `limit` facts, the nearest first.
        """
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        _zoned(as_of=as_of)
        check_whole_number(hops, field="hops", most=MAX_HOPS, error=errors.InvalidFact)
        check_whole_number(limit, most=EVERY_FACT, error=errors.InvalidFact)
        name = _text("entity", entity)
        async with self._parts.db.transaction(namespace=owner.namespace, read_only=True) as tx:
            facts = await self._parts.store.facts(tx, owner, as_of=as_of, limit=EVERY_FACT)
            name = entities.entity_name(name, await self._aliases(tx, owner, name))
        others = [fact for fact in facts if fact.predicate != entities.SAME_AS]
        return neighbourhood(name, others, hops=hops, limit=limit)

    async def add(
        self,
        subject: str,
        predicate: str,
        object: str,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        confidence: float = 1.0,
        cardinality: Cardinality | str | None = None,
        sources: tuple[EpisodeId, ...] = (),
    ) -> Fact:
        """Add a fact; returns the resulting fact.

        It is treated like an extracted fact: a new object of a single-valued predicate ends the old one's validity,
        also in the profile, and the same fact again becomes stronger. Synonyms of a predicate are stored as one:
        `located_in` as `lives_in`, `employed_by` as `works_at`, which have one value at a time.
        """
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        _zoned(valid_from=valid_from, valid_to=valid_to)
        subject, predicate, object = _text("subject", subject), _text("predicate", predicate), _text("object", object)
        if valid_from and valid_to and valid_to < valid_from:
            raise errors.InvalidFact("valid_to", valid_to, "a fact cannot end before it begins.")
        if not 0.0 <= confidence <= 1.0:
            raise errors.InvalidFact("confidence", confidence, "it must be between 0 and 1.")

        stated = Assertion(
            subject=subject,
            predicate=predicate,
            object=object,
            said_at=UNDATED,
            valid_from=valid_from,
            valid_to=valid_to,
            confidence=confidence,
            cardinality=_cardinality(cardinality),
            sources=tuple(map(episode_id, sources)),
        )
        return await self._parts.effects.commit(owner, lambda tx: self._state(tx, owner, stated))

    async def retract(
        self,
        fact: Fact | FactId | str,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        group: str | None = None,
    ) -> bool:
        """Retract a fact, as if it had never been true. A fact that it had ended is valid again, unless a message ended
        that too ("I left Acme"). False if it is already superseded.

        A fact of the same object at another time (a second stay) remains. The profile loses what it has of the fact.
        To state that a fact has ended instead, add it again with `valid_to`. Without a user the owner is that of the
        `Fact`.
        """
        user_id, namespace = _owner_of(fact, user_id, namespace)
        owner = await groups.scope_of(self._parts, group, namespace=namespace, user_id=user_id, role="writer")
        fact_id = _id(fact)
        return await self._parts.effects.commit(owner, lambda tx: self._retract(tx, owner, fact_id))

    async def correct(
        self, fact: Fact | FactId | str, object: str, *, user_id: str | None = None, namespace: str | None = None
    ) -> Fact | None:
        """Replace the object of a fact in one transaction, as if the old one had never been true; the new fact.

        Both stay in the history, and both have the messages that the fact came from as sources: a forget of those
        deletes both, and an undo leaves the correction. The profile has the new object, too; summaries quote messages
        and stay as they are.
        None if the fact is already superseded; nothing is changed then, nor by the object that it has. Without a user
        the owner is that of the `Fact`.
        """
        user_id, namespace = _owner_of(fact, user_id, namespace)
        owner, fact_id, object = (
            self._parts.scope(namespace=namespace, user_id=user_id),
            _id(fact),
            _text("object", object),
        )
        return await self._parts.effects.commit(owner, lambda tx: self._correct(tx, owner, fact_id, object))

    async def restore(
        self, assertions: Sequence[Assertion], *, user_id: str | None = None, namespace: str | None = None
    ) -> int:
        """Make assertions of calls again as an export has them, with their own times; how many were not stored yet.

        Facts are then as if the calls had been made here, whichever messages are extracted before or after.
        """
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        for claim in assertions:
            for field in ("subject", "predicate", "object"):
                _text(field, getattr(claim, field))
            _zoned(said_at=claim.said_at, valid_from=claim.valid_from, valid_to=claim.valid_to)
        return await self._parts.effects.commit(owner, lambda tx: self._restore(tx, owner, assertions))

    async def _restore(self, tx: Transaction, owner: Scope, given: Sequence[Assertion]) -> int:
        await self._parts.store.tombstones(tx, [owner])  # holds a forget of this user off until the end
        await self._parts.store.hold_beliefs(tx, owner)
        now = await self._parts.store.now(tx)
        names = [claim for claim in given if claim.predicate == entities.SAME_AS]
        changed = await self._resolve(tx, owner, names, now=now)
        aliases = await self._aliases(tx, owner, "")
        claims = [entities.rename(claim, aliases) for claim in given if claim.predicate != entities.SAME_AS]
        changes = await self._resolve(tx, owner, claims, now=now)
        if changed.said:
            await self._rename_merged(tx, owner)
        return sum(one.extractor == BY_USER for one in (*changed.said, *changes.said))

    async def _correct(self, tx: Transaction, owner: Scope, fact_id: FactId, object: str) -> Fact | None:
        found = await self._believed(tx, owner, fact_id)
        if found is None or found.object == object:
            return found
        stated = Assertion(
            subject=found.subject,
            predicate=found.predicate,
            object=object,
            said_at=UNDATED,
            valid_from=found.valid_from,
            valid_to=found.valid_to,
            sources=found.sources,
        )
        return await self._state(tx, owner, await self._retraction(tx, owner, found), stated)

    async def _retract(self, tx: Transaction, owner: Scope, fact_id: FactId) -> bool:
        found = await self._believed(tx, owner, fact_id)
        if found is None:
            return False
        changes, _ = await self._believe(tx, owner, await self._retraction(tx, owner, found))
        return fact_id in changes.superseded

    async def _retraction(self, tx: Transaction, owner: Scope, fact: Fact) -> Assertion:
        """Of the fact's time alone: the user may have come back to a former home. With its messages as sources, since
        it has their text: a forget of them deletes it. Without them if a call stated the fact too: it would be valid
        again then.
        """
        said = await self._parts.store.recorded_assertions(tx, owner, [fact.subject])
        is_stated = any(
            not one.claim.sources
            and one.claim.operation is Operation.ASSERT
            and predicates.canonical(one.claim.predicate) == fact.predicate
            and predicates.same_text(one.claim.object, fact.object)
            for one in said
        )
        return Assertion(
            subject=fact.subject,
            predicate=fact.predicate,
            object=fact.object,
            said_at=UNDATED,
            valid_from=fact.valid_from,
            valid_to=fact.valid_to,
            operation=Operation.RETRACT,
            sources=() if is_stated else fact.sources,
        )

    async def _believed(self, tx: Transaction, owner: Scope, fact_id: FactId) -> Fact | None:
        """The fact, which no other transaction changes until the end of this one; None if it is superseded."""
        await self._parts.store.tombstones(tx, [owner])  # as `_believe`, before the fact is read
        await self._parts.store.hold_beliefs(tx, owner)
        found = await self._parts.store.fact(tx, owner, fact_id)
        if found is None and await self._parts.store.episodes(tx, owner, (EpisodeId(fact_id),)):
            why = "it is the id of a message. `forget(ids=…)` deletes a message, `facts.query` has the ids of facts."
            raise errors.InvalidFact("fact", str(fact_id), why)
        return None if found is None or found.superseded_at is not None else found

    async def _state(self, tx: Transaction, owner: Scope, *assertions: Assertion) -> Fact:
        """The fact that the last of the assertions makes or strengthens."""
        changes, claim = await self._believe(tx, owner, *assertions)
        name = predicates.canonical(claim.predicate)
        said = [fact for fact in changes.believed if fact.predicate == name]
        same = [fact for fact in said if predicates.same_text(fact.object, claim.object)]
        at = claim.starts_at or claim.said_at
        stated = next((fact for fact in same if fact.is_valid_at(at)), same[-1] if same else None)
        if stated is None:
            raise errors.Bug("a stated fact was not stored.")
        if stated in changes.added:
            return stated
        found = await self._parts.store.fact(tx, owner, stated.id)
        if found is None:
            raise errors.Bug("a fact that was strengthened is not there.")
        return found

    async def merge_entities(
        self, entity: str, *aliases: str, user_id: str | None = None, namespace: str | None = None
    ) -> list[Fact]:
        """State that the aliases are names of the entity; returns the entity's facts.

        Facts under an alias, as subject or object, become facts of the entity, resolved with its own by their times;
        later ones as well. Each alias is a fact with the predicate `same_as`; retract it to stop that. Facts that were
        merged stay merged. Aliases may be set before there are facts about them.
        """
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        name, names = _text("entity", entity), [_text("alias", alias) for alias in aliases]
        if not names or any(predicates.same_text(name, alias) for alias in names):
            raise errors.InvalidFact("aliases", aliases, "name at least one alias that differs from the entity.")
        await self._parts.effects.commit(owner, lambda tx: self._merge(tx, owner, name, names))
        return await self.query(subject=entity, user_id=user_id, namespace=namespace)

    async def _merge(self, tx: Transaction, owner: Scope, entity: str, names: Sequence[str]) -> None:
        entity = entities.entity_name(entity, await self._aliases(tx, owner, entity))
        for alias in names:
            if predicates.same_text(alias, entity):  # the entity was an alias of this name
                raise errors.InvalidFact(
                    "alias", alias, f"it is the entity's own name; {entity!r} has aliases already."
                )
            await self._believe(tx, owner, _same_as(alias, entity))
        await self._rename_merged(tx, owner)

    async def _rename_merged(self, tx: Transaction, owner: Scope) -> None:
        """Let the facts under an alias be those of its entity."""
        store = self._parts.store
        now = await store.now(tx)
        rows = await store.facts(tx, owner, history=True, limit=EVERY_FACT)
        changes = entities.merge(
            entities.aliases_of(rows),
            [row for row in rows if row.superseded_at is None],
            await store.recorded_assertions(tx, owner),
            owner=owner,
            now=now,
            new_id=_new_id,
        )
        await apply_fact_changes.write(store, tx, owner, changes, at=now)

    async def _aliases(self, tx: Transaction, owner: Scope, name: str | None) -> entities.Aliases:
        """The owner's aliases; none are read without a name to compare."""
        if name is None:
            return {}
        return entities.aliases_of(
            await self._parts.store.facts(tx, owner, predicate=entities.SAME_AS, limit=EVERY_FACT)
        )

    async def why(
        self,
        fact: Fact | FactId | str,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        group: str | None = None,
    ) -> Provenance | None:
        """Where a fact came from, superseded or not, and what it replaced; None where the user has no such fact.

        Without a user the owner is that of the `Fact`.
        """
        user_id, namespace = _owner_of(fact, user_id, namespace)
        owner = await groups.scope_of(self._parts, group, namespace=namespace, user_id=user_id)
        async with self._parts.db.transaction(namespace=owner.namespace, read_only=True) as tx:
            found = await self._parts.store.fact(tx, owner, _id(fact))
            if found is None:
                return None
            episodes = await self._parts.store.episodes(tx, owner, found.sources)
            rows = await self._parts.store.facts(tx, owner, predicate=found.predicate, history=True, limit=EVERY_FACT)
            recorded = await self._parts.store.recorded_assertions(tx, owner, [found.subject])
        replaced = tuple(replaced_facts(found, rows, recorded))
        return Provenance(fact=found, episodes=tuple(episodes), extractor=found.extractor, replaced=replaced)

    async def cardinalities(self, *, namespace: str | None = None) -> dict[str, Cardinality]:
        """The cardinalities that the namespace has set for predicates; models and rules decide about others."""
        space = self._parts.scope(namespace=namespace).namespace
        async with self._parts.db.transaction(namespace=space, read_only=True) as tx:
            return await self._parts.store.cardinalities(tx, space)

    async def set_cardinality(
        self, predicate: str, cardinality: Cardinality | str | None, *, namespace: str | None = None
    ) -> None:
        """Set whether a subject has one object of a predicate at a time (`single`) or several (`multi`), with
        precedence over models; None removes the setting. It applies to later extractions in the whole namespace.
        """
        owner = self._parts.scope(namespace=namespace)
        name = predicates.canonical(_text("predicate", predicate))
        said = _cardinality(cardinality)
        await self._parts.effects.commit(
            owner, lambda tx: self._parts.store.set_cardinality(tx, owner.namespace, name, said)
        )

    async def _believe(self, tx: Transaction, owner: Scope, *given: Assertion) -> tuple[Changes, Assertion]:
        """Resolve assertions about one subject, dated by the clock of the store, and amend the profile.

        Returns the changes, and the last of the assertions as it was kept.
        """
        store = self._parts.store
        await store.tombstones(tx, [owner])  # holds a forget of this user off until the end
        await store.hold_beliefs(tx, owner)
        now = await store.now(tx)
        aliases = await self._aliases(tx, owner, "")
        claims = [entities.rename(replace(claim, said_at=now), aliases) for claim in given]
        # An assertion by a call is the latest, also after messages dated in the future.
        said = await store.recorded_assertions(tx, owner, [claim.subject for claim in claims])
        latest = max((one.claim.said_at for one in said), default=now)
        if latest > now:
            claims = [replace(claim, said_at=latest, valid_from=claim.starts_at) for claim in claims]
        return await self._resolve(tx, owner, claims, now=now), claims[-1]

    async def _resolve(self, tx: Transaction, owner: Scope, claims: Sequence[Assertion], *, now: datetime) -> Changes:
        """Resolve dated assertions of calls, and amend the profile. After `hold_beliefs`."""
        store = self._parts.store
        rows = await store.facts(tx, owner, history=True, limit=EVERY_FACT)  # a subject may be spelt otherwise
        believed = [row for row in rows if row.superseded_at is None]
        said = await store.recorded_assertions(tx, owner, [claim.subject for claim in claims])
        changes = decide(
            claims,
            believed,
            said=said,
            owner=owner,
            now=now,
            extractor=BY_USER,
            new_id=_new_id,
            cardinalities=await store.cardinalities(tx, owner.namespace),
        )
        await apply_fact_changes.write(store, tx, owner, changes, at=now)
        if changes.superseded and (profile := await store.profile(tx, owner)):
            after = [replace(row, superseded_at=now) if row.id in changes.superseded else row for row in rows]
            fitted = _profile_schema(self._parts.settings.profile_schema).fitted
            if traits := amended_traits(profile, changes.superseded, [*after, *changes.added], now=now, fitted=fitted):
                await store.merge_profile(tx, owner, traits, at=now)
        return changes


def _profile_schema(given: str | None) -> ProfileSchema:
    try:
        return profile_schema(given) or ANY_TRAITS
    except errors.InvalidSettings:  # only the workers need to have the model
        return ANY_TRAITS


def _same_as(alias: str, entity: str) -> Assertion:
    return Assertion(
        subject=alias, predicate=entities.SAME_AS, object=entity, said_at=UNDATED, cardinality=Cardinality.SINGLE
    )


def _named(predicate: str | None) -> str | None:
    if predicate is not None:
        _check_size("predicate", predicate)
    return None if predicate is None else predicates.canonical(predicate)


def _read(subject: str | None, limit: int) -> int:
    """How many rows to read: subjects are compared here, as they are where it is decided about them."""
    if subject is not None:
        _check_size("subject", subject)
    return limit if subject is None else EVERY_FACT


def _about(found: list[Fact], subject: str | None, aliases: entities.Aliases) -> list[Fact]:
    """Facts about a subject by any of its names; of its aliases themselves only by their own."""
    if subject is None:
        return found
    entity = entities.entity_name(subject, aliases)
    return [fact for fact in found if any(predicates.same_text(fact.subject, name) for name in (subject, entity))]


def _new_id() -> FactId:
    return FactId(uuid7())


def _owner_of(fact: Fact | FactId | str, user_id: str | None, namespace: str | None) -> tuple[str | None, str | None]:
    if not isinstance(fact, Fact) or user_id is not None or (fact.scope.user_id or "").startswith(GROUP_PREFIX):
        return user_id, namespace
    return fact.scope.user_id, fact.scope.namespace if namespace is None else namespace


def _id(fact: Fact | FactId | str) -> FactId:
    if isinstance(fact, Fact):
        return fact.id
    try:
        return FactId(fact if isinstance(fact, UUID) else UUID(fact))
    except (ValueError, AttributeError, TypeError) as exc:
        raise errors.InvalidFact("fact", fact, "it is a Fact or the id of one.") from exc


def _cardinality(given: Cardinality | str | None) -> Cardinality | None:
    try:
        return None if given is None else Cardinality(given)
    except ValueError as exc:
        raise errors.InvalidFact("cardinality", given, "it is 'single', 'multi' or None.") from exc


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise errors.InvalidFact(field, value, "a fact needs a subject, a predicate and an object, as text.")
    _check_size(field, value)
    return value.replace("\x00", "").strip()


def _check_size(field: str, text: object) -> None:
    if not isinstance(text, str):
        raise errors.InvalidFact(field, text, "it is text.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as exc:
        raise errors.InvalidFact(field, text, "it must be valid Unicode; this one has a lone surrogate.") from exc
    if size > FACT_BYTES:
        raise errors.InvalidFact(field, f"{size} bytes", f"it has at most {FACT_BYTES:,} bytes.")


def _zoned(**moments: datetime | None) -> None:
    for field, moment in moments.items():
        why = None if moment is None else why_unusable(moment)
        if why is not None:
            raise errors.InvalidFact(field, moment, why)
