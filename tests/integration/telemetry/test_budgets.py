"""A model budget that is used up is reported with the tenant, by health and doctor."""

import json
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from aftermind import Assertion, JobFilter, JobKind, JobState, Memory, Settings, Usage, errors
from aftermind.cli import doctor_checks
from aftermind.cli.doctor_checks import Verdict
from aftermind.llm import factory
from aftermind.llm.protocols import Extraction, ExtractionRequest
from aftermind.llm.provider_connections import Providers
from tests.support.fork_server import run_module
from tests.support.waiting import wait_until

BUDGET = {"namespace_tokens_per_day": 50}


class CostlyExtractor:
    """100 tokens a call."""

    name, version = "costly", "1"
    cost_usd: float | None = 0.0005

    async def extract(self, request: ExtractionRequest) -> Extraction:
        found: tuple[Assertion, ...] = ()
        return Extraction(
            claims=found, reason_empty="none", usage=Usage(model=self.name, tokens_in=100, cost_usd=self.cost_usd)
        )


async def test_the_tenant_whose_budget_is_used_up_is_named(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'memory.db'}"
    settings = Settings(embedder="hash", extract_quiet_seconds=0, **BUDGET)
    async with Memory(store, settings=settings, extractor=CostlyExtractor()) as memory:
        before = {part.name: part for part in (await memory.health()).parts}["budgets"]
        receipt = await memory.remember("I like tea.", user_id="ann", namespace="acme")
        await receipt.extracted(timeout=30)
        after = {part.name: part for part in (await memory.health()).parts}["budgets"]

    limits = {"AFTERMIND_NAMESPACE_TOKENS_PER_DAY": "50", "AFTERMIND_NAMESPACE_USD_PER_DAY": "0.0002"}
    env = {"AFTERMIND_DATABASE_URL": store, "AFTERMIND_EMBEDDER": "hash", **limits}
    done = run_module(["aftermind.cli", "doctor", "--json"], env={**os.environ, **env})

    assert (before.state, before.detail) == ("ok", "none is used up")
    assert after.state == "degraded"
    assert after.detail.startswith("1 namespace has used its budget of today")
    assert "acme" not in after.detail  # /readyz asks for no key
    [finding] = [each for each in json.loads(done.stdout) if each["what"] == "budget"]
    assert finding["seen"].startswith("acme has used its budget of today (100 of 50 tokens, $0.0005 of $0.0002)")
    assert "AFTERMIND_NAMESPACE_TOKENS_PER_DAY" in finding["remedy"]


async def test_a_tenant_may_have_another_budget(tmp_path: Path) -> None:
    budgets = {"acme": {"tokens_per_day": 100}, "trial-*": {"usd_per_day": 1}, "free": {"tokens_per_day": 0}}
    settings = Settings(embedder="hash", extract_quiet_seconds=0, namespace_budgets=budgets, **BUDGET)
    async with Memory(f"sqlite:{tmp_path / 'memory.db'}", settings=settings, extractor=CostlyExtractor()) as memory:

        async def budget_reasons(namespace: str) -> list[str]:
            found = await memory.extraction(user_id="ann", namespace=namespace)
            return [each.reason for each in found if each.reason and "budget" in each.reason]

        for namespace in ("acme", "trial-7", "free", "other"):
            for word in ("tea", "coffee"):
                receipt = await memory.remember(f"I like {word}.", user_id="ann", namespace=namespace)
                if word == "tea" or namespace == "free":
                    await receipt.extracted(timeout=30)
        reasons = {
            namespace: await wait_until(lambda: budget_reasons(namespace), description="a turn that waits")  # noqa: B023
            for namespace in ("acme", "trial-7", "other")
        }
        [budget] = [part for part in (await memory.health()).parts if part.name == "budgets"]
        jobs = await memory.job_admin.list(
            JobFilter(namespace="acme", kinds=(JobKind.EXTRACT,), states=(JobState.QUEUED,))
        )
        holds = await memory.job_admin.hold_reasons(jobs, namespace="acme")

    assert len(jobs) == 1
    assert "100 of 100 tokens" in holds[jobs[0].id]
    assert holds[jobs[0].id].endswith("wait until 00:00 UTC")
    limits = {"acme": "100 tokens", "trial-7": "50 tokens, $0.0005 of $1.00", "other": "50 tokens"}
    assert {name: found[0].split("100 of ")[1].split(")")[0] for name, found in reasons.items()} == limits
    assert budget.detail.startswith("3 namespaces have used their budgets of today")


async def test_a_cost_without_a_price_is_unknown_and_a_budget_of_dollars_for_it_is_reported(tmp_path: Path) -> None:
    store, budgets = f"sqlite:{tmp_path / 'memory.db'}", '{"acme": {"usd_per_day": 20}}'
    extractor = CostlyExtractor()
    extractor.cost_usd = None
    async with Memory(
        store, embedder="hash", settings=Settings(extract_quiet_seconds=0), extractor=extractor
    ) as memory:
        await (await memory.remember("I like tea.", user_id="ann")).extracted(timeout=30)
        spending = await memory.spending(user_id="ann")
        costs, tenants = await memory.job_admin.costs(), await memory.job_admin.tenants()
    of_free = []
    for name in ("costly", "openai:costly"):
        free = Settings(model_prices={name: {"input": 0}}, run_jobs=False)
        async with Memory(store, embedder="hash", settings=free) as memory:
            of_free += [each.is_cost_unknown for each in await memory.spending(user_id="ann")]
    env = {**os.environ, "AFTERMIND_DATABASE_URL": store, "AFTERMIND_EMBEDDER": "hash", "OPENAI_API_KEY": "k"}
    env |= {"AFTERMIND_EXTRACTOR": "openai:my-model", "AFTERMIND_NAMESPACE_BUDGETS": budgets}
    priced = {**env, "AFTERMIND_MODEL_PRICES": '{"my-model": {"input": 1, "output": 2}}'}

    def doctor(env: dict[str, str]) -> list[dict[str, str]]:
        found = json.loads(run_module(["aftermind.cli", "doctor", "--json"], env=env).stdout)
        return [each for each in found if each["what"] == "model openai:my-model"]

    printed = [run_module(["aftermind.cli", command], env=env) for command in ("costs", "tenants")]
    as_json = json.loads(run_module(["aftermind.cli", "costs", "--by", "model", "--json"], env=env).stdout)

    assert [(each.spent.model, each.is_cost_unknown) for each in spending] == [("costly", True)]
    assert [each.is_cost_unknown for each in costs] == [True]
    assert [each.unpriced_models for each in tenants] == [("costly",)]
    assert of_free == [False, False]
    for each in printed:
        assert "unknown" in each.stdout
        assert "0.0000" not in each.stdout
        assert "No price: costly. AFTERMIND_MODEL_PRICES" in " ".join(each.stderr.split())
    assert [each["spent"]["cost_usd"] for each in as_json] == [None]
    [unpriced] = doctor(env)
    assert (unpriced["verdict"], "AFTERMIND_MODEL_PRICES" in unpriced["remedy"]) == ("warning", True)
    assert doctor(priced) == []


def test_prices_of_the_settings_precede_published_ones() -> None:
    given = {"my-model": {"input": 1, "output": 2}, "gpt-5-mini": {"input": 1}}
    client = Providers().client("openai", Settings(openai_api_key="k", model_prices=given))

    costs = [
        client.usage(model, 1_000_000, 500_000, 0.0).cost_usd for model in ("my-model", "gpt-5-mini", "gpt-5", "new")
    ]

    assert costs == [2.0, 1.0, 6.25, None]


@pytest.mark.parametrize("of_chat", ["m", "openai:m", None])
@pytest.mark.parametrize("of_vectors", ["e", "openai:e", "e:64", "openai:e:64", None])
async def test_doctor_warns_of_a_price_exactly_where_calls_have_none(
    of_chat: str | None, of_vectors: str | None
) -> None:
    given = {name: {"input": 1} for name in (of_chat, of_vectors) if name}
    settings = Settings(
        openai_api_key="k",
        extractor="openai:m",
        embedder="openai:e:64",
        namespace_usd_per_day=1,
        model_prices=given,
    )
    embedder = factory.embedder(settings)
    assert embedder is not None

    cost = Providers().client("openai", settings).usage("m", 1_000_000, 0, 0.0).cost_usd
    warned = [each.what for each in await doctor_checks.models(settings) if each.verdict is Verdict.WARNING]

    assert cost == (1.0 if of_chat else None)
    assert embedder.usd_per_million_tokens == (1.0 if of_vectors else None)
    assert ("model openai:m" in warned, "model openai:e:64" in warned) == (not of_chat, not of_vectors)


@pytest.mark.parametrize(("kind", "cost"), [("openai", 3.0), ("anthropic", 1.0)])
def test_the_price_of_a_providers_model_precedes_that_of_its_name(kind: str, cost: float) -> None:
    given = {"m": {"input": 1}, f"{kind}:m": {"input": 3}}
    client = Providers().client("openai", Settings(openai_api_key="k", model_prices=given))

    assert client.usage("m", 1_000_000, 0, 0.0).cost_usd == cost


async def test_doctor_warns_of_a_model_without_a_price_that_a_replay_may_use() -> None:
    settings = Settings(openai_api_key="k", replay_models=("m", "gpt-5"), namespace_usd_per_day=1)

    warned = [each.what for each in await doctor_checks.models(settings) if each.verdict is Verdict.WARNING]

    assert warned == ["model openai:m"]


def test_settings_with_other_prices_have_another_client() -> None:
    providers, prices = Providers(), {"m": {"input": 1}}
    clients = [
        providers.client("openai", Settings(openai_api_key="k", model_prices=given)) for given in (prices, prices, {})
    ]

    assert [each.usage("m", 1_000_000, 0, 0.0).cost_usd for each in clients] == [1.0, 1.0, None]
    assert clients[0] is clients[1]


@pytest.mark.parametrize("name", ["", " m", "m ", "\t"])
def test_a_price_for_an_empty_or_padded_name_is_refused(name: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=r"^AFTERMIND_MODEL_PRICES="):
        Settings(model_prices={name: {"input": 1}})


async def test_a_sum_that_leaves_out_a_cost_is_marked_in_json(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'memory.db'}"
    for name, cost in (("priced", 0.5), ("unpriced", None)):
        extractor = CostlyExtractor()
        extractor.name, extractor.cost_usd = name, cost
        settings = Settings(extract_quiet_seconds=0)
        async with Memory(store, embedder="hash", settings=settings, extractor=extractor) as memory:
            await (await memory.remember(f"I like {name} tea.", user_id="ann")).extracted(timeout=30)
    env = {**os.environ, "AFTERMIND_DATABASE_URL": store, "AFTERMIND_EMBEDDER": "hash"}

    def costs(by: str) -> list[dict[str, Any]]:  # Any: JSON
        found: list[dict[str, Any]] = json.loads(
            run_module(["aftermind.cli", "costs", "--by", by, "--json"], env=env).stdout
        )
        return found

    by_kind, by_model = costs("kind"), costs("model")

    assert [(each["spent"]["cost_usd"], each["is_cost_unknown"]) for each in by_kind] == [(0.5, True)]
    marked = {each["model"]: (each["spent"]["cost_usd"], each["is_cost_unknown"]) for each in by_model}
    assert marked == {"priced": (0.5, False), "unpriced": (None, True)}


async def test_a_budget_that_was_raised_is_no_reason_of_a_job_any_more(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'memory.db'}"
    spent = Settings(embedder="hash", extract_quiet_seconds=0, namespace_tokens_per_day=50)
    raised = Settings(embedder="hash", run_jobs=False, namespace_tokens_per_day=500)
    wanted = JobFilter(kinds=(JobKind.EXTRACT,), states=(JobState.QUEUED,))
    async with Memory(store, settings=spent, extractor=CostlyExtractor()) as memory:
        receipt = await memory.remember("I like tea.", user_id="ann")
        await receipt.extracted(timeout=30)
        await memory.remember("I like coffee.", user_id="ann")

        async def given_back() -> bool:
            return any(job.note for job in await memory.job_admin.list(wanted))

        await wait_until(given_back, description="the job was given back")

    async with Memory(store, settings=raised) as memory:
        [waiting] = await memory.job_admin.list(wanted)
        holds = await memory.job_admin.hold_reasons([waiting])
        timeline = await memory.job_admin.timeline(waiting.id)
        await memory.job_admin.apply("run_now", wanted, actor="ops")
        [due] = await memory.job_admin.list(wanted)

    assert holds == {}
    assert waiting.detail.startswith(
        f"given back at {waiting.updated_at:%H:%M:%S}: namespace 'default' reached its budget"
    )
    a_day_before = waiting.updated_at - timedelta(days=1)
    assert replace(waiting, updated_at=a_day_before).detail.startswith(
        f"given back at {a_day_before:%Y-%m-%d %H:%M:%S}: "
    )
    assert timeline is not None
    assert [step.detail for step in timeline.steps if step.name == "extract"] == [
        f"next attempt {waiting.run_at:%H:%M:%S}, {waiting.detail}"
    ]
    assert due.detail == ""


@pytest.mark.parametrize(
    "budgets", [{"acme": {"euros": 1}}, {"acme": {"usd_per_day": -1}}, {"a*b": {"usd_per_day": 1}}, {"acme": 3}]
)
def test_a_budget_that_cannot_be_is_refused(budgets: Any) -> None:  # Any: as a user may give it
    with pytest.raises(errors.InvalidSettings, match=r"(?i)^(?:AFTERMIND_)?NAMESPACE_BUDGETS="):
        Settings(namespace_budgets=budgets)
