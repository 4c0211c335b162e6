"""A deployment of two releases at once: servers, with agents and workers of either on them."""

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from aftermind import Memory, Settings
from aftermind.types.claim import Claim
from tests.support.former import Release
from tests.support.servers import Servers, psql
from tests.support.waiting import NeverHappened, wait_until
from tests.support.workers import start_worker

AGENT = Path(__file__).with_name("agent_process.py")
SERIOUS = re.compile(
    rb'"level": ?"(error|critical)"|\b(ERROR|CRITICAL|Traceback)\b|Undefined(Column|Table)', re.IGNORECASE
)
PAUSE = 0.05  # seconds between turns


@dataclass(slots=True)
class AgentProcess:
    """An agent of one release, asked by lines."""

    release: Release
    process: asyncio.subprocess.Process
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def do(
        self, what: str, *, user: str = "ann", session: str = "s", text: str = "", accept: str | None = None
    ) -> Any:  # Any: JSON
        """What the agent's memory answers; it fails here where it failed there."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        async with self._one:
            asked = {"do": what, "user": user, "session": session, "text": text, "accept": accept}
            self.process.stdin.write(json.dumps(asked).encode() + b"\n")
            told = json.loads(await self.process.stdout.readline() or b'{"failed": "it ended"}')
        assert "failed" not in told, f"the {self.release.name} agent could not {what}: {told['failed']}"
        return told["answer"]


@dataclass(slots=True, kw_only=True)
class Deployment:
    """Servers, and what runs on them; `settings` are those of every process."""

    servers: Servers
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
        return self._ask("SELECT version_num FROM aftermind.schema_version")

    @asynccontextmanager
    async def agent(self, release: Release) -> AsyncIterator[AgentProcess]:
        """An agent in a process; ended by the end of its stdin."""
        with self._log("agent", release).open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", str(AGENT)),
                env=release.environment(self.environment),
                cwd=self.folder,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=2**24,
            )
        try:
            yield AgentProcess(release, process)
            assert process.stdin is not None
            process.stdin.close()
            assert await asyncio.wait_for(process.wait(), 30) == 0
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

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
            for process in running:
                process.send_signal(signal.SIGTERM)
            _, alive = psutil.wait_procs(running, timeout=40)
            for process in alive:
                process.kill()
        assert not alive, "a worker did not stop on SIGTERM"

    async def done_by(self, user: str) -> dict[str, set[str]]:
        """Of which release the workers were that stored for a user (the hash embedder runs there too) and mined.

        Of turns that Redis accepted it is not kept who stored them.
        """
        tried = self._ask(
            f"""
            SELECT DISTINCT kind, split_part(job_attempts.worker, ':', 2) FROM aftermind.jobs
            JOIN aftermind.job_attempts ON job_id = id
            WHERE jobs.user_id = '{user}' AND kind IN ('store', 'extract')
            """
        )
        did: dict[str, set[str]] = {}
        for row in tried.splitlines():
            kind, pid = row.split("|")
            did.setdefault(kind, set()).add(self.pids[int(pid)])
        return did

    async def stored(self, count: int, *, user: str = "ann") -> None:
        """Wait until so many episodes of a user are stored."""
        query = f"SELECT count(*) >= {count} FROM aftermind.episodes WHERE user_id = '{user}'"
        await wait_until(lambda: self._ask(query) == "t", timeout=60, description=f"{count} turns are stored")

    async def works(self, release: Release, *, user: str = "ann") -> None:
        """Wait until a worker of that release has done something for a user."""

        async def did() -> bool:
            return any(release.name in names for names in (await self.done_by(user)).values())

        await wait_until(did, timeout=60, description=f"a worker of the {release.name} release works")

    async def settled(self) -> None:
        """Wait until every job has ended. It says which have not."""
        query = """
            SELECT count(*), kind, state, min(run_at), min(lease_until) FROM aftermind.jobs
            WHERE state IN ('queued', 'running', 'retrying') GROUP BY kind, state
        """
        ended = "every job has ended"
        try:
            await wait_until(lambda: not self._ask(query), timeout=60, description=ended)
        except NeverHappened as exc:
            raise NeverHappened(ended, exc.timeout, self._ask(query)) from exc

    def states(self) -> set[str]:
        """The states that jobs are in."""
        return set(self._ask("SELECT DISTINCT state FROM aftermind.jobs").splitlines())

    async def facts_without_words(self) -> int:
        """Facts that no word leads to."""
        return int(self._ask("SELECT count(*) FROM aftermind.facts WHERE terms = '{}'"))

    async def vectors(self, user: str) -> tuple[int, int]:
        """How many messages of a user there are, and how many of them have a vector."""
        async with Memory(settings=self.settings) as memory:
            everything = await memory.export(user_id=user, vectors=True)
        ids = {episode.id for episode in everything.episodes}
        return len(everything.episodes), len(ids & everything.vectors.keys())

    async def claims(self, user: str) -> tuple[Claim, ...]:
        """What is kept of what a user said."""
        async with Memory(settings=self.settings) as memory:
            return tuple(said.claim for said in (await memory.export(user_id=user)).said)

    def errors(self) -> list[str]:
        """What the logs of agents and workers say of errors."""
        lines = [(log.name, line) for log in self.logs for line in log.read_bytes().splitlines()]
        return [f"{name}: {line.decode(errors='replace')[:500]}" for name, line in lines if SERIOUS.search(line)]

    def _ask(self, query: str) -> str:
        return psql(self.servers.endpoints.postgres_url, query)

    def _log(self, what: str, release: Release) -> Path:
        self.logs.append(self.folder / f"{what}-{release.name}-{len(self.logs)}.log")
        return self.logs[-1]


@dataclass(slots=True)
class Telling:
    """Turns of one session, told one after the other by the agents there are; `told` are those acknowledged."""

    agents: list[AgentProcess]
    told: list[str] = field(default_factory=list)
    _ends: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Tell while the block runs."""
        telling = asyncio.create_task(self._tell())
        try:
            yield
        finally:
            self._ends.set()
            await telling

    async def _tell(self) -> None:
        while not self._ends.is_set():
            for agent in list(self.agents):
                text = f"I like dish {len(self.told)}, says the {agent.release.name} agent."
                await agent.do("remember", text=text)
                self.told.append(text)
                await asyncio.sleep(PAUSE)
