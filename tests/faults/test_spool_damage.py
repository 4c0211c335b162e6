"""A damaged spool: only the damaged record is lost, its bytes are kept and reported, and all others are delivered."""

import asyncio
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from aftermind import Health, Memory
from aftermind.cli import doctor_checks
from aftermind.settings import Settings
from aftermind.types import Scope
from aftermind.types.tombstone import Tombstone
from aftermind.web.routes.metrics import Now
from tests.faults.test_agent_killed import acknowledged, start_agent
from tests.support.faults import kill
from tests.support.fork_server import run_module
from tests.support.servers import Database
from tests.support.turns import agent_on
from tests.support.valkey import Valkey, running_valkey
from tests.support.waiting import wait_until

pytestmark = pytest.mark.asyncio
MARKER = b"\xff\xfeAM"
HEADER = struct.Struct(">4scII")
TURNS, DAMAGED = 20, 3


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spool file of a real agent process whose Redis was stopped, and that was killed afterwards."""
    state = tmp_path_factory.mktemp("written")
    with running_valkey() as server:
        server.stop()
        process = start_agent(server.url, state, TURNS)
        acknowledged(process, TURNS)
        kill(process.pid)
        process.communicate()
        server.start()
    [path] = (state / "spool").iterdir()
    return path


def flipped(place: Callable[[int, int], int]) -> Callable[[bytearray, int, int], None]:
    def flip(data: bytearray, start: int, end: int) -> None:
        data[place(start, end)] ^= 0x04

    return flip


def with_length(length: int) -> Callable[[bytearray, int, int], None]:
    def change(data: bytearray, start: int, end: int) -> None:
        marker, kind, _, crc = HEADER.unpack_from(data, start)
        HEADER.pack_into(data, start, marker, kind, length, crc)

    return change


def zeroed(data: bytearray, start: int, end: int) -> None:
    data[start:end] = bytes(end - start)


def sent_instead(data: bytearray, start: int, end: int) -> None:
    data[start + 4 : start + 5] = b"S"


DAMAGES: dict[str, Callable[[bytearray, int, int], None]] = {
    "marker": flipped(lambda start, end: start + 1),
    "kind": flipped(lambda start, end: start + 4),
    "kind of another record": sent_instead,
    "length": flipped(lambda start, end: start + 8),
    "length beyond the file": with_length(2**31),
    "length of the next record too": with_length(1_000),
    "length zero": with_length(0),
    "crc": flipped(lambda start, end: start + 10),
    "first byte of the turn": flipped(lambda start, end: start + HEADER.size),
    "text of the turn": flipped(lambda start, end: (start + end) // 2),
    "last byte of the turn": flipped(lambda start, end: end - 1),
    "zeroed": zeroed,
}


def damage(path: Path, change: Callable[[bytearray, int, int], None], number: int = DAMAGED) -> None:
    data = bytearray(path.read_bytes())
    starts = [at for at in range(len(data)) if data.startswith(MARKER, at)]
    assert len(starts) == TURNS
    change(data, starts[number], [*starts, len(data)][number + 1])
    path.write_bytes(data)


def copied(written: Path, state: Path) -> Path:
    (state / "spool").mkdir(parents=True)
    return Path(shutil.copy(written, state / "spool"))


async def delivered(valkey: Valkey, state: Path, count: int) -> list[str]:
    """The texts that a new agent process on that state folder delivers, in order."""
    async with agent_on(valkey.url, state) as agent:
        await agent.remember("bob", "anything")
        await agent.all_seen(count)
        await agent.publisher.drained()
        return await agent.seen()


@pytest.mark.parametrize("where", DAMAGES)
@pytest.mark.parametrize("number", [0, DAMAGED, TURNS - 1], ids=["first", "middle", "last"])
async def test_damage_to_one_record_costs_that_record_alone(
    valkey: Valkey, written: Path, tmp_path: Path, where: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    damage(copied(written, tmp_path), DAMAGES[where], number)

    seen = await delivered(valkey, tmp_path, TURNS - 1)

    assert seen == [f"m{i}" for i in range(TURNS) if i != number]
    [kept] = (tmp_path / "spool").iterdir()
    assert kept.suffix == ".damaged"
    assert kept.stat().st_mode & 0o077 == 0
    assert any("spool is damaged" in line.message and line.levelname == "ERROR" for line in caplog.records)


async def test_two_damaged_places_of_a_file_are_kept_apart(valkey: Valkey, written: Path, tmp_path: Path) -> None:
    path = copied(written, tmp_path)
    damage(path, DAMAGES["text of the turn"], 2)
    damage(path, DAMAGES["length beyond the file"], 7)

    assert await delivered(valkey, tmp_path, TURNS - 2) == [f"m{i}" for i in range(TURNS) if i not in (2, 7)]
    assert [path.suffix for path in (tmp_path / "spool").iterdir()] == [".damaged"] * 2


@pytest.mark.parametrize("cut", [1, 40, 100])
async def test_a_truncated_tail_costs_the_last_record_alone(
    valkey: Valkey, written: Path, tmp_path: Path, cut: int
) -> None:
    path = copied(written, tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])

    assert await delivered(valkey, tmp_path, TURNS - 1) == [f"m{i}" for i in range(TURNS - 1)]


async def test_a_file_of_garbage_is_kept_and_the_others_are_delivered(
    valkey: Valkey, written: Path, tmp_path: Path
) -> None:
    path = copied(written, tmp_path)
    garbage = bytes(range(256)) * 20_000 + MARKER  # longer than one read
    (path.parent / "1-garbage.spool").write_bytes(garbage)

    assert await delivered(valkey, tmp_path, TURNS) == [f"m{i}" for i in range(TURNS)]
    [kept] = path.parent.iterdir()
    assert kept.suffix == ".damaged"
    assert kept.read_bytes() == garbage


async def test_a_record_that_is_damaged_while_its_agent_runs_holds_up_no_other(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        valkey.stop()
        for i in range(TURNS):
            await agent.remember("alice", f"m{i}")
        [path] = (tmp_path / "spool").iterdir()
        with path.open("r+b") as file:
            data = bytearray(file.read())
            at = data.index(b'"content":"m3"')
            file.seek(at + 4)
            file.write(b"X")

        valkey.start()

        assert await agent.all_seen(TURNS - 1) == [f"m{i}" for i in range(TURNS) if i != 3]
        await agent.publisher.drained()
        await wait_until(
            lambda: [each.suffix for each in path.parent.iterdir()] == [".damaged"], description="the file is gone"
        )


async def test_damage_is_shown_by_doctor_and_health_until_the_user_is_forgotten(
    valkey: Valkey, database: Database, written: Path, tmp_path: Path
) -> None:
    damage(copied(written, tmp_path), DAMAGES["last byte of the turn"])
    await delivered(valkey, tmp_path, TURNS - 1)
    settings = Settings(state_dir=tmp_path)

    [finding, _] = await doctor_checks.spool(settings)
    assert finding.verdict is doctor_checks.Verdict.BAD
    assert "1 damaged place" in finding.seen
    async with Memory(database.app_url, broker=valkey.url, settings=settings) as memory:
        found = await memory.health()
    [spool] = [part for part in found.parts if part.name == "spool"]
    assert spool.state == "degraded"
    assert "1 damaged place" in spool.detail
    assert found.waiting is not None
    assert found.waiting.spool_damaged == 1

    async with agent_on(valkey.url, tmp_path) as agent:
        await agent.publisher.forget(Tombstone(owner=Scope(user_id="someone else"), generation=2**40))
        assert len(list((tmp_path / "spool").iterdir())) == 1
        await agent.publisher.forget(Tombstone(owner=Scope(user_id="alice"), generation=2**40))
        assert list((tmp_path / "spool").iterdir()) == []


async def test_the_spool_is_measured_while_redis_is_away(valkey: Valkey, database: Database, tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, remember_budget_seconds=2.0, redis_timeout_seconds=1.0)
    async with Memory(database.app_url, broker=valkey.url, settings=settings) as memory:
        await memory.remember("bees", user_id="alice")
        with valkey.frozen():
            assert (await memory.remember("more bees", user_id="alice")).spooled
            found = await memory.health()
            rows = generate_latest(_registry_of(found)).decode()
            env = {"AFTERMIND_DATABASE_URL": database.app_url, "AFTERMIND_BROKER_URL": valkey.url}
            liveness = await asyncio.to_thread(run_module, ["aftermind.cli", "health"], env={**os.environ, **env})
        await memory.close()

    assert found.waiting is not None
    assert found.waiting.spooled_bytes > 0
    assert not found.waiting.is_known
    assert "aftermind_spool_bytes" in rows
    assert "aftermind_pending_turns" not in rows, "it would be read as 0"
    [models] = [part for part in found.parts if part.name == "models"]
    assert (models.state, models.detail) == ("ok", "unknown: Redis does not answer")
    assert liveness.returncode == 0, "a restart of every worker would not help"
    assert "redis" in liveness.stderr


def _registry_of(health: Health) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Now(health))
    return registry
