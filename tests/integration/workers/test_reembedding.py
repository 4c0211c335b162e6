"""A re-embedding by real workers: the former embedder serves until the cutover, and nothing is lost on the way."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from typer.testing import CliRunner

from aftermind import Memory, Settings, errors
from aftermind.api.address_resolution import Addresses
from aftermind.api.reembed_postgres import open_reembeddings
from aftermind.cli import make_app_for
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.llm.protocols import embedder_identity
from aftermind.stack.ports import choose
from aftermind.types import EmbedderIdentity
from aftermind.wire import queues
from tests.support.scripted_openai import ScriptedOpenAI, scripted_openai
from tests.support.servers import Database, psql_async, wait_for_output
from tests.support.stored_turns import keep, said
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

ALL = ",".join((queues.STORE, queues.EMBED))
UNHURRIED = {"recall_budget_seconds": 20.0, "query_embedding_budget_seconds": 10.0}
BRISK = {"AFTERMIND_RECONCILE_SECONDS": "0.5", "AFTERMIND_EXTRACTOR": "off", "AFTERMIND_LEASE_SECONDS": "4"}
BRISK |= {"AFTERMIND_HEARTBEAT_SECONDS": "1"}
HASH = embedder_identity(HashEmbedder())
SMALL = EmbedderIdentity(name="openai:text-embedding-3-small:384", dimension=384)
LARGE = EmbedderIdentity(name="openai:text-embedding-3-small", dimension=1536)

PASSAGES = """
    SELECT count(*), min(vector_dims(passage_embedding[1])), min(vector_dims(passage_embedding_standby[1]))
    FROM aftermind.episodes WHERE passages IS NOT NULL AND cardinality(passage_embedding) = cardinality(passages) - 1
      AND cardinality(passage_embedding_standby) = cardinality(passages) - 1
"""
COUNTS_ALL = "no episodes that this role sees; AFTERMIND_MIGRATOR_URL counts all"
LACKING = "SELECT count(*) FROM aftermind.episodes WHERE embedding IS NULL OR embedding_standby IS NULL"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedOpenAI]:
    """An embeddings endpoint; this process and its workers are given its key."""
    with scripted_openai() as server:
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        yield server


class Rig:
    """A database with episodes of two users, and everything that works on it."""

    def __init__(self, database: Database, redis_url: str, folder: Path) -> None:
        self.database, self.redis_url, self.folder = database, redis_url, folder
        self.settings = Settings(state_dir=folder, embedder="hash", **UNHURRIED)  # type: ignore[arg-type]
        where = Addresses(store=database.app_url, owner=database.url, redis=redis_url, broker=redis_url)
        self.work = open_reembeddings(where, self.settings)

    async def fill(self, count: int) -> None:
        """Episodes with hash vectors."""
        texts = [f"My note {place} is about bees" for place in range(count)]
        users = ("alice", "bob")
        await keep(self.database.url, [said(text, user=users[place % 2]) for place, text in enumerate(texts)])

    def memory(self, **changed: object) -> Memory:
        """An agent's."""
        settings = self.settings.model_copy(update=changed)
        return Memory(self.database.app_url, broker=self.redis_url, settings=settings)

    def environment(self, **more: str) -> dict[str, str]:
        """A worker's."""
        return environment(self.database.relay_url, self.redis_url, **BRISK, **more)

    async def start(self, target: EmbedderIdentity) -> None:
        """Begin."""
        await self.work.start(target.name.removesuffix(f":{target.dimension}"), dimension=target.dimension)

    async def filled(self) -> None:
        """Wait until every episode has a vector of the standby embedder."""

        async def is_filled() -> bool:
            counts = (await self.work.status()).counts
            return counts.standby == counts.episodes

        try:
            await wait_until(is_filled, timeout=180, description="every episode has a second vector")
        except AssertionError:
            jobs = "SELECT user_id, state, attempts, lost_leases, run_at, lease_until, note, error"
            unfinished = await self.query(f"{jobs} FROM aftermind.jobs WHERE state <> 'done'")
            raise AssertionError(unfinished) from None

    async def query(self, statement: str) -> str:
        """As the owner."""
        return await psql_async(self.database.url, statement)


@pytest.fixture
def rig(database: Database, redis_url: str, tmp_path: Path, provider: ScriptedOpenAI) -> Rig:
    """An empty one."""
    return Rig(database, redis_url, tmp_path)


@pytest.mark.parametrize("target", [SMALL, LARGE])
async def test_the_former_embedder_serves_until_the_cutover_and_agents_follow_without_a_restart(
    rig: Rig, target: EmbedderIdentity
) -> None:
    await rig.fill(30)
    memory = rig.memory()
    await rig.start(target)

    with workers(rig.environment(), rig.folder, on=ALL):
        during = await memory.recall("bees", user_id="alice")
        turn = ["I painted the hive blue.", "A long report on hives. " * 80]
        receipt = await memory.remember(turn, user_id="alice", session_id="s2")
        await receipt.embedded(timeout=180)
        await rig.filled()
        compared = await rig.work.compare(sample=2)
        await rig.work.cutover()
        after = await memory.recall("bees", user_id="alice")
        scored = await memory.recall_scored("blue hive", user_id="alice", mode="vector")
        later = await memory.remember("I painted the door red.", user_id="alice", session_id="s2")
        await later.embedded(timeout=180)
    late_agent = rig.memory(
        embedder=target.name.removesuffix(f":{target.dimension}"), embedding_dimension=target.dimension
    )
    configured = await late_agent.recall("bees", user_id="alice")
    await late_agent.close()
    await memory.close()

    assert during.degraded is None
    assert len(compared) == 2
    assert all(0.0 <= each.overlap <= 1.0 for each in compared)
    assert after.degraded is None
    assert scored
    assert configured.degraded is None
    assert await rig.query("SELECT DISTINCT vector_dims(embedding) FROM aftermind.episodes") == str(target.dimension)
    assert await rig.query(LACKING) == "0"
    assert await rig.query(PASSAGES) == f"1|{target.dimension}|{HASH.dimension}"


async def test_a_rollback_lets_the_former_vectors_serve_again_and_a_drop_removes_the_others(rig: Rig) -> None:
    await rig.fill(10)
    before = await rig.query("SELECT md5(string_agg(embedding::text, ',' ORDER BY id)) FROM aftermind.episodes")
    await rig.start(LARGE)
    with workers(rig.environment(), rig.folder, on=ALL):
        await rig.filled()
    await rig.work.cutover()
    memory = rig.memory()
    await memory.recall("bees", user_id="alice")

    status = await rig.work.rollback()
    rolled_back = await memory.recall("bees", user_id="alice")
    dropped = await rig.work.drop()
    alone = await memory.recall("bees", user_id="alice")
    await memory.close()

    assert status.reembedding.stored.active == HASH
    assert await rig.query("SELECT md5(string_agg(embedding::text, ',' ORDER BY id)) FROM aftermind.episodes") == before
    assert rolled_back.degraded is None
    assert dropped == LARGE
    assert alone.degraded is None
    assert await rig.query("SELECT count(embedding_standby) FROM aftermind.episodes") == "0"
    with pytest.raises(errors.NoReembedding):
        await rig.work.rollback()


async def test_a_worker_killed_in_the_middle_costs_nothing_but_time(rig: Rig, provider: ScriptedOpenAI) -> None:
    await rig.fill(60)
    provider.script.latency_seconds = 0.3
    await rig.start(SMALL)
    small_batches = {"AFTERMIND_EMBED_BATCH_TEXTS": "8"}

    with workers(rig.environment(**small_batches), rig.folder, on=ALL) as (worker,):
        filled = "SELECT count(*) > 0 FROM aftermind.episodes WHERE embedding_standby IS NOT NULL"
        await wait_for_output(rig.database.url, filled, "t", description="the first batch is written")
        for process in (*worker.children(recursive=True), worker):
            process.kill()
    with workers(rig.environment(**small_batches), rig.folder, on=ALL):
        await rig.filled()

    assert await rig.query("SELECT count(*) FROM aftermind.jobs WHERE state = 'dead'") == "0"


async def test_what_is_forgotten_during_a_re_embedding_leaves_no_vector_of_either_embedder(rig: Rig) -> None:
    await rig.fill(20)
    memory = rig.memory()
    await rig.start(LARGE)
    with workers(rig.environment(), rig.folder, on=ALL):
        await rig.filled()
        await memory.forget(user_id="alice")
    remains = await memory.verify_erasure(user_id="alice")
    await rig.work.cutover()
    block = await memory.recall("bees", user_id="alice")
    await memory.close()

    assert await rig.query("SELECT count(*) FROM aftermind.episodes WHERE user_id = 'alice'") == "0"
    assert [place for place in remains.places if place.found] == []
    assert "bees" not in block.text


async def test_agents_and_workers_of_either_configuration_serve_beside_each_other(rig: Rig) -> None:
    await rig.fill(20)
    await rig.start(SMALL)
    other = {"AFTERMIND_EMBEDDER": "openai:text-embedding-3-small", "AFTERMIND_EMBEDDING_DIMENSION": "384"}
    former, new = rig.memory(), rig.memory(embedder="openai:text-embedding-3-small", embedding_dimension=384)
    (rig.folder / "other").mkdir()

    with (
        workers(rig.environment(), rig.folder, on=ALL),
        workers(rig.environment(**other), rig.folder / "other", on=ALL),
    ):
        for place in range(6):
            memory = (former, new)[place % 2]
            receipt = await memory.remember(f"Hive {place} is full.", user_id="alice", session_id="s2")
            await receipt.embedded(timeout=180)
        await rig.filled()
        before = [await each.recall("bees", user_id="alice") for each in (former, new)]
        await rig.work.cutover()
        after = [await each.recall("bees", user_id="alice") for each in (former, new)]
    for memory in (former, new):
        await memory.close()

    assert [block.degraded for block in (*before, *after)] == [None] * 4
    assert await rig.query(LACKING) == "0"
    assert await rig.query("SELECT count(*) FROM aftermind.episodes WHERE embedding = embedding_standby") == "0"


async def test_recall_needs_the_new_provider_only_from_the_cutover_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.fill(10)
    await rig.start(SMALL)
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{choose(1)[0]}/v1")  # nothing listens there
    memory = rig.memory(embedder="openai:text-embedding-3-small", embedding_dimension=384)

    found = [await memory.recall("bees", user_id="alice") for _ in range(2)]
    await memory.close()

    assert [block.degraded for block in found] == [None, None]
    assert all("bees" in block.text for block in found)


async def test_a_new_turn_has_the_vector_of_recall_while_the_new_provider_is_away(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, provider: ScriptedOpenAI
) -> None:
    await rig.fill(2)
    await rig.start(SMALL)
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{choose(1)[0]}/v1")  # nothing listens there
    memory = rig.memory()
    new = {"AFTERMIND_EMBEDDER": "openai:text-embedding-3-small", "AFTERMIND_EMBEDDING_DIMENSION": "384"}
    counts = "SELECT count(embedding), count(embedding_standby) FROM aftermind.episodes"

    async def has_vectors(wanted: str) -> bool:
        return await rig.query(counts) == wanted

    with workers(rig.environment(**new), rig.folder, on=ALL):
        await memory.remember(["I painted the hive blue."], user_id="alice", session_id="s2")
        await wait_until(lambda: has_vectors("3|0"), description="the turn has the active embedder's vector")
        unfinished = await rig.query("SELECT count(*) FROM aftermind.jobs WHERE kind = 'embed' AND state = 'dead'")

    monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
    with workers(rig.environment(**new), rig.folder, on=ALL):
        await rig.query("UPDATE aftermind.jobs SET run_at = now() WHERE kind = 'embed' AND state <> 'done'")
        await wait_until(lambda: has_vectors("3|3"), timeout=180, description="both vectors, once the provider is back")
    await memory.close()
    assert unfinished == "0"


async def test_steps_wait_in_workers_that_lost_the_key_of_the_new_embedder(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.fill(10)
    await rig.start(SMALL)
    monkeypatch.delenv("OPENAI_API_KEY")

    async def is_waiting() -> bool:
        notes = await rig.query("SELECT coalesce(note, error, '') FROM aftermind.jobs WHERE kind = 'embed'")
        return "OPENAI_API_KEY" in notes

    with workers(rig.environment(), rig.folder, on=ALL):
        await wait_until(is_waiting, timeout=30, description="the jobs name the missing key")
    refused = "SELECT count(*) FROM aftermind.jobs WHERE state = 'dead' OR error LIKE '%IndexError%'"
    assert await rig.query(refused) == "0"


async def test_a_replica_that_has_not_replayed_the_cutover_compares_with_the_former_vectors(rig: Rig) -> None:
    await rig.fill(10)
    await rig.start(LARGE)
    with workers(rig.environment(), rig.folder, on=ALL):
        await rig.filled()
    replica = rig.database.replica_admin_urls[0]
    memory = Memory(
        rig.database.app_url,
        broker=rig.redis_url,
        replicas=list(rig.database.app_replica_urls),
        settings=rig.settings,
    )
    await psql_async(replica, "SELECT pg_wal_replay_pause()")
    try:
        await rig.work.cutover()
        lagging = await memory.recall("bees", user_id="alice")
    finally:
        await psql_async(replica, "SELECT pg_wal_replay_resume()")
    dimension = (
        "SELECT atttypmod FROM pg_attribute WHERE attrelid = 'aftermind.episodes'::regclass AND attname = 'embedding'"
    )
    url = rig.database.replica_urls[0]
    await wait_for_output(url, dimension, "1536", description="the replica has replayed")
    caught_up = await memory.recall("bees", user_id="alice")
    await memory.close()

    assert lagging.degraded is None
    assert "bees" in lagging.text
    assert caught_up.degraded is None


async def test_a_cutover_waits_for_no_transaction_for_long_and_rewrites_nothing(rig: Rig) -> None:
    await rig.fill(10)
    await rig.start(LARGE)
    with workers(rig.environment(), rig.folder, on=ALL):
        await rig.filled()
    node = "SELECT pg_relation_filenode('aftermind.episodes')"
    before = await rig.query(node)
    reader = await asyncpg.connect(rig.database.url)
    transaction = reader.transaction()
    await transaction.start()
    await reader.fetchval("SELECT count(*) FROM aftermind.episodes")

    cutover = asyncio.create_task(rig.work.cutover())
    other = await asyncpg.connect(rig.database.url)
    waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
    await wait_until(lambda: other.fetchval(waits), description="the cutover waits for the reader")
    assert await other.fetchval("SELECT count(*) FROM aftermind.episodes", timeout=30) == 10
    await transaction.rollback()
    status = await cutover
    await reader.close()
    await other.close()

    assert status.reembedding.stored.active == LARGE
    assert await rig.query(node) == before


async def test_a_command_whose_lock_was_lost_changes_nothing(rig: Rig) -> None:
    await rig.fill(4)
    await rig.start(LARGE)
    reader, other = await asyncpg.connect(rig.database.url), await asyncpg.connect(rig.database.url)
    transaction = reader.transaction()
    await transaction.start()
    await reader.fetchval("SELECT count(*) FROM aftermind.episodes")
    before = await rig.work.status()

    cutover = asyncio.create_task(rig.work.cutover(force=True))
    waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
    await wait_until(lambda: other.fetchval(waits), description="the cutover waits for the reader")
    end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND database = "
    assert await other.fetchval(f"{end} (SELECT oid FROM pg_database WHERE datname = current_database())")
    await transaction.rollback()
    with pytest.raises(errors.StoreUnavailable):
        await cutover
    await reader.close()
    await other.close()

    assert (await rig.work.status()).reembedding == before.reembedding
    assert (await rig.work.cutover(force=True)).reembedding.stored.active == LARGE


async def test_a_cutover_is_refused_while_episodes_lack_vectors(rig: Rig) -> None:
    await rig.fill(10)
    await rig.start(LARGE)

    with pytest.raises(errors.ReembeddingConflict, match="10 of 10 episodes"):
        await rig.work.cutover(wait_seconds=0)


def test_the_commands_do_the_same(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(rig.fill(6))
    named = {
        "AFTERMIND_DATABASE_URL": rig.database.app_url,
        "AFTERMIND_MIGRATOR_URL": rig.database.url,
        "AFTERMIND_BROKER_URL": rig.redis_url,
        "AFTERMIND_STATE_DIR": str(rig.folder),
        "AFTERMIND_EMBEDDER": "hash",
    }
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    command, runner = make_app_for(["reembed"]), CliRunner()

    def run(*arguments: str) -> str:
        done = runner.invoke(command, ["reembed", *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    to = ("--to", "openai:text-embedding-3-small")
    with monkeypatch.context() as not_owner:
        not_owner.delenv("AFTERMIND_MIGRATOR_URL")
        assert COUNTS_ALL in " ".join(run("start", *to, "--dry-run").split())
        with pytest.raises(errors.NotAllowed, match="set AFTERMIND_MIGRATOR_URL"):
            run("start", *to)
    assert "6 episodes" in run("start", *to, "--dry-run")
    assert "No re-embedding exists" in run("status")
    run("start", *to)
    assert "being filled: 0 of 6" in run("status")
    with workers(rig.environment(), rig.folder, on=ALL):
        asyncio.run(rig.filled())
    assert "Mean overlap@10" in run("compare", "--sample", "2")
    with monkeypatch.context() as not_owner:
        not_owner.delenv("AFTERMIND_MIGRATOR_URL")
        assert COUNTS_ALL in " ".join(run("compare").split())
    assert "kept for a rollback" in run("cutover")
    assert "hash:384" in run("rollback")
    assert "openai" in run("drop", "--yes")
    assert "No re-embedding exists" in run("status")
