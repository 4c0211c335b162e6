"""The text of numbered turns, and how to find the number and the scripted fact in it again."""

import re

FACT_EVERY = 4  # turns; a model call then has a handful of facts to find
POISON_EVERY = 400  # turns; the model's answer about such a session is refused until the server is mended

_MARKER = re.compile(r"\bmk[0-9]+x[0-9]{6}\b")
_SILENT = "The oracle is silent."
_FACT = re.compile(r"\bI collect (fig[0-9]+x[0-9]{6})\b")


def marker_of(producer: int, number: int) -> str:
    """One word that no other turn has, and that stemming leaves alone."""
    return f"mk{producer}x{number:06d}"


def object_of(producer: int, number: int) -> str | None:
    """The object of the turn's fact, None where the turn states none."""
    return f"fig{producer}x{number:06d}" if number % FACT_EVERY == 0 else None


def is_poison(number: int) -> bool:
    """Whether the model cannot be brought to a usable answer about this turn."""
    return number % POISON_EVERY == POISON_EVERY // 2


def is_poisoned(text: str) -> bool:
    """Whether a turn's text is such a one."""
    return _SILENT in text


def content_of(producer: int, number: int) -> str:
    """What the user says in the turn."""
    fact = object_of(producer, number)
    stated = f" I collect {fact}." if fact else ""
    poison = f" {_SILENT}" if is_poison(number) else ""
    return f"This is note {marker_of(producer, number)} of my diary.{stated}{poison}"


def markers_in(text: str) -> list[str]:
    """Every marker that a text holds."""
    return _MARKER.findall(text)


def objects_in(text: str) -> list[str]:
    """Every object that a text states as collected, in order."""
    return _FACT.findall(text)
