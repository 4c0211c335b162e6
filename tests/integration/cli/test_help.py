"""The help of the command at any width of the terminal."""

import os
import subprocess
import sys


def test_paragraphs_of_help_wrap_at_the_width_of_the_terminal_and_nowhere_else() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "aftermind.cli", "ingest", "--help"],
        env=os.environ | {"COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    ).stdout

    assert "Invalid lines are reported and skipped, and the exit code is 1. It is also 1 if the command stops" in shown
