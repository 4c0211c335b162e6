"""The command loads one family of its commands: the table that says which has to be right."""

import subprocess
import sys

import pytest
import typer

from aftermind.cli import FAMILIES, app_of


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_the_commands_that_the_table_says(family: str) -> None:
    command = typer.main.get_command(app_of([family]))

    assert isinstance(command, typer.core.TyperGroup)
    assert set(command.commands) == set(FAMILIES[family])


def test_status_loads_neither_database_nor_arrays() -> None:
    code = "import sys; from aftermind.cli import app_of; app_of(['stack']); print(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert "aftermind.cli.stack" in done.stdout.split()
    assert {"sqlalchemy", "numpy", "redis", "celery", "openai", "fastapi"}.isdisjoint(done.stdout.split())
