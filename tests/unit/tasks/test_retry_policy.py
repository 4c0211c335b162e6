"""Which errors are worth another try."""

from datetime import timedelta
from uuid import uuid4

import pytest

from aftermind import errors
from aftermind_tasks import retry_policy
from aftermind_tasks.job_outcome_types import Dead, Retry, Snooze

SECRET = "my password is hunter2"


@pytest.mark.parametrize(
    "error",
    [
        errors.StoreUnavailable("db", "away"),
        errors.RedisUnavailable("OOM"),
        errors.BrokerUnavailable("away"),
    ],
)
def test_an_outage_uses_no_attempt(error: Exception) -> None:
    assert isinstance(retry_policy.judge(error), Snooze)


@pytest.mark.parametrize(
    "error",
    [
        errors.ModelKeyRefused("openai", "401"),
        errors.SchemaOutdated("1", "2"),
        errors.DimensionMismatch(384, 1536),
        errors.InvalidSettings("embedder", "off", "jobs wait for vectors."),
    ],
)
def test_what_a_person_has_to_mend_waits_for_the_person_and_stops_its_kind(error: Exception) -> None:
    outcome = retry_policy.judge(error)

    assert isinstance(outcome, Snooze)
    assert outcome.after == retry_policy.OPERATOR_PAUSE
    assert not outcome.is_own


def test_a_namespace_without_a_budget_waits_alone() -> None:
    outcome = retry_policy.judge(errors.BudgetExhausted("acme", "tokens", 1e6))

    assert isinstance(outcome, Snooze)
    assert outcome.is_own


def test_a_rate_limit_is_tried_again_when_the_provider_says() -> None:
    outcome = retry_policy.judge(errors.RateLimited("openai", timedelta(seconds=17)))

    assert isinstance(outcome, Retry)
    assert outcome.after == timedelta(seconds=17)


@pytest.mark.parametrize(
    "error",
    [errors.RateLimited("openai"), errors.ModelUnavailable("openai", "503"), TimeoutError(), KeyError("x")],
)
def test_what_may_pass_backs_off(error: Exception) -> None:
    outcome = retry_policy.judge(error)

    assert isinstance(outcome, Retry)
    assert outcome.after is None


@pytest.mark.parametrize(
    "error",
    [
        errors.ModelRefused("openai", "policy"),
        errors.BadModelRequest("openai", 400, "no"),
        errors.MessageTooLarge(10, 5),
        errors.UnknownPayload("turn", 9),
        errors.InvalidMessage("content", "", "empty"),
    ],
)
def test_what_will_never_work_is_dead_at_once(error: Exception) -> None:
    assert isinstance(retry_policy.judge(error), Dead)


def test_a_model_that_answers_garbage_is_asked_in_two_tries_and_no_more() -> None:
    error = errors.BadModelAnswer("openai", "not JSON")

    assert isinstance(retry_policy.judge(error), Retry)
    assert isinstance(retry_policy.judge(error, before="llm_unavailable"), Retry), "the model has not answered yet"
    assert isinstance(retry_policy.judge(error, before="llm_bad_answer"), Dead)


def test_unusable_answers_of_several_kinds_are_several_groups() -> None:
    whys = ("not of the schema: answer: json_invalid", "not of the schema: summary: string_too_short")
    alike = ("vectors of shape (2, 3), wanted (2, 4)", "vectors of shape (58, 64), wanted (58, 1536)")

    prints = [retry_policy.to_failure(errors.BadModelAnswer("openai", why)).fingerprint for why in (*whys, *alike)]

    often = "not of the schema: claims.0.subject: missing; claims.1.subject: missing"
    once = "not of the schema: claims.7.subject: missing"
    repeated = {retry_policy.to_failure(errors.BadModelAnswer("openai", why)).fingerprint for why in (often, once)}

    assert len(set(prints)) == 3
    assert prints[2] == prints[3]
    assert len(repeated) == 1


def test_a_lost_lease_is_not_judged() -> None:
    with pytest.raises(errors.Bug):
        retry_policy.judge(errors.LeaseLost(uuid4()))


@pytest.mark.parametrize("error", [ValueError(SECRET), errors.InvalidMessage("content", SECRET, "no")])
def test_what_a_user_said_does_not_reach_a_dead_letter_by_way_of_an_error(error: Exception) -> None:
    failure = retry_policy.to_failure(error)

    assert SECRET not in failure.error


def test_failures_alike_share_a_fingerprint_whatever_their_ids() -> None:
    def fails(model: str) -> Exception:
        try:
            raise errors.ModelUnavailable(model, "503")
        except errors.ModelUnavailable as exc:
            return exc

    one, other = retry_policy.to_failure(fails("a")), retry_policy.to_failure(fails("b"))

    assert one.fingerprint == other.fingerprint
    assert one.fingerprint != retry_policy.worker_lost(3).fingerprint


def test_every_error_of_the_tree_has_a_sentence_of_its_own_or_of_its_family() -> None:
    families = tuple(rule.error for rule in retry_policy.RULES)
    judged_elsewhere = (errors.LeaseLost, errors.Bug)

    def leaves(kind: type[Exception]) -> list[type[Exception]]:
        below = kind.__subclasses__()
        return [leaf for each in below for leaf in leaves(each)] if below else [kind]

    unruled = [
        leaf.__name__
        for leaf in leaves(errors.AftermindError)
        if not issubclass(leaf, families) and not issubclass(leaf, judged_elsewhere)
    ]

    # Said to callers only; no handler meets them.
    callers = [
        "Forgotten",
        "GroupReadOnly",
        "JobDead",
        "KeyRefused",
        "NotThere",
        "PauseOfOperator",
        "QueueFull",
        "RightMissing",
        "SpoolFull",
    ]
    callers += ["TooManyListeners", "TooManyRequests"]
    assert sorted(unruled) == callers
