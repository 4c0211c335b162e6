"""How many of the attacks of `tests/attacks` the filter marks: by language, by code and by disguise, as Markdown.

    python -m benchmarks.attack_rates [--speech FILE]

With a file of conversations (JSON of `sessions` with `turns` that have a `text`) it also counts false alarms in it.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from aftermind.llm.injection import detect
from tests.attacks.encodings import ENCODINGS, HIDINGS, ORDERS

LANGUAGES = Path(__file__).parents[1] / "tests" / "attacks" / "languages.yaml"


def by_language() -> Mapping[str, tuple[int, int]]:
    """Attacks that the filter passes, of how many, by language."""
    listed: Mapping[str, Sequence[str]] = yaml.safe_load(LANGUAGES.read_text("utf-8"))
    return {language: _passed(texts) for language, texts in listed.items()}


def by_form(forms: Mapping[str, Callable[[str], str]]) -> Mapping[str, tuple[int, int]]:
    """Attacks that the filter passes, of how many, by the form that hides them."""
    return {name: _passed([hide(order) for order in ORDERS]) for name, hide in forms.items()}


def table(title: str, rates: Mapping[str, tuple[int, int]]) -> str:
    """Rates as a table: those of which every attack is marked in one row, the others by name."""
    caught = [name for name, (passed, _) in rates.items() if passed == 0]
    rows = [f"| {', '.join(caught)} | 0 of {next(iter(rates.values()))[1]} each |"]
    rows += [f"| {name} | {passed} of {count} |" for name, (passed, count) in rates.items() if passed]
    return "\n".join([f"| {title} | not marked |", "|---|---|", *rows])


def report() -> str:
    """The three tables of docs/security.md."""
    return "\n\n".join(
        [
            table("language", by_language()),
            table("code", by_form(ENCODINGS)),
            table("disguise", by_form(HIDINGS)),
        ]
    )


def speech(path: Path) -> Iterator[str]:
    """The texts of a file of conversations."""
    for conversation in json.loads(path.read_text("utf-8")):
        for session in conversation["sessions"]:
            yield from (turn["text"] for turn in session["turns"])


def _passed(texts: Sequence[str]) -> tuple[int, int]:
    return sum(detect.suspicion(text) is None for text in texts), len(texts)


def main() -> None:
    """Print the tables, and false alarms where a file is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--speech", type=Path)
    path = parser.parse_args().speech
    print(report())  # noqa: T201
    if path is not None:
        texts = list(speech(path))
        marked = [text for text in texts if detect.suspicion(text) is not None]
        print(f"\n{len(marked)} of {len(texts)} ordinary texts are marked", *marked, sep="\n")  # noqa: T201


if __name__ == "__main__":
    main()
