"""The journals that the in-memory store is held to its contracts with, and a memory on each store whose jobs run."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from aftermind import Memory, Settings
from aftermind.db.record_store_journals.protocol import AnyJournal
from aftermind.types.replay import JobFilter
from tests.support.deployed_service import running
from tests.support.journals import JOURNALS
from tests.support.scripted_openai import Script, ScriptedOpenAI, scripted_openai
from tests.support.servers import Servers

# A store of one process by its URL. All run the same code; contracts hold the other journals to their rows.
IN_PROCESS: Mapping[str, Callable[[Path], str]] = {
    "inmemory": lambda _: "inmemory",
    "sqlite": lambda folder: f"sqlite:{folder}/bot.db",
}
STORES = (*IN_PROCESS, "postgres")


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.long) if name == "sql" else name for name in sorted(JOURNALS)]
)
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AnyJournal:
    """A journal of each kind, empty."""
    return JOURNALS[request.param](tmp_path, request.getfixturevalue)


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedOpenAI]:
    """The model server of this module."""
    with scripted_openai() as server:
        yield server


@pytest.fixture(scope="module")
def deployment(servers: Servers, model: ScriptedOpenAI, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A database of this module, with a worker on all queues."""
    folder, database = tmp_path_factory.mktemp("deployment"), servers.create_database()
    settings = Settings(
        database_url=database.app_url,
        relay_url=database.relay_url,
        broker_url=servers.redis_url,
        redis_prefix=f"conformance-{uuid4().hex[:8]}:",
        reconcile_seconds=0.5,
        **_common(model, folder),
    )
    with pytest.MonkeyPatch.context() as patch:  # of the worker, which inherits it
        patch.setenv("OPENAI_API_KEY", "k")
        patch.setenv("OPENAI_BASE_URL", model.url)
        with running(["worker", "--queues", "all"], settings, folder / "worker.log"):
            yield settings
    servers.drop_database(database)


@dataclass(frozen=True, slots=True)
class Operated:
    """A memory whose jobs run, as an operator has it, and the model that it asks. The namespace is of one test."""

    memory: Memory
    script: Script

    @property
    def all_jobs(self) -> JobFilter:
        """The jobs of the test."""
        return JobFilter(namespace=self.memory.namespace)


@pytest.fixture(params=STORES)
def unopened(request: pytest.FixtureRequest, model: ScriptedOpenAI, tmp_path: Path) -> Memory:
    """A memory on each store: jobs run in this process, or in a worker."""
    namespace = f"space-{uuid4().hex[:8]}"
    if request.param == "postgres":
        settings: Settings = request.getfixturevalue("deployment").model_copy(update={"namespace": namespace})
        return Memory(settings=settings)
    settings = Settings(namespace=namespace, **_common(model, tmp_path))
    return Memory(IN_PROCESS[request.param](tmp_path), settings=settings)


@pytest.fixture
async def operated(unopened: Memory, model: ScriptedOpenAI) -> AsyncIterator[Operated]:
    """The memory, opened; its model finds nothing yet, and does not fail."""
    model.script.facts, model.script.faults = {}, {}
    async with unopened as memory:
        yield Operated(memory=memory, script=model.script)


def _common(model: ScriptedOpenAI, folder: Path) -> dict[str, object]:
    return {
        "state_dir": folder / "state",
        "embedder": "hash",
        "extractor": "openai:scripted",
        "openai_api_key": "k",
        "openai_base_url": model.url,
        "webhook_allow_private": True,  # receivers of tests are on the loopback
        "extract_quiet_seconds": 0.1,
        "extract_max_wait_seconds": 1.0,
    }
