"""The page about internals names functions that exist."""

import inspect
import re
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "internals.md"
ROOTS = ("aftermind", "aftermind_tasks", "aftermind_workers")
NAMED = sorted(set(re.findall(r"`([a-z_]+(?:\.[A-Za-z_]+)*)`", PAGE.read_text())) - {"remember", "recall"})


@pytest.mark.parametrize("name", NAMED)
def test_an_identifier_of_the_page_exists(name: str) -> None:
    assert any(_exists(f"{root}.{name}") for root in ROOTS), f"{name} has been moved or renamed"


@pytest.mark.parametrize(("road", "most"), [("remember", 15), ("recall", 12)])
def test_a_road_is_no_longer_than_promised_and_each_step_calls_the_next(road: str, most: int) -> None:
    (part,) = (part for part in PAGE.read_text().split("## ") if part.startswith(f"From `{road}`"))
    steps = re.findall(r"^\| \d+ \| `([^`]+)`", part, re.MULTILINE)

    assert 5 < len(steps) <= most
    for number, step in enumerate(steps[1:], start=1):
        if step != "early_doorbell_strategy.strategy":  # Celery calls it by name
            earlier = [_source(each) for each in steps[:number]]
            assert any(f"{step.rpartition('.')[2]}" in source for source in earlier), f"nothing before {step} calls it"


def _source(name: str) -> str:
    """The module of a function, without the line that defines a function of that name."""
    parts = name.split(".")
    for root in ROOTS:
        for end in range(len(parts) - 1, 0, -1):
            path = ".".join([root, *parts[:end]])
            with suppress(ModuleNotFoundError):
                return re.sub(r"def \w+", "def", inspect.getsource(import_module(path)))
    raise AssertionError(name)


def _exists(path: str) -> bool:
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        return all((found := getattr(found, part, None)) is not None for part in parts[end:])
    return False
