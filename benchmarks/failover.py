"""Failover: turns and recalls while a primary of Postgres, Redis or a Redis Cluster, or a node of RabbitMQ, is killed.

    python benchmarks/failover.py --json FILE      (--quick: without RabbitMQ, whose nodes take half a minute to start)

The servers are real: two Postgres nodes with synchronous replication, three Valkeys with three sentinels, a Redis
Cluster of three primaries with a replica each, and three RabbitMQ nodes. A few users send turns and recall them; a
server is killed, and everything that was accepted is counted.
"""

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that it runs as a file, too

from benchmarks import common  # noqa: E402
from benchmarks.harness import servers  # noqa: E402
from tests.support import failovers  # noqa: E402
from tests.support.failover_load import Outcome  # noqa: E402
from tests.support.postgres_pair import running_pair  # noqa: E402
from tests.support.rabbitmq import running_cluster  # noqa: E402
from tests.support.redis_cluster import running_redis_cluster  # noqa: E402
from tests.support.sentinels import running_sentinels  # noqa: E402
from tests.support.servers import Database, Servers  # noqa: E402

Accept = Literal["redis", "postgres"]
MAX_DEGRADED_SECONDS = 3.0  # recall without Redis, from its loss until the sentinels have made another primary


def main() -> None:
    """Run, print, and exit with 1 if a target was missed."""
    asked = common.arguments(__doc__ or "")
    report = common.Report(title="Failover")
    with tempfile.TemporaryDirectory(prefix="aftermind-failover-", ignore_cleanup_errors=True) as folder:
        running = servers.up(Path(folder) / "stack")
        try:
            outcomes = _run(running, Path(folder), has_rabbitmq=not asked.quick)
        finally:
            running.stack.destroy()
    for engine, outcome in outcomes.items():
        _add(report, engine, outcome)
    sys.exit(report.finish(asked.json))


def _run(running: Servers, folder: Path, *, has_rabbitmq: bool) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    accept: Accept
    for accept in get_args(Accept):
        running.empty_redis()
        place = _folder(folder, f"postgres-{accept}")
        found[f"postgres_accept_{accept}"] = asyncio.run(_lose_postgres_primary(running.redis_url, place, accept))
    with running_sentinels() as sentinels, _database(running) as database:
        place = _folder(folder, "sentinel")
        found["redis_sentinel"] = asyncio.run(failovers.lose_redis_primary(sentinels, database, place))
    with running_redis_cluster(replicas=True) as cluster, _database(running) as database:
        losing = failovers.lose_redis_shard(cluster, database, running.redis_url, _folder(folder, "redis-cluster"))
        found["redis_cluster"] = asyncio.run(losing)
    if has_rabbitmq:
        with running_cluster() as nodes, _database(running) as database:
            place = _folder(folder, "rabbitmq")
            losing = failovers.lose_rabbitmq_node(nodes, database, running.redis_url, place)
            found["rabbitmq"] = asyncio.run(losing)
    return found


async def _lose_postgres_primary(redis: str, folder: Path, accept: Accept) -> Outcome:
    async with running_pair() as pair:
        return await failovers.lose_postgres_primary(pair, redis, folder, accept)


def _folder(root: Path, name: str) -> Path:
    folder = root / name
    folder.mkdir()
    return folder


@contextmanager
def _database(running: Servers) -> Iterator[Database]:
    database = running.create_database()
    running.empty_redis()
    try:
        yield database
    finally:
        running.drop_database(database)


def _add(report: common.Report, engine: str, outcome: Outcome) -> None:
    note = f"of {outcome.accepted} accepted turns, {outcome.refused} refused"
    report.add(f"{engine}_lost", len(outcome.lost), at_most=0, note=note)
    report.add(f"{engine}_doubled", len(outcome.doubled), at_most=0)
    report.add(f"{engine}_stale", len(outcome.stale), at_most=0, note="turns that the next recall did not show")
    if engine == "redis_cluster":
        report.add(f"{engine}_disturbed", len(outcome.disturbed), at_most=0, note="calls of users of other shards")
    at_most = MAX_DEGRADED_SECONDS if engine == "redis_sentinel" else None
    report.add(f"{engine}_recall_degraded_s", outcome.recall_degraded_s, at_most=at_most)
    report.add(f"{engine}_remember_spooled_s", outcome.remember_spooled_s)
    report.add(f"{engine}_slowest_remember_s", outcome.slowest_remember_s)
    report.add(f"{engine}_slowest_recall_s", outcome.slowest_recall_s)


if __name__ == "__main__":
    main()
