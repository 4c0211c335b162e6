"""A user's profile: what newly mined episodes change about it, trait by trait."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.facts.profile_amendment import amended_traits, replaced_by_calls, updated_traits
from aftermind.llm.injection import detect
from aftermind.llm.profile_schema import ANY_TRAITS
from aftermind.llm.protocols import Profiler
from aftermind.stores.protocol import EVERY_FACT
from aftermind.types import Episode, EpisodeId, JobId, JobKind, Json, Lease, Profile, Scope, Trait
from aftermind.wire import queues
from aftermind_tasks import extraction_call, followup_jobs, job_events
from aftermind_tasks.job_outcome_types import Done, Outcome
from aftermind_tasks.runtime import Runtime

MAX_EPISODES = 100  # episodes of one call; tokens are limited by `profile_max_tokens`
MAX_TEXTS = 200  # of a trait: its name, and the keys and texts of its value
MAX_TEXT_CHARACTERS = 2_000  # of each
RULES = "rules"  # the name of the profiler that reads the same forms of words as the extractor of that name
EVIDENCE = 50  # episodes that a trait keeps: its latest


async def run(runtime: Runtime, leases: Sequence[Lease]) -> Mapping[JobId, Outcome]:
    """Bring the profile of each lease's user up to date."""
    return {lease.job.id: await _update(runtime, lease) for lease in leases}


async def _update(runtime: Runtime, lease: Lease) -> Outcome:
    if runtime.profiler is None:
        raise errors.InvalidSettings("extractor", "off", "profiles wait; set AFTERMIND_EXTRACTOR again.")
    owner = lease.job.scope.owner
    async with runtime.db.transaction(namespace=owner.namespace, read_only=True) as tx:
        found = await runtime.store.unprofiled(tx, owner, limit=MAX_EPISODES + 1)
        before = await runtime.store.profile(tx, owner)
    chosen = extraction_call.first(found[:MAX_EPISODES], tokens=runtime.settings.profile_max_tokens)
    answer = lease.job.answer
    if answer is None:
        answer = await _ask(runtime, runtime.profiler, lease, chosen, before or Profile(scope=owner))
    shown = set(answer["episodes"])
    await _apply(runtime, lease, answer, is_more=any(str(each.id) not in shown for each in found))
    return Done()


async def _ask(
    runtime: Runtime, profiler: Profiler, lease: Lease, episodes: Sequence[Episode], before: Profile
) -> Mapping[str, Any]:  # Any: JSON that is kept with the job
    """The traits that the episodes change, stored with the job; no model is called if no message is eligible."""
    answer: dict[str, Any] = extraction_call.build_answer(episodes, extraction_call.PROFILE, values={}, evidence={})
    turns = [
        extraction_call.to_turn_text(episode)
        for episode in extraction_call.visible_episodes(episodes, extraction_call.PROFILE)
    ]
    if not any(turn.trusted for turn in turns):
        return answer
    await extraction_call.check_budget(runtime, lease.job.scope)
    schema = runtime.profile_schema
    kept = before.traits if runtime.settings.profile_mode == "update" else {}
    current = {name: trait.value for name, trait in kept.items()}
    with extraction_call.evidence_of_failures(episodes, extraction_call.PROFILE):
        traits = await profiler.profile(current, turns, schema.json if schema else None)
    fitting = traits.values if schema is None else schema.converted(traits.values)
    spoke = {turn.id for turn in turns if turn.trusted}
    evidence = {name: [str(each) for each in traits.evidence.get(name, ()) if each in spoke] for name in fitting}
    answer["values"] = {name: value for name, value in fitting.items() if evidence[name] and _is_plain(name, value)}
    answer["evidence"] = {name: evidence[name] for name in answer["values"]}
    await extraction_call.save_answer(runtime, lease, answer, traits.usage)
    return answer


def _is_plain(name: str, value: Json) -> bool:
    """Whether neither name nor value reads like an instruction, nor is far too long to be shown."""
    texts = [name.replace("_", " "), *detect.strings(value)]
    if len(texts) > MAX_TEXTS or any(len(text) > MAX_TEXT_CHARACTERS for text in texts):
        return False
    return detect.suspicion("\n".join(texts)) is None


async def _apply(runtime: Runtime, lease: Lease, answer: Mapping[str, Any], *, is_more: bool) -> None:  # Any: as above
    """Traits, what was seen and `done` in one transaction, fenced by the lease; traits that are not named stay."""
    owner, ids = lease.job.scope.owner, extraction_call.episode_ids(answer)
    ring: dict[str, JobId] = {}
    async with runtime.db.transaction(namespace=owner.namespace) as tx:
        await runtime.store.tombstones(tx, [owner])  # holds a forget off until the end
        there = await runtime.store.episodes(tx, owner, ids)
        is_sound = len(there) == len(ids) and not extraction_call.is_void(answer, there)
        if is_sound:
            await runtime.store.hold_beliefs(tx, owner)
            before = await runtime.store.profile(tx, owner) or Profile(scope=owner)
            replace = runtime.settings.profile_mode == "replace"
            if traits := _traits(answer, before, there, keep_old=replace):
                every = traits if replace else {**before.traits, **traits}
                traits |= await _corrected(runtime, tx, every, owner, ids)
                await runtime.store.merge_profile(tx, owner, traits, at=runtime.clock.utc_now(), replace=replace)
            await runtime.store.profiled(tx, owner, ids)
            shown = extraction_call.episode_ids(answer, "shown")
            await extraction_call.record_batch(runtime, tx, lease, JobKind.PROFILE, runtime.profiler, shown)
        await runtime.ledger.finish(
            tx, lease, note=None if is_sound else "the source messages were forgotten during the call"
        )
        if is_more or not is_sound:
            job = followup_jobs.job(JobKind.PROFILE, owner)
            await runtime.ledger.debounce(tx, [job], quiet=timedelta(0), at_most=timedelta(0))
            ring[queues.QUEUE_OF[JobKind.PROFILE]] = lease.job.id
        events = await runtime.events.append(tx, [job_events.completed(runtime, lease.job)])
    await runtime.after_commit({owner}, events, ring)


async def _corrected(
    runtime: Runtime,
    tx: Transaction,
    traits: Mapping[str, Trait | None],
    owner: Scope,
    ids: Sequence[EpisodeId],
) -> Mapping[str, Trait | None]:
    """What becomes of traits that quote facts of these episodes which a call has replaced or retracted since, or for
    which there is a newer fact.
    """
    rows = await runtime.store.facts(tx, owner, history=True, limit=EVERY_FACT)
    now = runtime.clock.utc_now()
    is_by_rules = runtime.profiler is not None and runtime.profiler.name == RULES
    fitted = (runtime.profile_schema or ANY_TRAITS).fitted
    amended: Mapping[str, Trait | None] = {}
    if ended := {row.subject for row in rows if row.superseded_at is not None and not set(ids).isdisjoint(row.sources)}:
        said = await runtime.store.recorded_assertions(tx, owner, ended)
        over = replaced_by_calls(rows, said, ids)
        amended = amended_traits(_profile(owner, traits), over, rows, now=now, fitted=fitted)
    profile = _profile(owner, {**traits, **amended})
    newer = updated_traits(profile, rows, now=now, fitted=fitted, follows_facts=is_by_rules)
    return {**amended, **newer}


def _profile(owner: Scope, traits: Mapping[str, Trait | None]) -> Profile:
    return Profile(scope=owner, traits={name: trait for name, trait in traits.items() if trait is not None})


def _traits(
    answer: Mapping[str, Any], before: Profile, read: Sequence[Episode], *, keep_old: bool
) -> dict[str, Trait | None]:  # Any: as above
    """The traits that the answer sets; an empty list deletes one: nothing of it is true any more.

    Messages that are read again, after a forget or an undo, change no trait that rests on them. Nor do older messages
    than its own change a text or a number, or take something out of a list. With `keep_old` these are in the result
    too, if anything else is.
    """
    old: dict[str, Trait | None] = {}
    values: Mapping[str, Json] = answer["values"]
    times = {str(each.id): each.occurred_at for each in read}
    found: dict[str, Trait | None] = {}
    for name, value in values.items():
        fresh = answer["evidence"].get(name, ())
        earlier = before.traits.get(name)
        evidence = _evidence(fresh, value, earlier)
        seen = [times[each] for each in fresh if each in times]
        if earlier is not None and {str(each) for each in earlier.evidence}.issuperset(fresh):
            old[name] = earlier
            continue
        if earlier is not None and _is_newer(earlier, seen):
            if isinstance(value, dict) and isinstance(earlier.value, dict):
                value = {**value, **earlier.value}
            elif isinstance(value, list) and isinstance(earlier.value, list):
                value = [*earlier.value, *(each for each in value if each not in earlier.value)]
            if value == earlier.value or not value or not isinstance(value, list | dict):
                old[name] = earlier
                continue
        if earlier is not None and earlier.last_message_at is not None and set(earlier.evidence) & set(evidence):
            seen.append(earlier.last_message_at)
        last = max(seen, default=None)
        found[name] = Trait(value=value, evidence=evidence, last_message_at=last) if value not in ([], {}, "") else None
    return {**old, **found} if found and keep_old else found


def _is_newer(earlier: Trait, seen: Sequence[datetime]) -> bool:
    """Whether a trait is of a later time than messages."""
    newest = earlier.last_message_at or earlier.updated_at
    return bool(seen) and newest is not None and max(seen) < newest


def _evidence(fresh: Sequence[str], value: Json, before: Trait | None) -> tuple[EpisodeId, ...]:
    """A list that grows still rests on what it rested on; a value that took another's place does not."""
    new = [EpisodeId(UUID(text)) for text in dict.fromkeys(fresh)]
    grows = before is not None and isinstance(value, list) and isinstance(before.value, list)
    old = [each for each in before.evidence if each not in new] if before is not None and grows else []
    return tuple([*old, *new][-EVIDENCE:])
