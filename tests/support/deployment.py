"""A deployment of two releases at the same time: a database and a Redis, with agents and workers of both."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from aftermind import Settings
from tests.support.agent_client import AgentProcess, agent_process
from tests.support.fork_server import end
from tests.support.releases import Release
from tests.support.servers import Database, psql_async, wait_for_output
from tests.support.waiting import NeverHappened
from tests.support.workers import start_worker

SERIOUS = re.compile(
    rb'"level": ?"(error|critical)"|\b(ERROR|CRITICAL|Traceback)\b|Undefined(Column|Table)', re.IGNORECASE
)
PAUSE = 0.25  # seconds between turns: enough of them in each step, and the machine is left to the processes


@dataclass(slots=True)
class Running:
    """An agent and a worker of one release. The agent adds turns to one session; `acknowledged` has their texts."""

    agent: AgentProcess
    acknowledged: list[str] = field(default_factory=list)
    _stops: asyncio.Event = field(default_factory=asyncio.Event)
    _telling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to add turns."""
        self._telling = asyncio.create_task(self._tell())

    async def stop(self) -> None:
        """Add no more turns. Raises what the agent answered if a turn failed."""
        self._stops.set()
        if self._telling is not None:
            await self._telling

    async def _tell(self) -> None:
        while not self._stops.is_set():
            text = f"I like dish {len(self.acknowledged)} of the {self.agent.name} agent."
            await self.agent.do("remember", text=text)
            self.acknowledged.append(text)
            await asyncio.sleep(PAUSE)


@dataclass(slots=True, kw_only=True)
class Deployment:
    """A database, and what runs on it; `settings` are those of every process."""

    database: Database
    settings: Settings
    environment: Mapping[str, str]
    folder: Path
    logs: list[Path] = field(default_factory=list)
    pids: dict[int, str] = field(default_factory=dict)

    async def migrate(self, release: Release) -> str:
        """`aftermind migrate` of that release; the revision that the database has then."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aftermind.cli", "migrate"),
            env=release.environment(self.environment),
            cwd=self.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        return await self.ask("SELECT version_num FROM aftermind.schema_version")

    @asynccontextmanager
    async def running(self, release: Release, *, on: str) -> AsyncIterator[Running]:
        """An agent that adds turns, and a worker on these queues."""
        async with self.agent(release) as agent:
            with self.workers(release, on):
                both = Running(agent)
                both.start()
                try:
                    yield both
                finally:
                    await both.stop()

    @asynccontextmanager
    async def agent(self, release: Release) -> AsyncIterator[AgentProcess]:
        """An agent in a process; ended by the end of its stdin."""
        env, log = release.environment(self.environment), self._log("agent", release)
        async with agent_process(env, log, name=release.name, cwd=self.folder) as agent:
            yield agent

    @contextmanager
    def workers(self, release: Release, *queues: str) -> Iterator[None]:
        """A worker for each of these; ended by SIGTERM, which they have to obey."""
        running: list[psutil.Process] = []
        try:
            for each in queues:
                running.append(start_worker(release.environment(self.environment), self._log("w", release), on=each))
                self.pids[running[-1].pid] = release.name
            yield
        finally:
            alive = end(running, timeout=40)
        assert not alive, "a worker did not stop on SIGTERM"

    async def stored_and_mined_by(self) -> set[tuple[str, str]]:
        """The releases of the workers that stored and that mined the same user's turns, of every user.

        Only of turns that Postgres accepted: of those that Redis accepted, no attempt is recorded.
        """
        attempts = """
            SELECT user_id, kind, split_part(job_attempts.worker, ':', 2) AS pid
            FROM aftermind.jobs JOIN aftermind.job_attempts ON job_id = id
        """
        pairs = await self.ask(
            f"""
            SELECT DISTINCT stored.pid, mined.pid
            FROM ({attempts}) AS stored JOIN ({attempts}) AS mined USING (user_id)
            WHERE stored.kind = 'store' AND mined.kind = 'extract'
            """
        )
        return {(self.pids[int(store)], self.pids[int(mine)]) for store, mine in map(_pair, pairs.splitlines())}

    async def stored(self, count: int, *, user: str = "alice") -> None:
        """Wait until so many episodes of a user are stored."""
        query = f"SELECT count(*) >= {count} FROM aftermind.episodes WHERE user_id = '{user}'"
        await wait_for_output(self.database.url, query, "t", description=f"{count} turns are stored")

    async def settled(self) -> None:
        """Wait until every job has ended. It says which have not."""
        query = """
            SELECT count(*), kind, state, min(run_at), min(lease_until) FROM aftermind.jobs
            WHERE state IN ('queued', 'running', 'retrying') GROUP BY kind, state
        """
        ended = "every job has ended"
        try:
            await wait_for_output(self.database.url, query, "", description=ended)
        except NeverHappened as exc:
            raise NeverHappened(ended, exc.timeout, await self.ask(query)) from exc

    async def states(self) -> set[str]:
        """The states that jobs are in."""
        return set((await self.ask("SELECT DISTINCT state FROM aftermind.jobs")).splitlines())

    def errors(self) -> list[str]:
        """What the logs of agents and workers say of errors."""
        lines = [(log.name, line) for log in self.logs for line in log.read_bytes().splitlines()]
        return [f"{name}: {line.decode(errors='replace')[:500]}" for name, line in lines if SERIOUS.search(line)]

    async def ask(self, query: str) -> str:
        """The bare output of a statement, as the owner of the tables."""
        return await psql_async(self.database.url, query)

    def _log(self, what: str, release: Release) -> Path:
        self.logs.append(self.folder / f"{what}-{release.name}-{len(self.logs)}.log")
        return self.logs[-1]


def _pair(line: str) -> tuple[str, str]:
    one, other = line.split("|")
    return one, other
