"""Questions that name a time."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aftermind import Fact, Memory, Message, Settings
from aftermind.stores.postgres.search import PostgresSearch
from aftermind.types import Episode
from tests.support.conversations import KIM, say, texts
from tests.support.learning import AT_ONCE, UNHURRIED, learning
from tests.support.servers import Database

HOMES = {"I live in Madrid.": (2025, 1, 10), "I moved to Berlin.": (2025, 4, 15), "I moved to Vienna.": (2025, 8, 20)}


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


async def test_an_event_is_of_the_period_in_which_it_happened() -> None:
    visits = {
        "I visited Bath in 2021.": (2022, 5, 1),
        "I visited Lisbon.": (2022, 6, 1),
        "I visited Porto.": (2023, 6, 1),
        "I visited Faro.": (2024, 1, 3),
    }
    async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as memory:
        for said, day in visits.items():
            await memory.remember([Message.user(said, occurred_at=datetime(*day, tzinfo=UTC))], user_id="mia")
        await memory.drain(user_id="mia", timeout=60)
        found = {
            question: {match.item.object for match in matches if isinstance(match.item, Fact)}
            for question in (
                "Which city did I visit in 2023?",
                "Which cities did I visit since 2023?",
                "Which cities did I visit before 2023?",
                "Which cities have I visited?",
                "Which city did I visit in June 2021?",
            )
            if (matches := await memory.recall_scored(question, user_id="mia", load=["facts"]))
        }

    assert list(found.values()) == [
        {"Porto"},
        {"Porto", "Faro"},
        {"Bath", "Lisbon"},
        {"Bath", "Lisbon", "Porto", "Faro"},
        {"Bath"},
    ]


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


async def test_the_latest_messages_are_those_with_words(empty: Memory) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turn = [Message.user("Rain?")]
    for _ in range(6):
        turn += [Message.assistant("", metadata={"tool_calls": [call]}), Message.tool("dry", name="weather")]
    await empty.remember(turn, user_id="vera", session_id="s")
    await empty.drain(user_id="vera")

    block = await empty.recall("", user_id="vera", mode="recency", limit=5)

    assert [getattr(match.item, "content", "") for match in block.matches] == ["dry"] * 5


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


TODAY = datetime.now(UTC).date()
LAST_AUTUMN = TODAY.year if TODAY.month == 12 else TODAY.year - 1  # one that is over
JOURNEYS = (
    ("Went skiing last weekend in Davos.", (2023, 2, 20)),
    ("How are the winters there?", (2023, 7, 4)),
    ("My last car broke down again.", (2024, 8, 9)),
    ("I keep meaning to learn the cello.", (LAST_AUTUMN, 7, 3)),
    ("We spent two weeks hiking in Madeira.", (LAST_AUTUMN, 10, 5)),
)


async def test_the_words_that_name_a_time_from_today_match_no_messages(empty: Memory) -> None:
    await say(empty, *JOURNEYS)

    for question, first in (
        ("Where did I travel last autumn?", "We spent two weeks hiking in Madeira."),
        (f"Where did I travel in October {LAST_AUTUMN}?", "We spent two weeks hiking in Madeira."),
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


YEARS = {
    "What is my budget for 2024?": (
        "The budget for 2024 was set after long talks with finance and legal, at 40,000 euros.",
        "My budget for 2025 is 50,000.",
    ),
    "How is the radio of my Peugeot 2008?": (
        "The radio of my Peugeot 2008 is broken again after the rain last night.",
        "The radio of my Peugeot 308 is fine.",
    ),
    "What fine did I pay in 2023?": (
        "I paid a fine in 2023 for parking in front of the hospital.",
        "I paid no fine.",
    ),
}


@pytest.mark.parametrize("question", YEARS)
async def test_a_year_that_messages_have_with_the_subject_counts_as_a_word(question: str) -> None:
    right, wrong = YEARS[question]
    async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as memory:
        for number, said in enumerate((right, wrong)):
            message = Message.user(said, occurred_at=datetime(2026, 1, 5 + number, tzinfo=UTC))
            await memory.remember([message], user_id="mia", session_id=said)
        await memory.drain(user_id="mia", timeout=60)
        matches = await memory.recall_scored(question, user_id="mia", load=["history"])

    assert [match.item.content for match in matches if match.score > 0.2] == [right]  # type: ignore[union-attr]


async def test_a_message_after_the_period_of_a_question_is_unlikelier_to_answer_it_than_one_before() -> None:
    text, scores = "I go to the lake for a holiday.", {}
    async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as memory:
        for year in (2024, 2026):
            user = str(year)
            message = Message.user(text, occurred_at=datetime(year, 4, 2, tzinfo=UTC))
            await memory.remember([message], user_id=user, session_id="s")
            await memory.drain(user_id=user, timeout=60)
            for period in ("in summer 2025", "in April 2026"):
                [match] = await memory.recall_scored(f"Where did I go for a holiday {period}?", user_id=user)
                scores[year, period] = match.score

    assert scores[2024, "in summer 2025"] > 2 * scores[2026, "in summer 2025"]
    assert scores[2026, "in April 2026"] > scores[2024, "in April 2026"]


PASSPORT = {
    "I joined Zalando last week.": (2025, 1, 12),
    "My passport is valid since 2025.": (2026, 7, 7),
    "I live in Hamburg.": (2026, 7, 8),
}


@pytest.mark.parametrize("question", ["Where did I work in March 2025?", "Where did I work in 2025?"])
async def test_a_message_that_only_mentions_the_year_is_behind_what_answers(question: str) -> None:
    async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as memory:
        for said, day in PASSPORT.items():
            message = Message.user(said, occurred_at=datetime(*day, tzinfo=UTC))
            await memory.remember([message], user_id="mia", session_id=said)
        await memory.drain(user_id="mia", timeout=60)
        matches = await memory.recall_scored(question, user_id="mia")

    scores = {match.item.text if isinstance(match.item, Fact) else match.item.content: match.score for match in matches}  # type: ignore[union-attr]
    assert scores["user works at Zalando"] > 0.5
    assert scores["I joined Zalando last week."] > scores["My passport is valid since 2025."]
