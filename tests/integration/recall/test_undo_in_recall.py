"""What an undo, a retraction or a forget leaves to be recalled."""

from aftermind import Memory
from tests.support.conversations import say


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


async def test_an_undo_withdraws_what_was_stated_with_its_message_as_the_only_source(empty: Memory) -> None:
    await say(empty, ("My score is 42.", (2026, 1, 12)))
    [message] = await empty.history(user_id="vera")
    await empty.facts.add("user", "score", "42", sources=(message.id,), user_id="vera")

    await empty.undo(message.id, user_id="vera")

    assert await empty.facts.query(user_id="vera") == []


async def test_what_a_call_stated_and_retracted_stays_retracted_after_a_forget_of_the_message(empty: Memory) -> None:
    await empty.facts.add("user", "likes", "tea", user_id="vera")
    await say(empty, ("I like tea.", (2026, 1, 12)))
    [tea] = await empty.facts.query(user_id="vera")
    await empty.facts.retract(tea)

    await empty.forget(ids=tea.sources, user_id="vera")
    await empty.facts.add("user", "likes", "jazz", user_id="vera")

    assert [fact.object for fact in await empty.facts.query(user_id="vera")] == ["jazz"]


async def test_an_undo_does_not_bring_back_what_a_call_has_retracted(empty: Memory) -> None:
    await say(empty, ("I live in Paris.", (2026, 1, 12)))
    [paris] = await empty.facts.query(user_id="vera")
    rome = await empty.facts.correct(paris, "Rome", user_id="vera")
    assert rome is not None
    await empty.facts.retract(rome, user_id="vera")

    await empty.undo(*paris.sources, user_id="vera")

    assert await empty.facts.query(user_id="vera") == []
