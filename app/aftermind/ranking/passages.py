"""Passages of long texts: where they begin and end, and which of them answers a question best.

A document has every word somewhere, and one vector for it means nothing. So a text above `LONG_BYTES` is indexed by
passages, and is scored by the best of them. A shorter one is indexed whole; where the embedder compares meaning, its
sentences have vectors besides.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray

from aftermind.ranking import tokenizer
from aftermind.ranking.candidate_arrays import Frame
from aftermind.ranking.tokenizer import IndexedText, spoken, terms
from aftermind.ranking.vectors import Matrix, Vector, cosine, part_vectors, unit
from aftermind.types import Passage

# UTF-8 has about four bytes for a token, whatever the script: 300 tokens and 200.
LONG_BYTES, PASSAGE_BYTES = 1_200, 800
SHORTEST_CHARACTERS = 200  # of a passage, however many bytes a character has
MOST_HEADINGS = 5_000  # of one text
SENTENCE_BYTES = 15  # of a sentence with a vector; shorter ones, such as "That's great!", answer nothing
HEADING_CHARACTERS = 120  # of the headings that a passage is indexed and shown with
# Where a passage may end, the best first, and how many characters of the border belong to it.
BORDERS = (("\n\n", 2), ("\n", 1), (". ", 2), ("! ", 2), ("? ", 2), ("\u3002", 1), (" ", 1))
_HEADING = re.compile(r"^(#{1,6})[ \t]+(\S[^\n]{0,200})", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])|\n+")
_FENCE = re.compile(r"^(?:```|~~~)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPassages:
    """The passages of one text compared with a question, a row each.

    `hits` has a column for each term of the question, `length` is the number of distinct terms, `similarity` the cosine
    to the question, NaN without a vector.
    """

    passages: Sequence[Passage]
    hits: NDArray[np.bool_]
    length: NDArray[np.int64]
    similarity: NDArray[np.float64]

    def find_best(self, worths: NDArray[np.float64]) -> int:
        """The passage with the greatest share of the question's worth and similarity together."""
        share = self.hits @ worths / max(float(worths.sum()), 1e-9)
        return int(np.argmax(share + np.nan_to_num(self.similarity)))


def split(text: str) -> tuple[Passage, ...]:
    """The passages of a long text, on borders of sections, paragraphs, lines, sentences or words; () for a short one.

    Linear in the text. The library `semantic-text-splitter` takes 2 to 8 s for 256 KiB without blanks.
    """
    if len(text) * 4 <= LONG_BYTES or (size := len(text.encode("utf-8", "replace"))) <= LONG_BYTES:
        return ()
    most = max(PASSAGE_BYTES * len(text) // size, SHORTEST_CHARACTERS)
    borders = [0]
    while len(text) - borders[-1] > most:
        borders.append(_find_border(text, borders[-1], most))
    return between([*borders, len(text)])


def between(borders: Sequence[int]) -> tuple[Passage, ...]:
    """The passages between borders in a text, its beginning and end included."""
    pairs = list(pairwise(borders))
    return tuple(
        Passage(start=start, end=end, number=number, count=len(pairs))
        for number, (start, end) in enumerate(pairs, start=1)
    )


def headings_before(text: str, place: int) -> str:
    """The Markdown headings that a place in a text is under, the outermost first."""
    found = ""
    for start, path in _headings(text) if "#" in text else ():
        if start > place:
            break
        found = path
    return found


def passage_texts(text: str) -> list[str]:
    """The passages of a long text as they are indexed: each with the headings that it is under."""
    passages = split(text)
    headings = list(_headings(text)) if passages and "#" in text else []
    found, above, path = [], 0, ""
    for passage in passages:
        while above < len(headings) and headings[above][0] <= passage.start:
            path, above = headings[above][1], above + 1
        part = text[passage.start : passage.end]
        found.append(f"{path}\n{part}" if path else part)
    return found


def sentence_texts(text: str) -> list[str]:
    """The sentences of a short text that have a vector each; none of a long text, or of one that is a sentence."""
    if len(text) <= SENTENCE_BYTES or split(text):
        return []
    found = [sentence for sentence in split_sentences(text) if len(sentence.encode()) >= SENTENCE_BYTES]
    return found if len(found) > 1 else []


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, however short, without the blanks around them."""
    return [sentence for part in _SENTENCE_END.split(text) if (sentence := part.strip())]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenTexts:
    """What an embedder is given for an episode: the passages of a long text; else the text, then its sentences."""

    texts: Sequence[str]
    is_long: bool = False

    @classmethod
    def of(cls, name: str | None, content: str, *, sentences: bool) -> "SpokenTexts":
        """`sentences`: whether those of a short text get vectors, too."""
        passages = passage_texts(content)
        parts = passages or [content, *(sentence_texts(content) if sentences else ())]
        return cls(texts=[spoken(name, part) for part in parts], is_long=bool(passages))

    def vectors(self, made: Matrix) -> Vector | Matrix:
        """The vectors of the texts as they are stored: a single one; or the episode's own, then those of its parts."""
        if self.is_long:
            return np.concatenate([unit(made.mean(axis=0))[None], made])
        return made if len(made) > 1 else made[0]


def regroup(made: Matrix, spoken: Sequence[SpokenTexts]) -> list[Vector | Matrix]:
    """The vectors of all texts by episode."""
    ends = np.cumsum([len(each.texts) for each in spoken]).tolist()
    return [each.vectors(made[end - len(each.texts) : end]) for each, end in zip(spoken, ends, strict=True)]


def passage_terms(text: str, language: str) -> Sequence[Sequence[str]]:
    """The terms of each passage of a long text; nothing for a short one."""
    known = tokenizer.find_indexed(text, language)
    return known.passages if known is not None else [terms(each, language) for each in passage_texts(text)]


def index_text(text: str, language: str) -> IndexedText:
    """The terms of a text and of each of its passages, for `tokenizer.indexed`."""
    return IndexedText(terms=terms(text, language), passages=[terms(each, language) for each in passage_texts(text)])


def compare(
    text: str,
    question: Sequence[str],
    *,
    language: str,
    vectors: Matrix | None = None,
    vector: Vector | None = None,
    indexed: Sequence[Sequence[str]] | None = None,
) -> ComparedPassages | None:
    """The passages of a text at hand compared with a question's terms and vector; None for a short text.

    `indexed` are the terms of its passages, if the caller has them.
    """
    passages = split(text)
    if not passages:
        return None
    having = [frozenset(each) for each in (passage_terms(text, language) if indexed is None else indexed)]
    if len(having) != len(passages):  # its terms took too long
        return None
    parts = None if vectors is None else part_vectors(vectors)
    are_vectors = parts is not None and vector is not None and parts.shape == (len(passages), *vector.shape)
    return ComparedPassages(
        passages=passages,
        hits=np.array([[term in each for term in question] for each in having], dtype=np.bool_),
        length=np.array([len(each) for each in having], dtype=np.int64),
        similarity=cosine(parts, vector) if are_vectors else np.full(len(passages), np.nan),  # type: ignore[arg-type]
    )


def with_best_passages(
    frame: Frame, compared: Mapping[int, ComparedPassages], worths: NDArray[np.float64]
) -> tuple[Frame, dict[int, Passage]]:
    """The frame with the rows of long texts scored as their best passages, and which passage that is, by row."""
    if not compared:
        return frame, {}
    best = {row: each.find_best(worths) for row, each in compared.items()}
    hits, length, similarity = frame.hits.copy(), frame.length.copy(), frame.similarity.astype(np.float64)
    sentence_similarity = None if frame.sentence_similarity is None else frame.sentence_similarity.copy()
    for row, number in best.items():
        each = compared[row]
        hits[row], length[row] = each.hits[number], each.length[number]
        if not np.isnan(each.similarity[number]):
            similarity[row] = each.similarity[number]
            if sentence_similarity is not None:
                sentence_similarity[row] = each.similarity[number]
    shown = {row: compared[row].passages[number] for row, number in best.items()}
    frame = replace(frame, hits=hits, length=length, similarity=similarity, sentence_similarity=sentence_similarity)
    return frame, shown


def _find_border(text: str, start: int, size: int) -> int:
    """Before the next heading, so that a passage is of one section; else the last border of its second half."""
    if (heading := _HEADING.search(text, start + size // 8, start + size)) is not None:
        return heading.start()
    for border, width in BORDERS:
        found = text.rfind(border, start + size // 2, start + size)
        if found >= 0:
            return found + width
    return start + size


def _headings(text: str) -> Iterator[tuple[int, str]]:
    """Each heading outside of fenced code: where it begins, and the path of headings that ends with it."""
    fences = [match.start() for match in _FENCE.finditer(text)]
    path: list[tuple[int, str]] = []
    inside, passed = False, 0
    for match in islice(_HEADING.finditer(text), MOST_HEADINGS):
        while passed < len(fences) and fences[passed] < match.start():
            inside, passed = not inside, passed + 1
        if not inside:
            level = len(match.group(1))
            path = [each for each in path if each[0] < level]
            path.append((level, match.group(2).strip(" \t#")))
            yield match.start(), " > ".join(title for _, title in path)[:HEADING_CHARACTERS]
