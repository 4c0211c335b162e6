"""What the command says where workers do not come up, or none is there: never that all is well, and not for ever."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aftermind.cli import ingest, stack_processes
from aftermind.cli.importers import FileTurn, read
from aftermind.errors import StackError
from aftermind.memory import Memory
from aftermind.settings import Settings
from aftermind.stack import Command, ComponentState
from tests.support.servers import Database, Servers

CONVERSATION = Path(__file__).resolve().parents[3] / "examples" / "conversation.jsonl"


def _store_worker(servers: Servers) -> Command:
    settings = Settings(state_dir=servers.stack.logs.parent, embedder="hash", extractor="rules")
    plan = stack_processes.plan(settings, servers.endpoints, servers.stack.status())
    return next(command for command in plan.commands() if command.name == "worker-store")


@pytest.mark.long
def test_a_worker_that_dies_at_its_start_is_reported_and_one_that_takes_work_is_running(
    own_servers: Callable[..., Servers],
) -> None:
    servers = own_servers(replica=False)
    well = _store_worker(servers)
    misled = replace(well, env={**well.env, "AFTERMIND_LEASE_SECONDS": "soon"})

    with pytest.raises(StackError, match=r"worker-store.*does not stay up"):
        servers.stack.supervise([misled])
    servers.stack.supervise([well])

    states = {each.name: each.state for each in servers.stack.status()}
    assert states["worker-store"] is ComponentState.RUNNING
    assert Path(well.env["AFTERMIND_READY_FILE"]).exists()


async def test_ingest_says_what_nobody_works_on_and_ends(database: Database, redis_url: str, tmp_path: Path) -> None:
    turns = [each for each in read(CONVERSATION) if isinstance(each, FileTurn)]
    settings = Settings(state_dir=tmp_path, embedder="hash", extractor="rules")

    async with Memory(database.app_url, broker=redis_url, redis=redis_url, settings=settings) as memory:
        done = await ingest.play(memory, turns, still_seconds=0.5)

    assert done.queued == len(turns)
    assert f"store: {len(turns)} pending" in done.stalled
