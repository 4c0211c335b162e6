"""The command loads one family of its commands: the table that says which has to be right."""

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from aftermind.cli import FAMILIES, make_app_for


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_the_commands_that_the_table_says(family: str) -> None:
    command = typer.main.get_command(make_app_for([family]))

    assert isinstance(command, typer.core.TyperGroup)
    assert set(command.commands) == set(FAMILIES[family])


def test_status_loads_neither_database_nor_arrays() -> None:
    code = "import sys; from aftermind.cli import make_app_for; make_app_for(['stack']); print(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)

    assert "aftermind.cli.stack" in done.stdout.split()
    assert {"sqlalchemy", "numpy", "redis", "celery", "openai", "fastapi"}.isdisjoint(done.stdout.split())


ROOT = Path(__file__).parents[2]
SOURCES = ("app", "tasks", "workers", "docs", "deploy", "examples")
_NAMED = re.compile(r"[`$]\s?(aftermind (?:[a-z]|--)[^`\n]*)`?|^\s*(aftermind [a-z][^\n#|]*)", re.MULTILINE)
_WORD = re.compile(r"(--)?[a-z][a-z0-9-]*")
# Of a former release, or of a release to come.
_HISTORY = {"CHANGELOG.md", "docs/critiques.md"}


def _texts() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "README.md", *(file for source in SOURCES for file in (ROOT / source).rglob("*"))):
        name = str(path.relative_to(ROOT))
        if path.suffix in (".py", ".md", ".html", ".yaml", ".yml", ".lua") and name not in _HISTORY:
            text = path.read_text()
            # A sentence that a source breaks into two strings is one sentence.
            yield name, re.sub(r'"\s*\n\s*f?"', "", text) if path.suffix == ".py" else text


def _commands() -> Iterator[tuple[str, list[str]]]:
    for name, text in _texts():
        for quoted, line in _NAMED.findall(text):
            yield name, (quoted or line).split()[1:]


@cache
def _root() -> Any:  # Any: as below
    return typer.main.get_command(make_app_for(FAMILIES))


def _wrong(words: list[str]) -> str | None:
    """What of a command line does not exist: a command of the group, or an option of the command."""
    command: Any = _root()  # Any: typer brings its own click
    for word in words:
        named = word.strip(".,;:()[]'\"").partition("=")[0]
        if isinstance(command, typer.core.TyperGroup) and not named.startswith("-"):
            if not _WORD.fullmatch(named):
                return None  # a placeholder, or prose
            if named not in command.commands:
                return named
            command = command.commands[named]
        elif named.startswith("--") and named != "--help":
            known: set[str] = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
            if named not in known:
                return named
            if isinstance(command, typer.core.TyperGroup):
                return None  # what follows may be the option's value
    return None


def test_every_command_that_a_text_names_exists_with_its_options() -> None:
    named = list(_commands())

    wrong = sorted({(name, " ".join(words)) for name, words in named if _wrong(words) is not None})

    assert len(named) > 100
    assert wrong == []
