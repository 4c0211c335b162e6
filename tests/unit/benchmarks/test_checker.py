"""The comparison sees each kind of loss; a checker that cannot fail proves nothing."""

from dataclasses import replace

import pytest

from benchmarks.harness import messages
from benchmarks.harness.checker import Findings, Strike, compare
from benchmarks.harness.evidence import Evidence, StoredEpisode, StoredFact
from benchmarks.harness.history import Erased, Recalled, Remembered

TURNS = 9  # numbers 0, 4 and 8 state a fact


def told(number: int, *, kind: str = "ok") -> list[Remembered]:
    """The two lines of one turn."""
    entry = Remembered(
        type="invoke",
        marker=messages.marker_of(0, number),
        user="u",
        session="s",
        number=number,
        at=number,
        fact=messages.object_of(0, number),
        job=str(number),
    )
    return [entry, replace(entry, type=kind, at=number + 0.5)]  # type: ignore[arg-type]


def stored(number: int) -> StoredEpisode:
    """The turn as it should be stored."""
    content = messages.content_of(0, number)
    return StoredEpisode(user="u", session="s", position=number, content=content, embedded=True)


def recalled(kind: str, *, at: float = 5.0) -> Recalled:
    """A recall of the first turn."""
    marker = messages.marker_of(0, 0)
    return Recalled(type=kind, marker=marker, user="u", began=at, ended=at + 0.1, acknowledged=0.5)  # type: ignore[arg-type]


HISTORY = [entry for number in range(TURNS) for entry in told(number)]
FACTS = tuple(
    StoredFact(user="u", predicate="collects", object=name, strength=1)
    for number in range(TURNS)
    if (name := messages.object_of(0, number))
)
WHOLE = Evidence(
    episodes=tuple(stored(number) for number in range(TURNS)),
    facts=FACTS,
    dead={},
    unfinished={},
    done_twice=0,
    orphans=0,
    doubled=0,
)


def check(
    evidence: Evidence = WHOLE,
    *,
    history: list[Remembered] | None = None,
    recalls: tuple[Recalled, ...] = (),
    strikes: tuple[Strike, ...] = (),
) -> Findings:
    """The comparison over the standard history."""
    return compare(HISTORY if history is None else history, recalls, strikes, evidence)


MARKER = messages.marker_of(9, 1)
THEIRS = StoredEpisode(
    user="eraser-0", session="erased", position=1, content=f"This is note {MARKER} of my diary.", embedded=True
)


@pytest.mark.parametrize(
    ("turn", "is_stored", "broken"),
    [
        (Erased(marker=MARKER, forgotten=True, receipt="forgotten"), False, {}),
        (Erased(marker=MARKER, forgotten=True, receipt="done"), False, {}),
        (Erased(marker=MARKER, forgotten=True), True, {"forgotten_seen": 1}),
        (Erased(marker=MARKER, forgotten=True, seen=2), False, {"forgotten_seen": 1}),
        (Erased(marker=MARKER, kept=True, receipt="done"), True, {}),
        (Erased(marker=MARKER, kept=True, receipt="done"), False, {"lost": 1, "false_receipts": 1}),
        (Erased(marker=MARKER, kept=True, receipt="forgotten"), True, {"false_receipts": 1}),
    ],
)
def test_what_was_forgotten_is_gone_and_what_came_later_is_kept(
    turn: Erased, is_stored: bool, broken: dict[str, int]
) -> None:
    evidence = replace(WHOLE, episodes=(*WHOLE.episodes, THEIRS)) if is_stored else WHOLE

    assert compare(HISTORY, (), (), evidence, erased=(turn,)).broken == broken


def test_a_turn_whose_record_was_damaged_is_not_counted_as_lost() -> None:
    evidence = replace(WHOLE, episodes=WHOLE.episodes[1:], facts=FACTS[1:])

    assert compare(HISTORY, (), (), evidence, damaged={messages.marker_of(0, 0)}).is_clean


def test_a_recall_that_only_a_slow_model_degraded_is_counted_apart() -> None:
    slow = replace(recalled("degraded"), why="openai took more than 0.3 s: only a lexical search was made")
    away = replace(slow, why=f"{slow.why}; pending unknown")

    found = check(recalls=(slow, away))

    assert (found.degraded_by_model, found.degraded_outside_faults) == (1, 1)


def test_a_whole_run_is_clean() -> None:
    found = check(recalls=(recalled("ok"),))

    assert (found.turns, found.recalls, found.is_clean, found.broken) == (TURNS, 1, True, {})


@pytest.mark.parametrize(
    ("evidence", "name"),
    [
        (replace(WHOLE, episodes=WHOLE.episodes[1:]), "lost"),
        (replace(WHOLE, episodes=(*WHOLE.episodes, replace(stored(3), position=99))), "duplicated"),
        (replace(WHOLE, episodes=(*WHOLE.episodes, stored(77))), "unexpected"),
        (replace(WHOLE, episodes=(*WHOLE.episodes[:-1], replace(stored(8), position=-1))), "out_of_order"),
        (replace(WHOLE, episodes=(*WHOLE.episodes[:-1], replace(stored(8), embedded=False))), "unembedded"),
        (replace(WHOLE, facts=FACTS[1:]), "missing_facts"),
        (replace(WHOLE, facts=(*FACTS, FACTS[0])), "duplicated"),
        (replace(WHOLE, facts=(*FACTS[1:], replace(FACTS[0], strength=2))), "duplicated"),
        (replace(WHOLE, dead={"llm_bad_answer (extract)": 1}), "dead_after_replay"),
        (replace(WHOLE, unfinished={"embed queued": 2}), "unfinished"),
        (replace(WHOLE, done_twice=1), "duplicated"),
        (replace(WHOLE, orphans=1), "missing_facts"),
        (replace(WHOLE, doubled=1), "duplicated"),
    ],
)
def test_each_kind_of_loss_is_seen(evidence: Evidence, name: str) -> None:
    assert name in check(evidence).broken


@pytest.mark.parametrize(("kind", "name"), [("stale", "stale_recalls"), ("error", "recall_errors")])
def test_recalls_that_miss_or_fail_are_seen(kind: str, name: str) -> None:
    assert check(recalls=(recalled(kind),)).broken == {name: 1}


def test_a_degraded_recall_is_excused_near_a_fault_that_hurts_recall_only() -> None:
    near = Strike(kind="Redis", began=4.0, ended=4.5, hurts_recall=True)
    harmless = Strike(kind="worker", began=4.0, ended=9.0)

    assert check(recalls=(recalled("degraded"),), strikes=(near,)).is_clean
    assert check(recalls=(recalled("degraded", at=6.6),), strikes=(near,)).broken == {"degraded_outside_faults": 1}
    assert check(recalls=(recalled("degraded"),), strikes=(harmless,)).broken == {"degraded_outside_faults": 1}


def test_a_call_of_which_nobody_knew_how_it_ended_may_have_an_effect_or_none() -> None:
    unknown = [*HISTORY, *told(12, kind="info"), *told(13, kind="info")]

    found = check(replace(WHOLE, episodes=(*WHOLE.episodes, stored(12))), history=unknown)

    assert (found.is_clean, found.recovered, found.turns) == (True, 1, TURNS)


def test_recovery_is_from_the_end_of_a_fault_to_the_last_turn_that_it_held_up() -> None:
    late = {str(number): 12.0 for number in range(TURNS)}
    strike = Strike(kind="kill", began=3.0, ended=4.0)

    assert check(replace(WHOLE, stored_at=late), strikes=(strike,)).recovery_p99_s == 8.0
