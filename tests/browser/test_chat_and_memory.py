"""From a message in Chat to a fact in the explorer: what was said is stored, learnt from, shown and explained."""

import pytest
from playwright.async_api import Page, expect

from aftermind import Message
from aftermind.types import JobKind
from tests.browser.conftest import Deployment
from tests.support.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def learnt(deployment: Deployment, user: str, *facts: tuple[str, str, str], said: str) -> None:
    """Let a user say something, and a model draw facts from it."""
    named = [dict(zip(("subject", "predicate", "object"), fact, strict=True)) for fact in facts]
    deployment.provider.script.facts[said] = [{**fact, "cardinality": "single"} for fact in named]
    before = (await deployment.memory.progress(user_id=user)).facts
    await deployment.memory.remember(Message.user(said), user_id=user, session_id="s1")

    async def is_known() -> bool:
        known = await deployment.memory.facts.query(user_id=user)
        return {fact[2] for fact in facts} <= {fact.object for fact in known}

    await wait_until(is_known, description=f"what {user} said is learnt (there were {before} facts)")


async def test_what_is_said_in_chat_is_answered_stored_learnt_and_told_live(
    deployment: Deployment, page: Page, user: str
) -> None:
    said = f"I live in Trondheim, says {user}."
    deployment.provider.script.facts[said] = [{"subject": "user", "predicate": "lives_in", "object": "Trondheim"}]
    deployment.provider.script.chat = [{"content": "A fine place by the fjord."}]
    await page.goto("/chat")
    await page.get_by_label("As user").fill(user)
    await page.get_by_role("button", name="Start").click()
    await expect(page.locator("[data-state]")).to_have_text("live")

    await page.get_by_label("Message").fill(said)
    await page.keyboard.press("Enter")

    exchange = page.locator(".exchange")
    await expect(exchange).to_contain_text("A fine place by the fjord.")
    await expect(exchange).to_contain_text("stored", timeout=30_000)
    await expect(exchange.get_by_role("list", name="Facts from this")).to_contain_text("Trondheim", timeout=30_000)
    heard = page.get_by_role("list", name="Events, the newest first")
    for kind in ("UpdateStarted", "UpdateCompleted", "FactsExtracted"):  # each kind of job announces itself
        await expect(heard.get_by_text(kind, exact=True).first).to_be_visible()
    await page.get_by_role("link", name="Memory", exact=True).last.click()
    turn = page.get_by_role("article").filter(has_text=said)
    await expect(turn.get_by_text("stored")).to_be_visible()
    await expect(turn.get_by_role("list", name="Facts from this turn")).to_contain_text("Trondheim")
    await expect(page.get_by_role("article").filter(has_text="A fine place by the fjord.")).to_have_count(1)


async def test_what_a_model_was_told_is_shown_beside_its_answer(deployment: Deployment, page: Page, user: str) -> None:
    await learnt(deployment, user, ("user", "has_pet", "a cat called Fro"), said=f"{user} has a cat called Fro.")
    await page.goto(f"/chat?user={user}")

    await page.get_by_label("Message").fill("What is my cat called?")
    await page.get_by_role("button", name="Send").click()

    exchange = page.locator(".exchange").last
    await exchange.get_by_text("Memory in the prompt").click()
    await expect(exchange.get_by_role("region", name="Recalled block")).to_contain_text("a cat called Fro")


async def test_a_fact_says_why_it_is_believed_and_what_was_believed_before(
    deployment: Deployment, page: Page, user: str
) -> None:
    first, then = f"{user} lives in Bergen.", f"{user} moved to Oslo."
    await learnt(deployment, user, ("user", "lives_in", "Bergen"), said=first)
    await learnt(deployment, user, ("user", "lives_in", "Oslo"), said=then)
    await page.goto(f"/memory/facts?user={user}")
    await expect(page.locator(".timeline").filter(has_text="Bergen")).to_contain_text("in the past")

    await page.get_by_role("link", name="Why: user lives in Oslo").click()

    why = page.locator(".why").filter(has_text="Sources")
    await expect(why).to_contain_text(then)
    await expect(why.get_by_role("listitem").filter(has_text="Bergen").last).to_contain_text("valid until")
    await why.get_by_role("link", name="Show the turn").click()
    await expect(page.get_by_role("article").filter(has_text=then)).to_be_visible()


async def test_a_fact_that_is_taken_back_is_not_believed_any_more(
    deployment: Deployment, page: Page, user: str
) -> None:
    await learnt(deployment, user, ("user", "works_at", "a bank"), said=f"{user} works at a bank.")
    await page.goto(f"/memory/facts?user={user}")
    await page.get_by_role("link", name="Why: user works at a bank").click()

    await page.get_by_role("button", name="Retract").click()
    await page.get_by_role("dialog").get_by_role("button", name="Retract").click()

    await expect(page.get_by_role("status").filter(has_text="Retracted")).to_be_visible()
    assert await deployment.memory.facts.query(user_id=user) == []


async def test_a_question_shows_the_block_and_every_score(deployment: Deployment, page: Page, user: str) -> None:
    await deployment.memory.remember("The boat is called Ingrid.", user_id=user, session_id="s1")
    await deployment.memory.remember("Dinner is at seven.", user_id=user, session_id="s1")
    await page.goto(f"/memory/recall?user={user}")

    await page.get_by_label("Query").fill("What is the boat called?")
    await page.get_by_role("button", name="Recall").click()

    await expect(page.get_by_role("region", name="The recalled block")).to_contain_text("The boat is called Ingrid.")
    first = page.get_by_role("region", name="Matches in the block with their scores").get_by_role("row").nth(1)
    await expect(first).to_contain_text("The boat is called Ingrid.")
    await expect(first).to_contain_text("#1")


async def test_an_earlier_recall_shows_what_had_no_space_then(deployment: Deployment, page: Page, user: str) -> None:
    for name in ("Ingrid", "Astrid", "Solveig"):
        await deployment.memory.remember(f"One boat is called {name}.", user_id=user, session_id="s1")
    then = await deployment.memory.recall("Which boat is called Ingrid?", user_id=user, token_budget=40)
    await deployment.memory.remember("The boat was sold.", user_id=user, session_id="s1")
    await page.goto(f"/memory/recall?user={user}")

    await page.get_by_label("Query").fill("Which boat is called Ingrid?")
    await page.get_by_label("Tokens").fill("40")
    await page.get_by_label("Recall id").fill(str(then.id))
    await page.get_by_role("button", name="Recall").click()

    shown = page.get_by_role("region", name="Matches in the block with their scores")
    missed = page.get_by_role("region", name="Matches not in the block with the reasons")
    await expect(shown).to_contain_text("Ingrid")
    await expect(missed.get_by_role("row").filter(has_text="Solveig")).to_contain_text("no space in the budget")
    await expect(page.get_by_text("The boat was sold.")).to_have_count(0)


async def test_a_block_is_written_and_a_second_writer_is_not_overwritten(
    deployment: Deployment, page: Page, user: str, complaints: list[str]
) -> None:
    await page.goto(f"/memory/blocks?user={user}")
    await page.get_by_label("Name").fill("todo")
    await page.locator("#new-text").fill("buy tea")
    await page.get_by_role("button", name="Add").click()
    await expect(page.get_by_role("status")).to_contain_text("todo was saved")
    await deployment.memory.blocks.set("todo", "buy coffee", user_id=user)

    await page.locator("#text-1").fill("buy milk")
    await page.get_by_role("button", name="Save").click()

    await expect(page.get_by_role("alert")).to_contain_text("was not saved")
    assert "409" in complaints.pop()
    block = await deployment.memory.blocks.get("todo", user_id=user)
    assert block is not None
    assert block.content == "buy coffee"
    await expect(page.locator(".xml")).to_have_text("buy milk")


async def test_forgetting_takes_the_typed_id_and_an_answer(
    deployment: Deployment, page: Page, user: str, complaints: list[str]
) -> None:
    receipt = await deployment.memory.remember("Nobody shall know.", user_id=user, session_id="s1")
    await receipt.stored(timeout=180)
    await page.goto(f"/memory/profile?user={user}")
    await page.get_by_label(f"Type {user} to confirm").fill("somebody else")
    await page.get_by_role("button", name="Forget permanently").click()
    await page.get_by_role("dialog").get_by_role("button", name="Forget").click()
    await expect(page.locator("#forgotten")).to_contain_text("nothing was forgotten")
    complaints.clear()  # of the 422 that this was
    assert len(await deployment.memory.history(user_id=user)) == 1

    await page.get_by_label(f"Type {user} to confirm").fill(user)
    await page.get_by_role("button", name="Forget permanently").click()
    await page.get_by_role("dialog").get_by_role("button", name="Forget").click()

    await expect(page.locator("#forgotten")).to_contain_text("Forgotten: 1 episodes")
    assert await deployment.memory.history(user_id=user) == []


async def test_facts_are_drawn_corrected_and_merged_by_name(deployment: Deployment, page: Page, user: str) -> None:
    memory = deployment.memory
    await memory.facts.add("user", "works_with", "Melanie", user_id=user)
    await memory.facts.add("Mel", "lives_in", "Oslo", user_id=user)
    await page.goto(f"/memory/graph?user={user}")
    await expect(page.locator(".graph")).to_contain_text("Melanie")
    await expect(page.locator(".graph")).not_to_contain_text("Oslo")

    await page.get_by_label("Entity").last.fill("Melanie")
    await page.get_by_label("Alias").fill("Mel")
    await page.get_by_role("button", name="Merge", exact=True).click()
    await page.locator("#ask").get_by_role("button", name="Merge").click()
    await page.wait_for_url("**entity=Melanie**")
    await expect(page.locator(".graph")).to_contain_text("Oslo")
    await page.get_by_role("link", name="Why: Melanie lives in Oslo").click()
    await page.get_by_label("Correct to").fill("Bergen")
    await page.get_by_role("button", name="Correct").click()

    table = page.get_by_role("region", name="Facts of the graph")
    await expect(table).to_contain_text("Bergen")
    await expect(table).not_to_contain_text("Oslo")
    await page.get_by_label("Subject").fill("Bergen")
    await page.get_by_label("Predicate").fill("lies_in")
    await page.get_by_label("Object").fill("Norway")
    await page.get_by_role("button", name="Add", exact=True).click()
    await expect(page.locator(".graph")).to_contain_text("Norway")
    now = {fact.text for fact in await memory.facts.query(user_id=user)}
    assert {"Melanie lives in Bergen", "Bergen lies in Norway"} <= now


async def test_a_job_shows_which_facts_its_turn_added_and_superseded(
    deployment: Deployment, page: Page, user: str
) -> None:
    await learnt(deployment, user, ("user", "lives_in", "Bergen"), said=f"{user} lives in Bergen.")
    await learnt(deployment, user, ("user", "lives_in", "Oslo"), said=f"{user} moved to Oslo.")
    jobs = await deployment.memory.jobs.list(user_id=user)
    last = max((each for each in jobs if each.kind is JobKind.EXTRACT), key=lambda each: each.created_at)

    await page.goto(f"/jobs/job?id={last.id}")

    changes = page.get_by_role("region", name="What the turn changed")
    rows = [" ".join(text.split()) for text in await changes.locator("tbody tr").all_inner_texts()]
    assert [row for row in rows if row.startswith("+ user lives in Oslo")]
    assert [row for row in rows if row.startswith("- user lives in Bergen")]
