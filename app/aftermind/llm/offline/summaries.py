"""A summary of the most central sentences, and a profile by the same rules as the facts."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aftermind.facts import predicates
from aftermind.llm import text_process_pool
from aftermind.llm.offline.rule_extractor import Belief, read_turn
from aftermind.llm.protocols import Condensed, Traits, TurnText, Usage
from aftermind.types import Cardinality, EpisodeId, Json
from aftermind.types.assertion import Assertion, Operation
from aftermind.types.fact import USER

_WORDS = re.compile(r"[^\W\d_]{4,}")
_SENTENCES = 6  # of a summary: about 120 words
_NO_LONGER, _NOT = "no longer ", "not "  # begin a trait of what has ended, or never was


class ExtractiveSummariser:
    """The sentences with the most frequent words of the session (Luhn, 1958), in order, with speaker and time."""

    name = "extractive"

    async def summarise(self, previous: str | None, turns: Sequence[TurnText]) -> Condensed:
        """Sentences of the turns and of the previous summary compete for the same few places."""
        size = sum(len(turn.content) for turn in turns)
        if size <= text_process_pool.INLINE_CHARACTERS:
            text = _summary(previous, turns)
        else:
            try:
                text = await text_process_pool.run(size, _summary, previous, turns)
            except text_process_pool.TextTimeout:
                text = previous or ""
        return Condensed(text=text, usage=Usage(model=self.name))


class RuleProfiler:
    """Traits from first-person statements: a text for what a person has one of, a list for the rest.

    Traits of a speaker with a name begin with it ("Melanie likes"), so that two speakers are kept apart.
    """

    name = "rules"
    reads_turns_apart = True

    async def profile(
        self, current: Mapping[str, Json], turns: Sequence[TurnText], schema: Mapping[str, Json] | None
    ) -> Traits:
        """What the turns change. Of a schema, traits whose names are predicates can be filled, for a single speaker."""
        spoken = sorted((turn for turn in turns if turn.trusted), key=lambda turn: turn.occurred_at)
        if schema is not None and len({turn.speaker for turn in spoken}) > 1:
            return Traits(values={}, evidence={}, usage=Usage(model=self.name))
        allowed = None if schema is None else set(schema.get("properties", {}))
        values: dict[str, Json] = {}
        evidence: dict[str, tuple[EpisodeId, ...]] = {}
        for turn in spoken:
            speaker = turn.speaker if schema is None else None
            known = _beliefs({**current, **values}, turn.speaker or USER, speaker)
            for claim in _with_opposites((await read_turn(turn, known)).claims):
                name = predicates.canonical(claim.predicate)
                if allowed is not None and name not in allowed:
                    continue
                trait = f"{speaker} {name}" if speaker else name
                before = values.get(trait, current.get(trait))
                if (value := _with_claim(before, name, claim)) != before:
                    values[trait] = value
                    evidence[trait] = (*evidence.get(trait, ()), *claim.sources)
        return Traits(values=values, evidence=evidence, usage=Usage(model=self.name))


def _with_opposites(claims: Sequence[Assertion]) -> list[Assertion]:
    """The claims, those of every object first, and ends of their opposites: a dislike of tea ends a liking."""
    found: list[Assertion] = []
    for claim in sorted(claims, key=lambda each: bool(each.object)):
        opposite = predicates.OPPOSITES.get(predicates.canonical(claim.predicate))
        if opposite and claim.operation is Operation.ASSERT and claim.valid_to is None:
            found.append(replace(claim, predicate=opposite, operation=Operation.END, valid_to=claim.said_at))
        found.append(claim)
    return found


def _with_claim(before: Json, name: str, claim: Assertion) -> Json:
    """A trait's value once the claim is made; `before` where the claim changes nothing of it."""
    is_over = claim.operation is Operation.RETRACT or claim.valid_to is not None
    if predicates.cardinality(name) is Cardinality.SINGLE:
        if not is_over:
            return claim.object
        if not isinstance(before, str) or before.startswith((_NO_LONGER, _NOT)):
            return before
        if claim.object and not predicates.same_text(before, claim.object):
            return before
        return f"{_NOT}{before}" if claim.valid_to is None else f"{_NO_LONGER}{before} since {claim.valid_to.date()}"
    listed = before if isinstance(before, list) else [] if before is None else [before]
    if is_over and not claim.object:
        return [] if listed else before
    others = [each for each in listed if not predicates.same_text(str(each), claim.object)]
    if is_over:
        return before if len(others) == len(listed) else others
    if len(others) < len(listed):
        return listed
    return [*(each for each in others if not predicates.excludes(name, claim.object, str(each))), claim.object]


def _beliefs(traits: Mapping[str, Json], subject: str, speaker: str | None) -> list[Belief]:
    """What the traits of one speaker hold, as beliefs that a correction may be about."""
    prefix = f"{speaker} " if speaker else ""
    return [
        Belief(subject, trait.removeprefix(prefix), str(value))
        for trait, given in traits.items()
        if trait.startswith(prefix)
        for value in (given if isinstance(given, list) else [given])
    ]


def _summary(previous: str | None, turns: Sequence[TurnText]) -> str:
    candidates = [line for line in (previous or "").splitlines() if line.strip()]
    for turn in turns:
        speaker = turn.name or turn.role
        sentences = re.split(r"(?<=[.!?])\s+", turn.content.strip())
        candidates += [f"{turn.occurred_at.date()} {speaker}: {each[:300]}" for each in sentences if each]
    return "\n".join(_central(candidates))


def _central(candidates: Sequence[str]) -> list[str]:
    """The most frequent words first; a word of a chosen sentence does not count again (Nenkova, 2005)."""
    words = [set(_WORDS.findall(line.casefold())) for line in candidates]
    left = Counter(word for each in words for word in each)
    chosen: list[int] = []
    while len(chosen) < min(_SENTENCES, len(candidates)):
        open_ = [place for place in range(len(candidates)) if place not in chosen]
        gains = {place: sum(left[word] for word in words[place]) / (len(words[place]) + 3) for place in open_}
        best = max(open_, key=lambda place: (gains[place], len(words[place]), place))
        chosen.append(best)
        left.subtract({word: left[word] for word in words[best]})
    return [candidates[place] for place in sorted(chosen)]
