"""What lies in the spool is asked for while others write to it and drain it."""

import threading
from pathlib import Path

from aftermind import Settings
from aftermind.api.health import spooled_bytes


def test_files_that_are_drained_meanwhile_hold_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    (folder / "stays").write_bytes(b"12345")
    is_over = threading.Event()

    def drain() -> None:
        while not is_over.is_set():
            names = [folder / str(number) for number in range(50)]
            for path in names:
                path.touch()
            for path in names:
                path.unlink()

    thread = threading.Thread(target=drain)
    thread.start()
    try:
        found = {spooled_bytes(Settings(state_dir=tmp_path)) for _ in range(300)}
    finally:
        is_over.set()
        thread.join()

    assert found == {5}
    assert spooled_bytes(Settings(state_dir=tmp_path / "none")) == 0
