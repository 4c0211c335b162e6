"""Turns that the ledger accepts are counted seldom, and refused from the limit on."""

from collections import Counter
from datetime import timedelta

from aftermind.db.database_protocol import Transaction
from aftermind.db.inmemory_database import MemoryDatabase
from aftermind.ledger.inmemory.ledger import InMemoryLedger
from aftermind.ledger.protocol import Unstored
from aftermind.outbox.ledger_backlog_limits import LedgerLimits
from aftermind.wire.pending_types import PendingLimit, PendingLimits
from tests.support.turns import turn_of

LIMITS = PendingLimits(turns=1_000, size_bytes=2**30, age=timedelta(hours=1), turns_of_user=500)


class CountingLedger(InMemoryLedger):
    """Counts how often it counts, by user."""

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database)
        self.counts: Counter[str | None] = Counter()

    async def measure_unstored(self, tx: Transaction, namespace: str, user: str | None, *, limit: int) -> Unstored:
        self.counts[user] += 1
        return await super().measure_unstored(tx, namespace, user, limit=limit)


class Process:
    """One process that accepts turns, with a clock that stands still."""

    def __init__(self, limits: PendingLimits = LIMITS) -> None:
        self.database = MemoryDatabase()
        self.ledger = CountingLedger(self.database)
        self.now = 0.0
        self.limits = LedgerLimits(self.ledger, limits, clock=lambda: self.now)

    async def accept(self, user: str = "alice") -> PendingLimit | None:
        """Why a turn is refused; None if it is accepted."""
        turn = turn_of(user, "text")
        async with self.database.transaction(namespace=turn.scope.namespace) as tx:
            refused = await self.limits.refusal(tx, turn.scope, size=len(b"payload"))
            if refused is not None:
                return refused[0]
            await self.ledger.accept(tx, turn, b"payload")
        return None


async def test_a_hundred_turns_take_a_few_counts() -> None:
    process = Process()

    refusals = [await process.accept() for _ in range(100)]

    assert refusals == [None] * 100
    assert process.ledger.counts[None] == 1
    assert process.ledger.counts["alice"] <= 2


async def test_the_limit_of_a_user_is_exact_in_one_process() -> None:
    process = Process()

    refusals = [await process.accept() for _ in range(600)]

    assert refusals == [None] * 500 + [PendingLimit.USER] * 100
    assert await process.accept("bob") is None


async def test_a_refusal_is_counted_again_after_its_interval() -> None:
    process = Process(PendingLimits(turns=2, size_bytes=2**30, age=timedelta(hours=1), turns_of_user=2))
    before = [await process.accept() for _ in range(50)]
    counted = process.ledger.counts[None]
    async with process.database.transaction() as tx:
        for job_id, _ in await process.ledger.list_turn_payloads(tx, turn_of("alice").scope.owner):
            await process.ledger.rewrite_turn(tx, job_id, None)
    still = await process.accept()

    process.now = 10.0
    after = await process.accept()

    assert before == [None, None] + [PendingLimit.TURNS] * 48
    assert counted <= 4
    assert (still, after) == (PendingLimit.TURNS, None)
