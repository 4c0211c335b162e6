"""Connects to the primary among the hosts of a URL, and refuses a returned old primary by its timeline."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from aftermind import errors
from aftermind.db.error_mapping import short
from aftermind.db.postgres_url import parse_hosts, plain, redact, split_password_file

# After one host has answered as primary: a host that is cut off must not delay a new connection by its whole timeout.
GRACE_SECONDS = 0.5
RECYCLE_SECONDS = 60  # so that a pool of several hosts finds a second primary although its connections still work

# The timeline out of a file name: the control file has it only after the checkpoint that follows a promotion.
_ROLE = """
SELECT (SELECT system_identifier FROM pg_control_system()) AS system,
       CASE WHEN pg_is_in_recovery() THEN NULL
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END AS timeline
"""

_FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection  # it takes no parameter while it runs


class PgConnection(Connection):
    """A connection, and what the node behind it has reported."""

    system: int | None = None  # both are set for one of several hosts
    timeline: int | None = None  # None on a replica
    is_unreplicated = False  # a commit did not wait for its synchronous replica to the end


class PrimaryConnector:
    """Opens connections to the primary of one URL.

    A URL of one host is taken as it is. Of several, all are asked at the same time, and the primary on the latest
    timeline is chosen: an old primary that returns after a promotion is on an earlier one. This process never uses an
    earlier timeline than it has used before; after a restore of an older copy, restart it. `target_session_attrs` of
    the URL is not used: only a primary takes writes.
    """

    def __init__(self, url: str) -> None:
        self.url = plain(url)
        self.name = redact(self.url)
        self._hosts = parse_hosts(self.url)
        self._lock = threading.Lock()
        self._newest: tuple[int, int] | None = None  # system and timeline

    @property
    def has_several_hosts(self) -> bool:
        """Whether a primary has to be found among hosts."""
        return len(self._hosts) > 1

    def is_outdated(self, connection: PgConnection) -> bool:
        """Whether a later primary has been found since this connection was opened."""
        newest = self._newest
        return (
            newest is not None
            and connection.timeline is not None
            and (newest[0] != connection.system or connection.timeline < newest[1])
        )

    async def connect(self, **options: Any) -> PgConnection:  # Any: arguments of asyncpg.connect
        """A connection to the primary. Raises the driver's errors, and `StoreUnavailable` if no host is a primary."""
        if not self.has_several_hosts:
            return await _open(self.url, **options)
        answers: dict[asyncio.Task[PgConnection], str] = {}
        chosen: PgConnection | None = None
        try:
            for host, port in self._hosts:
                answers[asyncio.create_task(connect_to_host(self.url, host, port, **options))] = f"{host}:{port}"
            await _wait_for_a_primary(answers)
            chosen = self._choose(answers)
            return chosen
        finally:
            await _close_all_but(chosen, answers)

    def _choose(self, answers: Mapping["asyncio.Task[PgConnection]", str]) -> PgConnection:
        nodes = {name: task.result() for task, name in answers.items() if _is_answered(task)}
        primaries = {name: node for name, node in nodes.items() if node.timeline is not None}
        if not primaries:
            raise errors.StoreUnavailable(self.name, "; ".join(_explain(task, name) for task, name in answers.items()))
        if len({node.system for node in primaries.values()}) > 1:
            why = f"{' and '.join(primaries)} are primaries of different clusters"
            raise errors.StoreUnavailable(self.name, why, "List only the hosts of one cluster in the URL.")
        name, found = max(primaries.items(), key=lambda item: item[1].timeline or 0)
        self._require_latest(name, found)
        return found

    def _require_latest(self, name: str, found: PgConnection) -> None:
        assert found.system is not None
        assert found.timeline is not None
        with self._lock:
            if self._newest is not None and self._newest[0] == found.system and found.timeline < self._newest[1]:
                why = (
                    f"{name} is an old primary on timeline {found.timeline}; this process has used timeline "
                    f"{self._newest[1]}"
                )
                hint = "Rebuild it as a replica (pg_rewind or pg_basebackup), and start the new primary."
                raise errors.StoreUnavailable(self.name, why, hint)
            self._newest = found.system, found.timeline


async def connect(url: str, **options: Any) -> PgConnection:  # Any: arguments of asyncpg.connect
    """One connection to the primary of a URL, without a pool: see `PrimaryConnector.connect`."""
    return await PrimaryConnector(url).connect(**options)


async def connect_to_host(url: str, host: str, port: int, **options: Any) -> PgConnection:  # Any: as `connect`
    """A connection to one host of a URL, whatever its role, with `system` and `timeline`."""
    connection = await _open(plain(url), host=host, port=port, target_session_attrs=SessionAttribute.any, **options)
    try:
        row = await connection.fetchrow(_ROLE)
    except BaseException:
        connection.terminate()
        raise
    assert row is not None
    connection.system, connection.timeline = row["system"], row["timeline"]
    return connection


async def _open(url: str, **options: Any) -> PgConnection:  # Any: as `connect`
    bare, file = split_password_file(url)
    opened: PgConnection = await asyncpg.connect(
        bare, password=_password_reader(file), connection_class=PgConnection, **options
    )
    return opened


def _password_reader(file: Path | None) -> Callable[[], str] | None:
    """What the driver asks for at each connection, so that a rotated password is taken as it is then."""
    if file is None:
        return None

    def read() -> str:
        try:
            return file.read_text().strip()
        except (OSError, UnicodeDecodeError) as exc:
            hint = "Correct AFTERMIND_DATABASE_PASSWORD_FILE, or `password_file` of the URL."
            raise errors.StoreUnavailable("password file", f"{file} cannot be read: {exc}", hint) from exc

    return read


async def _wait_for_a_primary(answers: Mapping["asyncio.Task[PgConnection]", str]) -> None:
    """Wait for all answers, but for no longer than the grace after the first primary."""
    clock, deadline, left = asyncio.get_running_loop().time, None, set(answers)
    while left:
        timeout = None if deadline is None else max(deadline - clock(), 0)
        done, left = await asyncio.wait(left, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return
        for task in done:
            if isinstance(error := task.exception(), BaseException) and not isinstance(error, _FAILURES):
                raise error
        if deadline is None and any(_is_answered(task) and task.result().timeline is not None for task in done):
            deadline = clock() + GRACE_SECONDS


async def _close_all_but(chosen: PgConnection | None, answers: Mapping["asyncio.Task[PgConnection]", str]) -> None:
    for task in answers:
        task.cancel()
    for opened in await asyncio.gather(*answers, return_exceptions=True):
        if isinstance(opened, PgConnection) and opened is not chosen:
            opened.terminate()


def _is_answered(task: "asyncio.Task[PgConnection]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _explain(task: "asyncio.Task[PgConnection]", name: str) -> str:
    if not task.done():
        return f"{name} does not answer"
    error = task.exception()
    return f"{name} is a replica" if error is None else f"{name}: {short(error)}"
