"""A model budget that is used up is reported with the tenant, by health and doctor."""

import json
import os
from pathlib import Path

from aftermind import Assertion, Memory, Settings, Usage
from aftermind.llm.protocols import Extraction, ExtractionRequest
from tests.support.fork_server import run_module

BUDGET = {"namespace_tokens_per_day": 50}


class CostlyExtractor:
    """100 tokens a call."""

    name, version = "costly", "1"

    async def extract(self, request: ExtractionRequest) -> Extraction:
        found: tuple[Assertion, ...] = ()
        return Extraction(claims=found, reason_empty="none", usage=Usage(model=self.name, tokens_in=100))


async def test_the_tenant_whose_budget_is_used_up_is_named(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'memory.db'}"
    settings = Settings(embedder="hash", extract_quiet_seconds=0, **BUDGET)
    async with Memory(store, settings=settings, extractor=CostlyExtractor()) as memory:
        before = {part.name: part for part in (await memory.health()).parts}["budgets"]
        receipt = await memory.remember("I like tea.", user_id="ann", namespace="acme")
        await receipt.extracted(timeout=30)
        after = {part.name: part for part in (await memory.health()).parts}["budgets"]

    env = {"AFTERMIND_DATABASE_URL": store, "AFTERMIND_NAMESPACE_TOKENS_PER_DAY": "50", "AFTERMIND_EMBEDDER": "hash"}
    done = run_module(["aftermind.cli", "doctor", "--json"], env={**os.environ, **env})

    assert (before.state, before.detail) == ("ok", "none is used up")
    assert after.state == "degraded"
    assert after.detail.startswith("1 namespace has used its budget of today")
    assert "acme" not in after.detail  # /readyz asks for no key
    [finding] = [each for each in json.loads(done.stdout) if each["what"] == "budget"]
    assert finding["seen"].startswith("acme has used its budget of today (100 of 50 tokens)")
    assert "AFTERMIND_NAMESPACE_TOKENS_PER_DAY" in finding["remedy"]
