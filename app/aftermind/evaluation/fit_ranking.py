"""Fit the ranking to a namespace's own questions, and adopt only models that win on questions not used for fitting."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import cycle

import numpy as np

from aftermind import errors
from aftermind.evaluation.datasets import GoldConversation
from aftermind.evaluation.measures import measure
from aftermind.evaluation.run import find_evidence
from aftermind.evaluation.score_comparison import Difference, compare
from aftermind.memory import Memory
from aftermind.ranking.fitted_coefficients import Models, to_json
from aftermind.ranking.fitting import fit_models
from aftermind.ranking.score_probability import Floats, Group, Model
from aftermind.recall import Candidates
from aftermind.types import EpisodeId

LEAST_QUESTIONS = 60  # with evidence; of fewer, the interval on the held-out third is wider than any gain seen
HELD_OUT = 3  # one question in three
MEASURE = "ndcg@10"
ELSEWHERE = 3  # one question in three is also asked of another user, where nothing answers it


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What was fitted: the gain of `ndcg@10` by model on `held_out` questions, and the models that were adopted."""

    questions: int
    held_out: int
    gains: dict[str, Difference]
    adopted: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Example:
    features: Floats
    answers: Floats
    models: Models
    embedder: str


async def fit_namespace(
    memory: Memory, conversations: Sequence[GoldConversation], *, namespace: str | None = None, seed: int = 0
) -> Fitted:
    """Fit to two thirds of the questions; models that rank the others better from now on rank the namespace's recalls.

    A model is adopted if the 95 % interval of its gain is above 0. Raises `InvalidGoldSet` for too few questions.
    """
    examples, elsewhere = await _examples(memory, conversations, namespace)
    if len(examples) < LEAST_QUESTIONS:
        why = f"a fit needs at least {LEAST_QUESTIONS} questions whose evidence is stored."
        raise errors.InvalidGoldSet("questions", len(examples), why)
    embedders = {each.embedder for each in examples}
    if len(embedders) > 1:
        raise errors.InvalidGoldSet("embedder", sorted(embedders), "not every question could be embedded; try again.")
    random.Random(seed).shuffle(examples)
    held_out, fitted_on = examples[::HELD_OUT], [each for place, each in enumerate(examples) if place % HELD_OUT]
    groups: list[Group] = [(each.features, each.answers) for each in fitted_on]
    former = examples[0].models
    fitted = fit_models(groups, without_answer=elsewhere, former=former)
    gains, adopted = {}, {}
    for use in (each.name for each in fields(Models)):
        mine, theirs = getattr(fitted, use), getattr(former, use)
        gains[use] = compare([(_gain(theirs, each), _gain(mine, each)) for each in held_out])
        if gains[use].low > 0:
            adopted[use] = mine
    if adopted:
        chosen = replace(former, **adopted)
        await memory.ranking.set(to_json(chosen), embedder=examples[0].embedder, namespace=namespace)
    return Fitted(questions=len(examples), held_out=len(held_out), gains=gains, adopted=tuple(adopted))


async def _examples(
    memory: Memory, conversations: Sequence[GoldConversation], namespace: str | None
) -> tuple[list[_Example], list[Floats]]:
    """Questions with their candidates, and the candidates of questions to users that they are not about."""
    found: list[_Example] = []
    elsewhere: list[Floats] = []
    others = cycle([*conversations[1:], *conversations[:1]])
    for conversation in conversations:
        other = next(others)
        evidence = await find_evidence(memory, conversation, namespace)
        for place, (question, right) in enumerate(zip(conversation.questions, evidence, strict=True)):
            asked = await memory.ranking.candidates(
                question.text, user_id=conversation.user_id, session_id=question.session_id, namespace=namespace
            )
            example = _example(asked, right)
            if example is not None:
                found.append(example)
            if other is not conversation and place % ELSEWHERE == 0:
                wrong = await memory.ranking.candidates(question.text, user_id=other.user_id, namespace=namespace)
                elsewhere += [wrong.features] if len(wrong.ids) else []
    return found, elsewhere


def _example(candidates: Candidates, evidence: frozenset[EpisodeId]) -> _Example | None:
    answers = np.array([float(id_ in evidence) for id_ in candidates.ids])
    if not 0 < answers.sum() < len(answers):
        return None
    return _Example(
        features=candidates.features, answers=answers, models=candidates.models, embedder=candidates.embedder
    )


def _gain(model: Model, example: _Example) -> float:
    order = np.argsort(-model.probabilities(example.features), kind="stable").tolist()
    return measure(order, set(np.flatnonzero(example.answers).tolist()))[MEASURE]
