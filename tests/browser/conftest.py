"""The screens as people use them: a real browser, the real service as a process, real workers, Postgres and Redis."""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
import pytest_asyncio
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    Response,
    async_playwright,
    expect,
)

from aftermind import Memory, Settings
from aftermind.web.auth import COOKIE
from tests.support.fork_server import Process, start_module
from tests.support.scripted_openai import ScriptedOpenAI, scripted_openai
from tests.support.servers import Database, Servers
from tests.support.service import local_token
from tests.support.waiting import PATIENT_SETTINGS, wait_until

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 60_000  # a first answer loads a provider's library, on a machine that runs other tests as well
LISTENING = re.compile(r"running on (http://127\.0\.0\.1:\d+)")
# A session is mined at once, and what fails is dead soon: nobody waits for a back-off that is tuned to people.
QUICK = {
    "extract_quiet_seconds": "0.2",
    "extract_max_wait_seconds": "1.0",
    "reconcile_seconds": "0.5",
    "max_attempts": "2",
    "backoff_base_seconds": "0.05",
    "backoff_cap_seconds": "0.1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A running deployment: where its screens are, its memory, and the model provider that it asks."""

    url: str
    memory: Memory
    provider: ScriptedOpenAI
    database: Database

    @property
    def cookies(self) -> dict[str, str]:
        """What a browser holds that has signed in."""
        return {COOKIE: local_token(self.memory.settings.state_dir)}

    async def sign_in(self, context: BrowserContext) -> None:
        """Give a browser's context these cookies and no others."""
        await context.clear_cookies()
        await context.add_cookies(
            [{"name": name, "value": text, "url": self.url} for name, text in self.cookies.items()]
        )

    async def open_context(self, browser: Browser, **options: Any) -> BrowserContext:  # Any: as Playwright has them
        """A browser's context that has signed in."""
        context = await browser.new_context(base_url=self.url, **options)
        await self.sign_in(context)
        return context


@pytest.fixture(scope="module")
def provider() -> Iterator[ScriptedOpenAI]:
    """A model provider that does as it is told."""
    with scripted_openai() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(
    servers: Servers, provider: ScriptedOpenAI, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Deployment]:
    """Workers on all queues and the service, each a process of its own, over a database of this module."""
    database, folder = await asyncio.to_thread(servers.create_database), tmp_path_factory.mktemp("deployment")
    told = {
        "database_url": database.app_url,
        "relay_url": database.relay_url,
        "broker_url": servers.redis_url,
        "redis_prefix": f"browser-{uuid4().hex[:8]}:",
        "state_dir": str(folder / "state"),
        "embedder": "hash",
        "extractor": "openai:scripted",
        "chat_model": "scripted",
        **QUICK,
    }
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AFTERMIND_", "OPENAI_"))}
    env |= {f"AFTERMIND_{name.upper()}": value for name, value in told.items()}
    env |= PATIENT_SETTINGS | {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": provider.url}
    env["AFTERMIND_REPLICA_URLS"] = f'["{database.app_replica_urls[0]}"]'
    env["AFTERMIND_FLOWER_URL"] = "http://127.0.0.1:5577"
    started = [
        _start(["worker", "--queues", "all"], env, folder / "worker.log"),
        _start(["web", "--port", "0"], env, folder / "web.log"),
    ]
    settings = Settings(**told, replica_urls=database.app_replica_urls)  # type: ignore[arg-type]
    try:
        async with Memory(settings=settings) as memory:
            log = folder / "web.log"
            url = await wait_until(lambda: _listening(log), description="the service listens")
            yield Deployment(url=url, memory=memory, provider=provider, database=database)
    finally:
        _stop(started)
        await asyncio.to_thread(servers.drop_database, database)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """The system's Chromium. Where there is none: an error under CI, a skip with the reason elsewhere."""
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        if os.environ.get("CI"):
            raise RuntimeError("the screens are tested in Chromium, and none is installed")
        pytest.skip("no Chromium is installed: apt-get install chromium")
    expect.set_options(timeout=PATIENCE_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        await browser.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the browser complained of. A test that means to do something wrong takes out what it expects."""
    return []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(browser: Browser, deployment: Deployment) -> AsyncIterator[Page]:
    """A page of the module: a context and a page for each test take 0.7 s of CPU time, mostly in new renderers."""
    context = await deployment.open_context(browser)
    made = await context.new_page()
    made.set_default_timeout(PATIENCE_MS)
    yield made
    await context.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(opened: Page, deployment: Deployment, complaints: list[str]) -> AsyncIterator[Page]:
    """The page after a new sign-in. Nothing may fail unseen on it: no console error, no script error, no 5xx."""
    await deployment.sign_in(opened.context)

    def heard(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(f"console: {message.text}")

    def answered(response: Response) -> None:
        if response.status >= 500:
            complaints.append(f"{response.status} {response.url}")

    def failed(error: Error) -> None:
        complaints.append(f"script: {error}")

    listeners: dict[Any, Callable[[Any], None]] = {"console": heard, "pageerror": failed, "response": answered}
    for event, listener in listeners.items():
        opened.on(event, listener)
    yield opened
    await opened.goto("/healthz")  # of the same site, so in the same renderer: nothing of the test runs on
    for event, listener in listeners.items():
        opened.remove_listener(event, listener)
    assert not complaints


@pytest.fixture
def user() -> str:
    """Somebody whom nobody has met before."""
    return f"user-{uuid4().hex[:8]}"


def _start(argv: list[str], env: dict[str, str], log: Path) -> Process:
    with log.open("wb") as out:
        return start_module(["aftermind.cli", *argv], env=env, output=out, start_new_session=True)


def _stop(started: list[Process]) -> None:
    for process in started:
        process.terminate()
    for process in started:
        try:
            process.wait(30)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait()


def _listening(log: Path) -> str:
    found = LISTENING.search(log.read_text(errors="replace")) if log.exists() else None
    return found.group(1) if found else ""
