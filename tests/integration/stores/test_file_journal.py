"""The journal in a folder: whole commits after any interruption, and a named error for damage."""

import random
import resource
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from aftermind import errors
from aftermind.db.record_store_journals import files
from aftermind.db.record_store_journals.files import FileJournal

Rows = dict[tuple[str, str], bytes]
State = dict[str, Rows]


def opened(folder: Path) -> FileJournal:
    journal = FileJournal(folder)
    journal.open()
    return journal


def content(journal: FileJournal) -> State:
    found = {name: {(table, key): row for table, key, row in journal.load(name)} for name in journal.partitions()}
    return {name: rows for name, rows in found.items() if rows}


def content_of(folder: Path) -> State:
    with closing(opened(folder)) as journal:
        return content(journal)


def test_any_commits_are_read_back_whenever_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LOG_BYTES", 500)
    monkeypatch.setattr(files, "SLACK_BYTES", 200)
    draw = random.Random(17)
    state: State = {}
    for _ in range(20):
        with closing(opened(tmp_path / "store")) as journal:
            for _ in range(draw.randrange(12)):
                batch = {
                    f"p{draw.randrange(3)}": {
                        ("t", str(draw.randrange(8))): draw.choice([None, b'"%d"' % draw.randrange(10**9)])
                        for _ in range(draw.randrange(1, 5))
                    }
                }
                journal.commit(batch)
                for partition, rows in batch.items():
                    for place, row in rows.items():
                        known = state.setdefault(partition, {})
                        known.pop(place, None) if row is None else known.update({place: row})
                assert list(journal.load(partition)) == [(*place, row) for place, row in state[partition].items()]
            if draw.random() < 0.3:
                journal.compact(["p0"])
        assert content_of(tmp_path / "store") == {name: rows for name, rows in state.items() if rows}


def test_a_commit_that_was_cut_off_at_any_byte_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "before")) as journal:
        journal.commit({"a": {("t", "1"): b'"old"'}})
    journal = opened(tmp_path / "before")
    journal.commit({"a": {("t", "1"): b'"new"'}, "b": {("t", "2"): b'"two"'}})
    log = (tmp_path / "before" / "log").read_bytes()
    journal._release()  # as a killed process leaves it: the log is not emptied
    old: State = {"a": {("t", "1"): b'"old"'}}

    for size in range(len(log) + 1):
        shutil.copytree(tmp_path / "before", tmp_path / "cut")
        (tmp_path / "cut" / "log").write_bytes(log[:size])
        whole: State = {"a": {("t", "1"): b'"new"'}, "b": {("t", "2"): b'"two"'}}
        assert content_of(tmp_path / "cut") == (whole if size == len(log) else old)
        shutil.rmtree(tmp_path / "cut")


def test_an_append_to_a_partition_that_was_cut_off_is_repeated(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "s")) as journal:
        journal.commit({"a": {("t", "1"): b'"one"'}})
        journal._empty_log()
        journal.commit({"a": {("t", "2"): b'"two"'}})
        log = (tmp_path / "s" / "log").read_bytes()
    (file,) = (tmp_path / "s" / "partitions").iterdir()
    lines = file.read_bytes()

    for size in range(lines.index(b'"two"') - 12, len(lines)):
        file.write_bytes(lines[:size])
        (tmp_path / "s" / "log").write_bytes(log)
        assert content_of(tmp_path / "s") == {"a": {("t", "1"): b'"one"', ("t", "2"): b'"two"'}}


def test_a_damaged_line_is_named_and_other_partitions_are_read(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "s")) as journal:
        journal.commit({name: {("t", str(i)): b'"row"' for i in range(3)} for name in ("a", "b")})
    path = journal._path("a")
    path.write_bytes(path.read_bytes().replace(b'"row"', b'"raw"', 1))

    with closing(opened(tmp_path / "s")) as journal:
        with pytest.raises(errors.StoreDamaged, match=r"line 2 of .*does not fit its checksum.*Restore it"):
            journal.load("a")
        assert len(list(journal.load("b"))) == 3


def test_a_file_that_lost_its_end_is_damaged(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "s")) as journal:
        journal.commit({"a": {("t", "1"): b'"one"'}})
    path = journal._path("a")
    path.write_bytes(path.read_bytes()[:-3])

    with closing(opened(tmp_path / "s")) as journal, pytest.raises(errors.StoreDamaged, match="incomplete"):
        journal.load("a")


def test_a_write_that_fails_halfway_leaves_the_commits_before_it(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "s")) as journal:
        journal.commit({"a": {("t", "1"): b'"one"'}})
        with largest_file(200), pytest.raises(errors.StoreUnavailable, match="Free disk space"):
            journal.commit({"a": {("t", "2"): b'"%s"' % (b"x" * 1_000)}})
        journal.commit({"a": {("t", "3"): b'"three"'}})

    assert content_of(tmp_path / "s") == {"a": {("t", "1"): b'"one"', ("t", "3"): b'"three"'}}


def test_a_folder_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "invoices.txt").write_bytes(b"1")

    with pytest.raises(errors.InvalidSettings, match="belongs to another program"):
        FileJournal(tmp_path).open()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writes beyond the size fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
