"""Names and ids in questions."""

import pytest

from aftermind import Fact, Match, Memory, Settings, errors
from aftermind.types import Cardinality, Episode
from tests.support.conversations import KIM, say
from tests.support.learning import AT_ONCE, UNHURRIED


async def test_the_id_of_a_message_is_no_fact(empty: Memory) -> None:
    await say(empty, ("I work at Acme.", (2026, 1, 12)))
    [acme] = await empty.facts.query(user_id="vera")

    for call in (
        empty.facts.retract(acme.sources[0], user_id="vera"),
        empty.facts.correct(str(acme.sources[0]), "x", user_id="vera"),
    ):  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidFact, match="id of a message"):
            await call


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
