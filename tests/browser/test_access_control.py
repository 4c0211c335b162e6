"""What the screens keep out: other tenants' rows, other sites' forms, and scripts that somebody put into a memory."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect
from pydantic import SecretStr

from aftermind import Memory
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.types.replay import JobFilter
from tests.browser.conftest import Deployment
from tests.support.deployed_service import serving
from tests.support.servers import Servers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

OTHER = "another"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def signed_up(
    deployment: Deployment, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[str, str]]:
    """Another service, over a database where keys were made: its address, and a key that may read."""
    database, folder = await asyncio.to_thread(servers.create_database), tmp_path_factory.mktemp("signed-up")
    changed = {"database_url": SecretStr(database.app_url), "relay_url": SecretStr(database.relay_url)}
    settings = deployment.memory.settings.model_copy(
        update={**changed, "replica_urls": (), "redis_prefix": f"keys-{uuid4().hex[:8]}:", "state_dir": folder}
    )
    async with Memory(settings=settings) as memory:
        _, key = await memory.api_keys.create("a reader", rights=["read"], namespace="ours")
    with serving(settings, folder / "web.log") as url:
        yield url, key
    await asyncio.to_thread(servers.drop_database, database)


async def test_no_screen_shows_a_row_of_another_namespace(deployment: Deployment) -> None:
    user, secret = f"user-{uuid4().hex[:8]}", f"secret-{uuid4().hex[:8]}"
    deployment.provider.script.faults = {"refusal": 1.0}
    async with Memory(settings=deployment.memory.settings, namespace=OTHER) as other:
        await other.remember(f"I keep a {secret}.", user_id=user, session_id="s1")
        await other.blocks.set("human", secret, user_id=user)
        await other.facts.add("user", "keeps", secret, user_id=user)

        async def letters() -> list[object]:
            return list(await other.dead_letters.list(JobFilter(namespace=OTHER, user_id=user)))

        await wait_until(letters, description="a dead letter of the other namespace")
        deployment.provider.script.faults = {}
        letter = (await other.dead_letters.list(JobFilter(namespace=OTHER, user_id=user)))[0]
        fact = (await other.facts.query(user_id=user))[0]
        plan = await other.replays.create(
            JobFilter(namespace=OTHER, ids=(letter.id,)), NewPlan(name="theirs", reason=secret, actor="them")
        )

    pages = [
        *("/", "/overview/live", f"/memory?q={user}", f"/memory/user?user={user}", f"/memory/facts?user={user}"),
        *(f"/memory/blocks?user={user}", f"/memory/profile?user={user}", f"/memory/recall?user={user}&q={secret}"),
        *(f"/memory/why?user={user}&fact={fact.id}", f"/memory/progress?user={user}", f"/chat?user={user}"),
        *("/dead", f"/dead?user={user}", f"/dead?id={letter.id}", f"/jobs/job?id={letter.id}"),
        *(f"/dead/replay?plan={plan.id}", f"/dead/replay/progress?plan={plan.id}", f"/events?user={user}"),
    ]
    refused = {}
    async with httpx.AsyncClient(
        base_url=deployment.url, cookies=deployment.cookies, trust_env=False, timeout=20
    ) as client:
        for each in pages:
            answer = await client.get(each)
            asked = {secret} & {word for word in (secret,) if word not in each}
            assert answer.status_code < 500, each
            assert not any(word in answer.text for word in asked), each
            refused[each] = answer.status_code
        for path in ("start", "pause", "abort", "shadow"):
            assert (await client.post(f"/dead/replay/{path}", data={"plan": plan.id})).status_code == 404
        await client.post(f"/dead/discard?id={letter.id}", data={"note": "not mine"})
        replayed = await client.post(f"/dead/plan?id={letter.id}", data={"reason": "not mine"})

    assert replayed.status_code == 422
    assert refused[f"/jobs/job?id={letter.id}"] == refused[f"/dead/replay?plan={plan.id}"] == 404
    assert refused[f"/memory/why?user={user}&fact={fact.id}"] == 404
    async with Memory(settings=deployment.memory.settings, namespace=OTHER) as other:
        assert [job.id for job in await other.dead_letters.list(JobFilter(namespace=OTHER, user_id=user))] == [
            letter.id
        ]


@pytest.mark.parametrize(
    "told",
    [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}],
    ids=["origin", "cross-site", "same-site"],
)
async def test_a_form_of_another_site_does_nothing(deployment: Deployment, user: str, told: dict[str, str]) -> None:
    await deployment.memory.blocks.set("human", "as it was", user_id=user)

    async with httpx.AsyncClient(base_url=deployment.url, cookies=deployment.cookies, trust_env=False) as client:
        for path, data in (
            (f"/memory/blocks?user={user}", {"name": "human", "content": "changed", "version": "1"}),
            (f"/memory/blocks/delete?user={user}", {"name": "human"}),
            (f"/memory/forget?user={user}", {"confirm": user}),
            (f"/chat/say?user={user}", {"prompt": "hello"}),
        ):
            assert (await client.post(path, data=data, headers=told)).status_code == 403, path

    block = await deployment.memory.blocks.get("human", user_id=user)
    assert block is not None
    assert block.content == "as it was"
    assert await deployment.memory.history(user_id=user) == []


async def test_what_somebody_said_is_text_and_never_a_script(deployment: Deployment, page: Page, user: str) -> None:
    said = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
    await deployment.memory.remember(said, user_id=user, session_id=said)
    await deployment.memory.blocks.set(said, said, description=said, user_id=user)
    await deployment.memory.facts.add(said, "says", said, user_id=user)

    for path in ("user", "facts", "blocks", "profile"):
        await page.goto(f"/memory/{path}?user={user}")
        assert await page.locator("main img, main script").count() == 0
    await page.goto(f"/memory/recall?user={user}&q=script")
    await expect(page.get_by_role("region", name="The recalled block")).to_contain_text("&lt;script&gt;")
    assert await page.title() != "owned"


async def test_every_page_forbids_what_it_does_not_need(deployment: Deployment) -> None:
    async with httpx.AsyncClient(base_url=deployment.url, cookies=deployment.cookies, trust_env=False) as client:
        for path in ("/", "/memory", "/dead", "/chat", "/events", "/memory/user"):
            headers = (await client.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"


async def test_a_key_is_asked_for_once_there_is_one_and_shows_its_own_namespace_alone(
    signed_up: tuple[str, str], browser: Browser
) -> None:
    url, key = signed_up
    context = await browser.new_context(base_url=url)
    page = await context.new_page()
    await page.goto("/memory?q=al")
    assert page.url == f"{url}/login?next=%2Fmemory%3Fq%3Dal"

    await page.get_by_label("Key").fill("am_0123456789ab_no")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_contain_text("revoked or expired")
    await page.get_by_label("Key").fill(key)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url(f"{url}/memory?q=al")

    await expect(page.get_by_text("Namespace ours")).to_be_visible()
    await expect(page.get_by_role("link", name="Dead letters")).to_have_count(0)  # the key may only read
    cookie = next(each for each in await context.cookies() if each["name"] == "aftermind_key")  # type: ignore[typeddict-item]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")  # type: ignore[typeddict-item]
    for path, status in (("/dead", 403), ("/dead/replay?plan=x", 403), ("/memory/blocks?user=a", 200)):
        answer = await page.goto(path)
        assert answer is not None
        assert answer.status == status
    written = await page.request.post("/memory/blocks?user=a", form={"name": "human", "content": "x"})
    assert written.status == 403
    await page.goto("/")
    await page.get_by_role("button", name="Sign out").click()
    await page.goto("/")
    assert page.url.startswith(f"{url}/login")
    await context.close()


async def test_signing_in_leads_nowhere_but_to_this_service(signed_up: tuple[str, str]) -> None:
    url, key = signed_up
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        for told in ("https://evil.example", "//evil.example", "/\\evil.example", "/a\nb"):
            answer = await client.post("/login", data={"key": key, "next": told})
            assert answer.headers["location"] == "/"
