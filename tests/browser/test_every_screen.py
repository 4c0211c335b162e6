"""Every screen, light and dark: no serious fault of accessibility, none wider than a phone, pictures for the docs."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from axe_playwright_python.base import AXE_FILE_PATH
from playwright.async_api import Browser, Page

from aftermind import Message
from tests.browser.conftest import Deployment
from tests.support.servers import psql_async
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

SCREENSHOTS = os.environ.get("SCREENSHOTS")  # a folder: `make screenshots` names docs/screens
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 800}
SERIOUS = ("serious", "critical")
# Compared column by column, or a reference for programmers: these may scroll sideways on a phone.
WIDE_ON_A_PHONE = ("Queues", "Parameters of", "Answer of")
SAID = (
    ("Hi! I'm Alice. I live in Bergen and I work as a marine biologist.", "Nice to meet you, Alice!"),
    ("I'm allergic to peanuts, so never suggest recipes with them.", "Understood, no peanuts."),
    ("Big news: I moved to Oslo last week.", "Congratulations! How is the new place?"),
)
DAYS_AGO = (310, 190, 45)
# Samples of the last hour, so that the charts have lines: a load that rises and falls, and a failure now and then.
HISTORY = """
    INSERT INTO aftermind.metric_history (seconds, at, series)
    SELECT 60, date_trunc('minute', now()) - minute * interval '1 min', jsonb_build_object(
        'aftermind_runnable_jobs{kind="store"}', round(6 + 5 * sin(minute / 9.0)),
        'aftermind_runnable_jobs{kind="extract"}', round(14 + 9 * sin(minute / 7.0)),
        'aftermind_jobs_total{kind="store",outcome="done"}', round(900 + 300 * sin(minute / 9.0)),
        'aftermind_jobs_total{kind="extract",outcome="done"}', round(420 + 150 * sin(minute / 7.0)),
        'aftermind_failures_total{kind="extract",reason="rate_limited"}', greatest(0, minute % 17 - 14),
        'aftermind_recall_seconds_bucket{served_by="replica",le="0.0025"}', 200 + minute % 5 * 20,
        'aftermind_recall_seconds_bucket{served_by="replica",le="0.005"}', 700 + minute % 7 * 12,
        'aftermind_recall_seconds_bucket{served_by="replica",le="0.01"}', 992,
        'aftermind_recall_seconds_bucket{served_by="replica",le="+Inf"}', 1000)
    FROM generate_series(1, 60) AS minute ON CONFLICT DO NOTHING
"""
DRAWN = {
    SAID[0][0]: [("lives_in", "Bergen", "single"), ("has_job", "marine biologist", "single")],
    SAID[1][0]: [("allergic_to", "peanuts", "multi")],
    SAID[2][0]: [("lives_in", "Oslo", "single")],
}
SCREENS = {
    "overview": "/",
    "memory": "/memory",
    "turns": "/memory/user?user=alice",
    "facts": "/memory/facts?user=alice&everything=true",
    "graph": "/memory/graph?user=alice",
    "blocks": "/memory/blocks?user=alice",
    "profile": "/memory/profile?user=alice",
    "recall": "/memory/recall?user=alice&q=Where+do+I+live+now%3F",
    "events": "/events?user=alice",
    "events-whose": "/events",
    "jobs": "/jobs",
    "dead": "/dead",
    "letter": "/dead",
    "replay": "/dead",
    "api": "/docs",
    "costs": "/costs?everywhere=true",
    "tenants": "/tenants",
    "chat": "/chat?user=alice&session=chat",
    "chat-whose": "/chat",
    "login": "/login",
    "problem": "/memory/user",
}
IN_THE_DOCS = (
    "api",
    "graph",
    "overview",
    "turns",
    "facts",
    "recall",
    "events",
    "jobs",
    "dead",
    "letter",
    "replay",
    "costs",
    "tenants",
    "chat",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lived(deployment: Deployment) -> None:
    """A memory as it looks after some days, and letters that died of something."""
    memory, script = deployment.memory, deployment.provider.script
    for text, facts in DRAWN.items():
        named = [dict(zip(("predicate", "object", "cardinality"), fact, strict=True)) for fact in facts]
        script.facts[text] = [{"subject": "user", **fact} for fact in named]
    for place, (said, answer) in enumerate(SAID):
        session = f"day-{place + 1}"
        at = datetime.now(UTC) - timedelta(days=DAYS_AGO[place])
        turn = [Message.user(said, occurred_at=at), Message.assistant(answer, occurred_at=at)]
        await memory.remember(turn, user_id="alice", session_id=session)
        await _until(deployment, "alice", facts=sum(len(DRAWN[text]) for text, _ in SAID[: place + 1]))
    await psql_async(deployment.database.url, HISTORY)
    await memory.remember("I live in Lima.", user_id="dora", session_id="s1", namespace="acme")
    await memory.blocks.set("human", "Alice, marine biologist.", description="Who the user is.", user_id="alice")
    script.faults = {"refusal": 1.0}
    for user in ("ben", "carol"):
        await memory.remember(f"I am {user}.", user_id=user, session_id="s1")
        await _until(deployment, user, dead=1)
    script.faults = {}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.usefixtures("lived")
async def test_no_screen_has_a_serious_fault_or_complains_or_is_wider_than_a_phone(
    deployment: Deployment, browser: Browser, theme: str
) -> None:
    context = await deployment.open_context(browser, color_scheme=theme, viewport=DESK)
    page = await context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    faults: dict[str, list[str]] = {}
    for name, address in SCREENS.items():
        await page.set_viewport_size(DESK)  # type: ignore[arg-type]
        await _open(page, name, address)
        if SCREENSHOTS and name in IN_THE_DOCS:
            await _picture(page, Path(SCREENSHOTS) / f"{name}-{theme}.png")
        faults[name] = await _faults(page)
        faults[name] += [] if name == "problem" else said  # a page that is not there is one to the console, too
        said.clear()
        faults[name] += [f"{table} scrolls sideways" for table in await _scrolling_tables(page)]
        await page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        width = await page.evaluate("document.documentElement.scrollWidth")
        if width > PHONE["width"]:
            faults[name].append(f"{width} wide on a phone of {PHONE['width']}")
        wide = [each for each in await _scrolling_tables(page) if not each.startswith(WIDE_ON_A_PHONE)]
        faults[name] += [f"{table} scrolls sideways on a phone" for table in wide]
        if SCREENSHOTS and name in ("overview", "turns"):
            await _picture(page, Path(SCREENSHOTS) / f"{name}-phone-{theme}.png")
    await context.close()

    assert {name: found for name, found in faults.items() if found} == {}


@pytest.mark.usefixtures("lived")
async def test_a_screen_can_be_used_by_keyboard_alone(deployment: Deployment, page: Page) -> None:
    await page.goto("/memory")

    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    assert await page.evaluate("document.activeElement.id") == "main"  # past the navigation at once
    await page.keyboard.press("/")
    await page.keyboard.type("ali")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/memory?q=ali")
    await page.get_by_role("link", name="alice").focus()
    await page.keyboard.press("Enter")

    await page.wait_for_url("**/memory/user?user=alice")


@pytest.mark.usefixtures("lived")
async def test_a_chosen_theme_holds_on_the_next_page_and_without_scripts(
    deployment: Deployment, browser: Browser, page: Page
) -> None:
    await page.goto("/memory")
    await page.get_by_role("button", name="Dark").click()
    dark = await page.evaluate("getComputedStyle(document.body).backgroundColor")

    await page.goto("/dead")
    cookies = await page.context.cookies()
    plain = await browser.new_context(base_url=deployment.url, java_script_enabled=False)
    await plain.add_cookies(cookies)  # type: ignore[arg-type]
    bare = await plain.new_page()
    await bare.goto("/memory/user?user=alice")

    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    assert await bare.locator("html").get_attribute("data-theme") == "dark"
    assert await bare.get_by_text(SAID[0][0]).is_visible()
    await plain.close()


async def _scrolling_tables(page: Page) -> list[str]:
    """Tables of which a part is visible only by scrolling sideways: by label, or how they begin."""
    script = """() => [...document.querySelectorAll(".table")].filter((each) => each.scrollWidth > each.clientWidth + 1)
      .map((each) => each.getAttribute("aria-label") || each.textContent.trim().slice(0, 40))"""
    found: list[str] = await page.evaluate(script)
    return found


async def _open(page: Page, name: str, address: str) -> None:
    await page.goto(address)
    if name in ("letter", "replay"):
        await page.get_by_role("region", name="Dead letters", exact=True).get_by_role("link").first.click()
        await page.wait_for_url("**/jobs/job?**")
    if name == "replay":
        await page.get_by_label("Reason for the replay").fill("The provider answers again.")
        await page.get_by_role("button", name="Plan a replay").click()
        await page.wait_for_url("**/dead/replay?**")
    if name == "facts":
        await page.get_by_role("link", name="Why: user lives in Oslo").first.click()
        await page.locator(".chain").first.wait_for()
    if name in ("events", "chat"):
        await page.locator("[data-state]").get_by_text("live").wait_for()
    if name == "overview":
        await page.locator(".uplot").first.wait_for()
    if address.startswith("/memory/") and name != "problem":
        await page.locator("#progress").get_by_text("Embedded").wait_for()


async def _faults(page: Page) -> list[str]:
    await page.evaluate(AXE_FILE_PATH.read_text())  # past the policy of the page, which runs no foreign script
    found = await page.evaluate("axe.run().then(each => each.violations)")
    return [
        f"{each['id']}: {each['help']} ({each['nodes'][0]['html'][:160]})"
        for each in found
        if each["impact"] in SERIOUS
    ]


async def _picture(page: Page, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=path, clip={"x": 0, "y": 0, **page.viewport_size})  # type: ignore[typeddict-item,dict-item]


async def _until(deployment: Deployment, user: str, **wanted: int) -> None:
    async def is_so() -> bool:
        progress = await deployment.memory.progress(user_id=user)
        return all(getattr(progress, name) >= count for name, count in wanted.items())

    await wait_until(is_so, description=f"{user} has {wanted}")
