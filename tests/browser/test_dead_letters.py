"""Dead letters on their screen: a failure becomes one, is understood, replayed, and gone."""

from collections.abc import Iterator

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import Deployment
from tests.support.servers import psql_async
from tests.support.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def broken(deployment: Deployment) -> Iterator[None]:
    """A provider whose answers cannot be used, for as long as a test says so."""
    deployment.provider.script.faults = {"refusal": 1.0}
    yield
    deployment.provider.script.faults = {}


async def bury(deployment: Deployment, user: str, text: str) -> None:
    """Let a turn's extraction die."""
    await deployment.memory.remember(text, user_id=user, session_id="s1")

    async def is_dead() -> bool:
        return (await deployment.memory.progress(user_id=user)).dead > 0

    await wait_until(is_dead, description=f"the letter of {user}")


async def test_a_failure_is_a_dead_letter_is_replayed_and_is_gone(
    deployment: Deployment, broken: None, page: Page, user: str
) -> None:
    said = f"I live in Oslo, says {user}."
    await bury(deployment, user, said)
    await page.goto("/dead")
    await page.get_by_label("User").fill(user)
    await page.get_by_role("button", name="Filter").click()
    row = page.get_by_role("region", name="Dead letters", exact=True).get_by_role("row").filter(has_text=user)
    await expect(row).to_have_count(1)
    await row.get_by_role("link").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Extract")

    deployment.provider.script.faults = {}
    deployment.provider.script.facts[said] = [{"subject": "user", "predicate": "lives_in", "object": "Oslo"}]
    await page.get_by_label("Reason for the replay").fill("The provider answers again.")
    await page.get_by_role("button", name="Plan a replay").click()
    await expect(page.get_by_role("heading", name="Estimate")).to_be_visible()
    assert (await deployment.memory.progress(user_id=user)).dead == 1  # a dry run brings nothing back
    await page.get_by_role("button", name="Start").click()

    await expect(page.locator("#moving")).to_contain_text("1 of 1 finished", timeout=30_000)
    await expect(page.locator("#moving").get_by_text("done").first).to_be_visible()
    await page.goto(f"/dead?user={user}")
    await expect(page.get_by_role("heading", name="Letters", exact=True)).to_have_count(0)
    await page.goto(f"/memory/facts?user={user}")
    await expect(page.get_by_text("Oslo")).to_be_visible()


async def test_what_the_provider_refused_is_read_in_full_in_the_list_and_in_its_words_on_the_letter(
    deployment: Deployment, broken: None, page: Page, user: str
) -> None:
    deployment.provider.script.faults = {"400": 1.0}
    await bury(deployment, user, f"I live in Turin, says {user}.")
    await page.goto(f"/jobs?user={user}&state=dead")
    table = page.get_by_role("region", name="Jobs")
    detail = table.get_by_text("answered 400: context_length_exceeded (messages[0].content)")
    assert await detail.evaluate(
        "(each) => each.scrollWidth <= each.clientWidth && each.scrollHeight <= each.clientHeight"
    )

    await table.get_by_role("link").first.click()

    said = page.get_by_role("region", name="Message of the provider")
    await expect(said).to_contain_text("The scripted model cannot serve it: context_length_exceeded.")
    await expect(page.get_by_role("region", name="Attempts")).to_contain_text("scripted, ")  # the model, by name


async def test_discarding_asks_first_and_keeps_why(deployment: Deployment, broken: None, page: Page, user: str) -> None:
    await bury(deployment, user, f"Nothing that matters to {user}.")
    await page.goto(f"/dead?user={user}")
    await page.get_by_label("Reason for discarding").fill("only a test")

    await page.get_by_role("button", name="Discard 1").click()
    await page.get_by_role("button", name="Cancel").click()
    assert (await deployment.memory.progress(user_id=user)).dead == 1
    await page.get_by_role("button", name="Discard 1").click()
    await page.get_by_role("dialog").get_by_role("button", name="Discard").click()

    await expect(page.get_by_role("status")).to_contain_text("Discarded 1.")
    assert (await deployment.memory.progress(user_id=user)).dead == 0


async def test_a_letter_is_edited_before_it_comes_back(
    deployment: Deployment, broken: None, page: Page, user: str, complaints: list[str]
) -> None:
    await bury(deployment, user, f"I am edited, says {user}.")
    await page.goto(f"/dead?user={user}")
    await page.get_by_role("region", name="Dead letters", exact=True).get_by_role("link").first.click()
    await page.get_by_label("Mode").select_option("edited")
    await page.get_by_text("Edit the payload").click()
    await page.get_by_label("Used if “Retry with an edited payload”").fill("not json")
    await page.get_by_label("Reason for the replay").fill("by hand")
    await page.get_by_role("button", name="Plan a replay").click()
    await expect(page.get_by_role("alert")).to_contain_text("it is not JSON")
    assert "422" in complaints.pop()

    await page.go_back()
    await page.get_by_label("Mode").select_option("edited")
    await page.get_by_text("Edit the payload").click()
    await page.get_by_label("Used if “Retry with an edited payload”").fill('{"model": "scripted"}')
    await page.get_by_label("Reason for the replay").fill("by hand")
    await page.get_by_role("button", name="Plan a replay").click()

    await expect(page.get_by_text("retry with an edited payload")).to_be_visible()
    await expect(page.locator(".xml")).to_contain_text('"model": "scripted"')
    await page.get_by_role("button", name="Abort").click()
    await page.get_by_role("dialog").get_by_role("button", name="Abort").click()
    await expect(page.locator("#moving")).to_contain_text("aborted")


async def test_a_job_is_understood_discarded_and_restored_with_one_click(
    deployment: Deployment, broken: None, page: Page, user: str
) -> None:
    deployment.provider.script.faults = {"schema": 1.0}
    said = f"I live in Bergen, says {user}."
    await bury(deployment, user, said)
    await page.goto(f"/jobs?user={user}&state=dead")
    row = page.get_by_role("region", name="Jobs").get_by_role("row").filter(has_text=user)
    await row.get_by_role("link").click()
    await expect(page.get_by_role("region", name="Timeline")).to_contain_text("accepted")
    await expect(page.get_by_role("region", name="Timeline")).to_contain_text("extract attempt 2")
    await expect(page.get_by_text(said)).to_be_visible()
    await expect(page.get_by_role("region", name="Model answer")).to_contain_text('"claims": "many"')

    await page.goto(f"/jobs?user={user}&state=dead")
    await page.get_by_label("Reason", exact=True).fill("A load test.")
    await page.get_by_role("button", name="Discard").click()
    await expect(page.get_by_role("status")).to_contain_text("Discarded: 1")
    assert (await deployment.memory.progress(user_id=user)).dead == 0
    await page.get_by_role("button", name="Undo").click()
    await expect(page.get_by_role("status")).to_contain_text("Restored: 1")

    assert (await deployment.memory.progress(user_id=user)).dead == 1


async def test_kinds_are_paused_and_resumed_on_the_jobs_screen(deployment: Deployment, page: Page) -> None:
    await page.goto("/jobs")
    await page.get_by_role("checkbox", name="profile").check()
    await page.get_by_label("Reason for the pause").fill("Maintenance.")
    await page.get_by_role("button", name="Pause").click()
    await page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    await expect(page.get_by_text("profile paused")).to_be_visible()
    assert [each.kind for each in await deployment.memory.job_admin.pauses()] == ["profile"]

    await page.get_by_role("button", name="Resume profile").click()

    await expect(page.get_by_text("profile paused")).to_have_count(0)
    assert await deployment.memory.job_admin.pauses() == []


async def test_charts_are_full_when_the_overview_is_opened(deployment: Deployment, page: Page) -> None:
    await psql_async(
        deployment.database.url,
        "INSERT INTO aftermind.metric_history (seconds, at, series) "
        "SELECT 60, date_trunc('minute', now()) - minute * interval '1 min', jsonb_build_object("
        "'aftermind_runnable_jobs{kind=\"store\"}', minute, "
        '\'aftermind_failures_total{kind="extract",reason="invented"}\', 1) '
        "FROM generate_series(1, 600) AS minute ON CONFLICT DO NOTHING",
    )

    await page.goto("/?hours=24")

    for chart in ("Pending jobs", "Failed attempts"):
        await expect(page.get_by_role("img", name=chart).locator(".uplot")).to_be_visible()
    await expect(page.locator("[data-legend=errors]")).to_contain_text("invented")
    await expect(page.get_by_role("heading", name="Model cost")).to_be_hidden()
