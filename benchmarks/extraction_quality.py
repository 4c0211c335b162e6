"""How many of the published phrasings the offline extractor reads, and how many of its assertions are right.

    python -m benchmarks.extraction_quality [--misses]

`phrasings/tuned.csv` holds 200 phrasings that the rules were tuned with. `phrasings/held_out.csv` holds 100 that were
written before the rules were run on them, and no rule was changed for them. An assertion is right if its
predicate, its object (without case and articles) and whether it holds, has ended (`~`) or never was so (`-`) are as
listed. `before` is a turn that was extracted earlier.
"""

import argparse
import asyncio
import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from aftermind.facts import predicates
from aftermind.llm.grounding import grounded
from aftermind.llm.offline.rule_extractor import RuleExtractor
from aftermind.llm.protocols import ExtractionRequest, TurnText
from aftermind.types import EpisodeId, Role
from aftermind.types.assertion import Assertion, Operation

LISTS = ("tuned", "held_out")
SAID_AT = datetime(2024, 6, 12, 15, tzinfo=UTC)
FOLDER = Path(__file__).parent / "phrasings"

Listed = tuple[str, str, str]  # "", "~" or "-"; predicate; object as it is compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrasing:
    """A turn and what it asserts; nothing for a negative."""

    language: str
    kind: str
    before: str
    text: str
    expected: frozenset[Listed]


@dataclass(slots=True)
class Tally:
    """Counts of assertions."""

    right: int = 0
    wrong: int = 0
    missed: int = 0

    @property
    def precision(self) -> float:
        """Of the assertions made, the share that is right; 1 if none was made."""
        made = self.right + self.wrong
        return self.right / made if made else 1.0

    @property
    def recall(self) -> float:
        """Of the assertions listed, the share that was made; 1 if none is listed."""
        listed = self.right + self.missed
        return self.right / listed if listed else 1.0


def phrasings(name: str) -> list[Phrasing]:
    """One of `LISTS`."""
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return [
            Phrasing(
                language=row["language"],
                kind=row["kind"],
                before=row["before"],
                text=row["text"],
                expected=frozenset(map(_listed, filter(None, row["expected"].split("; ")))),
            )
            for row in csv.DictReader(file, delimiter="|", quoting=csv.QUOTE_NONE)
        ]


async def extracted(phrasing: Phrasing) -> frozenset[Listed]:
    """What the extractor asserts, after the check that every extractor's assertions pass."""
    turns = [_turn(number, text) for number, text in enumerate([phrasing.before, phrasing.text]) if text]
    answer = await RuleExtractor().extract(ExtractionRequest(turns=turns, now=SAID_AT))
    return frozenset(_of(claim) for claim in grounded(answer.claims, turns) if turns[-1].id in claim.sources)


async def tallies(given: Sequence[Phrasing]) -> Mapping[tuple[str, str], Tally]:
    """Counts by language and kind; (language, "all") is the sum."""
    found: dict[tuple[str, str], Tally] = defaultdict(Tally)
    for each in given:
        made = await extracted(each)
        for key in ((each.language, each.kind), (each.language, "all")):
            tally = found[key]
            tally.right += len(made & each.expected)
            tally.wrong += len(made - each.expected)
            tally.missed += len(each.expected - made)
    return found


def table(found: Mapping[tuple[str, str], Tally], counts: Mapping[tuple[str, str], int]) -> str:
    """Precision and recall by language and kind, as Markdown."""
    rows = [
        f"| {language} | {kind} | {counts[language, kind]} | {tally.precision:.2f} | {tally.recall:.2f} |"
        for (language, kind), tally in sorted(
            found.items(), key=lambda each: (each[0][0], each[0][1] != "all", each[0])
        )
    ]
    return "\n".join(["| language | kind | phrasings | precision | recall |", "|---|---|---:|---:|---:|", *rows])


def counted(given: Iterable[Phrasing]) -> Counter[tuple[str, str]]:
    """How many phrasings there are by language and kind."""
    return Counter(key for each in given for key in ((each.language, each.kind), (each.language, "all")))


async def report(*, misses: bool = False) -> str:
    """Both lists."""
    parts = []
    for name in LISTS:
        given = phrasings(name)
        parts.append(f"#### {name}: {len(given)} phrasings\n\n{table(await tallies(given), counted(given))}")
        if misses:
            parts += [await _differences(given)]
    return "\n\n".join(parts)


async def _differences(given: Sequence[Phrasing]) -> str:
    lines = []
    for each in given:
        made = await extracted(each)
        if made != each.expected:
            lines.append(
                f"{each.language} {each.text!r}: + {sorted(made - each.expected)} - {sorted(each.expected - made)}"
            )
    return "\n".join(lines)


def _turn(number: int, text: str) -> TurnText:
    id_ = EpisodeId(UUID(int=number + 1))
    return TurnText(id=id_, role=Role.USER, name=None, content=text, occurred_at=SAID_AT, trusted=True)


def _listed(text: str) -> Listed:
    sign = text[0] if text[0] in "~-" else ""
    predicate, _, object_ = text.removeprefix(sign).partition("=")
    return sign, predicate, predicates.folded(object_)


def _of(claim: Assertion) -> Listed:
    sign = "-" if claim.operation is Operation.RETRACT else "~" if claim.valid_to else ""
    return sign, predicates.canonical(claim.predicate), predicates.folded(claim.object)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--misses", action="store_true", help="also list the phrasings that are read otherwise")
    print(asyncio.run(report(misses=parser.parse_args().misses)))  # noqa: T201


if __name__ == "__main__":
    main()
