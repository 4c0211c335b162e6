"""Turns of tenants: what costs more than a claim is paid with the next turns."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import uuid4

from aftermind.ledger.inmemory.job_records import make_job
from aftermind.types import JobKind, JobState, Lease, LeaseToken, Scope
from aftermind_tasks.per_tenant_batches import Turns

NOW = datetime(2025, 1, 1, tzinfo=UTC)


class Claims:
    """Claims of one job of each tenant that is not left out, while it has any."""

    def __init__(self, **waiting: list[int]) -> None:
        self._waiting = waiting

    async def claim(self, left_out: Sequence[str]) -> list[Lease]:
        """The next job of each."""
        return [
            lease(name, weights.pop(0)) for name, weights in self._waiting.items() if name not in left_out and weights
        ]


def lease(namespace: str, weight: int) -> Lease:
    scope = Scope(namespace=namespace, user_id="u")
    job = make_job(uuid4(), JobKind.EMBED, scope, JobState.RUNNING, "effect", NOW)
    return Lease(job=job, token=LeaseToken(uuid4()), until=NOW, worker="w", weight=weight)


async def served(turns: Turns, claims: Claims) -> list[tuple[str, bool]]:
    """Who is served by each claim until nothing is left, and whether more may be left after it."""
    found = []
    while (claimed := await turns.claim(claims.claim))[0]:
        leases, is_more = claimed
        found.append((" ".join(each.job.scope.namespace for each in leases), is_more))
    return found


async def test_a_tenant_pays_with_its_next_turns() -> None:
    claims = Claims(loud=[40, 40], quiet=[1] * 6)

    found = await served(Turns(weight=10), claims)

    assert [names for names, _ in found] == ["loud quiet", *["quiet"] * 3, "loud quiet", "quiet"]


async def test_a_debt_does_not_count_while_no_other_tenant_has_jobs() -> None:
    found = await served(Turns(weight=10), Claims(loud=[40, 40, 5, 5]))

    assert found == [("loud", True), ("loud", True), ("loud", True), ("loud", False)]


async def test_jobs_of_one_cost_are_claimed_without_debts() -> None:
    found = await served(Turns(weight=None), Claims(loud=[40, 40], quiet=[1, 1]))

    assert found == [("loud quiet", False)] * 2
