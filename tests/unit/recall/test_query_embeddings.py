"""A question's vector: computed once, never waited for beyond its budget."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from aftermind import errors
from aftermind.llm.protocols import Vectors
from aftermind.recall import query_embeddings
from aftermind.recall.query_embeddings import QueryVectors


class Slow:
    """An embedder that answers when it is let."""

    name, dimension, inline, max_batch, max_batch_tokens = "slow", 2, False, 10, 1_000

    def __init__(self, *, failing: bool = False) -> None:
        self.calls, self.failing, self.go, self.called = 0, failing, asyncio.Event(), asyncio.Event()

    async def embed(self, texts: Sequence[str]) -> Vectors:
        self.calls += 1
        self.called.set()
        if self.failing:
            raise errors.ModelUnavailable("slow", "it is down")
        await self.go.wait()
        return np.ones((len(texts), 2), dtype=np.float32)


@pytest.fixture
def slow() -> Slow:
    return Slow()


async def test_a_slow_provider_is_not_waited_for_and_said_so(slow: Slow) -> None:
    vectors = QueryVectors(slow, budget_seconds=0.02)

    vector, why = await vectors.vector("theme?")

    assert vector is None
    assert why is not None
    assert "only a lexical search" in why
    await vectors.close()


async def test_the_answer_that_came_too_late_serves_the_next_question(slow: Slow) -> None:
    vectors = QueryVectors(slow, budget_seconds=0.02)
    await vectors.vector("theme?")
    slow.go.set()
    await asyncio.sleep(0)

    vector, why = await vectors.vector("theme?")

    assert vector is not None
    assert why is None
    assert slow.calls == 1
    await vectors.close()


async def test_many_who_ask_the_same_make_one_call(slow: Slow) -> None:
    vectors = QueryVectors(slow, budget_seconds=5)
    asked = [asyncio.ensure_future(vectors.vector("theme?")) for _ in range(20)]
    await asyncio.sleep(0)
    slow.go.set()

    answers = await asyncio.gather(*asked)

    assert slow.calls == 1
    assert all(vector is not None for vector, _ in answers)


async def test_a_provider_that_keeps_failing_is_not_waited_for_any_more() -> None:
    now = 0.0
    failing = Slow(failing=True)
    vectors = QueryVectors(failing, budget_seconds=1, clock=lambda: now)
    for number in range(3):
        assert (await vectors.vector(f"question {number}"))[0] is None

    failing.failing = False  # it would answer, but not at once
    before = asyncio.get_running_loop().time()
    vector, why = await vectors.vector("another")

    assert vector is None
    assert why is not None
    assert asyncio.get_running_loop().time() - before < 0.5
    await vectors.close()


async def test_without_an_embedder_there_is_no_vector_and_nothing_is_wrong() -> None:
    assert await QueryVectors(None).vector("theme?") == (None, None)


class Unprepared(Slow):
    """An embedder that cannot load what it needs, and still answers."""

    async def prepare(self) -> None:
        self.go.set()
        raise OSError("no room to download the model")


async def test_an_embedder_that_cannot_be_prepared_is_asked_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_embeddings, "PREPARE_AFTER_SECONDS", 0.0)
    failing = Unprepared()
    vectors = QueryVectors(failing, budget_seconds=5)

    vectors.prepare()
    await failing.go.wait()

    vector, why = await vectors.vector("theme?")

    assert vector is not None
    assert why is None
    await vectors.close()


class Loading(Slow):
    """An embedder whose modules are on a slow disk."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded = asyncio.Event()

    async def prepare(self) -> None:
        await self.loaded.wait()


async def test_a_slow_load_is_said_so_and_is_no_failure_of_the_provider() -> None:
    loading = Loading()
    vectors = QueryVectors(loading, budget_seconds=0.2, clock=lambda: 0.0)

    while_loading = [(await vectors.vector(f"question {number}"))[1] or "" for number in range(4)]
    loading.loaded.set()
    await asyncio.wait_for(loading.called.wait(), 5)
    _, after = await vectors.vector("another")

    assert ["is being loaded" in why for why in while_loading] == [True] * 4
    assert "took more than 0.2 s" in (after or ""), "it is waited for again"
    await vectors.close()


class Missing(Slow):
    """An embedder whose files are missing."""

    async def prepare(self) -> None:
        raise errors.InvalidSettings("embedder", "local:missing", "its files are missing.")


async def test_an_embedder_that_cannot_be_loaded_is_not_being_loaded() -> None:
    vectors = QueryVectors(Missing(failing=True), budget_seconds=0.2, clock=lambda: 0.0)

    reasons = [(await vectors.vector(f"question {number}"))[1] or "" for number in range(4)]

    assert "does not answer" in reasons[3]
    assert not any("is being loaded" in why for why in reasons)
    await vectors.close()


class TwoKinds(Slow):
    """An embedder with other vectors for questions."""

    async def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return np.zeros((len(texts), 2), dtype=np.float32)


@pytest.mark.parametrize("inline", [True, False])
async def test_a_question_has_the_vector_of_a_question(inline: bool) -> None:
    asked = TwoKinds()
    asked.inline = inline
    asked.go.set()

    vector, why = await QueryVectors(asked, budget_seconds=5).vector("theme?")

    assert (vector is not None and vector.tolist(), why, asked.calls) == ([0.0, 0.0], None, 0)
