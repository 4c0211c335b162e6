"""The comparison: what was acknowledged against what is there. Pure, so that it can be tested against planted losses.

After `total-queue` of Jepsen (jepsen/src/jepsen/checker.clj), which is only meaningful after a complete drain: lost are
the acknowledged without effect, unexpected the effects that nobody attempted, recovered the effects of calls of which
nobody knew how they ended. Beyond it, an effect there twice is a fault here.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.harness import messages
from benchmarks.harness.evidence import Evidence
from benchmarks.harness.history import Erased, Recalled, Remembered

GRACE = 2.0  # seconds after a fault of a service within which a recall may still be degraded


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A fault as it happened. `hurts_recall`: Redis, Postgres, a replica or the model server were touched by it."""

    kind: str
    began: float
    ended: float
    hurts_recall: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the comparison says about one leg. All but the counts of what was done are to be 0."""

    turns: int
    lost: int
    duplicated: int
    unexpected: int
    out_of_order: int
    unembedded: int
    missing_facts: int
    stale_recalls: int
    forgotten_seen: int
    false_receipts: int
    recall_errors: int
    degraded_outside_faults: int
    unfinished: int
    dead_after_replay: int
    recalls: int
    recovered: int
    degraded_recalls: int
    degraded_by_model: int
    damaged: int
    erasures: int
    spooled: int
    recovery_p99_s: float
    recall_p99_ms: float
    remember_p99_ms: float
    recovery_s: dict[str, float] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    FAULTS = (
        "lost",
        "duplicated",
        "unexpected",
        "out_of_order",
        "unembedded",
        "missing_facts",
        "stale_recalls",
        "forgotten_seen",
        "false_receipts",
        "recall_errors",
        "degraded_outside_faults",
        "unfinished",
        "dead_after_replay",
    )

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, doubled, mixed up, stale, refused or left over."""
        return not any(getattr(self, name) for name in self.FAULTS)

    @property
    def broken(self) -> dict[str, int]:
        """What is not 0, by name."""
        return {name: getattr(self, name) for name in self.FAULTS if getattr(self, name)}


def compare(
    remembered: Sequence[Remembered],
    recalled: Sequence[Recalled],
    strikes: Sequence[Strike],
    evidence: Evidence,
    *,
    erased: Sequence[Erased] = (),
    damaged: Collection[str] = frozenset(),
) -> Findings:
    """Everything at once; call it after the drain and after every dead letter was replayed.

    `erased` are turns of users who were erased all along. `damaged` are markers of turns whose records on disk were
    damaged: nothing is promised of those.
    """
    attempted = {entry.marker for entry in remembered if entry.type == "invoke"} | {each.marker for each in erased}
    told = {entry.marker: entry for entry in remembered if entry.type == "ok" and entry.marker not in damaged}
    stored = Counter(marker for episode in evidence.episodes for marker in messages.markers_in(episode.content))
    facts = Counter(name for fact in evidence.facts for name in _objects(fact.object))
    wanted = {entry.fact for entry in told.values() if entry.fact}
    unexcused = [entry for entry in recalled if entry.type == "degraded" and not _is_excused(entry, strikes)]
    outside = [entry for entry in unexcused if not _is_by_model(entry)]
    recoveries = _recoveries(told, strikes, evidence)
    lost = sorted(({*told} | {each.marker for each in erased if each.kept}) - stored.keys())
    seen = [each for each in erased if each.forgotten and (each.seen or each.marker in stored)]
    false = [each for each in erased if each.receipt == "done" and each.kept and each.marker not in stored]
    false += [each for each in erased if each.receipt == "forgotten" and each.kept]
    doubled = [marker for marker, count in stored.items() if count > 1]
    # A fact that is stated once and was learnt twice is there once, and stronger: an effect without the fence.
    doubled_facts = [name for name, count in facts.items() if count > 1]
    doubled_facts += [fact.object for fact in evidence.facts if fact.strength > 1]
    missing = sorted(wanted - facts.keys())
    stale = [entry for entry in recalled if entry.type == "stale"]
    failed = [entry for entry in recalled if entry.type == "error"]
    swapped = _out_of_order(told.keys(), evidence)
    return Findings(
        turns=len(told),
        lost=len(lost),
        duplicated=len(doubled) + len(doubled_facts) + evidence.done_twice + evidence.doubled,
        unexpected=len(stored.keys() - attempted),
        out_of_order=len(swapped),
        unembedded=sum(not episode.embedded for episode in evidence.episodes),
        missing_facts=len(missing) + evidence.orphans,
        stale_recalls=len(stale),
        forgotten_seen=len(seen),
        false_receipts=len(false),
        recall_errors=len(failed),
        degraded_outside_faults=len(outside),
        unfinished=sum(evidence.unfinished.values()),
        dead_after_replay=evidence.dead_letters,
        recalls=len(recalled),
        recovered=len((attempted - told.keys()) & stored.keys()),
        degraded_recalls=sum(entry.type == "degraded" for entry in recalled),
        degraded_by_model=len(unexcused) - len(outside),
        damaged=len(damaged),
        erasures=sum(each.forgotten for each in erased),
        spooled=sum(entry.spooled for entry in told.values()),
        recovery_p99_s=percentile([seconds for _, seconds in recoveries], 0.99),
        recovery_s={kind: max(seconds for found, seconds in recoveries if found == kind) for kind, _ in recoveries},
        recall_p99_ms=1000 * percentile([entry.ended - entry.began for entry in recalled], 0.99),
        remember_p99_ms=1000 * percentile([entry.took for entry in told.values()], 0.99),
        examples={
            name: found[:5]
            for name, found in {
                "lost": lost,
                "duplicated": doubled + doubled_facts,
                "out_of_order": [f"{one} stands before {told[one].user}'s {other}" for one, other in swapped],
                "missing_facts": missing,
                "stale_recalls": [f"{e.marker} of {e.user}, {e.began - e.acknowledged:.3f} s old" for e in stale],
                "forgotten_seen": [f"{e.marker}, {e.seen} recalls, stored: {e.marker in stored}" for e in seen],
                "false_receipts": [f"{e.marker}: {e.receipt}" for e in false],
                "recall_errors": [entry.why for entry in failed],
                "degraded_outside_faults": [f"{entry.why} at {entry.began:.3f}" for entry in outside],
                "unfinished": [f"{count} {what}" for what, count in evidence.unfinished.items()],
                "dead_after_replay": [f"{count} {reason}" for reason, count in evidence.dead.items()],
            }.items()
            if found
        },
    )


def percentile(values: Iterable[float], share: float) -> float:
    """The nearest-rank percentile; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _objects(text: str) -> list[str]:
    return messages.objects_in(f"I collect {text.split()[-1]}")


def _is_excused(entry: Recalled, strikes: Sequence[Strike]) -> bool:
    hurting = (strike for strike in strikes if strike.hurts_recall)
    return any(strike.began <= entry.ended and entry.began <= strike.ended + GRACE for strike in hurting)


def _is_by_model(entry: Recalled) -> bool:
    """Whether only a slow model server explains it: the question's vector came late, and everything else was there."""
    return all("only a lexical search was made" in reason for reason in entry.why.split("; "))


def _out_of_order(told: Iterable[str], evidence: Evidence) -> list[tuple[str, str]]:
    """Neighbours of a session that stand the wrong way round. Only of turns that were acknowledged: each was sent
    after the one before was, so there is an order to keep."""
    known = set(told)
    sessions: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for episode in evidence.episodes:
        for marker in messages.markers_in(episode.content):
            if marker in known:
                sessions[episode.user, episode.session].append((episode.position, marker))
    inversions: list[tuple[str, str]] = []
    for rows in sessions.values():
        markers = [marker for _, marker in sorted(rows)]
        inversions += [(one, other) for one, other in pairwise(markers) if one > other]
    return inversions


def _recoveries(told: dict[str, Remembered], strikes: Sequence[Strike], evidence: Evidence) -> list[tuple[str, float]]:
    """For each fault, how long after its end the last turn was stored that had been acknowledged by then."""
    stored = evidence.stored_at
    pairs = [(entry.at, stored[entry.job]) for entry in told.values() if entry.job in stored]
    return [
        (strike.kind, max((at - strike.ended for told_at, at in pairs if told_at <= strike.ended < at), default=0.0))
        for strike in strikes
    ]
