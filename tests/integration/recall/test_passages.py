"""Long messages are found and shown by passage: pending, stored, encrypted, in this process."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from aftermind import Memory, Message, Passage, Settings
from aftermind.db.engine import PostgresDatabase
from aftermind.db.postgres_transaction import PgTransaction
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.ranking import Question
from aftermind.stores.postgres.search import READ_SETTINGS, PostgresSearch
from aftermind.stores.search import Search
from aftermind.types import Episode, Scope
from tests.support.learning import UNHURRIED, Learning, learning
from tests.support.servers import Database

Opened = Callable[[], AbstractAsyncContextManager[Learning]]
USER = "alice"

TOPICS = ("invoices", "gardens", "railways", "museums", "bakeries", "orchestras", "glaciers", "lighthouses")
ANSWER = "The spare key of the boathouse hangs behind the blue barometer."
QUESTION = "Where does the spare key of the boathouse hang?"


def section(number: int) -> str:
    """A section of a long document, unlike the others."""
    topic = TOPICS[number % len(TOPICS)]
    lines = [f"Paragraph {line} of part {number} describes {topic} and what was decided." for line in range(12)]
    return f"## Part {number}: {topic}\n\n" + "\n".join(lines) + "\n\n"


def document(sections: int = 64) -> str:
    """About 50 KB with the answer in the middle."""
    parts = [section(number) for number in range(sections)]
    parts.insert(sections // 2, f"## Keys and locks\n\n{ANSWER}\n\n")
    return "# Handbook\n\n" + "".join(parts)


def only_passage(memory_matches: object) -> tuple[Episode, Passage]:
    """The passage of the long message among matches."""
    found = [(each.item, each.passage) for each in memory_matches if each.passage is not None]  # type: ignore[attr-defined]
    assert len(found) == 1
    return found[0]


@pytest.fixture
def opened(database: Database, redis_url: str, tmp_path: Path) -> Callable[[], AbstractAsyncContextManager[Learning]]:
    return partial(learning, database, redis_url, tmp_path, extractor="off")


@pytest.fixture
async def learnt(opened: Opened) -> AsyncIterator[Learning]:
    async with opened() as one:
        yield one


@pytest.fixture(params=["in this process", "in a file", "stored", "pending"])
async def memory(request: pytest.FixtureRequest, opened: Opened, tmp_path: Path) -> AsyncIterator[Memory]:
    """One that was handed the document, in each of the places where it may be."""
    turns = ["I like long walks.", Message.user(document(), name="Ann"), "The weather is fine today."]
    if request.param in ("in this process", "in a file"):
        store = "inmemory" if request.param == "in this process" else f"sqlite:{tmp_path / 'memory.db'}"
        async with Memory(store, settings=Settings(**UNHURRIED)) as made:
            await (await made.remember(turns, user_id=USER)).stored(timeout=180)
            if request.param == "in this process":
                yield made
        if request.param == "in a file":
            async with Memory(store, settings=Settings(**UNHURRIED)) as made:
                yield made
        return
    async with opened() as learnt:
        await learnt.memory.remember(turns, user_id=USER)
        if request.param == "stored":
            await learnt.settle()
        yield learnt.memory


async def test_the_answer_in_the_middle_of_a_long_text_is_shown_with_its_place(memory: Memory) -> None:
    assert len(document()) > 50_000

    block = await memory.recall(QUESTION, user_id=USER, token_budget=300)
    item, passage = only_passage(block.matches)

    assert ANSWER in block.text
    assert f'passage="{passage.number}/{passage.count}" section="Handbook &gt; Keys and locks"' in block.text
    assert ANSWER in item.content[passage.start : passage.end]
    assert block.tokens_used <= 300


async def test_without_words_of_the_question_the_vectors_of_passages_decide(memory: Memory) -> None:
    block = await memory.recall("boathouses, barometers", user_id=USER, token_budget=300, mode="vector")
    item, passage = only_passage(block.matches)

    assert ANSWER in item.content[passage.start : passage.end]


async def test_a_small_user_and_a_large_one_get_the_same_passage(learnt: Learning, database: Database) -> None:
    await learnt.learn(USER, [f"Short note {number}." for number in range(40)])
    await learnt.learn(USER, [document(), section(0) * 3])
    reading = PostgresDatabase(database.url, session_settings=READ_SETTINGS)
    vector = HashEmbedder().vectors([QUESTION])[0]
    asked = Search(question=Question.of(QUESTION), vector=vector)

    found = []
    for search in (PostgresSearch(), PostgresSearch(whole=0)):
        async with reading.transaction(namespace="default", read_only=True) as tx:
            found.append(await search.find(tx, Scope(user_id=USER), asked))
    await reading.close()

    whole, indexed = ({each.ids[row]: row for row in range(len(each.ids))} for each in found)
    long = next(iter(found[0].passages.keys() & found[1].passages.keys()))
    assert found[0].passages[long] == found[1].passages[long]
    assert np.allclose(
        found[0].frame.similarity[whole[long]], found[1].frame.similarity[indexed[long]], atol=1e-6, equal_nan=True
    )
    assert (found[0].frame.hits[whole[long]] == found[1].frame.hits[indexed[long]]).all()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_passages_of_encrypted_messages_are_found_by_words(learnt: Learning, when: str) -> None:
    if when == "before":
        await learnt.memory.encryption.encrypt(spread_seconds=0.1)
    await learnt.learn(USER, [document()])
    if when == "after":
        await learnt.memory.encryption.encrypt(spread_seconds=0.1)

    block = await learnt.memory.recall(QUESTION, user_id=USER, token_budget=300, mode="lexical")

    assert ANSWER in block.text


async def test_a_long_message_that_is_undone_or_forgotten_leaves_no_passage(learnt: Learning) -> None:
    receipt = await learnt.learn(USER, [document()])
    await learnt.memory.undo(*receipt.episode_ids, user_id=USER)

    undone = await learnt.memory.recall(QUESTION, user_id=USER)
    await learnt.memory.forget(user_id=USER)
    remains = await learnt.memory.verify_erasure("blue barometer", user_id=USER)

    assert ANSWER not in undone.text
    assert not [place for place in remains.places if place.found]


async def test_users_without_long_messages_need_one_statement(
    learnt: Learning, monkeypatch: pytest.MonkeyPatch
) -> None:
    await learnt.learn(USER, ["The spare key hangs in the hall.", "Thanks."])
    await learnt.memory.recall("spare key", user_id=USER)
    sent: list[str] = []
    alone = PgTransaction.alone

    async def noted(self: PgTransaction, statement: str, *arguments: object) -> object:
        sent.append(statement)
        return await alone(self, statement, *arguments)

    monkeypatch.setattr(PgTransaction, "alone", noted)

    await learnt.memory.recall("Where is the spare key?", user_id=USER)

    assert not [each for each in sent if "passage_terms" in each]
