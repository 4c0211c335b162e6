"""A summary of the most central sentences, and a profile by the same rules as the facts."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from aftermind.claims import predicates
from aftermind.llm import text_process
from aftermind.llm.base import Condensed, Traits, TurnText, Usage
from aftermind.llm.offline.rules import claims_of_turn
from aftermind.types import Cardinality, EpisodeId, Json
from aftermind.types.claim import Operation

_WORDS = re.compile(r"[^\W\d_]{4,}")
_SENTENCES = 6  # of a summary: about 120 words


class ExtractiveSummariser:
    """The sentences with the most frequent words of the session (Luhn, 1958), in order, with who said them when."""

    name = "extractive"

    async def summarise(self, previous: str | None, turns: Sequence[TurnText]) -> Condensed:
        """Sentences of the turns and of the previous summary compete for the same few places."""
        size = sum(len(turn.content) for turn in turns)
        if size <= text_process.INLINE_CHARACTERS:
            text = _summary(previous, turns)
        else:
            try:
                text = await text_process.run(_summary, previous, turns)
            except text_process.TextTimeout:
                text = previous or ""
        return Condensed(text=text, usage=Usage(model=self.name))


class RuleProfiler:
    """Traits from first-person statements: a text for what a person has one of, a list for the rest."""

    name = "rules"
    reads_turns_apart = True

    async def profile(
        self, current: Mapping[str, Json], turns: Sequence[TurnText], schema: Mapping[str, Json] | None
    ) -> Traits:
        """What the turns add; of a schema only the traits whose names are predicates can be filled by rule."""
        allowed = None if schema is None else set(schema.get("properties", {}))
        values: dict[str, Json] = {}
        evidence: dict[str, tuple[EpisodeId, ...]] = {}
        for claim in [claim for turn in turns if turn.trusted for claim in await claims_of_turn(turn)]:
            name = predicates.canonical(claim.predicate)
            if claim.operation is Operation.RETRACT or claim.valid_to or (allowed is not None and name not in allowed):
                continue
            if predicates.cardinality(name) is Cardinality.SINGLE:
                values[name] = claim.object
            else:
                before = values.get(name, current.get(name, []))
                known = before if isinstance(before, list) else [before]
                values[name] = known if claim.object in known else [*known, claim.object]
            evidence[name] = (*evidence.get(name, ()), *claim.sources)
        return Traits(values=values, evidence=evidence, usage=Usage(model=self.name))


def _summary(previous: str | None, turns: Sequence[TurnText]) -> str:
    candidates = [line for line in (previous or "").splitlines() if line.strip()]
    for turn in turns:
        speaker = turn.name or turn.role
        sentences = re.split(r"(?<=[.!?])\s+", turn.content.strip())
        candidates += [f"{turn.occurred_at.date()} {speaker}: {each[:300]}" for each in sentences if each]
    return "\n".join(_central(candidates))


def _central(candidates: Sequence[str]) -> list[str]:
    """The most frequent words first; a word that a chosen sentence has told counts no more (Nenkova, 2005)."""
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
