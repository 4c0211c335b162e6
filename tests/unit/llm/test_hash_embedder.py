"""The embedder that needs no model."""

import subprocess
import sys

import numpy as np

from aftermind.llm.hash_embedder import HashEmbedder

embedder = HashEmbedder()


def likeness(one: str, other: str) -> float:
    first, second = embedder.vectors([one, other])
    return float(first @ second)


def test_forms_and_typos_of_a_word_are_alike() -> None:
    assert likeness("painting", "painted") > 0.9
    assert likeness("accommodation", "accomodation") > 0.4


def test_different_words_are_hardly_alike() -> None:
    assert abs(likeness("pottery class on Thursday", "airplane engine noise")) < 0.2


def test_vectors_have_length_one_and_zeros_stand_for_no_words() -> None:
    vectors = embedder.vectors(["I moved to Oslo.", "?!"])

    assert np.isclose(np.linalg.norm(vectors[0]), 1.0)
    assert not vectors[1].any()


async def test_nothing_to_embed_is_nothing() -> None:
    assert (await embedder.embed([])).shape == (0, embedder.dimension)


def test_another_process_gives_the_same_vectors() -> None:
    code = "from aftermind.llm.hash_embedder import HashEmbedder as H; print(H().vectors(['Oslo']).tobytes().hex())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180)

    assert other.stdout.strip() == embedder.vectors(["Oslo"]).tobytes().hex()
