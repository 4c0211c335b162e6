"""The search of stores within a process: the same whether an owner has few episodes or many, and after every change."""

from dataclasses import replace

import numpy as np
import pytest

from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.ranking import Question, score_frame
from aftermind.stores.inmemory import search as inmemory_search
from aftermind.stores.inmemory.search import EpisodeColumns
from aftermind.stores.protocol import EpisodeFilter, Vector
from aftermind.stores.search import Search, SearchResult
from aftermind.types import Episode, EpisodeId
from aftermind.types.message import UNDONE
from tests.support.stored_turns import said

EMBEDDER = HashEmbedder()
TOPICS = ["pottery class", "trip to Rome", "dark theme", "old bicycle", "lemon cake", "night shift", "new job"]


def talk(turns: int) -> tuple[dict[EpisodeId, Episode], dict[EpisodeId, Vector]]:
    said_all = [said(f"{TOPICS[n % 7]} number {n}", session=f"s{n // 40}") for n in range(turns)]
    vectors = EMBEDDER.vectors([each.content for each in said_all])
    return {each.id: each for each in said_all}, {e.id: v for e, v in zip(said_all, vectors, strict=True)}


def ask(text: str, **more: object) -> Search:
    return Search(question=Question.of(text), vector=EMBEDDER.vectors([text])[0], **more)  # type: ignore[arg-type]


def best(found: SearchResult, asked: Search, count: int = 5) -> list[EpisodeId]:
    total = score_frame(found.frame, asked.question, found.frequencies).total
    return [found.ids[row] for row in np.argsort(-total, kind="stable")[:count]]


def test_the_best_of_many_episodes_are_those_that_scoring_each_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = EpisodeColumns("english")
    columns.refresh(*talk(3_000))

    for text in ("lemon cake number 1712", "Which trip was number 2030?", "the old bicycle"):
        few = columns.find(ask(text))
        with monkeypatch.context() as patch:
            patch.setattr(inmemory_search, "MOST_WHOLE", 10_000)
            every = columns.find(ask(text))
        assert len(few.ids) < 600 < len(every.ids) == 3_000
        assert few.frequencies == every.frequencies
        assert best(few, ask(text), 1) == best(every, ask(text), 1)


def test_what_was_deleted_undone_or_embedded_since_shows_in_the_next_search() -> None:
    episodes, vectors = talk(50)
    columns = EpisodeColumns("english")
    columns.refresh(episodes, {})
    asked = ask("number 17")
    (seventeen,) = [each for each in episodes.values() if each.content.endswith("number 17")]
    assert best(columns.find(asked), asked, 1) == [seventeen.id]
    assert np.isnan(columns.find(asked).frame.similarity).all()

    columns.refresh(episodes, vectors)
    assert not np.isnan(columns.find(asked).frame.similarity).any()

    columns.refresh(episodes | {seventeen.id: replace(seventeen, mark=UNDONE)}, vectors)
    assert best(columns.find(asked), asked, 1) != [seventeen.id]

    columns.refresh({id_: each for id_, each in episodes.items() if id_ != seventeen.id}, vectors)
    found = columns.find(asked)
    assert seventeen.id not in found.ids
    assert found.frequencies.episodes == 49


def test_candidates_of_an_index_select_and_unknown_ids_are_nothing() -> None:
    episodes, vectors = talk(400)
    columns = EpisodeColumns("english")
    columns.refresh(episodes, vectors)
    foreign = said("the secret of another user", user="bob")
    near = [list(episodes)[200], foreign.id]

    found = columns.find(ask("zebra", near=near))

    assert near[0] in found.ids
    assert foreign.id not in found.ids
    assert len(found.ids) <= 9


def test_filters_hold_among_many_episodes() -> None:
    episodes, vectors = talk(3_000)
    columns = EpisodeColumns("english")
    columns.refresh(episodes, vectors)

    found = columns.find(ask("lemon cake", wanted=EpisodeFilter(session_id="s7")))

    shown = [episodes[id_] for id_, fits in zip(found.ids, found.frame.candidate, strict=True) if fits]
    assert shown
    assert {each.scope.session_id for each in shown} == {"s7"}
