"""The names that Celery workers have in Flower."""

import re
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.support.fork_server import end, start_module
from tests.support.servers import Database
from tests.support.waiting import PATIENCE_SECONDS, wait_until_sync
from tests.support.workers import environment


def test_workers_of_one_host_have_the_names_of_their_queues_and_different_ones(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    env = environment(database.relay_url, redis_url)
    both = "memory.extract,memory.replay"
    started = []
    with ExitStack() as opened:
        for number, queues in enumerate(("memory.embed", "memory.embed", both)):
            log = opened.enter_context((tmp_path / f"{number}.log").open("wb"))
            command = ["aftermind.cli", "worker", "--queues", queues, "--loglevel", "INFO"]
            started.append(start_module(command, env=env, output=log))
        try:
            logs = [tmp_path / f"{number}.log" for number in range(3)]
            seen = [wait_until_sync(partial(_name, log), timeout=180, description=f"{log} has a name") for log in logs]
        finally:
            end(started, timeout=PATIENCE_SECONDS)

    assert len(set(seen)) == 3
    # Workers of other tests on this host have numbers too.
    assert sorted(re.sub(r"-\d+$", "", name) for name in seen) == ["embed", "embed", "extract-replay"]


def _name(log: Path) -> str:
    ready = re.search(r"([\w-]+)@\S+ ready\.", log.read_text())
    return "" if ready is None else ready[1]
