"""Why a component ended, as the supervisor's log and `aftermind status` report it."""

import signal
from pathlib import Path

import pytest

from aftermind.stack.diagnosis import explain_exit


def test_the_messages_of_json_lines_are_shown_without_the_rest(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text(
        '{"at":"2026-11-28T10:00:00Z","level":"INFO","message":"turns are taken again","spooled":2}\n'
        '{"at":"2026-11-28T10:00:01Z","level":"ERROR","message":"the job failed","error_class":"ValueError"}\n'
        "a line of a server: {no JSON}\n"
    )

    why, remedy = explain_exit(1, log, 0)

    shown = "turns are taken again | the job failed (ValueError) | a line of a server: {no JSON}"
    assert why == f"it ended with exit code 1: {shown}"
    assert str(log) in remedy


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_the_work_before_a_signal_of_another_process_is_no_cause(tmp_path: Path, name: str) -> None:
    log = tmp_path / "worker.log"
    log.write_text('{"level":"INFO","message":"Task aftermind.run[1] succeeded in 0.1s"}\n')

    assert explain_exit(-signal.Signals[name], log, 0) == (f"it was ended by {name}", f"Its log: {log}")


def test_a_crash_of_its_own_has_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("PANIC: a page is damaged\n")

    assert explain_exit(-signal.SIGABRT, log, 0)[0] == "it was ended by SIGABRT: PANIC: a page is damaged"


def test_a_known_cause_is_named_also_after_a_kill(tmp_path: Path) -> None:
    log = tmp_path / "postgres.log"
    log.write_text("Cannot allocate memory\n")

    assert explain_exit(-signal.SIGKILL, log, 0)[0] == "it was ended by SIGKILL: there is not enough memory"


def test_a_message_that_ends_with_a_full_stop_gets_no_second_one(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text('{"level":"ERROR","message":"it cannot be imported."}\n')

    assert explain_exit(1, log, 0)[0] == "it ended with exit code 1: it cannot be imported"


def test_a_known_cause_has_its_remedy(tmp_path: Path) -> None:
    log = tmp_path / "redis.log"
    log.write_text("bind: Address already in use\n")

    assert explain_exit(1, log, 0)[0] == "it ended with exit code 1: its port is in use by another program"
