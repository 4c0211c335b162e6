"""As root and as a normal user, and from folders that only root may enter."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aftermind.errors import StackError
from aftermind.stack import Stack, binaries, run_without_root
from tests.support import faults
from tests.support.paths import without_setpriv
from tests.support.servers import FAST, psql

UP_AND_DOWN = """
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from aftermind.stack import Stack
with Stack(Path(sys.argv[1]), postgres_settings={"fsync": "off"}) as stack:
    print(stack.running().replica_urls[0])
"""
DAEMON = 1  # a user with a name, which initdb insists on, and without rights
as_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv to become somebody else"
)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; those of pytest are for its own user only."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@as_root
def test_a_normal_user_runs_the_stack_under_his_own_name(open_folder: Path) -> None:
    home = open_folder / "home"
    home.mkdir()
    os.chown(home, DAEMON, DAEMON)

    done = _as_user(DAEMON, [sys.executable, "-c", UP_AND_DOWN, str(home / "state")], cwd=home)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("postgresql://")
    assert {path.stat().st_uid for path in (home / "state").rglob("*")} == {DAEMON}
    assert faults.processes_of(home) == []


@as_root
def test_root_runs_postgres_from_a_folder_that_only_root_may_enter(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    programs = shutil.copytree(binaries.postgres_bin().parent, closed / "pginstall18", symlinks=True) / "bin"

    found = run_without_root.for_postgres(programs / "postgres", data=closed / "data")

    done = subprocess.run(
        [*found.prefix, programs / "postgres", "-V"], capture_output=True, text=True, timeout=20, check=False
    )
    assert "PostgreSQL" in done.stdout, done.stderr


@as_root
def test_root_without_setpriv_runs_postgres_in_a_user_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(without_setpriv(tmp_path)))

    with Stack(tmp_path / "state", replica=False, postgres_settings=FAST) as stack:
        endpoints = stack.running()
        assert endpoints is not None
        assert psql(endpoints.postgres_url, "SELECT 1") == "1"

    assert (tmp_path / "state" / "postgres").stat().st_uid == 0


@as_root
def test_root_does_not_take_the_data_away_from_the_user_who_made_it(tmp_path: Path) -> None:
    data = tmp_path / "postgres"
    data.mkdir()
    os.chown(data, DAEMON, DAEMON)

    found = run_without_root.for_postgres(binaries.postgres_bin() / "postgres", data=data)

    assert found.owner == (DAEMON, DAEMON)


@as_root
def test_a_normal_user_is_told_whose_folder_it_is(open_folder: Path) -> None:
    state_dir = open_folder / "state"
    state_dir.mkdir()

    done = _as_user(DAEMON, [sys.executable, "-c", UP_AND_DOWN, str(state_dir)], cwd=open_folder)

    assert done.returncode == 1
    assert f"the state folder {state_dir} cannot be written" in done.stderr


@as_root
def test_a_user_without_a_name_is_told_to_get_one(open_folder: Path) -> None:
    nameless = 54_321
    os.chown(open_folder, nameless, nameless)

    done = _as_user(nameless, [sys.executable, "-c", UP_AND_DOWN, str(open_folder / "state")], cwd=open_folder)

    assert done.returncode == 1
    assert "add one to /etc/passwd" in done.stderr


def test_nothing_that_lends_root_another_user_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        assert run_without_root.for_postgres(tmp_path / "postgres", data=tmp_path).prefix == ()
        return
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(StackError, match=r"refuses to run as root.*normal user"):
        run_without_root.for_postgres(binaries.postgres_bin() / "postgres", data=tmp_path / "data")


def _as_user(user: int, argv: list[str], *, cwd: Path) -> "subprocess.CompletedProcess[str]":
    # May read what only root may enter, since the interpreter of the tests can lie there; may not write there.
    reading = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
    return subprocess.run(
        ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *reading, *argv],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
