"""Two real workers mine one session, delivered twice and out of order: the facts are those of the usual order, once."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from aftermind import Memory, Message
from aftermind.db.engine import PostgresDatabase
from aftermind.ledger.postgres.ledger import PostgresLedger
from aftermind.outbox.doorbell_message import Doorbell
from aftermind.types import JobKind, JobState
from aftermind.wire import queues
from tests.support.scripted_openai import scripted_openai
from tests.support.servers import Database
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

START = datetime(2024, 1, 1, tzinfo=UTC)
BRISK = {"AFTERMIND_EXTRACT_QUIET_SECONDS": "0.1", "AFTERMIND_RECONCILE_SECONDS": "0.5"}
# What is said month by month: moves, a return, a claim that is taken back, and said again.
SAID: list[tuple[str, str, str, str]] = [
    ("I live in Oslo.", "lives_in", "Oslo", "assert"),
    ("I live in Rome now.", "lives_in", "Rome", "assert"),
    ("Back in Oslo.", "lives_in", "Oslo", "assert"),
    ("I like jazz.", "likes", "jazz", "assert"),
    ("I never lived in Rome, that was a joke.", "lives_in", "Rome", "retract"),
    ("I cannot stand jazz any more.", "dislikes", "jazz", "assert"),
    ("Jazz is fine again.", "likes", "jazz", "assert"),
    ("Now I really live in Rome.", "lives_in", "Rome", "assert"),
]
SHUFFLED = (4, 6, 2, 7, 0, 5, 1, 3)


def script() -> dict[str, list[dict[str, Any]]]:  # Any: JSON of the model's answer
    return {
        text: [{"subject": "user", "predicate": predicate, "object": object_, "operation": operation}]
        for text, predicate, object_, operation in SAID
    }


async def tell(memory: Memory, user: str, order: Sequence[int], bell: Doorbell, ledger: PostgresLedger) -> None:
    """Each is mined before the next one comes, and every bell that was ever rung is rung twice more."""
    for number in order:
        at = START + timedelta(days=30 * number)
        receipt = await memory.remember([Message.user(SAID[number][0], occurred_at=at)], user_id=user, session_id="one")
        await receipt.extracted(timeout=180)
        jobs = [job.id for job in await ledger.jobs(kinds=[JobKind.EXTRACT]) if job.scope.user_id == user]
        bell.ring(queues.EXTRACT, jobs * 2)


async def believed(memory: Memory, user: str) -> list[tuple[str, str, object, object, int]]:
    rows = [fact for fact in await memory.facts.history(user_id=user) if fact.superseded_at is None]
    return sorted(
        ((fact.predicate, fact.object, fact.valid_from, fact.valid_to, fact.strength) for fact in rows), key=str
    )


@pytest.mark.long
async def test_the_facts_are_those_of_the_usual_order_once(database: Database, redis_url: str, tmp_path: Path) -> None:
    db = PostgresDatabase(database.url)
    ledger, bell, memory = PostgresLedger(db), Doorbell(redis_url), Memory(database.app_url, broker=redis_url)
    with scripted_openai() as model:
        model.script.facts = script()
        asked = {"AFTERMIND_EXTRACTOR": "openai:scripted", "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": model.url}
        env = environment(database.relay_url, redis_url, **BRISK, **asked)
        with workers(env, tmp_path, count=2, on=f"{queues.STORE},{queues.EXTRACT}"):
            await tell(memory, "in order", range(len(SAID)), bell, ledger)
            await tell(memory, "shuffled", SHUFFLED, bell, ledger)

            async def quiet() -> bool:
                jobs = await ledger.jobs(kinds=[JobKind.EXTRACT])
                return all(job.state is JobState.DONE for job in jobs)

            await wait_until(quiet, description="nothing is left to mine")

    wanted, found = await believed(memory, "in order"), await believed(memory, "shuffled")
    told = {job.attempts for job in await ledger.jobs(kinds=[JobKind.EXTRACT])}
    await memory.close()
    await db.close()
    bell.close()

    def month(number: int) -> datetime:
        return START + timedelta(days=30 * number)

    assert wanted == sorted(
        [
            ("dislikes", "jazz", month(5), month(6), 1),
            ("likes", "jazz", month(3), month(5), 1),
            ("likes", "jazz", month(6), None, 1),
            ("lives_in", "Oslo", month(0), month(2), 1),
            ("lives_in", "Oslo", month(2), month(7), 1),
            ("lives_in", "Rome", month(7), None, 1),
        ],
        key=str,
    )
    assert found == wanted
    assert told == {1}, "two workers never mined one session at once"
