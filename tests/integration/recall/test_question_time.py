"""Questions that name a time, and what was said and is no longer true."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from aftermind import Fact, Match, Memory, Message, RecallBlock, RecallMode, Receipt, Settings, errors
from aftermind.recall.render import without_turns
from aftermind.stores.postgres.search import PostgresSearch
from aftermind.types import Cardinality, Episode
from tests.support.learning import AT_ONCE, UNHURRIED, learning
from tests.support.servers import Database

CONVERSATION = Path(__file__).parents[3] / "examples" / "conversation.jsonl"
HOMES = {"I live in Madrid.": (2025, 1, 10), "I moved to Berlin.": (2025, 4, 15), "I moved to Vienna.": (2025, 8, 20)}
Turn = dict[str, Any]  # Any: JSON as it is in the file


def turns() -> list[Turn]:
    """What Alice says in the README's example."""
    return [
        turn for line in CONVERSATION.read_text().splitlines() if (turn := orjson.loads(line))["user_id"] == "alice"
    ]


async def hand_over(memory: Memory, turn: Turn) -> Receipt:
    messages = [{**message, "occurred_at": turn["timestamp"]} for message in turn["messages"]]
    return await memory.remember(messages, user_id="alice", session_id=turn["session_id"])


@pytest.fixture(params=["in this process", "postgres"])
async def memory(
    request: pytest.FixtureRequest, database: Database, redis_url: str, tmp_path: Path
) -> AsyncIterator[Memory]:
    """One that has learnt the example."""
    if request.param == "in this process":
        async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as made:
            for turn in turns():
                await (await hand_over(made, turn)).stored(timeout=60)
            await made.drain()
            yield made
        return
    async with learning(database, redis_url, tmp_path) as learnt:
        for turn in turns():
            await hand_over(learnt.memory, turn)
            await learnt.settle()
        yield learnt.memory


def texts(block: RecallBlock) -> list[str]:
    return [each.item.text if isinstance(each.item, Fact) else str(each.item.content) for each in block.matches]  # type: ignore[union-attr]


async def test_what_is_no_longer_true_comes_after_what_took_its_place_and_is_marked(memory: Memory) -> None:
    block = await memory.recall("Where does Alice live?", user_id="alice", token_budget=300)
    former = next(each for each in block.matches if "Bergen and I work" in getattr(each.item, "content", ""))

    assert "Oslo" in texts(block)[0]
    assert former.superseded_at is not None
    assert former.superseded_at.date().isoformat() == "2025-05-26"
    assert '<turn by="user" superseded="2025-05-26">' in block.text


async def test_what_is_no_longer_true_is_marked_in_a_block_without_facts(memory: Memory) -> None:
    block = await memory.recall("Where does Alice live?", user_id="alice", token_budget=300, load=["history"])
    found = await memory.explain("Where does Alice live?", user_id="alice", token_budget=300, load=["history"])

    assert '<turn by="user" superseded="2025-05-26">' in block.text
    items = [each.item for each in (*block.matches, *(each.match for each in found.excluded))]
    assert not any(isinstance(item, Fact) for item in items)


async def test_a_turn_that_states_more_keeps_its_place_for_questions_about_the_rest(memory: Memory) -> None:
    block = await memory.recall("Which work is Alice a biologist for?", user_id="alice", token_budget=300)
    found = next(each for each in block.matches if "marine biologist" in getattr(each.item, "content", ""))

    assert found.superseded_at is None
    assert "superseded=" not in block.text


async def test_a_question_about_a_period_gets_what_was_true_then(memory: Memory) -> None:
    block = await memory.recall("Where did Alice live in April 2025?", user_id="alice", token_budget=300)

    assert "Bergen" in texts(block)[0]
    assert "user lives in Bergen" in block.text
    assert "user lives in Oslo" not in block.text


@pytest.mark.parametrize("place", ["in this process", "postgres", "postgres, by its indexes"])
async def test_a_question_about_a_period_finds_the_fact_of_then_by_its_own_words(
    place: str, database: Database, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message has no word of the question."""
    if place == "postgres, by its indexes":
        monkeypatch.setitem(PostgresSearch.__init__.__kwdefaults__, "whole", 0)
    if place == "in this process":
        async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as memory:
            await say_homes(memory)
            await memory.drain(user_id="mia", timeout=60)
            await check_homes(memory)
        return
    async with learning(database, redis_url, tmp_path) as learnt:
        await say_homes(learnt.memory)
        await learnt.settle()
        await check_homes(learnt.memory)


async def say_homes(memory: Memory) -> None:
    for said, day in HOMES.items():
        message = Message.user(said, occurred_at=datetime(*day, tzinfo=UTC))
        await memory.remember([message], user_id="mia", session_id=said)


async def check_homes(memory: Memory) -> None:
    block = await memory.recall("Where did I live in May 2025?", user_id="mia", token_budget=300)
    facts = await memory.recall_scored("Did I live in Berlin in May 2025?", user_id="mia", load=["facts"])
    now = await memory.recall("Where do I live?", user_id="mia", token_budget=300)
    before = await memory.recall("Where did I live before Vienna?", user_id="mia", token_budget=300)
    formerly = await memory.recall("Where did I use to live?", user_id="mia", token_budget=300)
    other = await memory.recall("Have I been fishing before?", user_id="mia", token_budget=300)
    stated = {"valid_from": datetime(2024, 1, 1, tzinfo=UTC), "valid_to": datetime(2024, 6, 1, tzinfo=UTC)}
    await memory.facts.add("user", "drives", "a tram", user_id="mia", **stated)  # of no message
    drove = await memory.recall("What did I drive in May 2024?", user_id="mia", token_budget=300)

    assert texts(drove)[0] == "user drives a tram"
    assert {*texts(block)[:2]} == {"user lives in Berlin", "I moved to Berlin."}, "the message comes with its fact"
    assert "user lives in Vienna" not in texts(block)
    assert [each.item.text for each in facts if isinstance(each.item, Fact)] == ["user lives in Berlin"]
    assert "user lives in Vienna" in texts(now)
    assert {"user lives in Berlin", "user lives in Vienna"} <= {*texts(before)}
    assert "user lives in Berlin" in texts(formerly)
    assert "user lives in Berlin" not in texts(other)
    assert "user lives in Berlin" not in texts(now)


async def test_a_question_about_a_longer_period_gets_all_that_was_true_and_happened_in_it() -> None:
    said = {
        "I work as a nurse at Mercy Hospital.": (2024, 6, 10),
        "I live in Lisbon.": (2024, 3, 2),
        "I moved to Porto.": (2025, 2, 1),
        "I moved to Oslo.": (2025, 9, 9),
        "I prefer dark mode.": (2025, 10, 1),
    }
    async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as memory:
        for text, day in said.items():
            message = Message.user(text, occurred_at=datetime(*day, tzinfo=UTC))
            await memory.remember([message], user_id="pam", session_id=text)
        await memory.drain(user_id="pam", timeout=60)
        homes = await memory.recall("Where did I live in 2025?", user_id="pam", token_budget=300)
        year = await memory.recall("What happened in 2025?", user_id="pam", load=["history"], token_budget=300)

    assert {f"user lives in {city}" for city in ("Lisbon", "Porto", "Oslo")} <= {*texts(homes)}
    assert {text for text, day in said.items() if day[0] == 2025} <= {*texts(year)}


async def test_a_month_is_the_latest_one_with_messages_that_match() -> None:
    month = datetime.now(UTC).replace(day=1) - timedelta(days=15)
    said = {"We saw bees at the lake.": month - timedelta(days=365), "I prefer dark mode.": month}
    said["The bees are asleep at the lake."] = month - timedelta(days=200)
    async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as memory:
        for text, day in said.items():
            await memory.remember([Message.user(text, occurred_at=day)], user_id="kim", session_id=text)
        await memory.drain(user_id="kim", timeout=60)
        block = await memory.recall(f"Which bees at the lake in {month:%B}?", user_id="kim", load=["history"])

    assert texts(block)[0] == "We saw bees at the lake."


@pytest.mark.parametrize("user", ["Alice", "I"])
async def test_a_question_about_the_past_has_what_was_true_before_what_took_its_place(
    memory: Memory, user: str
) -> None:
    block = await memory.recall(f"Where did {user} live before Oslo?", user_id="alice", token_budget=300)

    assert "Bergen" in texts(block)[0]
    assert texts(block).index("user lives in Bergen") < texts(block).index("user lives in Oslo")


async def test_a_marked_turn_is_recognised_as_one_that_the_model_is_shown_anyway(memory: Memory) -> None:
    block = await memory.recall("Where does Alice live?", user_id="alice", token_budget=300)
    shown = [each.item for each in block.matches if isinstance(each.item, Episode) and each.superseded_at is not None]

    left = without_turns(block, {each.id for each in shown})

    assert [each for each in block.matches if each not in left.matches] == [
        each for each in block.matches if each.superseded_at is not None
    ]
    assert "superseded=" not in left.text


async def test_turns_of_the_named_period_come_first() -> None:
    now = datetime.now(UTC)
    june = [datetime(year, 6, 15, tzinfo=UTC) for year in range(now.year - 6, now.year)]
    september = datetime(now.year - 1, 9, 15, tzinfo=UTC)
    async with Memory("inmemory", settings=Settings(extractor="off", **UNHURRIED)) as memory:
        for at in (*june, september):
            message = Message.user("We went hiking again.", occurred_at=at)
            await (await memory.remember([message], user_id="alice", session_id=f"{at:%Y-%m}")).stored(timeout=60)

        newest = await memory.recall("Where did we go hiking?", user_id="alice")
        named = await memory.recall(f"Where did we go hiking in {now.year - 3}?", user_id="alice")
        relative = await memory.recall("Did we go hiking four years ago?", user_id="alice")
        month = await memory.recall("Where did we go hiking in June?", user_id="alice")

    found = [block.matches[0].item for block in (newest, named, relative, month)]
    assert [item.occurred_at for item in found if isinstance(item, Episode)] == [september, june[3], june[2], june[5]]


async def test_the_least_score_is_that_of_a_turn_in_the_named_period() -> None:
    moments = [datetime(2024, month, 15, tzinfo=UTC) for month in (2, 6)]
    async with Memory("inmemory", settings=Settings(extractor="off", **UNHURRIED)) as memory:
        for at in moments:
            message = Message.user("We went hiking again.", occurred_at=at)
            await (await memory.remember([message], user_id="alice", session_id=f"{at:%Y-%m}")).stored(timeout=60)
        question = "Where did we go hiking in June 2024?"
        june, february = (await memory.recall(question, user_id="alice")).matches

        least = await memory.recall(question, user_id="alice", min_score=(june.score + february.score) / 2)

    assert [match.item.id for match in least.matches] == [june.item.id]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "question", ["What happened in March 2026?", "What did I talk about in March 2026?", "Show messages of March 2026."]
)
async def test_a_question_for_a_period_alone_gets_messages_of_others_last(question: str) -> None:
    said = [
        ("I planted tomatoes on the balcony.", 1),
        ("My thesis is about monarch butterflies.", 3),
        ("The heating broke, so we slept in the kitchen.", 3),
        ("I handed in my thesis and got a good mark.", 10),
        ("My laptop is ten years old.", 5),
    ]
    async with Memory("inmemory", settings=Settings(extractor="off", **UNHURRIED)) as memory:
        for text, month in said:
            message = Message.user(text, occurred_at=datetime(2026, month, 5, tzinfo=UTC))
            await (await memory.remember([message], user_id="alice", session_id=str(month))).stored(timeout=60)

        block = await memory.recall(question, user_id="alice", token_budget=60)

    assert {each.item.occurred_at.month for each in block.matches} == {3}  # type: ignore[union-attr]
    assert len(block.matches) == 2


@pytest.mark.parametrize("question", ["What did I say about the rent?", "Remind me what I told you about rent."])
async def test_the_words_that_ask_what_was_said_count_for_nothing(question: str) -> None:
    said = ["The dentist said I need a root canal.", "My sister told me a joke.", "The landlord raised our rent again."]
    async with Memory("inmemory", settings=Settings(extractor="off", **UNHURRIED)) as memory:
        for text in said:
            await (await memory.remember(text, user_id="alice")).stored(timeout=60)

        found = await memory.recall(question, user_id="alice", mode="lexical")

    assert found.matches[0].item.content == said[2]  # type: ignore[union-attr]
    assert [each.lexical_score for each in found.matches] == [1.0, 0.0, 0.0]


async def test_a_small_block_of_a_period_alone_has_what_was_said_before_thanks() -> None:
    said = (
        "I have a cat named Dot.",
        "I started pottery classes on Tuesdays.",
        "I ran a half marathon with my sister.",
    )
    async with Memory("inmemory", settings=Settings(**UNHURRIED, extractor="off")) as memory:
        for day, text in enumerate((*said, "I painted the kitchen yellow.", "My brother visited us from Faro."), 1):
            at = datetime(2025, 3, day, tzinfo=UTC)
            turn = [Message.user(text, occurred_at=at), Message.assistant("Thanks for telling me!", occurred_at=at)]
            await memory.remember(turn, user_id="alice")

        block = await memory.recall("What did I do in March 2025?", user_id="alice", token_budget=110)

    assert sum(text.startswith(("I ", "My ")) for text in texts(block)) >= 4


async def test_a_month_without_messages_of_this_year_is_that_of_the_year_before() -> None:
    now = datetime.now(UTC)
    month = datetime(now.year - 2, 8, 5, tzinfo=UTC)
    async with Memory("inmemory", settings=Settings(extractor="off", **UNHURRIED)) as memory:
        for text, at in (("I painted the fence.", month), ("The bus is late.", month + timedelta(days=200))):
            message = Message.user(text, occurred_at=at)
            await (await memory.remember([message], user_id="alice", session_id=text)).stored(timeout=60)

        first, second = (await memory.recall("What happened in August?", user_id="alice")).matches

    assert first.item.content == "I painted the fence."  # type: ignore[union-attr]
    assert first.score > 0.5 > second.score


async def test_what_took_the_place_of_a_statement_is_found_with_a_small_limit() -> None:
    async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as memory:
        for text in (
            "I live in Lisbon.",
            "I moved from Lisbon to Bergen.",
            *(f"Note {n} of the day." for n in range(9)),
        ):
            await (await memory.remember(text, user_id="alice")).extracted(timeout=60)

        found = await memory.recall("Where do I live now?", user_id="alice", limit=2)

    assert "I moved from Lisbon to Bergen." in texts(found)


async def test_a_question_for_more_than_a_period_does_not_hide_what_lies_outside_it() -> None:
    """Its words are in no message, but their meaning may be."""
    async with Memory("inmemory", settings=Settings(extractor="off", **UNHURRIED)) as memory:
        for text, month in (("The doctor gave me iron tablets last month.", 4), ("Small talk.", 3), ("More of it.", 3)):
            message = Message.user(text, occurred_at=datetime(2026, month, 20, tzinfo=UTC))
            await (await memory.remember([message], user_id="alice", session_id=text)).stored(timeout=60)

        block = await memory.recall("What did my physician prescribe in March 2026?", user_id="alice")

    assert max(each.score for each in block.matches) < 0.7


async def test_a_question_for_what_somebody_speaks_keeps_its_verb() -> None:
    async with Memory("inmemory", settings=Settings(extractor="off", **UNHURRIED)) as memory:
        for text in ("I speak Norwegian.", "I like pancakes."):
            await (await memory.remember(text, user_id="alice")).stored(timeout=60)

        found = await memory.recall("What languages do I speak?", user_id="alice", mode="lexical")

    assert found.matches[0].lexical_score == 1.0


@pytest.fixture(params=["in this process", "postgres"])
async def empty(
    request: pytest.FixtureRequest, database: Database, redis_url: str, tmp_path: Path
) -> AsyncIterator[Memory]:
    """A memory without anything in it."""
    if request.param == "in this process":
        async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as made:
            yield made
        return
    async with learning(database, redis_url, tmp_path) as learnt:
        made = learnt.memory

        async def drain(**owner: Any) -> None:  # Any: arguments of `Memory.drain`
            await learnt.settle()

        made.drain = drain  # type: ignore[method-assign,assignment]
        yield made


async def say(
    memory: Memory, *said: tuple[str, tuple[int, int, int]], user: str = "vera", name: str | None = None
) -> None:
    for text, day in said:
        message = Message(role="user", content=text, name=name, occurred_at=datetime(*day, tzinfo=UTC))
        await memory.remember([message], user_id=user, session_id="s")
        await memory.drain(user_id=user)


async def test_what_has_ended_without_a_successor_is_marked_and_ranks_below_its_end(empty: Memory) -> None:
    await say(empty, ("I'm vegan.", (2026, 1, 10)), ("I'm not vegan anymore.", (2026, 6, 5)))

    block = await empty.recall("Am I vegan?", user_id="vera")

    first, second = (match for match in block.matches if isinstance(match.item, Episode))
    assert (first.item.content, second.item.content) == ("I'm not vegan anymore.", "I'm vegan.")  # type: ignore[union-attr]
    assert second.superseded_at is not None
    assert 'superseded="2026-06-05"' in block.text


async def test_a_corrected_fact_ranks_as_high_as_the_one_before(empty: Memory) -> None:
    await say(
        empty,
        ("I'm Ben, hello.", (2026, 1, 10)),
        ("I teach at a school in Leeds.", (2026, 1, 11)),
        ("I work at Acme in Leeds.", (2026, 1, 12)),
        ("The bus to work was late.", (2026, 1, 13)),
    )
    question = "Where does Ben work now?"
    before = await empty.recall(question, user_id="vera")
    [acme] = [fact for fact in await empty.facts.query(user_id="vera") if fact.object == "Acme"]

    corrected = await empty.facts.correct(acme, "Globex", user_id="vera")
    after = await empty.recall(question, user_id="vera")

    def score(block: RecallBlock, text: str) -> float:
        return max(match.score for match in block.matches if text in getattr(match.item, "text", ""))

    assert corrected is not None
    assert corrected.sources == acme.sources
    assert score(after, "Globex") >= score(before, "Acme")
    why = await empty.facts.why(corrected, user_id="vera")
    assert why is not None
    assert [each.content for each in why.episodes] == ["I work at Acme in Leeds."]


async def test_an_undo_leaves_a_correction_and_a_forget_of_its_message_does_not(empty: Memory) -> None:
    await say(empty, ("I work at Acme.", (2026, 1, 12)))
    [acme] = await empty.facts.query(user_id="vera")
    await empty.facts.correct(acme, "Globex", user_id="vera")

    await empty.undo(*acme.sources, user_id="vera")
    undone = [fact.object for fact in await empty.facts.query(user_id="vera")]
    await say(empty, ("I live in Oslo.", (2026, 2, 1)))
    [oslo] = [fact for fact in await empty.facts.query(user_id="vera") if fact.object == "Oslo"]
    await empty.facts.correct(oslo, "Rome", user_id="vera")
    await empty.forget(ids=oslo.sources, user_id="vera")
    forgotten = [fact.object for fact in await empty.facts.query(user_id="vera")]

    assert undone == ["Globex"]
    assert forgotten == ["Globex"]


async def test_the_id_of_a_message_is_no_fact(empty: Memory) -> None:
    await say(empty, ("I work at Acme.", (2026, 1, 12)))
    [acme] = await empty.facts.query(user_id="vera")

    for call in (
        empty.facts.retract(acme.sources[0], user_id="vera"),
        empty.facts.correct(str(acme.sources[0]), "x", user_id="vera"),
    ):  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidFact, match="id of a message"):
            await call


async def test_min_score_is_of_the_scores_that_are_shown(empty: Memory) -> None:
    await say(
        empty,
        ("I live in Lisbon.", (2025, 9, 14)),
        ("The weather was mild.", (2025, 10, 1)),
        ("I moved to Porto.", (2026, 2, 14)),
        ("My bike has a flat tyre.", (2026, 3, 1)),
    )

    found = await empty.recall_scored("Where do I live?", user_id="vera", min_score=0.3, load=["history", "facts"])
    every = await empty.recall_scored("Where do I live?", user_id="vera", load=["history", "facts"])

    assert [match.score for match in found] == [match.score for match in every if match.score >= 0.3]
    assert "I live in Lisbon." not in {getattr(match.item, "content", "") for match in found}
    assert "I moved to Porto." in {getattr(match.item, "content", "") for match in found}


async def test_an_undo_withdraws_what_was_stated_with_its_message_as_the_only_source(empty: Memory) -> None:
    await say(empty, ("My score is 42.", (2026, 1, 12)))
    [message] = await empty.history(user_id="vera")
    await empty.facts.add("user", "score", "42", sources=(message.id,), user_id="vera")

    await empty.undo(message.id, user_id="vera")

    assert await empty.facts.query(user_id="vera") == []


async def test_a_fact_knows_its_owner(empty: Memory) -> None:
    await say(empty, ("I work at Acme.", (2026, 1, 12)))
    [acme] = await empty.facts.query(user_id="vera")

    corrected = await empty.facts.correct(acme, "Globex")
    assert corrected is not None
    assert await empty.facts.why(corrected) is not None
    assert await empty.facts.retract(corrected)
    added = await empty.facts.add("user", "role", "nurse", cardinality="single", user_id="vera")

    assert added.cardinality is Cardinality.SINGLE
    with pytest.raises(errors.InvalidFact, match="'single', 'multi'"):
        await empty.facts.add("user", "role", "nurse", cardinality="one", user_id="vera")


async def test_min_score_leaves_what_took_the_place_of_a_former_fact_in_a_question_about_time(empty: Memory) -> None:
    await say(
        empty,
        ("I live in Lisbon.", (2025, 9, 14)),
        ("The weather was mild.", (2025, 10, 1)),
        ("I moved to Porto.", (2026, 2, 14)),
        ("My bike has a flat tyre.", (2026, 3, 1)),
    )
    question = "When did I live in Lisbon, where do I live?"

    every = await empty.recall_scored(question, user_id="vera", load=["history", "facts"])
    found = await empty.recall_scored(question, user_id="vera", min_score=0.1, load=["history", "facts"])

    assert [match.score for match in found] == [match.score for match in every if match.score >= 0.1]


async def test_what_a_call_stated_and_retracted_stays_retracted_after_a_forget_of_the_message(empty: Memory) -> None:
    await empty.facts.add("user", "likes", "tea", user_id="vera")
    await say(empty, ("I like tea.", (2026, 1, 12)))
    [tea] = await empty.facts.query(user_id="vera")
    await empty.facts.retract(tea)

    await empty.forget(ids=tea.sources, user_id="vera")
    await empty.facts.add("user", "likes", "jazz", user_id="vera")

    assert [fact.object for fact in await empty.facts.query(user_id="vera")] == ["jazz"]


async def test_the_latest_messages_are_those_with_words(empty: Memory) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turn = [Message.user("Rain?")]
    for _ in range(6):
        turn += [Message.assistant("", metadata={"tool_calls": [call]}), Message.tool("dry", name="weather")]
    await empty.remember(turn, user_id="vera", session_id="s")
    await empty.drain(user_id="vera")

    block = await empty.recall("", user_id="vera", mode="recency", limit=5)

    assert [getattr(match.item, "content", "") for match in block.matches] == ["dry"] * 5


async def test_an_undo_does_not_bring_back_what_a_call_has_retracted(empty: Memory) -> None:
    await say(empty, ("I live in Paris.", (2026, 1, 12)))
    [paris] = await empty.facts.query(user_id="vera")
    rome = await empty.facts.correct(paris, "Rome", user_id="vera")
    assert rome is not None
    await empty.facts.retract(rome, user_id="vera")

    await empty.undo(*paris.sources, user_id="vera")

    assert await empty.facts.query(user_id="vera") == []


async def test_a_statement_passes_its_score_on_to_what_took_its_place_for_that_question_alone() -> None:
    """A message states two facts, and both have new ones."""
    async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as memory:
        await say(
            memory,
            ("I live in Lyon and I work at Renault.", (2025, 3, 10)),
            ("I am at Airbus since Monday. I now work at Airbus.", (2025, 9, 15)),
            ("I moved to Toulouse last week.", (2025, 10, 15)),
        )
        scores = {}
        for question in ("Where do I work?", "Where do I live?"):
            found = await memory.recall_scored(question, user_id="vera", load=["history", "facts"])
            scores[question] = {str(getattr(match.item, "content", match.item)): match.score for match in found}

    work, live = scores.values()
    new_job, new_home = "I am at Airbus since Monday. I now work at Airbus.", "I moved to Toulouse last week."
    assert work[new_job] > 0.5 > 0.1 > work.get(new_home, 0.0)
    assert live[new_home] > 0.5 > 0.1 > live.get(new_job, 0.0)


async def recall_after(*said: tuple[str, tuple[int, int, int]], question: str, mode: RecallMode) -> RecallBlock:
    """The block of a memory that has learnt this."""
    async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as memory:
        await say(memory, *said)
        return await memory.recall(question, user_id="vera", mode=mode)


EACH_MODE = pytest.mark.parametrize("mode", ["vector", "recency", "hybrid", "lexical"])


@EACH_MODE
async def test_every_mode_marks_what_is_no_longer_true(mode: RecallMode) -> None:
    """Also of a message that states something that still is."""
    block = await recall_after(
        ("Hi, I'm Mia. I live in Lyon and I work at Renault.", (2025, 3, 10)),
        ("I left Renault. I now work at Airbus.", (2025, 9, 15)),
        question="Where does Mia work?",
        mode=mode,
    )

    turns = [match for match in block.matches if isinstance(match.item, Episode)]
    assert [bool(match.superseded_at) for match in turns] == [False, True]
    assert turns[-1].item.content.startswith("Hi, I'm Mia.")  # type: ignore[union-attr]


@EACH_MODE
async def test_a_message_keeps_its_place_for_questions_about_what_still_is_true(mode: RecallMode) -> None:
    """Its other statement has ended."""
    block = await recall_after(
        ("I live in Lyon and I work at Renault.", (2025, 3, 10)),
        ("I moved to Toulouse last week.", (2025, 10, 15)),
        question="Where does the user work?",
        mode=mode,
    )

    [match] = [match for match in block.matches if "Renault" in getattr(match.item, "content", "")]
    assert match.superseded_at is None


@pytest.mark.parametrize(
    "question",
    [
        *("What did I do in July?", "What did I do in summer?", "What did I do in July 2025?"),
        *("What happened in the second half of 2025?", "What did I do in Q3 2025?", "What did I do in mid-2025?"),
    ],
)
async def test_a_period_alone_has_its_messages_whatever_was_said_later(question: str) -> None:
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        for text, day in (
            ("I ran the half marathon of Lyon.", (2025, 4, 22)),
            ("We spent two weeks hiking in the Dolomites.", (2025, 7, 15)),
            ("My bike has a flat tyre.", (2026, 3, 2)),
            ("I also joined a choir.", (2026, 10, 12)),
        ):
            message = Message.user(text, occurred_at=datetime(*day, tzinfo=UTC))
            await memory.remember([message], user_id="vera", session_id=text)
        found = await memory.recall_scored(question, user_id="vera", min_score=0.2)

    assert [getattr(match.item, "content", "") for match in found] == ["We spent two weeks hiking in the Dolomites."]


KIM = (
    ("My name is Kim. I live in Leeds.", (2026, 3, 1)),
    ("I moved from Leeds to Manchester.", (2026, 6, 1)),
    ("My card was charged for the May invoice.", (2026, 6, 3)),
    ("I visited a concert on Saturday.", (2026, 7, 6)),
    ("I started a pottery class.", (2026, 7, 20)),
    ("I bought running shoes.", (2026, 8, 4)),
)


async def test_the_name_of_the_user_in_a_question_tells_no_messages_apart(empty: Memory) -> None:
    await say(empty, *KIM)

    home = await empty.recall_scored("Where does Kim live?", user_id="vera")
    other = await empty.recall_scored("Was Kim billed two times?", user_id="vera", load=["history", "facts"])
    july = await empty.recall_scored("What did Kim do in July 2026?", user_id="vera", min_score=0.2)
    i_in_july = await empty.recall_scored("What did I do in July 2026?", user_id="vera", min_score=0.2)
    name = await empty.recall_scored("Who is Kim?", user_id="vera")

    def contents(matches: list[Match]) -> list[str]:
        return [match.item.content for match in matches if isinstance(match.item, Episode)]

    assert contents(home)[0] == "I moved from Leeds to Manchester."
    assert max(match.score for match in other) < 0.1, "nothing is about it"
    assert contents(july) == contents(i_in_july)
    assert {*contents(july)} == {"I visited a concert on Saturday.", "I started a pottery class."}
    assert contents(name)[0] == "My name is Kim. I live in Leeds."


@pytest.mark.parametrize("user", ["vera", "Vera"])
async def test_the_id_of_the_user_in_a_question_tells_no_messages_apart(user: str) -> None:
    async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as memory:
        await say(memory, *KIM[1:], ("I called Vera in May.", (2026, 5, 2)), user=user)
        found = await memory.recall_scored("What did Vera do in July 2026?", user_id=user, min_score=0.2)

    assert {match.item.content for match in found if isinstance(match.item, Episode)} == {
        "I visited a concert on Saturday.",
        "I started a pottery class.",
    }


async def test_a_block_that_leaves_nothing_out_has_all_chunks_that_are_available(empty: Memory) -> None:
    await say(empty, *KIM)

    for question in ("Where do I live?", "What did I do in July 2026?", "Where did I live before?"):
        for min_score in (0.0, 0.05, 0.3, 0.6):
            block = await empty.recall(question, user_id="vera", min_score=min_score, limit=30, token_budget=4000)
            small = await empty.recall(question, user_id="vera", min_score=min_score, limit=30, token_budget=60)

            assert block.chunks_included == block.chunks_available == len(block.matches), (question, min_score)
            assert small.chunks_available == block.chunks_available, (question, min_score)


@pytest.mark.parametrize(
    ("said", "question", "first"),
    [
        (
            ("My name is Rose.", "The rose by the door has mildew.", "I treat my skin with a cream."),
            "Where is the rose?",
            "The rose by the door has mildew.",
        ),
        (
            ("I like coffee.", "I don't like coffee anymore.", "I like tea."),
            "Did I say once which drinks I like?",
            "I like tea.",
        ),
    ],
)
async def test_a_word_that_may_be_a_name_or_a_former_time_counts_as_a_word(
    said: tuple[str, ...], question: str, first: str
) -> None:
    async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as memory:
        await say(memory, *((text, (2026, 3, day)) for day, text in enumerate(said, start=1)))
        found = await memory.recall_scored(question, user_id="vera")

    contents = [match.item.content for match in found if isinstance(match.item, Episode)]
    assert first in contents[:2]


JOURNEYS = (
    ("Went skiing last weekend in Davos.", (2023, 2, 20)),
    ("How are the winters there?", (2023, 7, 4)),
    ("My last car broke down again.", (2024, 8, 9)),
    ("We spent two weeks hiking in Madeira.", (2025, 10, 5)),
    ("I keep meaning to learn the cello.", (2026, 9, 3)),
)


async def test_the_words_that_name_a_time_from_today_match_no_messages(empty: Memory) -> None:
    await say(empty, *JOURNEYS)

    for question, first in (
        ("Where did I travel last autumn?", "We spent two weeks hiking in Madeira."),
        ("Where did I travel in October 2025?", "We spent two weeks hiking in Madeira."),
        ("Which car did I drive in the last ten years?", "My last car broke down again."),
    ):
        found = await empty.recall_scored(question, user_id="vera", load=["history"])

        contents = [match.item.content for match in found if isinstance(match.item, Episode)]
        assert contents[0] == first, question


async def test_a_word_of_another_time_passes_its_score_on_to_what_was_true_then(empty: Memory) -> None:
    await say(
        empty,
        ("I work at Brightline.", (2022, 3, 1)),
        ("I bought a tent.", (2023, 5, 1)),
        ("I started a new job at Northern Rail.", (2024, 3, 2)),
    )

    for question, answer in (
        ("What was my job in 2023?", "Brightline"),
        ("What was my job before Northern Rail?", "Brightline"),
        ("What is my job?", "Northern Rail"),
        ("What was my job in 2025?", "Northern Rail"),
    ):
        found = await empty.recall_scored(question, user_id="vera")
        facts = [match for match in found if isinstance(match.item, Fact)]
        block = await empty.recall(question, user_id="vera", token_budget=250)

        assert facts[0].item.object == answer, question  # type: ignore[union-attr]
        assert facts[0].score > 0.1
        assert answer in block.text


async def test_a_fact_about_another_speaker_lifts_nothing_for_the_one_that_is_named(empty: Memory) -> None:
    for name, text in (("Dana", "I moved to Vienna in spring."), ("Emil", "I live in Ghent.")):
        await say(empty, (text, (2026, 4, 3)), name=name)

    dana = await empty.recall_scored("Where does Dana live?", user_id="vera")
    emil = await empty.recall_scored("Where does Emil live?", user_id="vera")
    both = await empty.recall_scored("Where do Dana and Emil live?", user_id="vera")

    def scores(matches: list[Match]) -> dict[str, float]:
        return {m.item.text if isinstance(m.item, Fact) else m.item.content: m.score for m in matches}  # type: ignore[union-attr]

    assert list(scores(dana))[:2] == ["I moved to Vienna in spring.", "Dana lives in Vienna"]
    assert scores(dana)["Emil lives in Ghent"] < 0.2
    assert list(scores(emil))[:2] == ["I live in Ghent.", "Emil lives in Ghent"]
    assert scores(emil)["I moved to Vienna in spring."] < 0.2
    assert min(scores(both)[fact] for fact in ("Emil lives in Ghent", "Dana lives in Vienna")) > 0.5


async def test_the_name_of_another_is_not_that_of_the_user(empty: Memory) -> None:
    await say(empty, ("My sister Ana is a dentist.", (2026, 2, 3)), ("My name is Ben.", (2026, 5, 3)))

    sister = await empty.recall_scored("What is my sister's name?", user_id="vera")
    mine = await empty.recall_scored("What is my name?", user_id="vera")
    of_user = await empty.recall_scored("What is the user's name?", user_id="vera")

    def first(matches: list[Match]) -> str:
        return next(match.item.content for match in matches if isinstance(match.item, Episode))

    assert first(sister) == "My sister Ana is a dentist."
    assert first(mine) == first(of_user) == "My name is Ben."


async def test_a_question_that_names_a_former_home_or_employer_has_it_first(empty: Memory) -> None:
    await say(
        empty,
        ("I live in Bergen.", (2021, 1, 1)),
        ("I work at Hillside School.", (2022, 1, 1)),
        ("I moved to Lisbon for the sun and the food.", (2023, 5, 1)),
        ("I started at Northwind last month.", (2024, 2, 1)),
        ("I moved to Porto because rent in Lisbon got crazy.", (2025, 3, 1)),
    )

    for question, first in (
        ("When did I move to Lisbon?", "I moved to Lisbon for the sun and the food."),
        ("When did I move to Bergen?", "I live in Bergen."),
        ("Did I ever live in Bergen?", "I live in Bergen."),
        ("When did I start at Hillside School?", "I work at Hillside School."),
        ("When did I move to Porto?", "I moved to Porto because rent in Lisbon got crazy."),
    ):
        found = await empty.recall_scored(question, user_id="vera")

        assert found[0].item.content == first, question  # type: ignore[union-attr]
    for question in (
        "Where do I live?",
        "Where is my new home, where do I live now?",
        "I don't live in Lisbon anymore, so where do I live?",
        "Is my school near where I live?",
    ):
        now = await empty.recall_scored(question, user_id="vera")
        assert "Porto" in str(now[0].item), question


@pytest.mark.parametrize(
    ("said", "question", "former", "present"),
    [
        (("Vivo en Madrid y trabajo como abogada.", "Me mudé a Valencia."), "¿Dónde vivo?", "Madrid", "Valencia"),
        (
            ("J'habite à Lyon. Je travaille comme infirmière.", "J'ai déménagé à Nantes."),
            "Où j'habite ?",
            "Lyon",
            "Nantes",
        ),
        (
            ("Ich wohne in Hamburg und arbeite als Koch.", "Ich bin nach Berlin umgezogen."),
            "Wo wohne ich?",
            "Hamburg",
            "Berlin",
        ),
    ],
)
async def test_what_is_no_longer_true_is_marked_in_every_language_of_the_rules(
    empty: Memory, said: tuple[str, str], question: str, former: str, present: str
) -> None:
    await say(empty, (said[0], (2021, 1, 1)), (said[1], (2024, 1, 1)))

    found = await empty.recall_scored(question, user_id="vera")

    facts = [match for match in found if isinstance(match.item, Fact)]
    episodes = [match for match in found if isinstance(match.item, Episode)]
    assert present in facts[0].item.text  # type: ignore[union-attr]
    assert [present in match.item.content for match in episodes] == [True, False]  # type: ignore[union-attr]
    assert episodes[1].superseded_at is not None


@pytest.mark.parametrize(
    ("said", "question", "first"),
    [
        (("I moved to Berlin.", "I moved from Berlin to Leipzig."), "When did I move to Berlin?", 0),
        (("I moved to Berlin.", "I moved from Berlin to Leipzig."), "When did I leave Berlin?", 1),
        (("I moved to Berlin.", "I moved to Leipzig."), "When did I move to Berlin?", 0),
        (("I work at Acme.", "I quit my job."), "When did I start at Acme?", 0),
        (("I work at Acme.", "I left Acme."), "Did I work at Acme?", 0),
        (("I work at Acme.", "I left Acme."), "When did I leave Acme?", 1),
    ],
)
async def test_a_question_that_names_what_has_ended_has_its_start_or_its_end_first(
    empty: Memory, said: tuple[str, str], question: str, first: int
) -> None:
    await say(empty, (said[0], (2021, 1, 1)), ("I like tea.", (2022, 1, 1)), (said[1], (2024, 1, 1)))

    found = [match.item for match in await empty.recall_scored(question, user_id="vera")]

    assert isinstance(found[0], Episode)
    assert found[0].content == said[first]
    facts = [item for item in found if isinstance(item, Fact)]
    assert facts[0].valid_to == datetime(2024, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "question"),
    [
        (("I work at Acme.", "I work at Globex."), "What was my first job?"),
        (("Ich wohne in Graz.", "Ich wohne in Linz."), "Wo habe ich vor Linz gewohnt?"),
        (("J'habite à Nantes.", "J'habite à Brest."), "Où habitais-je avant Brest ?"),
    ],
)
async def test_the_former_fact_answers_a_question_about_what_was_first_or_before(
    empty: Memory, said: tuple[str, str], question: str
) -> None:
    await say(empty, (said[0], (2022, 3, 3)), (said[1], (2024, 3, 3)))

    found = await empty.recall_scored(question, user_id="vera")

    assert next(match.item for match in found if isinstance(match.item, Fact)).valid_to is not None


HOMES_ASKED_FOR = {
    "Where have I lived?": {"Oslo", "Bergen"},
    "Which cities have I lived in?": {"Oslo", "Bergen"},
    "Which places did I ever live in?": {"Oslo", "Bergen"},
    "List the cities I've lived in.": {"Oslo", "Bergen"},
    "How long have I lived in Bergen?": {"Bergen"},
    "What have I said about where I live?": {"Bergen"},
    "Where do I live?": {"Bergen"},
    "I've ordered a sofa. Where do I live?": {"Bergen"},
    "As I've mentioned, where do I live?": {"Bergen"},
    "Do you have my home address?": {"Bergen"},
}


async def test_a_question_about_all_times_has_what_ended_next_to_what_is_true(empty: Memory) -> None:
    await say(empty, ("I live in Oslo.", (2021, 1, 1)), ("I moved to Bergen.", (2024, 1, 1)))

    for question, homes in HOMES_ASKED_FOR.items():
        found = await empty.recall_scored(question, user_id="vera")
        facts = {match.item.object: match.score for match in found if isinstance(match.item, Fact)}
        assert facts.keys() == homes, question
        assert len(set(facts.values())) == 1, question


async def test_a_message_with_something_that_ended_still_answers_about_its_other_sentences(empty: Memory) -> None:
    said = ("I live in Minsk. We had pancakes for breakfast.", "I moved to Vilnius.")
    await say(empty, *((text, (2024, year, 1)) for year, text in enumerate(said, 1)))

    breakfast = await empty.recall_scored("What did we have for breakfast?", user_id="vera")
    home = await empty.recall_scored("Where do I live?", user_id="vera")

    assert isinstance(breakfast[0].item, Episode)
    assert (breakfast[0].item.content, breakfast[0].superseded_at) == (said[0], None)
    assert max(match.score for match in breakfast if "Vilnius" in str(match.item)) < 0.2
    assert all("Vilnius" in str(match.item) for match in home[:2])


async def test_another_object_of_several_takes_no_place_of_one_that_ended(empty: Memory) -> None:
    said = ("I have a cat named Pickle.", "We have a dog named Otto.", "Pickle died yesterday.")
    await say(empty, *((text, (2024, month, 1)) for month, text in enumerate(said, 1)))

    found = await empty.recall_scored("What is my cat called?", user_id="vera")

    assert max(match.score for match in found if "Otto" in str(match.item)) < 0.1


def by_word(word: str) -> Any:  # Any: a reranker
    async def rerank(question: str, texts: Sequence[str]) -> list[float]:
        return [float(word in text) for text in texts]

    return rerank


async def test_the_order_of_a_reranker_is_that_of_messages_facts_and_blocks() -> None:
    settings = Settings(**AT_ONCE, **UNHURRIED)
    async with Memory("inmemory", settings=settings, reranker=by_word("Miso")) as memory:
        notes = [(f"I fed the cat and note number {n}.", (2024, 3, n)) for n in range(1, 26)]
        await say(
            memory, ("I have a cat named Miso.", (2024, 1, 1)), *notes, ("Miso caught a cold yesterday.", (2024, 5, 1))
        )

        found = await memory.recall_scored("What happened to my cat?", user_id="vera", rerank=True)
        block = await memory.recall("What happened to my cat?", user_id="vera", rerank=True, token_budget=110)

    assert ["Miso" in str(match.item) for match in found[:3]] == [True, True, True], "two messages and a fact"
    assert {type(match.item) for match in found[:3]} == {Episode, Fact}
    given = [match.rerank_score or 0.0 for match in found]
    assert given == sorted(given, reverse=True)
    assert "Miso caught a cold yesterday." in block.text


@pytest.mark.parametrize("scores", [[1.0], [1.0, float("nan")]])
async def test_a_reranker_that_returns_no_score_for_each_message_loses_none(scores: list[float]) -> None:
    async def forgetful(question: str, texts: Sequence[str]) -> list[float]:
        return scores

    async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED), reranker=forgetful) as memory:
        await say(memory, ("I fed the cat.", (2024, 3, 1)), ("I brushed the cat.", (2024, 3, 2)))
        block = await memory.recall("What about the cat?", user_id="vera", rerank=True, load=["history"])

    assert len(block.matches) == 2
    assert block.degraded is not None
    assert "reranker" in block.degraded
