"""Diversification by session, for questions about everything until now ("Which cities has Ann visited?")."""

import re
from collections import Counter
from collections.abc import Hashable, Sequence

from aftermind.recall.question_time import rescored, shifted
from aftermind.types import Episode, Match

# Taken from the log-odds of a turn for each likelier turn of its session. 0.4 to 1 find more with MiniLM and with the
# hash embedder, in both halves of the conversations of `benchmarks/recall_quality.py`.
REPEATED = 0.7

_QUESTION_WORD = re.compile(r"\b(?:(when|how long)|wh(?:at|ich|om?|ere)|how)\b", re.IGNORECASE)
_AUXILIARY = re.compile(
    r"\b(?:(ha(?:s|ve))|do|does|did|is|are|was|were|had|will|would|can|could|may|might|shall|should|must)\b",
    re.IGNORECASE,
)


def asks_about_all_sessions(question: str) -> bool:
    """Whether an English question is in the present perfect: it asks about every occasion until now.

    "What did he paint?" is about one, and "When" and "How long" ask for one answer in any tense.
    """
    word = _QUESTION_WORD.search(question)
    if word is None or word[1] is not None:
        return False
    auxiliary = _AUXILIARY.search(question, word.end())
    return auxiliary is not None and auxiliary[1] is not None


def diversify_sessions(matches: Sequence[Match]) -> list[Match]:
    """Reorder matches, best first: each further turn of a session is less likely than its probability alone.

    Neighbours of a turn that answers have high scores, too, and take the places of answers from other sessions.
    """
    seen: Counter[Hashable] = Counter()
    scores = []
    for match in matches:
        score = match.score
        if isinstance(match.item, Episode):
            session = match.item.scope.session_id, match.item.occurred_at.date()  # in one long thread, the day
            score = shifted(score, -REPEATED * seen[session])
            seen[session] += 1
        scores.append(score)
    return rescored(matches, scores)
