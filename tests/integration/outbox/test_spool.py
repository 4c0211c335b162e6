"""Turns on local disk: whole, in order, bounded, readable by every process of the host."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from aftermind import errors
from aftermind.outbox import spool as spool_module
from aftermind.outbox.spool import Spool
from aftermind.outbox.spool_segment import Segment
from aftermind.types import Scope, Turn
from aftermind.types.tombstone import Tombstone
from aftermind.wire.redis_keys import owner_part
from aftermind.wire.turn_encoding import encode_turn
from tests.support.turns import texts_of, turn_of

pytestmark = pytest.mark.asyncio
ALICE = Scope(user_id="alice")


def spool_in(folder: Path, max_bytes: int = 10**7) -> Spool:
    return Spool(folder / "spool", max_bytes=max_bytes)


async def put(spool: Spool, *turns: Turn) -> None:
    for turn in turns:
        await spool.append(turn, encode_turn(turn))


def files(folder: Path) -> list[Path]:
    return sorted((folder / "spool").glob("*.spool"))


async def test_constructing_and_asking_an_empty_spool_touches_no_disk(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)

    assert await spool.pending(ALICE) == ()
    assert not spool.has_files()
    assert not spool.holds(owner_part(ALICE), "s1")
    assert files(tmp_path) == []


async def test_a_turn_comes_out_as_it_went_in(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    turn = turn_of("alice", "ünïcode \N{SNOWMAN}", "Noted.")

    await put(spool, turn)

    assert await spool.pending(ALICE) == (turn,)
    assert spool.holds(owner_part(ALICE), "s1")
    assert not spool.holds(owner_part(ALICE), "s2")
    spool.close()


async def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    await put(spool, turn_of("alice"))

    assert (tmp_path / "spool").stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in files(tmp_path))
    spool.close()


async def test_what_is_sent_is_gone_and_so_is_its_file(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    first, second = turn_of("alice", "first"), turn_of("alice", "second")
    await put(spool, first, second)

    await spool.sent([first.job_id])
    assert texts_of(await spool.pending(ALICE)) == ["second"]
    assert len(files(tmp_path)) == 1

    await spool.sent([second.job_id])
    assert files(tmp_path) == []
    assert not spool.holds(owner_part(ALICE), "s1")


@pytest.mark.parametrize("cut", range(1, 60, 7))
async def test_a_torn_tail_costs_the_torn_turn_only(tmp_path: Path, cut: int) -> None:
    spool = spool_in(tmp_path)
    await put(spool, turn_of("alice", "whole"), turn_of("alice", "torn"))
    spool.close()
    [path] = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])

    heir = spool_in(tmp_path)
    await heir.take_over()

    assert texts_of(await heir.pending(ALICE)) == ["whole"]
    heir.close()


async def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    await put(spool, turn_of("alice", "whole"), turn_of("alice", "flipped"))
    spool.close()
    [path] = files(tmp_path)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)

    heir = spool_in(tmp_path)
    await heir.take_over()

    assert texts_of(await heir.pending(ALICE)) == ["whole"]
    heir.close()


async def test_a_later_releases_turn_stays_until_somebody_can_read_it(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    turn = turn_of("alice", "old")
    await spool.append(turn, b'{"v":99}')
    spool.close()

    heir = spool_in(tmp_path)
    assert await heir.take_over() == 0
    await heir.sent([turn.job_id])

    assert len(files(tmp_path)) == 1
    heir.close()


async def test_space_comes_back_while_a_long_spool_drains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "SEGMENT_BYTES", 1_000)
    spool = spool_in(tmp_path)
    turns = [turn_of("alice", f"m{i} " + "x" * 300) for i in range(12)]
    await put(spool, *turns)
    before = len(files(tmp_path))

    await spool.sent([turn.job_id for turn in turns[:9]])

    assert before >= 6
    assert len(files(tmp_path)) <= before / 2
    assert [text.split()[0] for text in texts_of(await spool.pending(ALICE))] == ["m9", "m10", "m11"]
    spool.close()


async def test_the_bound_holds_for_all_processes_together(tmp_path: Path) -> None:
    first, second = spool_in(tmp_path, 2_000), spool_in(tmp_path, 2_000)
    await put(first, *(turn_of("alice", "x" * 300) for _ in range(3)))

    with pytest.raises(errors.SpoolFull):
        await put(second, turn_of("bob", "y" * 300), turn_of("bob", "y" * 300))

    first.close()
    second.close()


async def test_the_oldest_go_first_whoever_wrote_them(tmp_path: Path) -> None:
    gone = spool_in(tmp_path)
    await put(gone, turn_of("alice", "m0", base=10), turn_of("alice", "m2", base=30))
    gone.close()
    spool = spool_in(tmp_path)
    await put(spool, turn_of("alice", "m1", base=20), turn_of("bob", "b", base=25))
    await spool.take_over()

    found = await spool.next(10, passing=frozenset({owner_part(Scope(user_id="bob"))}))

    assert [each.messages[0].content for each in found] == ["m0", "m2", "m1"]
    spool.close()


async def test_what_is_forgotten_is_not_sent_nor_seen_in_any_process(tmp_path: Path) -> None:
    mine, others = spool_in(tmp_path), spool_in(tmp_path)
    before, after = (replace(turn_of("alice", text), generation=n) for n, text in enumerate(("secret two", "kept")))
    await put(mine, replace(turn_of("alice", "secret one"), generation=0), turn_of("bob", "secret of bob"))
    await put(others, before, after)

    dropped = await mine.forget(Tombstone(owner=ALICE, generation=1))

    assert len(dropped) == 2
    for spool in (mine, others):
        assert texts_of(await spool.pending(ALICE)) == ["kept"]
        assert texts_of(await spool.pending(Scope(user_id="bob"))) == ["secret of bob"]
    assert [each.messages[0].content for each in await others.next(10)] == ["kept"]
    mine.close()
    others.close()


async def test_what_another_process_forgot_leaves_the_disk_while_a_third_has_taken_over_its_file(
    tmp_path: Path,
) -> None:
    app, ended, third = spool_in(tmp_path), spool_in(tmp_path), spool_in(tmp_path)
    await put(app, replace(turn_of("alice", "secret one"), generation=0))
    await put(ended, replace(turn_of("alice", "secret two"), generation=0))
    await ended.forget(Tombstone(owner=ALICE, generation=1))
    ended.close()
    assert await third.take_over() == 0
    assert len(files(tmp_path)) == 2, "the app has not read the erasure"

    assert await app.take_over() == 0
    later = turn_of("bob", "later")
    await put(app, later)
    await app.sent([later.job_id])
    assert await third.take_over() == 0

    assert files(tmp_path) == []
    app.close()
    third.close()


@pytest.mark.parametrize("ends", [False, True])
async def test_a_turn_that_is_given_again_with_its_key_after_the_forget_is_sent(tmp_path: Path, ends: bool) -> None:
    """`ends`: the process that has it ends before it is sent, while the one that forgot is alive."""
    app, forgetting = spool_in(tmp_path), spool_in(tmp_path)
    first = replace(turn_of("alice", "secret"), generation=0, content_hash="one")
    again = replace(turn_of("alice", "again"), job_id=first.job_id, generation=1, content_hash="two")
    await put(app, first, turn_of("bob", "of bob"))
    await forgetting.forget(Tombstone(owner=ALICE, generation=1))

    await put(app, again)
    if ends:
        app.close()
        app = spool_in(tmp_path)
    await app.take_over()
    found = await app.next(10)

    assert sorted(texts_of(found)) == ["again", "of bob"]
    assert texts_of(await forgetting.pending(ALICE)) == ["again"]
    await app.sent([turn.job_id for turn in found])
    await forgetting.take_over()
    assert files(tmp_path) == []
    app.close()
    forgetting.close()


async def test_a_key_that_another_process_forgot_is_sent_from_a_file_without_the_forgotten_turn(
    tmp_path: Path,
) -> None:
    app, forgetting, third = spool_in(tmp_path), spool_in(tmp_path), spool_in(tmp_path)
    first = replace(turn_of("alice", "secret"), generation=0, content_hash="one")
    await put(app, first)
    await forgetting.forget(Tombstone(owner=ALICE, generation=1))

    await put(third, replace(turn_of("alice", "again"), job_id=first.job_id, generation=1, content_hash="two"))
    await app.take_over()

    assert texts_of(await third.next(10)) == ["again"]
    assert await app.next(10) == []
    for spool in (app, forgetting, third):
        spool.close()


async def test_turns_that_come_together_share_a_sync_and_each_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = spool_in(tmp_path)
    writes = []
    append = Segment.append

    def counted(segment: Segment, turns: list[tuple[Turn, bytes]]) -> object:
        writes.append(len(turns))
        return append(segment, turns)

    monkeypatch.setattr(Segment, "append", counted)
    turns = [turn_of(f"u{i}", str(i)) for i in range(100)]

    await asyncio.gather(*(spool.append(turn, encode_turn(turn)) for turn in turns))

    assert sum(writes) == 100
    assert len(writes) < 60
    assert spool.unsent == 100
    spool.close()


async def test_a_disk_without_room_tells_and_keeps_what_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = spool_in(tmp_path)
    await put(spool, turn_of("alice", "kept"))
    written = Segment._write

    def no_room(segment: Segment, data: bytes, *, is_synced: bool) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Segment, "_write", no_room)
    with pytest.raises(errors.SpoolUnavailable):
        await put(spool, turn_of("alice", "lost"))
    monkeypatch.setattr(Segment, "_write", written)

    await put(spool, turn_of("alice", "after"))

    assert texts_of(await spool.pending(ALICE)) == ["kept", "after"]
    spool.close()
