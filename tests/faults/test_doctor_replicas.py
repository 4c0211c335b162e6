"""What `aftermind doctor` finds of a replica whose replication has stopped."""

import asyncio
from pathlib import Path

from aftermind import Settings
from aftermind.cli import doctor_checks
from aftermind.cli.doctor_checks import Finding, Verdict
from tests.support.postgres_pair import PostgresPair, running_pair
from tests.support.servers import FAST, psql_async
from tests.support.waiting import wait_until

COMMIT = "CREATE TABLE IF NOT EXISTS public.t (n int); INSERT INTO public.t SELECT generate_series(1, 1000)"


async def has_replayed(pair: PostgresPair) -> bool:
    place = await psql_async(pair.endpoints.admin_url, "SELECT pg_current_wal_flush_lsn()")
    replica = pair.endpoints.replica_admin_urls[0]
    return await psql_async(replica, f"SELECT pg_last_wal_replay_lsn() >= '{place.strip()}'") == "t"


async def test_a_replica_that_lost_its_primary_or_is_ahead_of_a_restored_one_is_found(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, replica_max_lag_seconds=1.0)
    async with running_pair(FAST) as pair:
        at = pair.endpoints

        async def found() -> Finding:
            return (await doctor_checks.replica(at.replica_urls[0], at.postgres_url, settings))[0]

        await psql_async(at.admin_url, COMMIT)
        await wait_until(lambda: has_replayed(pair), description="the replica follows")
        await asyncio.sleep(1.5)  # an idle primary is no lag
        follows = await found()

        login = await psql_async(at.admin_url, "SELECT usename FROM pg_stat_replication")
        await psql_async(at.admin_url, f"ALTER ROLE {login} NOREPLICATION")

        async def is_late() -> bool:
            await psql_async(at.admin_url, "SELECT pg_terminate_backend(pid) FROM pg_stat_replication", COMMIT)
            return (await found()).verdict is not Verdict.GOOD

        await wait_until(is_late, description="the replica is late")
        late = await found()

        await psql_async(at.admin_url, f"ALTER ROLE {login} REPLICATION")
        await wait_until(lambda: has_replayed(pair), description="the replica follows again")
        await pair.kill_primary()
        pair.back_up_primary()
        await pair.return_old_primary()
        for _ in range(20):  # more than the restored primary writes by itself
            await psql_async(at.admin_url, COMMIT)
        await wait_until(lambda: has_replayed(pair), description="the replica has it")
        await pair.kill_primary()
        await pair.restore_primary()
        ahead = await found()

    assert (follows.verdict, late.verdict, ahead.verdict) == (Verdict.GOOD, Verdict.WARNING, Verdict.BAD)
    assert "behind" in late.seen
    assert "its connection to the primary" in late.remedy
    assert "bytes ahead" in ahead.seen
    assert "rebuild it" in ahead.remedy
