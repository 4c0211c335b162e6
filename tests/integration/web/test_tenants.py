"""A key with the right `tenants` sees all namespaces in the console and switches between them; no other key does."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import httpx
import pytest

from aftermind import Settings
from aftermind.sync import Memory
from aftermind.web.auth import COOKIE, NAMESPACE_COOKIE
from tests.support.deployed_service import Service
from tests.support.servers import psql

THEIRS = "théirs/2"  # as hard to put into a cookie as a name can be


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Settings:
    """With a budget for each namespace."""
    return settings.model_copy(update={"namespace_tokens_per_day": 300})


@pytest.fixture(scope="module")
def memory(service: Service) -> Iterator[Memory]:
    """Two namespaces with a user each, and what models have cost them."""
    with Memory(settings=service.settings) as opened:
        opened.blocks.set("human", "of ours", user_id="ann", namespace="ours")
        opened.blocks.set("human", "of theirs", user_id="bob", namespace=THEIRS)
        yield opened


@pytest.fixture
def browser(service: Service, memory: Memory) -> Iterator[httpx.Client]:
    """A browser that has signed in with a key for all tenants."""
    _, key = memory.api_keys.create("support", rights=["read", "operate", "tenants"], namespace="ours")
    with httpx.Client(base_url=service.url, cookies={COOKIE: key}, timeout=20) as client:
        yield client


def test_the_list_has_every_namespace_with_users_jobs_and_costs(
    browser: httpx.Client, memory: Memory, owner_url: str
) -> None:
    today, before = datetime.now(UTC).date(), datetime.now(UTC).date() - timedelta(days=3)
    rows = ", ".join(
        f"('{name}', 'u', '{day}', 'extract', '{model}', 2, 300, 40, {cost})"
        for name, day, model, cost in (
            ("ours", today, "small", 0.25),
            ("ours", before, "large", 1.5),
            (THEIRS, today, "large", 4.0),
            (THEIRS, today, "unpriced", 0),
        )
    )
    psql(
        owner_url,
        "INSERT INTO aftermind.spending"
        f" (namespace, user_id, day, kind, model, calls, tokens_in, tokens_out, cost_usd) VALUES {rows}",
    )

    by_name = {each.namespace: each for each in memory.job_admin.tenants()}
    ours, theirs = by_name["ours"], by_name[THEIRS]
    costs = memory.job_admin.costs(namespace="ours")
    page, all_costs = browser.get("/tenants").text, browser.get("/costs?everywhere=true").text

    assert (ours.users, ours.calls, ours.tokens, ours.cost_usd) == (1, 2, 340, 0.25)
    assert (theirs.users, theirs.cost_usd) == (1, 4.0)
    assert [(each.day, each.model, each.cost_usd) for each in costs] == [(today, "small", 0.25), (before, "large", 1.5)]
    assert [each.namespace for each in memory.job_admin.tenants(prefix="th")] == [THEIRS]
    assert [each.namespace for each in memory.job_admin.tenants(after="ours")] == [THEIRS]
    assert THEIRS in page
    assert "$4.0000" in page
    assert "$5.7500" in all_costs
    assert (ours.unpriced_models, theirs.unpriced_models) == ((), ("unpriced",))
    assert "$4.0000 + unknown" in page
    assert "limit 300" in page, "the budget of tokens of its namespace"
    assert "$5.7500 + unknown" in all_costs, "of the range"
    assert "$4.2500 + unknown" in all_costs, "of today"
    assert "no budget of dollars counts it: unpriced." in all_costs
    own_costs = browser.get("/costs").text
    assert "$1.7500" in own_costs, "the precision of the tables: a small total is not $0.00"
    assert "The budget of today is used up (300 tokens a day)" in own_costs
    assert "today 340 of 300" in own_costs


def test_all_screens_show_the_namespace_that_was_chosen_until_one_switches_back(
    browser: httpx.Client, memory: Memory
) -> None:
    assert "ann" in browser.get("/memory").text

    switched = browser.post("/tenants/switch", data={"namespace": THEIRS})
    there = browser.get("/memory").text
    block = browser.get("/memory/blocks?user=bob").text
    browser.post("/tenants/switch")

    assert switched.status_code == 303
    assert ">bob<" in there
    assert ">ann<" not in there
    assert "of theirs" in block
    assert ">ann<" in browser.get("/memory").text
    reads = [each for each in memory.audit.list(namespace=THEIRS, user_id="bob") if each.action == "read"]
    assert "support" in reads[-1].actor


@pytest.mark.usefixtures("memory")
def test_without_the_right_a_chosen_namespace_changes_nothing(service: Service) -> None:
    cookies = {COOKIE: service.keys["all"], NAMESPACE_COOKIE: quote(THEIRS, safe="")}
    with httpx.Client(base_url=service.url, cookies=cookies, timeout=20) as browser:
        users = browser.get("/memory").text
        costs = browser.get("/costs?everywhere=true").text
        refused = [browser.get("/tenants"), browser.post("/tenants/switch", data={"namespace": THEIRS})]
        block = browser.get("/memory/blocks?user=bob").text

    assert ">ann<" in users
    assert ">bob<" not in users
    assert "of theirs" not in block
    assert "of this namespace" in costs
    assert [each.status_code for each in refused] == [403, 403]


def test_a_program_stays_in_the_namespace_of_its_key(service: Service, memory: Memory) -> None:
    _, key = memory.api_keys.create("all tenants", rights=["read", "tenants"], namespace="ours")
    headers = {"Authorization": f"Bearer {key}", "Cookie": f"{NAMESPACE_COOKIE}={quote(THEIRS, safe='')}"}

    with httpx.Client(base_url=service.url, headers=headers, timeout=20) as program:
        seen = program.get("/v1/users/bob/blocks")

    assert seen.json() == []


def test_a_key_that_names_no_right_is_of_one_tenant(memory: Memory) -> None:
    made, _ = memory.api_keys.create("web shop", namespace="ours")

    assert sorted(made.rights) == ["operate", "read", "write"]
