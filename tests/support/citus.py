"""A Citus cluster that runs elsewhere: `CITUS_URL` is its coordinator, `postgresql://user:password@host:port/database`."""

import asyncio
import os

import asyncpg
import pytest

from aftermind import Memory

URL = "CITUS_URL"


def citus_store() -> str:
    """The address of an empty store whose two tables are distributed over the cluster's workers by partition.

    What the database had of a store is deleted. Skips without a cluster.
    """
    url = os.environ.get(URL)
    if not url:
        pytest.skip(f"no Citus: its server is no package; set {URL} to a coordinator with a database to empty")
    store = url.replace("postgresql://", "sql+postgresql+asyncpg://", 1)
    asyncio.run(_distribute(url, store))
    return store


async def _distribute(url: str, store: str) -> None:
    on = await asyncpg.connect(url)
    try:
        await on.execute("DROP TABLE IF EXISTS aftermind_rows, aftermind_versions")
        async with Memory(store) as memory:
            await memory.health()
        await on.execute("SELECT create_distributed_table('aftermind_rows', 'partition')")
        await on.execute(
            "SELECT create_distributed_table('aftermind_versions', 'partition', colocate_with => 'aftermind_rows')"
        )
        assert await on.fetchval("SELECT count(*) FROM citus_tables WHERE distribution_column = 'partition'") == 2
    finally:
        await on.close()
