"""What was said and is no longer true."""

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from aftermind import Fact, Memory, Message, RecallBlock, RecallMode, Settings
from aftermind.recall.render import without_turns
from aftermind.types import Episode
from tests.support.conversations import recall_after, say, texts
from tests.support.learning import AT_ONCE, UNHURRIED


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


async def recalled(question: str, *said: str) -> RecallBlock:
    async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as memory:
        for number, text in enumerate(said):
            message = Message.user(text, occurred_at=datetime(2024, 1, 10, tzinfo=UTC) + timedelta(days=100 * number))
            await memory.remember([message], user_id="ann", session_id=f"s{number}")
        await memory.drain(user_id="ann")
        return await memory.recall(question, user_id="ann")


@pytest.mark.parametrize("question", ["Do I live in Leeds?", "Am I living in Leeds?"])
async def test_a_question_about_now_that_names_what_was_has_what_is_first(question: str) -> None:
    found = await recalled(question, "I live in Leeds.", "I prefer window seats.", "I live in Bristol.")

    assert "Bristol" in texts(found)[0]


@pytest.mark.parametrize("question", ["Do you remember when I lived in Leeds?", "Is Leeds where I lived?"])
async def test_a_question_about_what_was_that_begins_like_one_about_now_has_that_first(question: str) -> None:
    found = await recalled(question, "I live in Leeds.", "I prefer window seats.", "I live in Bristol.")

    assert "Leeds" in texts(found)[0]


async def test_the_mark_has_the_time_of_the_first_end_of_what_is_asked() -> None:
    found = await recalled(
        "Where do I work?", "I work as a nurse at Mercy Hospital.", "I quit my job at Mercy Hospital.", "I'm a midwife."
    )

    marked = next(each for each in found.matches if each.superseded_at)
    assert marked.superseded_at == datetime(2024, 1, 10, tzinfo=UTC) + timedelta(days=100)


async def test_what_took_the_place_of_a_statement_is_left_out_where_that_is_unlike_the_question() -> None:
    async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as memory:
        for number, text in enumerate(
            (
                "I live in Ghent with my husband Jonas.",
                "I work at Acme.",
                "I have a cat called Miso.",
                "I like hiking.",
                "The weather is nice in Lisbon today.",
                "I now work at Globex.",
                "We moved to Antwerp last week.",
            )
        ):
            message = Message.user(text, occurred_at=datetime(2024, 1, 5, tzinfo=UTC) + timedelta(days=60 * number))
            await memory.remember([message], user_id="ann", session_id=f"s{number}")
        await memory.drain(user_id="ann")
        lisbon = await memory.recall("What do you know about Lisbon?", user_id="ann")
        home = await memory.recall("Where do I live?", user_id="ann")

    assert "We moved to Antwerp last week." not in texts(lisbon)
    assert "We moved to Antwerp last week." in texts(home)


async def test_a_marked_turn_is_recognised_as_one_that_the_model_is_shown_anyway(memory: Memory) -> None:
    block = await memory.recall("Where does Alice live?", user_id="alice", token_budget=300)
    shown = [each.item for each in block.matches if isinstance(each.item, Episode) and each.superseded_at is not None]

    left = without_turns(block, {each.id for each in shown})

    assert [each for each in block.matches if each not in left.matches] == [
        each for each in block.matches if each.superseded_at is not None
    ]
    assert "superseded=" not in left.text


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


FILLERS = (
    "What a lovely morning.",
    "The coffee tastes great today.",
    "I watched a documentary about whales.",
    "Did you see the match yesterday?",
    "My bike has a flat tyre again.",
    "The weather turned cold.",
    "I read a few chapters last night.",
    "Thanks, that helps a lot.",
)


HOME_ASKED_FOR = (
    "Where does Nadia live these days?",
    "Where do I live?",  # "We moved to Antwerp last week." has nothing of it, and scores exactly 0
    "Where do I live now?",
    "Where does Nadia live?",
)


@pytest.mark.parametrize("count", [30, 90])
async def test_what_took_the_place_of_a_statement_is_in_the_block_however_unlikely_by_itself(
    empty: Memory, count: int
) -> None:
    """With more messages than `limit`, and than are considered; `load` without facts lifts no message."""
    fillers = [f"{FILLERS[place % len(FILLERS)]} {place}" for place in range(count - 2)]
    messages = ["My name is Nadia. I live in Ghent.", *fillers]
    messages.insert(count // 2, "We moved to Antwerp last week.")
    days = [datetime(2025, 1, 1, tzinfo=UTC) + timedelta(days=place) for place in range(count)]
    said = [Message(role="user", content=text, occurred_at=day) for text, day in zip(messages, days, strict=True)]
    await empty.remember(said, user_id="vera", session_id="s")
    await empty.drain(user_id="vera")
    asked = {"user_id": "vera", "load": ["history"]}

    for question, limit in product(HOME_ASKED_FOR, (10, 20, 29)):
        scored = await empty.recall_scored(question, limit=limit, **asked)  # type: ignore[arg-type]
        block = await empty.recall(question, limit=limit, token_budget=500, **asked)  # type: ignore[arg-type]
        explained = await empty.explain(question, limit=limit, token_budget=500, **asked)  # type: ignore[arg-type]

        likely = [(match.item, match.score) for match in scored if match.score >= explained.min_score]
        assert [match.item.content for match in scored[:2]] == [messages[count // 2], messages[0]]  # type: ignore[union-attr]
        assert [match.rank for match in scored] == list(range(1, len(scored) + 1))
        assert [(match.item, match.score) for match in block.matches] == likely
        assert [(match.item, match.score) for match in explained.block.matches] == likely
        left_out = {getattr(each.match.item, "content", "") for each in explained.excluded}
        assert left_out.isdisjoint(texts(block))
        assert messages[count // 2] not in left_out


async def test_what_has_nothing_of_a_question_ranks_no_higher_than_what_it_took_the_place_of_keeps(
    empty: Memory,
) -> None:
    """The question has a word of the former job, but is about the home."""
    said = (
        ("I live in Bergen.", (2021, 1, 1)),
        ("I work at Hillside School.", (2022, 1, 1)),
        ("I started at Northwind last month.", (2024, 2, 1)),
        ("I moved to Porto because rent got crazy.", (2025, 3, 1)),
    )
    await say(empty, *said)

    scored = await empty.recall_scored("Is my school near where I live?", user_id="vera", load=["history"])

    found = {match.item.content: match for match in scored}  # type: ignore[union-attr]
    job, former_job = found["I started at Northwind last month."], found["I work at Hillside School."]
    assert scored[0].item.content == "I moved to Porto because rent got crazy."  # type: ignore[union-attr]
    assert (job.rank, job.score) == (former_job.rank - 1, former_job.score)


async def test_a_message_with_a_similar_fact_needs_a_score_that_is_passed_on(empty: Memory) -> None:
    """It states what still is true; the question is about something else."""
    await say(
        empty,
        ("I live in Ghent.", (2025, 1, 1)),
        ("We moved to Antwerp last week.", (2025, 3, 1)),
        *((f"{FILLERS[place % len(FILLERS)]} {place}", (2025, 4, 1)) for place in range(28)),
    )

    scored = await empty.recall_scored("Which whales?", user_id="vera", load=["history"], limit=10)
    block = await empty.recall("Which whales?", user_id="vera", load=["history"], limit=10)

    assert "whales" in texts(block)[0]
    assert not any("Antwerp" in text for text in texts(block))
    assert [match.item for match in scored if match.score >= 0.001] == [match.item for match in block.matches]
