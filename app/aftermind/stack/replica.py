"""The streaming replica of the primary. It is disposable: every fault is fixed by rebuilding it."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from aftermind.errors import StackError
from aftermind.stack import orphans, ports
from aftermind.stack import saved_settings as names
from aftermind.stack.component_types import StopOrder
from aftermind.stack.postgres import CREATE_SLOT, DROP_SLOT, SLOT, Cluster
from aftermind.stack.run_without_root import Identity
from aftermind.stack.saved_settings import StackConfig
from aftermind.stack.state_dir import StateFolder
from aftermind.stack.supervised_program_protocol import Launch


class ReplicaServer(Cluster):
    """A hot standby that recalls read from."""

    stop_order = StopOrder.DATA

    def __init__(
        self,
        folder: StateFolder,
        config: StackConfig,
        *,
        programs: Path,
        identity: Identity,
        settings: Mapping[str, str],
    ) -> None:
        super().__init__(
            "postgres-replica",
            folder,
            config,
            data=folder.replica,
            port=config.replica_port,
            programs=programs,
            identity=identity,
            settings=settings,
        )

    async def prepare(self) -> Launch:
        """Copy the primary if there is no usable copy, and return the command to start."""
        if not await self._is_usable():
            await self._rebuild()
        self.require_startable()
        # On the command line, so that a changed port is used; the password is in the environment.
        upstream = {
            "primary_conninfo": f"{self._conninfo()} application_name={SLOT}",
            "primary_slot_name": SLOT,
        }
        return self.launch(settings=upstream, env={"PGPASSWORD": self._config.replicator_password})

    async def probe(self) -> str | None:
        """Ask whether it takes connections and receives the log; a slot that lost its log needs a new copy."""
        if (reason := await super().probe()) is not None:
            return reason
        try:
            if await self.psql(_STREAMING, port=self._port) == "t":
                return None
            if await self._is_usable():
                return "it does not receive the log of its primary"
        except StackError as exc:
            return exc.why
        raise StackError(self.name, "it fell too far behind its primary", "It is rebuilt automatically.")

    async def on_ready(self) -> None:
        """Nothing to finish: everything else arrives from the primary."""

    async def _is_usable(self) -> bool:
        if not (self._data / "standby.signal").exists() or not (self._data / "global" / "pg_control").exists():
            return False
        try:
            primary, slot = (await self.psql(_STATE, port=self._config.postgres_port)).split("|")
        except StackError:
            return True  # the primary is down: what we have can still serve recalls
        return slot not in ("", "lost") and primary == await self._system_id()

    async def _rebuild(self) -> None:
        orphans.end_postmaster(self._data)
        shutil.rmtree(self._data, ignore_errors=True)
        building = self.building()
        await self.psql(DROP_SLOT + CREATE_SLOT, port=self._config.postgres_port)
        sync = ("--no-sync",) if self._settings["fsync"] == "off" else ()
        arguments = ("-D", str(building), "-R", "-X", "stream", "-S", SLOT, "--checkpoint=fast", *sync)
        env = {"PGPASSWORD": self._config.replicator_password}
        done = await self.as_postgres("pg_basebackup", *arguments, "-d", self._conninfo(), env=env)
        if done.code != 0:
            raise StackError(self.name, f"pg_basebackup failed: {done.reason}", "It is tried again by itself.")
        self.complete(building)

    async def _system_id(self) -> str:
        done = await self.as_postgres("pg_controldata", "-D", str(self._data))
        lines = (line.partition(":") for line in done.output.splitlines())
        return next((value.strip() for key, _, value in lines if key == "Database system identifier"), "")

    def _conninfo(self) -> str:
        return f"host={ports.LOOPBACK} port={self._config.postgres_port} user={names.REPLICATOR}"


_STREAMING = "SELECT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming');"
_STATE = f"""
    SELECT system_identifier, coalesce((SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{SLOT}'), '')
    FROM pg_control_system();
"""
