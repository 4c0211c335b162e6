"""Each file needs its framework, and is left out elsewhere: `make test-integrations` has an environment for each."""

import sys
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from aftermind import Memory, Settings
from tests.support.servers import Database

FRAMEWORKS = {  # file and package
    "agent_framework": "agent_framework",
    "anthropic": "anthropic.lib.tools",
    "crewai": "crewai",
    "definable": "definable.memory",
    "google_adk": "google.adk",
    "helm": "helm_python",
    "indexes": "chromadb",
    "langgraph": "langgraph",
    "llama_index": "llama_index.core",
    "loomflow": "loomflow",
    "mcp": "mcp.server.mcpserver",
    "mongodb": "briskdb",
    "openai_agents": "agents",
    "providers": "voyageai",
    "pydantic_ai": "pydantic_ai",
    "strands": "strands",
    "tframex": "tframex",
    "upsonic": "upsonic",
}

IS_OURS = ".integrations" in sys.prefix  # elsewhere warnings of a framework that happens to be there are errors


def is_installed(package: str) -> bool:
    """Whether a package can be imported, without importing it, only the packages above it."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


collect_ignore = [f"test_{name}.py" for name, package in FRAMEWORKS.items() if not IS_OURS or not is_installed(package)]


@pytest.fixture
def settings(database: Database, redis_url: str, tmp_path: Path) -> Settings:
    """Postgres with its replica, and Redis; no worker, so turns stay pending."""
    return Settings(
        database_url=database.app_url,
        replica_urls=database.app_replica_urls,
        broker_url=redis_url,
        state_dir=tmp_path,
        embedder="hash",
        remember_budget_seconds=30,  # a turn must not be spooled, nor a read given up, because the machine is busy
        redis_timeout_seconds=30,
        recall_budget_seconds=30,
        db_timeout_seconds=30,
        db_connect_timeout_seconds=30,
    )


@pytest.fixture
async def memory(settings: Settings) -> AsyncIterator[Memory]:
    """An agent's memory."""
    async with Memory(settings=settings) as opened:
        yield opened
