"""The servers of the session, and what each test gets of them."""

import gc
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.support import memory_folder
from tests.support.servers import Database, Servers, migrate, start
from tests.support.waiting import PATIENT_SETTINGS


def pytest_configure(config: pytest.Config) -> None:
    """No setting and no key of the user's environment reaches the tests."""
    for name in [name for name in os.environ if name.startswith(("AFTERMIND_", "OPENAI_"))]:
        del os.environ[name]
    os.environ.update(PATIENT_SETTINGS)
    if not hasattr(config, "workerinput"):  # processes of a run in parallel inherit it
        memory_folder.use_memory()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """The files of a failed test stay until the next run."""
    if exitstatus == pytest.ExitCode.OK and not hasattr(session.config, "workerinput"):
        memory_folder.delete_folder()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected lives as long as the process: to search it for garbage takes 2 s of CPU time in each."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """One primary, one streaming replica and one Valkey for the whole session: not to be killed or frozen."""
    running = start(tmp_path_factory.mktemp("servers") / "stack")
    try:
        running.make_template()
        yield running
    finally:
        running.destroy()


@pytest.fixture
def database(servers: Servers) -> Iterator[Database]:
    """A migrated, empty database of this test alone."""
    made = servers.create_database()
    yield made
    servers.drop_database(made)


@pytest.fixture
def redis_url(servers: Servers) -> str:
    """The session's Redis, emptied before the test: workers and subscribers that it starts use the same one."""
    servers.empty_redis()
    return servers.redis_url


@pytest.fixture
def own_servers(tmp_path: Path) -> Iterator[Callable[..., Servers]]:
    """A factory of servers of this test alone, to kill, freeze and hold: `own_servers(replica=False)`; migrated."""
    made: list[Servers] = []

    def make(*, replica: bool = True, migrated: bool = True) -> Servers:
        made.append(start(tmp_path / f"stack-{len(made)}", replica=replica))
        if migrated:
            migrate(made[-1].endpoints.postgres_url)
        return made[-1]

    yield make
    for each in made:
        each.destroy()
