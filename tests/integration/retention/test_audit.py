"""The trail of operators: whoever may write to the database can neither change it unseen nor cut it short."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import asyncpg
import httpx
import pytest
import redis
from pydantic import SecretStr

from aftermind import Memory, Settings, errors
from aftermind.db.audit.chain import AuditKeys, Head, entry_mac, head_mac
from aftermind.db.audit.log import whoami
from aftermind.db.encryption.keyfiles import audit_keys
from aftermind.ledger.protocol import Failure
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.types import JobKind
from aftermind.types.audit import AuditReport
from aftermind.types.replay import JobFilter, ReplayMode
from aftermind_tasks.runtime import open_runtime
from aftermind_workers.janitor import Janitor
from tests.fundamentals.conftest import as_environment
from tests.integration.retention.test_retention import DAY, grow_old
from tests.support.fork_server import run_module
from tests.support.learning import Learning
from tests.support.servers import Database, psql_async
from tests.support.service import local_token, service

Opened = Callable[..., AbstractAsyncContextManager[Learning]]
PREFIX = "audited:"
HEAD = "seq, mac, pruned_to, pruned_mac, key_id, seal"


@pytest.fixture
def settings(database: Database, redis_url: str, tmp_path: Path) -> Settings:
    return Settings(
        database_url=database.app_url,
        relay_url=database.relay_url,
        broker_url=redis_url,
        redis_prefix=PREFIX,
        state_dir=tmp_path,
        embedder="off",
    )


@pytest.fixture
async def memory(settings: Settings) -> AsyncIterator[Memory]:
    """With six entries in its trail."""
    async with Memory(settings=settings) as opened:
        for number in range(6):
            await opened.audit.record("read", user_id=f"u{number}", detail={"by": "test", "no": number})
        yield opened


async def verified(memory: Memory) -> AuditReport:
    [report] = await memory.audit.verify()
    return report


def faults(report: AuditReport) -> str:
    return "; ".join(f"{fault.seq}: {fault.what}" for fault in report.faults)


async def test_what_is_recorded_is_listed_and_whole(memory: Memory) -> None:
    report = await verified(memory)
    listed = await memory.audit.list(limit=2)
    of_one = await memory.audit.list(user_id="u3")

    assert report.is_whole
    assert (report.entries, report.first, report.last, len(report.witnesses)) == (6, 1, 6, 2)
    assert [(each.seq, each.user_id, each.detail) for each in listed] == [
        (5, "u4", {"by": "test", "no": 4}),
        (6, "u5", {"by": "test", "no": 5}),
    ]
    assert [each.seq for each in of_one] == [4]
    assert "@" in listed[0].actor


CHANGES = {
    "an actor": ("UPDATE aftermind.audit_log SET actor = 'nobody' WHERE seq = 3", "3: it was changed"),
    "a user": ("UPDATE aftermind.audit_log SET user_id = 'u9' WHERE seq = 3", "3: it was changed"),
    "no user": ("UPDATE aftermind.audit_log SET user_id = NULL WHERE seq = 3", "3: it was changed"),
    "an action": ("UPDATE aftermind.audit_log SET action = 'export' WHERE seq = 3", "3: it was changed"),
    "a time": ("UPDATE aftermind.audit_log SET at = at - interval '1 us' WHERE seq = 3", "3: it was changed"),
    "a space of a detail": ("UPDATE aftermind.audit_log SET detail = detail || ' ' WHERE seq = 3", "3: it was changed"),
    "a bit of a code": (
        "UPDATE aftermind.audit_log SET mac = set_bit(mac, 5, 1 - get_bit(mac, 5)) WHERE seq = 3",
        "3: ",
    ),
    "the last": ("UPDATE aftermind.audit_log SET actor = 'nobody' WHERE seq = 6", "6: it was changed"),
    "removed": ("DELETE FROM aftermind.audit_log WHERE seq = 3", "4: entries 3 to 3 are missing"),
    "the first removed": ("DELETE FROM aftermind.audit_log WHERE seq = 1", "2: entries 1 to 1 are missing"),
    "removed and closed up": (
        "DELETE FROM aftermind.audit_log WHERE seq = 3; UPDATE aftermind.audit_log SET seq = seq - 1 WHERE seq > 3",
        "3: it was changed",
    ),
    "inserted": (
        "UPDATE aftermind.audit_log SET seq = seq + 100 WHERE seq > 3; "
        "UPDATE aftermind.audit_log SET seq = seq - 99 WHERE seq > 100; INSERT INTO aftermind.audit_log "
        "SELECT namespace, 4, at, 'mallory', action, user_id, detail, key_id, mac "
        "FROM aftermind.audit_log WHERE seq = 3",
        "4: it was changed or inserted",
    ),
    "two exchanged": (
        "UPDATE aftermind.audit_log SET seq = -2 WHERE seq = 2; UPDATE aftermind.audit_log SET seq = 2 WHERE seq = 3; "
        "UPDATE aftermind.audit_log SET seq = 3 WHERE seq = -2",
        "2: it was changed",
    ),
    "one behind the head": (
        "INSERT INTO aftermind.audit_log "
        "SELECT namespace, 7, at, actor, action, user_id, detail, key_id, mac FROM aftermind.audit_log WHERE seq = 6",
        "7: ",
    ),
    "the end cut": ("DELETE FROM aftermind.audit_log WHERE seq > 4", "None: the newest entries are missing: 5 to 6"),
    "the end cut with its head": (
        "DELETE FROM aftermind.audit_log WHERE seq > 4; "
        "UPDATE aftermind.audit_heads SET seq = 4, mac = (SELECT mac FROM aftermind.audit_log WHERE seq = 4)",
        "None: the head was changed",
    ),
    "all of it": (
        "DELETE FROM aftermind.audit_log; DELETE FROM aftermind.audit_heads",
        "None: the newest entries were cut",
    ),
    "the head removed": ("DELETE FROM aftermind.audit_heads", "None: there are entries, and no head"),
    "the beginning called pruned": (
        "DELETE FROM aftermind.audit_log WHERE seq < 3; UPDATE aftermind.audit_heads SET pruned_to = 2",
        "None: the head was changed",
    ),
}


@pytest.mark.parametrize("how", CHANGES)
async def test_one_entry_that_is_tampered_with_is_found(memory: Memory, database: Database, how: str) -> None:
    statements, told = CHANGES[how]
    assert (await verified(memory)).is_whole

    await psql_async(database.admin_url, *statements.split("; "))

    assert told in faults(await verified(memory))


@pytest.mark.parametrize("left", ["folder", "redis"])
async def test_an_end_cut_off_with_an_older_head_put_back_is_found_by_either_witness(
    settings: Settings, database: Database, redis_url: str, tmp_path: Path, left: str
) -> None:
    """The head of yesterday has a good seal: without a witness nobody could tell, and that is said."""
    async with Memory(settings=settings) as memory:
        for _ in range(4):
            await memory.audit.record("read", user_id="alice")
        old = (
            await psql_async(database.admin_url, f"CREATE TABLE public.old AS SELECT {HEAD} FROM aftermind.audit_heads")
            or ""
        )
        for _ in range(2):
            await memory.audit.record("export", user_id="alice")
        await psql_async(
            database.admin_url,
            "DELETE FROM aftermind.audit_log WHERE seq > 4",
            f"UPDATE aftermind.audit_heads SET ({HEAD}) = (SELECT {HEAD} FROM public.old)",
        )
        assert old == ""
        with redis.Redis.from_url(redis_url) as client:
            if left == "folder":
                assert client.delete(f"{PREFIX}audit") == 1
        if left == "redis":
            [file] = (tmp_path / "audit").glob("*.json")
            file.unlink()

        report = await verified(memory)
        env = {**os.environ, **as_environment(settings)}
        printed = await asyncio.to_thread(run_module, ["aftermind.cli", "audit", "verify"], env=env, cwd=tmp_path)

        assert "cut off" in faults(report)
        assert "has 6, the database has 4" in faults(report)
        assert len(report.witnesses) == 1
        assert "NOT intact\n" in printed.stdout, "without a witness that confirms the newest entry"
        assert "has 6, the database has 4" in " ".join(printed.stdout.split())


async def test_a_tenant_whose_trail_was_deleted_is_reported_by_a_look_at_all_tenants(
    memory: Memory, database: Database
) -> None:
    await memory.audit.record("read", user_id="alice", namespace="acme/emea")
    await psql_async(
        database.admin_url,
        "DELETE FROM aftermind.audit_log WHERE namespace = 'acme/emea'",
        "DELETE FROM aftermind.audit_heads WHERE namespace = 'acme/emea'",
    )

    of_acme, of_others = await memory.audit.verify()

    assert (of_acme.namespace, of_acme.is_whole) == ("acme/emea", False)
    assert "the newest entries were cut off" in faults(of_acme)
    assert of_others.is_whole


async def test_the_janitor_keeps_the_last_end_of_each_trail_in_redis(
    memory: Memory, settings: Settings, redis_url: str
) -> None:
    runtime = await open_runtime(settings, worker="w")

    await Janitor(runtime=runtime).round()
    await runtime.close()

    with redis.Redis.from_url(redis_url) as client:
        assert client.hkeys(f"{PREFIX}audit") == [b"default/6"]
    assert (await verified(memory)).is_whole


async def test_an_entry_of_somebody_without_the_key_is_found(
    memory: Memory, settings: Settings, tmp_path: Path
) -> None:
    other = settings.model_copy(update={"audit_key": SecretStr("another key of sixteen"), "state_dir": tmp_path / "x"})
    async with Memory(settings=other) as theirs:
        await theirs.audit.record("read", user_id="alice")

    report = await verified(memory)

    assert "7: it was written with another key" in faults(report)
    both = f"another key of sixteen,{(tmp_path / 'audit.key').read_text()}"
    async with Memory(settings=settings.model_copy(update={"audit_key": SecretStr(both)})) as knowing:
        assert (await verified(knowing)).is_whole, "after a change of keys the old one still vouches"


async def test_no_role_that_serves_can_change_or_remove_an_entry(memory: Memory, database: Database) -> None:
    for url in (database.app_url, database.relay_url):
        connection = await asyncpg.connect(url)
        for statement in ("UPDATE aftermind.audit_log SET actor = 'x'", "TRUNCATE aftermind.audit_log"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
        backdated = (
            "INSERT INTO aftermind.audit_log "
            "VALUES ('default', 99, now() - interval '40 days', 'a', 'read', '', '', '', '')"
        )
        async with connection.transaction():
            await connection.execute("SELECT set_config('aftermind.namespace', 'default', true)")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with connection.transaction():
                    await connection.execute(backdated)
            if url == database.app_url:
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    async with connection.transaction():
                        await connection.execute("DELETE FROM aftermind.audit_log")
            else:  # the relay prunes, and finds nothing that is young
                assert await connection.execute("DELETE FROM aftermind.audit_log") == "DELETE 0"
        await connection.close()

    assert (await verified(memory)).is_whole


async def test_entries_of_many_at_once_make_one_chain(memory: Memory, settings: Settings) -> None:
    async with Memory(settings=settings) as second:
        both = (memory, second)
        await asyncio.gather(*(both[n % 2].audit.record("read", user_id=f"many{n}") for n in range(200)))

        report = await verified(second)

    assert (report.entries, report.is_whole) == (206, True), faults(report)


async def test_an_entry_goes_with_what_it_is_about_or_not_at_all(
    memory: Memory, database: Database, settings: Settings
) -> None:
    await psql_async(database.admin_url, "REVOKE INSERT ON aftermind.audit_log FROM aftermind_app")
    await memory.blocks.set("human", "Alice.", user_id="alice")

    with pytest.raises(errors.NotAllowed):
        await memory.forget(user_id="alice")

    assert await memory.blocks.list(user_id="alice")


async def test_the_old_end_goes_after_its_time_and_what_is_left_is_whole(
    memory: Memory, database: Database, settings: Settings
) -> None:
    """A trail as it is in a year: written as then, by the clock of a table that may be set back."""
    await psql_async(database.admin_url, "ALTER TABLE aftermind.audit_log DISABLE ROW LEVEL SECURITY")
    runtime = await open_runtime(settings.model_copy(update={"audit_retention_days": 30.0}), worker="w")
    await _aged(memory, database, settings, upto=4)
    assert (await verified(memory)).is_whole

    await Janitor(runtime=runtime).round()
    await runtime.close()
    report = await verified(memory)

    assert (report.entries, report.first, report.last, report.is_whole) == (2, 5, 6, True), faults(report)
    assert await psql_async(database.admin_url, "SELECT pruned_to FROM aftermind.audit_heads") == "4"
    await psql_async(database.admin_url, "DELETE FROM aftermind.audit_log WHERE seq = 5")
    assert "5 to 5 are missing" in faults(await verified(memory))


async def _aged(memory: Memory, database: Database, settings: Settings, *, upto: int) -> None:
    """Make the first entries forty days older, with the codes that they would have had."""
    _, key = AuditKeys(audit_keys(None, settings.state_dir)()).current
    before, connection = b"", await asyncpg.connect(database.admin_url)
    for entry in await memory.audit.list(limit=100):
        detail = await connection.fetchval("SELECT detail FROM aftermind.audit_log WHERE seq = $1", entry.seq)
        aged = replace(entry, at=entry.at - timedelta(days=40 if entry.seq <= upto else 0))
        before = entry_mac(key, aged, detail, before)
        await connection.execute(
            "UPDATE aftermind.audit_log SET at = $1, mac = $2 WHERE seq = $3", aged.at, before, entry.seq
        )
    seal = head_mac(key, "default", Head(seq=6, mac=before))
    await connection.execute("UPDATE aftermind.audit_heads SET mac = $1, seal = $2", before, seal)
    await connection.close()
    for folder in settings.state_dir.glob("audit/*.json"):
        folder.unlink()
    with redis.Redis.from_url(settings.broker_url.get_secret_value() if settings.broker_url else "") as client:
        client.delete(f"{PREFIX}audit")


async def test_erasures_discards_and_replays_leave_an_entry_each(opened: Opened, user: str) -> None:
    async with opened(extractor="off") as learnt:
        receipts = [await learnt.memory.remember(f"I like tea {n}.", user_id=user) for n in range(2)]
        failure = Failure(reason_code="x", error_class="X", error="no", fingerprint="f")
        for lease in await learnt.ledger.claim(JobKind.STORE, worker="w", for_=DAY, limit=2):
            await learnt.ledger.mark_dead(None, lease, failure)
        wanted = JobFilter(ids=(receipts[0].job_id,))
        await learnt.memory.dead_letters.discard(wanted, note="a test", actor="ada")
        plan = await learnt.memory.replays.create(
            JobFilter(ids=(receipts[1].job_id,)), NewPlan(name="again", reason="mended", actor="bob")
        )
        await learnt.memory.replays.start(plan.id)
        await learnt.memory.forget(user_id=user, session_id="s1")
        await learnt.learn(user, ["I like jazz."])
        await grow_old(learnt, user, days=100)
        await learnt.memory.retention.set(max_age=90 * DAY)
        await learnt.memory.retention.run()

        listed = await learnt.memory.audit.list()
        [report] = await learnt.memory.audit.verify()

    assert [str(each.action) for each in listed] == ["discard", "replay", "erase", "policy", "erase"]
    assert {each.actor for each in listed} == {whoami()}, "a name that a caller gives is a label, and proves nothing"
    assert whoami().endswith("(claimed)")
    assert listed[0].detail == {"jobs": 1, "note": "a test", "label": "ada"}
    assert listed[1].detail["by"] == "bob"
    assert listed[1].detail["reason"] == "mended"
    assert (listed[2].user_id, listed[2].detail) == (user, {"session_id": "s1"})
    assert (listed[3].detail["was"], listed[3].detail["max_age_seconds"]) == ("set", 90 * DAY.total_seconds())
    assert listed[4].detail == {"by": "retention", "ids": 1}
    assert report.is_whole


async def test_a_screen_is_shown_after_an_entry_says_who_looks(
    memory: Memory, settings: Settings, tmp_path: Path
) -> None:
    env = {**os.environ, **as_environment(settings)}
    with service(env, tmp_path) as url:
        cookies = {"aftermind_key": local_token(settings.state_dir)}
        async with httpx.AsyncClient(
            base_url=url, params={"user": "alice"}, cookies=cookies, trust_env=False
        ) as browser:
            for _ in range(3):
                assert (await browser.get("/memory/blocks")).status_code == 200

    of_alice = [(each.actor, str(each.action), each.detail) for each in await memory.audit.list(user_id="alice")]

    assert of_alice == [("session of local token", "read", {"by": "/memory/blocks"})], (
        "looked at again within a minute: one entry"
    )


async def test_changes_of_a_policy_and_of_service_keys_leave_an_entry_each(memory: Memory) -> None:
    before = len(await memory.audit.list())
    await memory.retention.set(max_episodes=10, keep_important=True, archive="/tmp/archive")
    assert await memory.retention.clear()
    assert not await memory.retention.clear(), "there was none: nothing changed"
    key, secret = await memory.api_keys.create("dashboard", rights=["read"])
    assert await memory.api_keys.revoke(key.id)
    assert not await memory.api_keys.revoke(key.id)

    entries = (await memory.audit.list())[before:]

    policy = {"max_age_seconds": None, "max_episodes": 10, "keep_important": True, "archive": "/tmp/archive"}
    assert [(str(each.action), each.detail) for each in entries] == [
        ("policy", {"was": "set", **policy}),
        ("policy", {"was": "cleared"}),
        ("keys", {"api_key": key.id, "was": "added", "rights": ["read"]}),
        ("keys", {"api_key": key.id, "was": "revoked"}),
    ]
    assert secret not in str(entries)
    assert (await verified(memory)).is_whole


@pytest.mark.parametrize("what", ["retention", "key"])
async def test_a_policy_or_a_key_changes_with_its_entry_or_not_at_all(
    memory: Memory, database: Database, what: str
) -> None:
    await psql_async(database.admin_url, "REVOKE INSERT ON aftermind.audit_log FROM aftermind_app")

    with pytest.raises(errors.NotAllowed):
        await (memory.retention.set(max_episodes=10) if what == "retention" else memory.api_keys.create("dashboard"))

    assert await memory.retention.get() is None
    assert await memory.api_keys.list() == []


async def test_whoever_draws_facts_anew_is_recorded_and_so_is_who_sees_what_would_change(
    opened: Opened, user: str
) -> None:
    async with opened() as learnt:
        replays = learnt.memory.replays
        await learnt.learn(user, ["I like tea."])
        await learnt.learn("somebody else", ["I like jazz."])
        plan = await replays.create(
            JobFilter(namespace="default"),
            NewPlan(name="reextract", reason="a better prompt", actor="bob", mode=ReplayMode.REEXTRACT),
        )
        asked = await replays.dry_run(plan.id)
        assert await replays.dry_run(plan.id) == [], "nothing more to ask: no entry"
        assert len(await replays.dry_run_results(plan.id)) == 2, "asking for what was found leaves no entry by itself"
        await replays.record_access(plan.id, actor="ada")
        await replays.start(plan.id)

        entries = await learnt.memory.audit.list()

        told = {"plan": plan.id, "name": "reextract", "reason": "a better prompt", "by": "bob", "jobs": 2}
        seen = {"by": "shadows", "plan": plan.id, "label": "ada"}
        assert len(asked) == 2
        assert [(str(each.action), each.user_id, each.detail) for each in entries] == [
            ("replay", None, {**told, "is": "shadow"}),
            *(("read", name, seen) for name in sorted((user, "somebody else"))),
            ("replay", None, {**told, "is": "running"}),
        ]
        assert [each.actor for each in entries[1:3]] == [whoami()] * 2


async def test_the_command_records_who_looks_for_what_is_left_and_at_what_would_change(
    opened: Opened, settings: Settings, user: str, tmp_path: Path
) -> None:
    async with opened(redis_prefix=PREFIX) as learnt:
        await learnt.learn(user, ["I like tea."])
        plan = await learnt.memory.replays.create(
            JobFilter(namespace="default"), NewPlan(name="again", reason="why", actor="bob", mode=ReplayMode.REEXTRACT)
        )
        await learnt.memory.replays.dry_run(plan.id)
    env = {**os.environ, **as_environment(settings)}
    for command in (
        ["replay", "dry-run", plan.id],
        ["verify-erasure", "--user", user, "--text", "tea", "--text", "jazz"],
    ):
        done = await asyncio.to_thread(run_module, ["aftermind.cli", *command], env=env, cwd=tmp_path)
        assert done.stdout, done.stderr

    async with Memory(settings=settings) as memory:
        entries = [each for each in await memory.audit.list() if each.action == "read"]

    assert [(each.user_id, each.detail) for each in entries] == [
        (user, {"by": "shadows", "plan": plan.id}),
        (user, {"by": "remains", "texts": 2}),
    ]


async def test_an_erasure_has_the_note_of_its_request(memory: Memory) -> None:
    await memory.groups.add("team", "u1")
    await memory.forget(user_id="u1", note="request 77")

    entries = await memory.audit.list(user_id="u1", action="erase")
    assert [each.detail for each in entries] == [{"everything": True, "note": "request 77"}]
    of_groups = [each for each in await memory.audit.list(action="erase") if each.user_id != "u1"]
    assert of_groups
    assert all(each.detail["note"] == "request 77" for each in of_groups)
    with pytest.raises(errors.InvalidQuery, match="up to 500 characters"):
        await memory.forget(user_id="u1", note="x" * 501)
