"""Dead letters on stores of one process: listed, grouped, discarded, and kept over a restart."""

from pathlib import Path

import pytest

from aftermind import JobFilter, Memory, Settings, errors
from aftermind.llm.protocols import Extraction, ExtractionRequest
from aftermind.types import JobKind, JobState
from tests.support.waiting import PATIENCE_SECONDS, wait_until


class RefusingModel:
    """An extractor whose model refuses everything."""

    name, version = "refusing", "1"

    async def extract(self, request: ExtractionRequest) -> Extraction:
        raise errors.ModelRefused("refusing", "it must not be read")


@pytest.fixture(params=["inmemory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path}/bot.db"


def memory_at(url: str, folder: Path) -> Memory:
    settings = Settings(state_dir=folder, embedder="off", extract_quiet_seconds=0.1)
    return Memory(url, extractor=RefusingModel(), settings=settings)


async def test_a_dead_letter_is_listed_grouped_shown_and_discarded(url: str, tmp_path: Path) -> None:
    async with memory_at(url, tmp_path) as memory:
        for user in ("alice", "bob"):
            await (await memory.remember("I live in Oslo.", user_id=user)).stored(timeout=PATIENCE_SECONDS)

        async def are_dead() -> bool:
            return len(await memory.dead_letters.list(JobFilter())) == 2

        await wait_until(are_dead, description="both extractions are dead letters")
        (group,) = await memory.dead_letters.groups(JobFilter())
        assert (group.kind, group.reason_code, group.count) == (JobKind.EXTRACT, "policy_blocked", 2)
        of_alice = JobFilter(namespace="default", user_id="alice", kinds=(JobKind.EXTRACT,), error="MUST NOT")
        (job,) = await memory.dead_letters.list(of_alice)
        assert await memory.dead_letters.list(JobFilter(reasons=("other",))) == []
        letter = await memory.dead_letters.get(job.id)
        assert letter is not None
        assert [each.outcome for each in letter.attempts] == ["dead"]

        with pytest.raises(errors.InvalidFilter, match="a reason and an actor"):
            await memory.dead_letters.discard(of_alice, note=" ", actor="ops")
        assert await memory.dead_letters.discard(of_alice, note="not needed", actor="ops") == 1
        assert await memory.dead_letters.discard(of_alice, note="not needed", actor="ops") == 0
        assert [each.scope.user_id for each in await memory.dead_letters.list(JobFilter())] == ["bob"]
    if url == "inmemory":
        return
    async with memory_at(url, tmp_path) as memory:
        assert [each.scope.user_id for each in await memory.dead_letters.list(JobFilter())] == ["bob"]
        (closed,) = await memory.dead_letters.list(JobFilter(states=(JobState.DISCARDED,)))
        assert (closed.id, closed.note) == (job.id, "not needed (ops)")
