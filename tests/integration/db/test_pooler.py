"""pgbouncer in transaction mode: each transaction gets whichever connection is free, and nothing of a session stays."""

import asyncio
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from aftermind import Memory, Settings
from aftermind.stack.ports import choose
from tests.support.servers import Database
from tests.support.waiting import wait_until_sync
from tests.support.workers import environment, workers

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed (apt-get install pgbouncer)")


@pytest.fixture
def pooled(database: Database, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The addresses of agent and worker through a pooler that has two connections for everybody."""
    app, relay = urlsplit(database.app_url), urlsplit(database.relay_url)
    port = choose(1)[0]
    tmp_path.chmod(0o755)
    (tmp_path / "users.txt").write_text("".join(f'"{each.username}" "{each.password}"\n' for each in (app, relay)))
    (tmp_path / "pgbouncer.ini").write_text(
        f"[databases]\n{database.name} = host={app.hostname} port={app.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = plain\nauth_file = {tmp_path / 'users.txt'}\n"
        "pool_mode = transaction\ndefault_pool_size = 2\nserver_reset_query =\n"
    )
    run = tmp_path / "run"
    run.mkdir()
    argv = [str(PGBOUNCER), "-q", str(tmp_path / "pgbouncer.ini")]
    if os.getuid() == 0:  # it refuses to be root
        shutil.chown(run, "nobody")
        config = Path(shutil.copytree(tmp_path, f"/tmp/pgbouncer-{port}"))  # pytest's folder is root's
        for path in (config, *config.iterdir()):
            os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)
        text = (config / "pgbouncer.ini").read_text().replace(str(tmp_path), str(config))
        (config / "pgbouncer.ini").write_text(text)
        argv = [str(PGBOUNCER), "-q", "-u", "nobody", str(config / "pgbouncer.ini")]
    else:
        config = run
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def through(url: str) -> str:
        parts = urlsplit(url)
        return urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}"))

    try:
        wait_until_sync(lambda: _answers(port), description="pgbouncer answers")
        yield through(database.app_url), through(database.relay_url)
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(config, ignore_errors=True)


async def test_agent_and_worker_behind_a_pooler_in_transaction_mode(
    pooled: tuple[str, str], redis_url: str, tmp_path: Path
) -> None:
    app, relay = pooled
    settings = Settings(state_dir=tmp_path, database_pooler=True, embedder="hash")
    env = environment(relay, redis_url, AFTERMIND_DATABASE_POOLER="true")
    with workers(env, tmp_path):
        async with Memory(app, broker=redis_url, settings=settings) as memory:
            tenants = [f"tenant-{number}" for number in range(6)]
            bees = [f"I keep bees, says {each}" for each in tenants]
            for receipt in await asyncio.gather(
                *(memory.remember(f"I keep bees, says {each}", user_id="u", namespace=each) for each in tenants)
            ):
                await receipt.stored(timeout=180)
            for _ in range(5):
                found = await asyncio.gather(*(memory.history(user_id="u", namespace=each) for each in tenants))
                blocks = await asyncio.gather(
                    *(memory.recall("Who keeps bees?", user_id="u", namespace=each) for each in tenants)
                )

                assert [[one.content for one in each] for each in found] == [[said] for said in bees]
                assert [each.degraded for each in blocks] == [None] * 6
                assert all(said in block.text for said, block in zip(bees, blocks, strict=True))


def _answers(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
