"""One statement that finds: by words, by vector, within one owner, through every filter."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import numpy as np
import pytest

from aftermind.db.engine import PostgresDatabase
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.ranking import Question, score_frame
from aftermind.ranking.vectors import unit
from aftermind.stores.inmemory.search import search_in_memory
from aftermind.stores.postgres import PostgresStore
from aftermind.stores.postgres.search import READ_SETTINGS, PostgresSearch
from aftermind.stores.protocol import EpisodeFilter
from aftermind.stores.search import Search, SearchResult
from aftermind.types import Episode, EpisodeId, Role, Scope
from tests.support.servers import Database
from tests.support.stored_turns import START, keep, said

ALICE = Scope(user_id="alice")
EMBEDDER = HashEmbedder()


@pytest.fixture
async def reader(database: Database) -> AsyncIterator[PostgresDatabase]:
    opened = PostgresDatabase(database.url, session_settings=READ_SETTINGS)
    yield opened
    await opened.close()


@pytest.fixture(params=["read whole", "looked for"])
def search(request: pytest.FixtureRequest) -> PostgresSearch:
    """Both ways, whatever the owner's size."""
    return PostgresSearch() if request.param == "read whole" else PostgresSearch(whole=0)


async def find(
    reader: PostgresDatabase,
    search: PostgresSearch,
    text: str,
    *,
    owner: Scope = ALICE,
    wanted: EpisodeFilter | None = None,
    vector: bool = True,
    exact_rows: int = 20_000,
    tails: Sequence[str | None] = (),
) -> SearchResult:
    asked = Search(
        question=Question.of(text),
        vector=EMBEDDER.vectors([text])[0] if vector else None,
        wanted=wanted or EpisodeFilter(),
        exact_rows=exact_rows,
        tails=tails,
    )
    async with reader.transaction(namespace=owner.namespace, read_only=True) as tx:
        return await search.find(tx, owner, asked)


def best(found: SearchResult, text: str) -> list[EpisodeId]:
    total = score_frame(found.frame, Question.of(text), found.frequencies).total
    return [found.ids[row] for row in np.argsort(-total, kind="stable") if total[row] > 0]


def nearest(found: SearchResult) -> list[EpisodeId]:
    return [found.ids[row] for row in np.argsort(-found.frame.similarity)]


async def test_the_statement_scores_as_if_everything_were_at_hand(
    database: Database, reader: PostgresDatabase, search: PostgresSearch
) -> None:
    topics = ["pottery class", "trip to Rome", "dark theme", "old bicycle", "lemon cake", "night shift"]
    episodes = [
        said(f"I told you about the {topics[(turn + session) % 6]}, remember?", session=f"s{session}", name="Ann")
        for session in range(3)
        for turn in range(8)
    ]
    await keep(database.url, episodes)
    vectors = dict(
        zip((e.id for e in episodes), EMBEDDER.vectors([f"Ann: {e.content}" for e in episodes]), strict=True)
    )

    found = await find(reader, search, "the trip to Rome")

    asked = Search(question=Question.of("the trip to Rome"), vector=EMBEDDER.vectors(["the trip to Rome"])[0])
    expected = search_in_memory(episodes, vectors, asked)
    assert best(found, "the trip to Rome")[:5] == best(expected, "the trip to Rome")[:5]
    assert list(found.frequencies.having) == list(expected.frequencies.having)
    assert found.frequencies.episodes == len(episodes)


async def test_the_best_sentence_is_compared_as_if_everything_were_at_hand(
    database: Database, reader: PostgresDatabase, search: PostgresSearch
) -> None:
    drawn = np.random.default_rng(7)
    episodes = [said(f"This is turn {turn}. It has sentences.", session=f"s{turn % 3}") for turn in range(24)]
    vectors = {each.id: unit(drawn.standard_normal((turn % 4 + 1, 384))) for turn, each in enumerate(episodes)}
    vectors |= {each.id: vectors[each.id][0] for each in episodes[::4]}  # a single sentence
    given = {(ALICE, id_): vector for id_, vector in vectors.items() if id_ != episodes[5].id}
    await keep(database.url, episodes, [None] * len(episodes))
    store = PostgresDatabase(database.url)
    async with store.transaction() as tx:
        await PostgresStore().set_vectors(tx, given)
    await store.close()
    asked = Search(question=Question.of("turn"), vector=vectors[episodes[3].id][2], sentences=True)

    async with reader.transaction(namespace=ALICE.namespace, read_only=True) as tx:
        found = await search.find(tx, ALICE, asked)

    expected = search_in_memory(episodes, {id_: vector for (_, id_), vector in given.items()}, asked)
    both = [dict(zip(each.ids, each.frame.sentence_similarity, strict=True)) for each in (found, expected)]  # type: ignore[arg-type]
    ids = [each.id for each in episodes]
    np.testing.assert_allclose([both[0][id_] for id_ in ids], [both[1][id_] for id_ in ids], atol=2e-3)
    assert both[0][episodes[3].id] == pytest.approx(1.0, abs=2e-3)  # its third vector, of its second sentence
    assert np.isnan(both[0][episodes[5].id])  # it has no vector yet


async def test_candidates_of_an_index_replace_the_vector_search(database: Database, reader: PostgresDatabase) -> None:
    mine = [said(f"turn {n}", session=f"s{n}") for n in range(40)]
    secret = said("The PIN is 4711", user="bob")
    await keep(database.url, [*mine, secret])
    asked = Search(question=Question.of("zebra"), vector=EMBEDDER.vectors(["zebra"])[0], near=[mine[7].id, secret.id])

    async with reader.transaction(namespace=ALICE.namespace, read_only=True) as tx:
        found = await PostgresSearch(whole=0).find(tx, ALICE, asked)

    assert list(found.ids) == [mine[7].id]


async def test_nobody_finds_what_another_said(
    database: Database, reader: PostgresDatabase, search: PostgresSearch
) -> None:
    secret = "The PIN is 4711"
    others = [Scope(user_id="bob"), Scope(user_id=None), Scope(namespace="other", user_id="alice"), Scope(user_id="a")]
    await keep(database.url, [said(secret, user=o.user_id, namespace=o.namespace) for o in others])
    await keep(database.url, [said("I like tea")])

    found = await find(reader, search, secret)

    assert len(found.ids) == 1
    assert found.frequencies.episodes == 1
    assert list(found.frequencies.having) == [0, 0]


async def test_turns_without_a_session_are_neighbours_of_each_other(
    database: Database, reader: PostgresDatabase, search: PostgresSearch
) -> None:
    await keep(database.url, [said(text, session=None) for text in ("Shall we go to Rome?", "Yes, in May", "Fine")])

    found = await find(reader, search, "Rome", vector=False)

    assert len(found.ids) == 3


async def test_old_episodes_are_found_among_many(
    database: Database, reader: PostgresDatabase, search: PostgresSearch
) -> None:
    old = said("My grandmother's recipe needs saffron", session="long-ago")
    await keep(database.url, [old, *(said(f"small talk {n}", session=f"s{n // 40}") for n in range(3_000))])

    for exact_rows in (20_000, 10):
        found = await find(reader, search, "saffron recipe", exact_rows=exact_rows)
        assert best(found, "saffron recipe")[0] == old.id


async def test_the_walk_along_an_index_finds_what_comparing_each_finds(
    database: Database, reader: PostgresDatabase
) -> None:
    rng = np.random.default_rng(7)
    centres = rng.standard_normal((40, 384)).astype(np.float32)
    vectors = [centres[n % 40] + 0.4 * rng.standard_normal(384).astype(np.float32) for n in range(4_000)]
    await keep(database.url, [said(f"turn {n}", session=f"s{n // 20}") for n in range(2_000)], vectors[:2_000])
    await keep(database.url, [said(f"turn {n}", user="bob") for n in range(2_000)], vectors[2_000:])
    shares = []
    for number in range(20):
        asked = Search(question=Question.of(""), vector=vectors[number] + 0.1 * centres[number])
        async with reader.transaction(namespace=ALICE.namespace, read_only=True) as tx:
            exact = await PostgresSearch().find(tx, ALICE, asked)
            walked = await PostgresSearch().find(
                tx, ALICE, Search(question=asked.question, vector=asked.vector, exact_rows=0)
            )
        shares.append(len(set(nearest(exact)[:10]) & set(nearest(walked)[:10])) / 10)

    assert np.mean(shares) >= 0.98


async def test_an_episode_without_a_vector_is_found_by_its_words(
    database: Database, reader: PostgresDatabase, search: PostgresSearch
) -> None:
    waiting = said("I bought a kayak")
    await keep(database.url, [waiting, said("Nice weather")], [None, None])

    found = await find(reader, search, "kayak")

    assert best(found, "kayak")[0] == waiting.id


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (EpisodeFilter(session_id="b"), {2, 3}),
        (EpisodeFilter(agent_id="coach"), {1, 3}),
        (EpisodeFilter(roles=frozenset({Role.ASSISTANT})), {1}),
        (EpisodeFilter(metadata={"tags": ["work"]}), {0, 3}),
        (EpisodeFilter(since=START + timedelta(days=400)), {2, 3}),
        (EpisodeFilter(until=START + timedelta(days=400)), {0, 1}),
        (EpisodeFilter(session_id="b", agent_id="coach", metadata={"n": {"k": 1}}), {3}),
        (EpisodeFilter(metadata={"tags": ["nothing has this"]}), set()),
    ],
)
async def test_only_what_fits_the_filter_may_answer(
    database: Database, reader: PostgresDatabase, search: PostgresSearch, wanted: EpisodeFilter, expected: set[int]
) -> None:
    early, late = START, START + timedelta(days=500)
    episodes = [
        said("tea at noon", session="a", metadata={"tags": ["work", "x"]}, at=early),
        said("tea at noon", session="a", agent="coach", role=Role.ASSISTANT, at=early),
        said("tea at noon", session="b", at=late),
        said("tea at noon", session="b", agent="coach", metadata={"tags": ["work"], "n": {"k": 1, "l": 2}}, at=late),
    ]
    await keep(database.url, episodes)

    for exact_rows in (20_000, 0):
        found = await find(reader, search, "tea at noon", wanted=wanted, exact_rows=exact_rows)
        assert {episodes.index(_by_id(episodes, id_)) for id_ in best(found, "tea at noon")} == expected
    assert {place for place, each in enumerate(episodes) if wanted.fits(each)} == expected


@pytest.mark.parametrize(
    "text",
    [
        "a & b | !c <-> d:*",
        "'; DROP TABLE aftermind.episodes; --",
        "🙂",
        "مرحبا بالعالم",
        "\\",
        "%",
        "((((",
        "x" * 9_000,
    ],
)
async def test_odd_questions_find_or_find_nothing(
    database: Database, reader: PostgresDatabase, search: PostgresSearch, text: str
) -> None:
    await keep(database.url, [said("hello there"), said(text[:200])])

    found = await find(reader, search, text)

    assert len(found.ids) <= 2


async def test_the_tail_of_a_session_comes_along_for_what_is_pending(
    database: Database, reader: PostgresDatabase, search: PostgresSearch
) -> None:
    await keep(database.url, [said(f"turn {n}", session="now") for n in range(20)])

    found = await find(reader, search, "nothing of this", vector=False, tails=["now", None])

    assert len(found.ids) in (5, 20)
    assert not best(found, "nothing of this")


def _by_id(episodes: Sequence[Episode], id_: EpisodeId) -> Episode:
    return next(episode for episode in episodes if episode.id == id_)


async def test_an_owner_who_has_grown_is_searched_the_other_way(database: Database, reader: PostgresDatabase) -> None:
    search, episodes = PostgresSearch(whole=10), [said(f"turn {number} about tea") for number in range(13)]
    await keep(database.url, episodes[:10])
    for total in range(10, 14):
        if total > 10:
            await keep(database.url, [episodes[total - 1]])

        found = await find(reader, search, f"tea, turn {total - 1}")

        assert found.frequencies.episodes == total
        assert list(found.frequencies.having) == [total, total, 1]
        assert best(found, f"tea, turn {total - 1}")[0] == episodes[total - 1].id
