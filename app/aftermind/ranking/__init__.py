"""What is worth recalling: pure functions over words and vectors, without I/O and without a clock."""

from aftermind.ranking.bm25 import idf
from aftermind.ranking.candidate_arrays import (
    Entry,
    Frame,
    Frequencies,
    Question,
    features_of,
    named_speakers,
    numbered,
    score_entries,
    score_frame,
    worths_of,
)
from aftermind.ranking.fact_scores import FactMatch, covering_value, fact_value, lifted, shares, sureness
from aftermind.ranking.fitted_coefficients import Models, models_of, parse_models
from aftermind.ranking.mmr import diversified, overlap
from aftermind.ranking.name_variants import capitalised_words
from aftermind.ranking.passages import ComparedPassages, with_best_passages
from aftermind.ranking.score_fusion import ranks, reciprocal_rank, scaled
from aftermind.ranking.tokenizer import ends_asking, is_stop_word, spoken, stem, terms, tokens
from aftermind.ranking.turn_features import FEATURES, Scores, Turns, compares_sentences, score
from aftermind.ranking.vectors import cosine, unit

__all__ = [
    "FEATURES",
    "ComparedPassages",
    "Entry",
    "FactMatch",
    "Frame",
    "Frequencies",
    "Models",
    "Question",
    "Scores",
    "Turns",
    "capitalised_words",
    "compares_sentences",
    "cosine",
    "covering_value",
    "diversified",
    "ends_asking",
    "fact_value",
    "features_of",
    "idf",
    "is_stop_word",
    "lifted",
    "models_of",
    "named_speakers",
    "numbered",
    "overlap",
    "parse_models",
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
    "with_best_passages",
    "worths_of",
]
