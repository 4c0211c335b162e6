"""Jobs after an extraction: the session's summary and its user's profile, debounced, in separate queues."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from aftermind.db.database_protocol import Transaction
from aftermind.types import Episode, EpisodeId, JobId, JobKind, Json, NewJob, Scope
from aftermind.types.job import session_key
from aftermind.types.uuid7 import uuid7
from aftermind.wire import queues
from aftermind_tasks.runtime import Runtime

SUMMARY, PROFILE = "summary", "profile"  # as `save=` names them, and the payload of an extract job
BEFORE_ALL = -(2**62)  # a position before every episode's


def followup_options(keep: frozenset[str]) -> dict[str, Json]:
    """What of a turn's `save=` is for the jobs that follow its mining. Merged over the turns of a debounced job."""
    return {kind: True for kind in (SUMMARY, PROFILE) if kind in keep}


async def after_mining(
    runtime: Runtime, tx: Transaction, scope: Scope, episodes: Sequence[Episode], *, wanted: Mapping[str, Json]
) -> dict[str, JobId]:
    """Put in what follows, in the caller's transaction; what to ring for after the commit.

    Jobs are put in by kind in this order everywhere (extract, summarise, profile), so that two transactions that push
    the same jobs never wait crosswise.
    """
    ring: dict[str, JobId] = {}
    if wanted.get(SUMMARY) and runtime.summariser is not None:
        ring |= await _summary(runtime, tx, scope)
    ids = sorted(episode.id for episode in episodes if PROFILE in episode.keep)
    if wanted.get(PROFILE) and runtime.profiler is not None and ids:
        await profile(runtime, tx, scope, ids, quiet=timedelta(seconds=runtime.settings.profile_quiet_seconds))
    return ring


async def profile(
    runtime: Runtime, tx: Transaction, scope: Scope, ids: Sequence[EpisodeId], *, quiet: timedelta
) -> None:
    """Let the user's profile draw on these episodes, some time after the last of them. One job a user."""
    await runtime.store.want_profiled(tx, scope.owner, ids)
    at_most = timedelta(seconds=runtime.settings.profile_max_wait_seconds)
    await runtime.ledger.debounce(tx, [job(JobKind.PROFILE, scope.owner)], quiet=quiet, at_most=max(quiet, at_most))


async def _summary(runtime: Runtime, tx: Transaction, scope: Scope) -> dict[str, JobId]:
    """When the session has become quiet; immediately if the unsummarised part exceeds the threshold."""
    settings = runtime.settings
    before = await runtime.store.summary(tx, scope.owner, scope.session_id)
    after = BEFORE_ALL if before is None else before.covers_to
    waiting = await runtime.store.session_span(
        tx, scope.owner, scope.session_id, after_position=after, limit=settings.summary_turns * 2
    )
    is_due = len(waiting) >= settings.summary_turns * 2  # a turn is a question and an answer
    quiet = timedelta(0) if is_due else timedelta(seconds=settings.summary_quiet_seconds)
    (id_,) = await runtime.ledger.debounce(
        tx, [job(JobKind.SUMMARISE, scope)], quiet=quiet, at_most=timedelta(seconds=settings.summary_max_wait_seconds)
    )
    return {queues.QUEUE_OF[JobKind.SUMMARISE]: id_} if is_due else {}


def job(kind: JobKind, scope: Scope, *, payload: Mapping[str, Json] | None = None) -> NewJob:
    """A job of a session, or of a user where the scope names no session. One of a kind at a time."""
    return NewJob(
        id=JobId(uuid7()),
        kind=kind,
        scope=scope,
        payload=payload or {},
        effect_key=session_key(scope),
    )
