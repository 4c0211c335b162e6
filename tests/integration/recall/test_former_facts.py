"""Questions about what was true formerly."""

from datetime import UTC, datetime

import pytest

from aftermind import Fact, Memory
from aftermind.types import Episode
from tests.support.conversations import say, texts


@pytest.mark.parametrize("user", ["Alice", "I"])
async def test_a_question_about_the_past_has_what_was_true_before_what_took_its_place(
    memory: Memory, user: str
) -> None:
    block = await memory.recall(f"Where did {user} live before Oslo?", user_id="alice", token_budget=300)

    assert "Bergen" in texts(block)[0]
    assert texts(block).index("user lives in Bergen") < texts(block).index("user lives in Oslo")


@pytest.mark.parametrize(
    ("said", "questions"),
    [
        (
            ("Ich wohne in München.", "Ich bin nach Hamburg gezogen."),
            ("Wo habe ich früher gewohnt?", "Wo habe ich damals gewohnt?"),
        ),
        (
            ("Ich arbeite bei BMW.", "Ich arbeite bei Airbus."),
            ("Wo habe ich früher gearbeitet?", "Wo arbeitete ich früher?"),
        ),
        (("Vivo en Bilbao.", "Me mudé a Madrid."), ("¿Dónde he vivido antes?",)),
        (("J'habite à Lyon.", "J'ai déménagé à Paris."), ("Où ai-je habité avant ?",)),
    ],
)
async def test_a_question_about_the_past_is_read_in_the_perfect_tense_too(
    empty: Memory, said: tuple[str, str], questions: tuple[str, ...]
) -> None:
    await say(empty, (said[0], (2025, 3, 1)), (said[1], (2025, 9, 1)))
    (former,) = [each for each in await empty.facts.history(user_id="vera") if each.valid_to is not None]

    for question in questions:
        found = await empty.recall_scored(question, user_id="vera", load=["facts"])
        facts = [each.item for each in found if isinstance(each.item, Fact)]
        assert facts[0].object == former.object, question


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


@pytest.mark.parametrize(
    ("question", "object_", "said"),
    [
        ("Where did I live before Trondheim?", "Oslo", "I moved from Bergen to Oslo."),
        ("Where did I live before Oslo?", "Bergen", "I moved from Bergen to Oslo."),
        ("Wo habe ich vor Trondheim gewohnt?", "Oslo", "I moved from Bergen to Oslo."),
    ],
)
async def test_before_one_of_several_homes_is_the_last_one_before_it(
    empty: Memory, question: str, object_: str, said: str
) -> None:
    await say(
        empty,
        ("I live in Bergen and work as a data analyst.", (2025, 1, 5)),
        ("I moved from Bergen to Oslo.", (2025, 9, 3)),
        ("I moved to Trondheim, what a nice city.", (2026, 5, 1)),
    )

    found = [match.item for match in await empty.recall_scored(question, user_id="vera")]

    assert isinstance(found[0], Episode)
    assert found[0].content == said
    assert next(item for item in found if isinstance(item, Fact)).object == object_


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("Did I ever live in Oslo before?", "I moved from Bergen to Oslo."),
        ("Which cities did I live in before Trondheim?", "I live in Bergen and work as a data analyst."),
    ],
)
async def test_before_is_about_the_last_home_only_where_the_question_names_the_next_one(
    empty: Memory, question: str, first: str
) -> None:
    await say(
        empty,
        ("I live in Bergen and work as a data analyst.", (2025, 1, 5)),
        ("I work at Acme.", (2025, 1, 6)),
        ("I moved from Bergen to Oslo.", (2025, 9, 3)),
        ("I left Acme. I work at Globex.", (2026, 1, 3)),
        ("I moved to Trondheim, what a nice city.", (2026, 5, 1)),
    )

    found = [match.item for match in await empty.recall_scored(question, user_id="vera")]

    assert isinstance(found[0], Episode)
    assert found[0].content == first


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


async def test_what_ended_without_a_successor_is_found_by_a_question_in_the_past(empty: Memory) -> None:
    said = (
        "My dog is called Rex.",
        "I have a cat named Otto.",
        "The vet called me about the bill.",
        "Rex died yesterday.",
    )
    await say(empty, *((text, (2024, month, 1)) for month, text in enumerate(said, 1)))

    then, now = [
        {
            str(getattr(match.item, "content", "")): match
            for match in await empty.recall_scored(question, user_id="vera")
        }
        for question in ("What was my dog called?", "What is my dog called?")
    ]

    assert next(iter(then)) == next(iter(now)) == said[0]
    assert then[said[0]].superseded_at is not None
    assert then[said[0]].score > 0.5 > now[said[0]].score
