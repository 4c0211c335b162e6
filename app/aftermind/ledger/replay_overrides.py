"""What a replay may replace: checked when the plan is made, and again by the worker that meets it in a payload.

An override is a tenant's word on the deployment's models and key. So nothing is imported by its name, models come from
the operator's list, and what is edited passes the same border as what is new.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID

from aftermind import errors
from aftermind.types import Job, JobId, JobKind, Json, Scope, Turn
from aftermind.types.message import new_ids
from aftermind.types.replay import ReplayMode
from aftermind.types.validation import Limits, normalise
from aftermind.wire.turn_encoding import decode_turn, encode_turn

MAX_INSTRUCTION_CHARACTERS = 4_000  # twice the prompt that they follow
OPTIONS = frozenset({"model", "extractor", "instructions"})  # of an extraction
EDITABLE: Mapping[JobKind, frozenset[str]] = {
    JobKind.STORE: frozenset({"messages"}),
    JobKind.EMBED: frozenset({"episodes"}),
    JobKind.EXTRACT: OPTIONS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideRules:
    """What the operator allows: `extractors` that may be named (`rules`, `openai:MODEL`), bounds of an edited turn."""

    extractors: frozenset[str] = frozenset()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The job that is to come back edited."""

    id: JobId
    kind: JobKind
    scope: Scope
    payload: Mapping[str, Json]
    raw: bytes | None


def check_overrides(mode: ReplayMode, given: Mapping[str, Json], rules: OverrideRules) -> None:
    """Raise `InvalidFilter` where a plan of this mode may not replace what is given."""
    known = {
        ReplayMode.RETRY: frozenset[str](),
        ReplayMode.REEXTRACT: OPTIONS,
        ReplayMode.EDITED: frozenset().union(*EDITABLE.values()),
    }[mode]
    if odd := sorted(given.keys() - known):
        allowed = f"it may replace {', '.join(sorted(known))}." if known else "a retry replaces nothing: use `edited`."
        raise errors.InvalidFilter("overrides", odd[0], allowed)
    check_options(given, rules.extractors)


def check_options(given: Mapping[str, Json], extractors: frozenset[str]) -> None:
    """Raise `InvalidFilter` where options of an extraction are not the operator's."""
    named = {"extractor": given.get("extractor"), "model": given.get("model")}
    for name, value in named.items():
        spec = f"openai:{value}" if name == "model" else value
        if value is not None and (not isinstance(value, str) or spec not in extractors):
            why = f"one of {', '.join(sorted(extractors)) or 'none'}; AFTERMIND_REPLAY_MODELS allows more."
            raise errors.InvalidFilter(f"overrides.{name}", value, why)
    told = given.get("instructions", "")
    if not isinstance(told, str) or len(told) > MAX_INSTRUCTION_CHARACTERS:
        why = f"text of at most {MAX_INSTRUCTION_CHARACTERS:,} characters."
        raise errors.InvalidFilter("overrides.instructions", str(told)[:80], why)


def refuse_instructions(given: Mapping[str, Json]) -> None:
    """Raise `InvalidFilter` where a tenant's caller would instruct the deployment's model."""
    if given.get("instructions"):
        why = "only the operator's own commands give instructions: `aftermind reextract --instructions`."
        raise errors.InvalidFilter("overrides.instructions", str(given["instructions"])[:80], why)


def has_options(payload: Mapping[str, Json]) -> bool:
    """Whether a job's payload sets a model, an extractor or instructions."""
    return any(payload.get(name) for name in OPTIONS)


def check_edit(given: Mapping[str, Json], originals: Sequence[Original]) -> None:
    """Raise `InvalidFilter` where an edit means nothing to one of the jobs that it is for."""
    for original in originals:
        allowed = EDITABLE.get(original.kind, frozenset())
        if odd := sorted(given.keys() - allowed):
            what = f"of a {original.kind} job {', '.join(sorted(allowed)) or 'nothing'} can be edited."
            raise errors.InvalidFilter("overrides", odd[0], what)
    if len(originals) > 1 and not given.keys() <= OPTIONS:
        raise errors.InvalidFilter("overrides", sorted(given)[0], "it is edited for one job: name it by its id.")
    if "episodes" in given:
        _check_episodes(given["episodes"], originals[0])


def editable(job: Job) -> dict[str, Json]:
    """The editable fields of a job with their current values. Empty if an edit makes no sense."""
    if job.kind is JobKind.STORE:
        try:
            messages = decode_turn(job.raw or b"").messages
        except errors.UnknownPayload:
            messages = ()
        return {"messages": [{"role": each.role.value, "content": each.content} for each in messages]}
    return {name: job.payload[name] for name in EDITABLE.get(job.kind, ()) if name in job.payload}


def edited_turn(messages: Json, original: Original, limits: Limits) -> bytes:
    """A store job's payload with other messages.

    Raises `InvalidMessage` like `remember`, and `InvalidFilter` if it is not a list.
    """
    if not isinstance(messages, list) or not messages:
        raise errors.InvalidFilter("overrides.messages", str(messages)[:80], "it is a list of chat messages.")
    now = datetime.now(UTC)
    found = normalise(messages, limits, now=now)
    turn = _turn(original, now)
    ids = (*turn.episode_ids, *new_ids(len(found))[1])[: len(found)]
    return encode_turn(replace(turn, messages=found, episode_ids=ids))


def _turn(original: Original, now: datetime) -> Turn:
    """The turn as it is; a fresh one of the same job where its bytes cannot be read."""
    try:
        return decode_turn(original.raw or b"")
    except errors.UnknownPayload:
        base = int(now.timestamp() * 1_000_000)
        job_id = JobId(UUID(bytes=original.id.bytes))  # the driver's ids have a class that JSON does not support
        return Turn(job_id=job_id, scope=original.scope, remembered_at=now, base=base, messages=(), episode_ids=())


def _check_episodes(given: Json, original: Original) -> None:
    own = original.payload.get("episodes", [])
    if not isinstance(given, list) or not given or any(each not in own for each in given):
        why = "a list of episodes that the job has; leave out those that are not to be embedded."
        raise errors.InvalidFilter("overrides.episodes", str(given)[:80], why)
