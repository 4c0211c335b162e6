"""Every compiled pattern of the tree takes time in proportion to the text, whatever the text is.

Texts are made from the pattern itself: each of its parts, repeated. What counts is how the time grows with the length,
beside the growth of a pattern that is known to be linear; no absolute time is asserted.
"""

import importlib
import pkgutil
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import pytest

import aftermind
import aftermind_tasks
import aftermind_workers
from aftermind import errors
from aftermind.llm.offline.grammar import LANGUAGES, grammar_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    parser: Any = importlib.import_module("re._parser")  # Any: not public, and without types

LENGTH = 1_500  # characters of the shorter text; the other is four times as long
SIGNIFICANT_SECONDS = 0.03  # what takes less is no danger, and cannot be told from noise
GROWTH = 10.0  # of the time for four times the text: 4 if it is linear, 16 if it is quadratic
# Patterns that only ever see texts of so many characters: sentences of the rules, and dates in them.
BOUNDED = dict.fromkeys(
    [f"aftermind.llm.offline.{name}" for name in ("rule_extractor", "dates", "grammar", "object_phrase")], 400
)
BOUNDED_GROWTH = 40.0  # at most quadratic within the bound, with room for noise
OPTIONAL = {"aftermind_workers.flowerconfig"}  # needs settings of its own when it is imported


def modules() -> Iterator[str]:
    for package in (aftermind, aftermind_tasks, aftermind_workers):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "migrations" not in found.name and "__main__" not in found.name and found.name not in OPTIONAL:
                yield found.name


@cache
def patterns() -> Mapping[str, tuple[re.Pattern[str], int]]:
    """All patterns by module and text, each with the bound of what it is given."""
    found: dict[str, tuple[re.Pattern[str], int]] = {}
    for name in modules():
        try:
            module = importlib.import_module(name)
        except (ImportError, errors.InvalidSettings):  # an extra that is not installed; an application of a worker
            continue
        for value in vars(module).values():
            for pattern in patterns_in(value, 0):
                found.setdefault(f"{name}:{pattern.pattern[:60]}", (pattern, BOUNDED.get(name, 4 * LENGTH)))
    for language in LANGUAGES:
        for pattern in patterns_in(grammar_of(language), 0):
            found[f"{language}:{pattern.pattern}"] = (pattern, BOUNDED["aftermind.llm.offline.grammar"])
    return found


def patterns_in(value: object, depth: int) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        if isinstance(value.pattern, str):
            yield value
    elif depth < 3 and isinstance(value, Mapping):
        for each in list(value.values()):
            yield from patterns_in(each, depth + 1)
    elif depth < 3 and isinstance(value, list | tuple | frozenset):
        for each in value:
            yield from patterns_in(each, depth + 1)
    elif depth < 3 and is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from patterns_in(getattr(value, each.name, None), depth + 1)


def example(nodes: Any) -> str:  # Any: the parser's own tree
    """A text that a part of a pattern matches, or nearly."""
    return "".join(_example(op, given) for op, given in nodes)


def _example(op: Any, given: Any) -> str:
    match str(op):
        case "LITERAL":
            return chr(given)
        case "NOT_LITERAL" | "ANY":
            return "a" if op != given else "b"
        case "IN":
            return _member(given)
        case "BRANCH":
            return example(given[1][0])
        case "SUBPATTERN":
            return example(given[3])
        case "ATOMIC_GROUP":
            return example(given)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return example(given[2]) * max(1, min(given[0], 30))
        case _:
            return ""


def _member(given: Any) -> str:
    kinds = {"CATEGORY_WORD": "a", "CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " ", "CATEGORY_NOT_SPACE": "a"}
    first, value = given[0]
    if str(first) == "NEGATE":
        return "a"
    if str(first) == "RANGE":
        return chr(value[0])
    return chr(value) if str(first) == "LITERAL" else kinds.get(str(value), ".")


def pumps(nodes: Any) -> Iterator[str]:
    """What a part of a pattern matches, for every part that is repeated or is one of several."""
    for op, given in nodes:
        name = str(op)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            yield example(given[2])
            yield from pumps(given[2])
        elif name == "BRANCH":
            for branch in given[1]:
                yield example(branch)
                yield from pumps(branch)
        elif name == "SUBPATTERN":
            yield from pumps(given[3])
        elif name in ("ASSERT", "ASSERT_NOT"):
            yield from pumps(given[1])


def attacks(pattern: re.Pattern[str]) -> list[str]:
    """Units that are repeated: parts of the pattern, the whole of it, and a letter of each class."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)
    whole = example(tree)
    parts = list(dict.fromkeys(pumps(tree)))
    chosen = parts if len(parts) <= 12 else parts[:: len(parts) // 12 + 1]
    letters = ["a", "A", "1", " ", "!", "\n", "a ", "A, ", "<", "/*", "-", "\u00e9", "_"]
    return [unit for unit in dict.fromkeys([whole, whole + " ", *chosen, *letters]) if unit]


def seconds(pattern: re.Pattern[str], text: str) -> float:
    best = float("inf")
    for _ in range(2):
        started = time.thread_time()
        for _ in pattern.finditer(text):
            pass
        best = min(best, time.thread_time() - started)
        if best < SIGNIFICANT_SECONDS:
            break
    return best


def grows(pattern: re.Pattern[str], bound: int) -> Sequence[str]:
    """The units whose repetition takes more than its share of time."""
    found = []
    limit = BOUNDED_GROWTH if bound < LENGTH else GROWTH
    for unit in attacks(pattern):
        for end in ("", "\x00"):
            long = unit * (bound // len(unit) + 1)
            after = seconds(pattern, long[:bound] + end)
            if after >= SIGNIFICANT_SECONDS and after > limit * seconds(pattern, long[: bound // 4] + end):
                found.append(unit)
    return found


def test_a_pattern_that_is_quadratic_is_found_out() -> None:
    assert grows(re.compile(r"\w+\s*="), 4 * LENGTH)
    assert not grows(re.compile(r"\w{1,9}="), 4 * LENGTH)


def test_the_tree_has_patterns_to_look_at() -> None:
    assert len(patterns()) > 400


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(8))
def test_no_pattern_takes_more_than_its_share_of_time(part: int) -> None:
    slow = {}
    for place, (name, (pattern, bound)) in enumerate(sorted(patterns().items())):
        if place % 8 == part and (units := grows(pattern, bound)):
            slow[name] = units

    assert slow == {}
