"""The Postgres primary: its data folder, its settings, its database and roles."""

import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from aftermind.errors import StackError
from aftermind.stack import orphans, ports, server_tools
from aftermind.stack import saved_settings as names
from aftermind.stack.component_types import Restart, StopOrder
from aftermind.stack.run_without_root import Identity, dying_with_parent
from aftermind.stack.saved_settings import StackConfig
from aftermind.stack.state_dir import StateFolder
from aftermind.stack.supervised_program_protocol import Launch

INITDB_TIMEOUT = 120.0  # seconds; takes 0.5 s on an idle disk
SLOT = "aftermind_replica"
CREATE_SLOT = f"""
    SELECT pg_create_physical_replication_slot('{SLOT}', true)
      WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '{SLOT}');
"""
DROP_SLOT = f"""
    SELECT pg_drop_replication_slot(slot_name)
      FROM pg_replication_slots WHERE slot_name = '{SLOT}' AND NOT active;
"""

# For two cores and a laptop's memory, next to workers that need both.
SETTINGS: Mapping[str, str] = {
    "listen_addresses": ports.LOOPBACK,
    "unix_socket_directories": "",  # a deep state folder would exceed the 104 bytes that a socket path may have
    "max_connections": "200",
    "shared_buffers": "128MB",
    "random_page_cost": "1.1",  # solid-state disks
    "jit": "off",  # our statements are short; compiling them takes longer than running them
    "fsync": "on",
    "synchronous_commit": "on",
    "wal_level": "replica",
    "wal_compression": "on",  # a third less WAL with a million episodes: benchmarks/growth.py
    "hot_standby": "on",
    "hot_standby_feedback": "on",  # a vacuum on the primary does not cancel a recall on the replica
    "max_wal_senders": "10",
    "max_replication_slots": "10",
    "max_slot_wal_keep_size": "1GB",  # a replica away for longer is rebuilt instead of filling the disk
    "wal_receiver_status_interval": "1s",
    "wal_retrieve_retry_interval": "200ms",  # how soon a replica dials again when its primary was restarted
    "max_wal_size": "1GB",
    # A frozen replica takes nothing and closes nothing; without this a checkpoint that wants to drop its slot waits for
    # as long as it is frozen (measured), and with it the log grows. Only Linux has the option.
    **({"tcp_user_timeout": "30s"} if sys.platform == "linux" else {}),
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] ",
}


class Cluster:
    """The common part of primary and replica: one data folder, one port, one procedure to start and stop."""

    restart = Restart.ALWAYS
    probe_seconds = 5.0
    # SIGINT is a fast shutdown (sessions are ended, a checkpoint is written), SIGQUIT an immediate one.
    stop_signals = ((signal.SIGINT, 60.0), (signal.SIGQUIT, 5.0))

    def __init__(
        self,
        name: str,
        folder: StateFolder,
        config: StackConfig,
        *,
        data: Path,
        port: int,
        programs: Path,
        identity: Identity,
        settings: Mapping[str, str],
    ) -> None:
        self._name, self._folder, self._config = name, folder, config
        self._data, self._port, self._programs, self._identity = data, port, programs, identity
        self._settings = {**SETTINGS, **settings}

    @property
    def name(self) -> str:
        """`postgres` or `postgres-replica`."""
        return self._name

    @property
    def port(self) -> int:
        """The loopback port it listens on."""
        return self._port

    async def probe(self) -> str | None:
        """Ask whether it takes connections."""
        argv = (str(self._programs / "pg_isready"), "-q", "-h", ports.LOOPBACK, "-p", str(self._port), "-t", "2")
        code = (await server_tools.run(argv, timeout_seconds=5, env=server_tools.environment())).code
        return {0: None, 1: "it is starting or stopping"}.get(code, "it does not answer")

    def launch(self, *, settings: Mapping[str, str], env: Mapping[str, str]) -> Launch:
        """The command line of the server; settings there outrank every file in the data folder."""
        options = {"port": str(self._port), "cluster_name": self._name, **self._settings, **settings}
        flags = tuple(part for key, value in options.items() for part in ("-c", f"{key}={value}"))
        # The identity first: a change of user would clear the death signal again.
        prefix = (*self._identity.prefix, *dying_with_parent("INT"))
        argv = (*prefix, str(self._programs / "postgres"), "-D", str(self._data), *flags)
        return Launch(argv=argv, env={**server_tools.environment(), **env}, cwd=self._folder.root)

    def require_startable(self) -> None:
        """Check owner, version, port and stale pid file of a complete data folder."""
        self.own(self._data)
        version = (self._data / "PG_VERSION").read_text().strip()
        if version != (wanted := _major(self._programs)):
            remedy = "Install the release that made it and dump the data, or `aftermind stack destroy`."
            raise StackError(self._name, f"{self._data} is of Postgres {version}, installed is {wanted}", remedy)
        orphans.end_postmaster(self._data)
        ports.require_free(self._name, self._port)

    def own(self, path: Path) -> None:
        """Give a data folder to the identity that runs Postgres, or raise with its owner."""
        if self._identity.owner is not None:
            _chown(path, *self._identity.owner)
        elif path.stat().st_uid != os.geteuid():
            why = f"its data folder {path} belongs to another user (uid {path.stat().st_uid})"
            raise StackError(self._name, why, "Run as that user, or give the state folder to this one (chown -R).")

    async def as_postgres(
        self, program: str, *arguments: str, env: Mapping[str, str] | None = None, stdin: str = ""
    ) -> server_tools.Finished:
        """Run one of Postgres's programs under its identity."""
        argv = (*self._identity.prefix, *dying_with_parent("KILL"), str(self._programs / program), *arguments)
        whole = {**server_tools.environment(), **(env or {})}
        return await server_tools.run(
            argv, timeout_seconds=INITDB_TIMEOUT, env=whole, cwd=self._folder.root, stdin=stdin
        )

    async def psql(self, sql: str, *, port: int, database: str = "postgres") -> str:
        """Run statements as the superuser and return their bare output; raises StackError with psql's own words."""
        argv = (str(self._programs / "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", ports.LOOPBACK)
        target = ("-p", str(port), "-U", names.SUPERUSER, "-d", database)
        login = {"PGPASSWORD": self._config.superuser_password, "PGCONNECT_TIMEOUT": "5"}
        env = {**server_tools.environment(), **login}
        done = await server_tools.run((*argv, *target), timeout_seconds=30, env=env, stdin=sql)
        if done.code != 0:
            raise StackError(self._name, done.reason, f"Its log: {self._folder.log(self._name)}")
        return done.output.strip()

    def building(self) -> Path:
        """An empty folder to build the data in, whatever an interrupted start left there before."""
        path = self._folder.building(self._data)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
        self.own(path)
        return path

    def complete(self, building: Path) -> None:
        """Put a finished data folder in its place; before that moment nothing of it counts."""
        if self._data.exists():
            self._data.rmdir()  # an empty one; require_complete refused anything else
        building.rename(self._data)


class Primary(Cluster):
    """The server that receives all writes."""

    stop_order = StopOrder.PRIMARY

    def __init__(
        self,
        folder: StateFolder,
        config: StackConfig,
        *,
        programs: Path,
        identity: Identity,
        settings: Mapping[str, str],
        replica: bool,
        adopting: bool,
    ) -> None:
        super().__init__(
            "postgres",
            folder,
            config,
            data=folder.primary,
            port=config.postgres_port,
            programs=programs,
            identity=identity,
            settings=settings,
        )
        self._replica = replica
        self._adopting = adopting  # stack.json is missing, so the passwords of the data are unknown

    async def prepare(self) -> Launch:
        """Create the data folder if needed, repair it after a crash, and return the command to start."""
        if not self._is_complete():
            await self._initialise()
        self.require_startable()
        if self._adopting:
            await self._set_password()
        return self.launch(settings={}, env={})

    async def on_ready(self) -> None:
        """Create roles, database, extension and replication slot where they are missing; keep passwords in step."""
        await self.psql(self._provisioning(), port=self._port)

    def _is_complete(self) -> bool:
        if (self._data / "global" / "pg_control").exists() and (self._data / "PG_VERSION").exists():
            return True
        if self._data.exists() and any(self._data.iterdir()):
            # We rename complete folders into place, so this was one and lost files since: do not start empty instead.
            why = f"{self._data} is not a whole data folder (no global/pg_control or PG_VERSION)"
            raise StackError(
                self.name, why, "Restore it from a backup, or start with an empty stack: `aftermind stack destroy`."
            )
        return False

    async def _initialise(self) -> None:
        building = self.building()
        password_file = self._folder.root / "initdb-password"
        descriptor = os.open(password_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(self._config.superuser_password)
            self.own(password_file)
            done = await self.as_postgres("initdb", *self._initdb_arguments(building, password_file))
        finally:
            password_file.unlink(missing_ok=True)
        if done.code != 0:
            raise StackError(self.name, f"initdb failed: {done.reason}", _initdb_remedy(done.reason, self._folder))
        self.complete(building)

    async def _set_password(self) -> None:
        """Set the superuser's password to the configured one, in single-user mode, which needs no password."""
        sql = f"ALTER ROLE {names.SUPERUSER} PASSWORD '{self._config.superuser_password}';\n"
        done = await self.as_postgres("postgres", "--single", "-D", str(self._data), "postgres", stdin=sql)
        if done.code != 0 or "ERROR" in done.errors:
            remedy = f"Bring {self._folder.config} back, or `aftermind stack destroy`."
            raise StackError(self.name, f"stack.json is missing and no new password can be set: {done.reason}", remedy)
        self._adopting = False

    def _initdb_arguments(self, building: Path, password_file: Path) -> tuple[str, ...]:
        sync = ("--no-sync",) if self._settings["fsync"] == "off" else ()
        # The built-in locale sorts alike on every machine and needs none installed.
        locale = ("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--encoding=UTF8")
        login = (f"--username={names.SUPERUSER}", f"--pwfile={password_file}", "--auth=scram-sha-256")
        return ("-D", str(building), *login, *locale, *sync)

    def _provisioning(self) -> str:
        role, replicator, database = names.ROLE, names.REPLICATOR, names.DATABASE
        lesser = "".join(
            f"""
            SELECT 'CREATE ROLE {each}' WHERE to_regrole('{each}') IS NULL \\gexec
            ALTER ROLE {each} LOGIN PASSWORD '{self._config.role_password(each)}';
            GRANT pg_monitor TO {each};"""
            for each in (names.APP, names.RELAY)
        )
        slot = CREATE_SLOT if self._replica else DROP_SLOT  # a slot without a replica would only keep the log
        return f"""
            SELECT 'CREATE ROLE {role}' WHERE to_regrole('{role}') IS NULL \\gexec
            SELECT 'CREATE ROLE {replicator}' WHERE to_regrole('{replicator}') IS NULL \\gexec
            ALTER ROLE {role} LOGIN CREATEDB PASSWORD '{self._config.password}';
            ALTER ROLE {replicator} LOGIN REPLICATION PASSWORD '{self._config.replicator_password}';
            GRANT pg_monitor TO {role};{lesser}
            SELECT 'CREATE DATABASE {database} OWNER {role}'
              WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = '{database}') \\gexec
            {slot}
            \\connect template1
            SET client_min_messages = warning;
            CREATE EXTENSION IF NOT EXISTS vector;
            \\connect {database}
            SET client_min_messages = warning;
            CREATE EXTENSION IF NOT EXISTS vector;
        """


def _major(programs: Path) -> str:
    return "18" if programs.parent.name.endswith("18") else "16"


def _chown(path: Path, user: int, group: int) -> None:
    if path.stat().st_uid == user:
        return
    for folder, _, files in os.walk(path):
        os.chown(folder, user, group)
        for file in files:
            os.chown(Path(folder) / file, user, group, follow_symlinks=False)
    os.chown(path, user, group)


def _initdb_remedy(reason: str, folder: StateFolder) -> str:
    if "No space left" in reason:
        return f"The disk of {folder.root} is full: free some space."
    if "could not look up effective user ID" in reason:  # `docker run --user 12345`
        return "Postgres wants the user to have a name: add one to /etc/passwd, or run as another user."
    return "Fix the reported cause and retry; the incomplete folder was removed."
