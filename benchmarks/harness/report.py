"""The figures of a run, and whether the promise was kept."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.harness import phase
from benchmarks.harness.checker import Findings
from benchmarks.harness.fault_schedule import FaultKind
from benchmarks.harness.mutants import Caught
from benchmarks.harness.phase import LegResult
from benchmarks.harness.plain_celery import BareResult
from benchmarks.harness.run_settings import Pace

ZEROS = (
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
SUMS = ("turns", "recalls", "degraded_recalls", "degraded_by_model", "recovered", "spooled", "erasures", "damaged")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Everything that a run found."""

    legs: tuple[LegResult, ...]
    bare: BareResult
    caught: tuple[Caught, ...]
    pace: Pace

    @property
    def findings(self) -> tuple[Findings, ...]:
        """Of each leg."""
        return tuple(result.findings for result in self.legs)


def figures(found: RunReport) -> dict[str, object]:
    """One flat object; counts are those of both legs together, percentiles the worse of the two."""
    totals: dict[str, object] = {
        name: sum(getattr(each, name) for each in found.findings) for name in (*SUMS[:1], *ZEROS, *SUMS[1:])
    }
    return {
        **totals,
        "dead_letters": sum(result.dead_letters for result in found.legs),
        "kills": sum(result.kills for result in found.legs),
        "redis_restarts": phase.count(found.legs, FaultKind.KILL_REDIS, FaultKind.WIPE_REDIS),
        "redis_wipes": phase.count(found.legs, FaultKind.WIPE_REDIS),
        "postgres_restarts": phase.count(found.legs, FaultKind.RESTART_POSTGRES),
        "replica_restarts": phase.count(found.legs, FaultKind.RESTART_REPLICA),
        "recovery_p99_s": round(max(each.recovery_p99_s for each in found.findings), 2),
        "recall_p99_ms": round(max(each.recall_p99_ms for each in found.findings), 1),
        "remember_p99_ms": round(max(each.remember_p99_ms for each in found.findings), 1),
        "drain_s": round(max(result.drained_seconds for result in found.legs), 1),
        "stop_max_s": round(max((s for result in found.legs for s in result.stop_seconds), default=0.0), 2),
        "bare_celery_jobs": found.bare.jobs,
        "bare_celery_lost": found.bare.lost,
        "bare_celery_duplicated": found.bare.duplicated,
        "bare_celery_kills": found.bare.kills,
        "bare_celery_left": found.bare.left,
        "planted_faults": len(found.caught),
        "planted_faults_caught": sum(each.is_caught for each in found.caught),
        "planted": {each.plant.name.lower(): dict(each.broken) for each in found.caught},
        "planted_max_s": round(max((each.seconds for each in found.caught), default=0.0), 1),
        "seconds": found.pace.seconds,
        "rate": found.pace.rate,
        "seed": found.pace.seed,
        "appendfsync": "always",
        "postgres_fsync": "off (processes are killed, no power is cut)",
    }


def is_kept(found: RunReport) -> bool:
    """Whether nothing was lost and every planted fault was noticed."""
    return all(each.is_clean for each in found.findings) and all(each.is_caught for each in found.caught)


def table(found: RunReport) -> str:
    """For people: the figures as a Markdown table, what broke with examples, and what each fault was recovered in."""
    lines = ["", "| figure | value |", "|---|---:|"]
    lines += [f"| {name} | {value} |" for name, value in figures(found).items() if not isinstance(value, dict)]
    lines += ["", "| fault | times | recovered within, s |", "|---|---:|---:|"]
    for kind in FaultKind:
        worst = max((each.recovery_s.get(kind, 0.0) for each in found.findings), default=0.0)
        times = phase.count(found.legs, kind)
        lines += [f"| {kind} | {times} | {worst:.1f} |"] if times else []
    if found.caught:
        lines += ["", "| planted fault | what the count said |", "|---|---|"]
        lines += [f"| {each.plant} | {_said(each)} |" for each in found.caught]
    for each in found.findings:
        lines += [f"{name}: {examples}" for name, examples in each.examples.items()]
    return "\n".join(lines) + "\n"


def _said(caught: Caught) -> str:
    counts: Mapping[str, int] = caught.broken
    losses = ", ".join(f"{count} {name}" for name, count in counts.items()) or caught.error or "nothing"
    return losses if caught.is_caught else f"NOT CAUGHT: {losses}"
