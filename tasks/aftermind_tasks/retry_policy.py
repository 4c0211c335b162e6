"""Maps errors to outcomes: the only place that decides which errors are retried."""

import hashlib
import re
import traceback
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto

from aftermind import errors
from aftermind.ledger.protocol import Failure
from aftermind_tasks.job_outcome_types import Dead, Outcome, Retry, Snooze

OUTAGE_PAUSE = timedelta(seconds=2)  # a restart of Redis or Postgres takes 1-3 s; the pause doubles while it lasts
# a key, a budget, a schema: an operator has to act, which takes more than a second
OPERATOR_PAUSE = timedelta(seconds=60)
MAX_ERROR_CHARACTERS = 300  # characters of an error that a dead letter keeps


class Sentence(Enum):
    """What becomes of a job after an error of a kind."""

    SNOOZE = auto()  # an outage: counts nothing
    WAIT = auto()  # an operator has to act: uses no attempts, checks rarely
    RETRY = auto()
    TWICE = auto()  # retry once: a model that twice gave an unusable answer, each repaired once, gives a third alike
    DEAD = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRule:
    """An error, the reason code under which operators find it, and the sentence."""

    error: type[Exception]
    reason_code: str
    sentence: Sentence


# The first match decides, so a special case is above its general one.
RULES: tuple[RetryRule, ...] = (
    RetryRule(error=errors.RateLimited, reason_code="llm_rate_limited", sentence=Sentence.RETRY),
    RetryRule(error=errors.ModelUnavailable, reason_code="llm_unavailable", sentence=Sentence.RETRY),
    RetryRule(error=errors.ProviderPaused, reason_code="provider_paused", sentence=Sentence.SNOOZE),
    RetryRule(error=errors.TenantMoved, reason_code="tenant_moved", sentence=Sentence.SNOOZE),
    RetryRule(error=errors.StatementAborted, reason_code="statement_aborted", sentence=Sentence.RETRY),
    RetryRule(error=errors.KeyMissing, reason_code="key_missing", sentence=Sentence.WAIT),
    RetryRule(error=errors.Unavailable, reason_code="outage", sentence=Sentence.SNOOZE),
    RetryRule(error=errors.ModelKeyRefused, reason_code="llm_key_refused", sentence=Sentence.WAIT),
    RetryRule(error=errors.BudgetExhausted, reason_code="budget_exhausted", sentence=Sentence.WAIT),
    RetryRule(error=errors.InvalidSettings, reason_code="misconfigured", sentence=Sentence.WAIT),
    RetryRule(error=errors.WrongRole, reason_code="wrong_role", sentence=Sentence.WAIT),
    RetryRule(error=errors.SchemaOutdated, reason_code="schema_outdated", sentence=Sentence.WAIT),
    RetryRule(error=errors.DimensionMismatch, reason_code="dimension_mismatch", sentence=Sentence.WAIT),
    RetryRule(error=errors.EmbedderMismatch, reason_code="embedder_mismatch", sentence=Sentence.WAIT),
    RetryRule(error=errors.IndexMismatch, reason_code="index_mismatch", sentence=Sentence.WAIT),
    RetryRule(error=errors.BadModelAnswer, reason_code="llm_bad_answer", sentence=Sentence.TWICE),
    RetryRule(error=errors.ModelRefused, reason_code="policy_blocked", sentence=Sentence.DEAD),
    RetryRule(error=errors.BadModelRequest, reason_code="llm_bad_request", sentence=Sentence.DEAD),
    RetryRule(error=errors.MessageTooLarge, reason_code="payload_too_large", sentence=Sentence.DEAD),
    RetryRule(error=errors.ForeignPayload, reason_code="foreign_payload", sentence=Sentence.DEAD),
    RetryRule(error=errors.UnknownPayload, reason_code="unknown_version", sentence=Sentence.DEAD),
    RetryRule(error=errors.InvalidInput, reason_code="invalid_payload", sentence=Sentence.DEAD),
    RetryRule(error=errors.Conflict, reason_code="db_conflict", sentence=Sentence.RETRY),
    RetryRule(error=TimeoutError, reason_code="timeout", sentence=Sentence.RETRY),
)


def judge(error: Exception, *, before: str | None = None, is_own: bool = False) -> Outcome:
    """The outcome of a job whose handler raised `error`; `before` is the reason code of the attempt before. Never
    returns Done.

    `is_own`: the job chose its model itself, so its failure pauses no other job; and if an operator would have to act,
    it is a dead letter.

    A lost lease has no outcome, because another worker has the job: it raises `Bug` here.
    """
    if isinstance(error, errors.LeaseLost):
        raise errors.Bug("a lost lease has no verdict: another worker has the job.") from error
    rule = _rule(error)
    if rule.sentence is Sentence.SNOOZE:
        wait = error.wait if isinstance(error, errors.ProviderPaused) else OUTAGE_PAUSE
        others_continue = isinstance(error, errors.TenantMoved) or is_smaller_possible(error)
        # Without the seconds: they are the wait's, and a text that is the same each time is one line of a timeline.
        why = f"{error.provider} is paused: {error.why}" if isinstance(error, errors.ProviderPaused) else _redact(error)
        return Snooze(after=wait, why=why, is_own=is_own or others_continue)
    is_namespaces = isinstance(error, errors.BudgetExhausted | errors.KeyMissing)  # other namespaces continue
    if rule.sentence is Sentence.WAIT and is_own and not is_namespaces:
        return Dead(failure=to_failure(error))
    if rule.sentence is Sentence.WAIT:
        return Snooze(after=OPERATOR_PAUSE, why=_redact(error), is_own=is_namespaces)
    failure = to_failure(error)
    if rule.sentence is Sentence.DEAD or (rule.sentence is Sentence.TWICE and before == rule.reason_code):
        return Dead(failure=failure)
    return Retry(failure=failure, after=error.retry_after if isinstance(error, errors.RateLimited) else None)


def is_smaller_possible(error: Exception) -> bool:
    """Whether fewer jobs together may succeed now where a batch was not sent to its provider."""
    return isinstance(error, errors.ProviderPaused) and error.is_large_only


def to_failure(error: Exception, *, reason_code: str | None = None) -> Failure:
    """The error as the ledger keeps it: reason code, redacted text, fingerprint."""
    code = reason_code or _rule(error).reason_code
    return Failure(
        reason_code=code,
        error_class=type(error).__name__,
        error=_redact(error),
        fingerprint=_fingerprint(code, error),
        model=(error.model if isinstance(error, errors.AftermindError) else None) or getattr(error, "provider", None),
        answer=error.evidence if isinstance(error, errors.BadModelAnswer | errors.BadModelRequest) else None,
    )


def worker_lost(times: int) -> Failure:
    """A job that took `times` workers with it: poison."""
    return Failure(
        reason_code="worker_lost",
        error_class="WorkerLost",
        error=f"{times} workers ended without a word while they held it",
        fingerprint=hashlib.sha256(b"worker_lost").hexdigest()[:16],
    )


def _rule(error: Exception) -> RetryRule:
    for rule in RULES:
        if isinstance(error, rule.error):
            return rule
    return RetryRule(error=type(error), reason_code=f"bug:{type(error).__name__}", sentence=Sentence.RETRY)


def _redact(error: Exception) -> str:
    # Aftermind's errors have ids and counts. A foreign error may quote user content (a driver shows its parameters), so
    # only its class and location are stored. InvalidInput quotes the refused value.
    if isinstance(error, errors.AftermindError) and not isinstance(error, errors.InvalidInput):
        return str(error)[:MAX_ERROR_CHARACTERS]
    if isinstance(error, errors.InvalidSettings):  # without its value, which may have a password
        return f"{error.field}: {error.why}"[:MAX_ERROR_CHARACTERS]
    return f"{type(error).__name__} at {_place(error)}"


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "an unknown place"
    last = frames[-1]
    return f"{last.filename.rsplit('/', 1)[-1]}:{last.name}"


def _fingerprint(code: str, error: Exception) -> str:
    # The place, not the text: 5,000 failures alike differ in their ids and are one line. All unusable answers have one
    # place, so their kinds of faults count, however often each occurs.
    faults = (
        set(re.split("[:;] ", re.sub(r"\d+", "#", error.why))) if isinstance(error, errors.BadModelAnswer) else set()
    )
    parts = (code, type(error).__name__, _place(error), *sorted(faults))
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]
