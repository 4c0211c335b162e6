"""What is worth recalling: pure functions over words and vectors, without I/O and without a clock."""

from aftermind.ranking.bm25 import idf
from aftermind.ranking.corpus import Entry, Frame, Frequencies, Question, numbered, score_entries, score_frame
from aftermind.ranking.diversity import diversified, overlap
from aftermind.ranking.facts import Told, lifted, shares, sureness, value_of
from aftermind.ranking.fusion import ranks, reciprocal_rank, scaled
from aftermind.ranking.vectors import cosine, unit
from aftermind.ranking.windows import WEIGHTS, Scores, Turns, Weights, score
from aftermind.ranking.words import ends_asking, spoken, stem, terms, tokens

__all__ = [
    "WEIGHTS",
    "Entry",
    "Frame",
    "Frequencies",
    "Question",
    "Scores",
    "Told",
    "Turns",
    "Weights",
    "cosine",
    "diversified",
    "ends_asking",
    "idf",
    "lifted",
    "numbered",
    "overlap",
    "ranks",
    "reciprocal_rank",
    "scaled",
    "score",
    "score_entries",
    "score_frame",
    "shares",
    "spoken",
    "stem",
    "sureness",
    "terms",
    "tokens",
    "unit",
    "value_of",
]
