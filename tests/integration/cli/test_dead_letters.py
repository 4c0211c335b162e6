"""Dead letters on the terminal: reasons in full at 80 columns, and ids by their ends."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from uuid import UUID

import asyncpg

from aftermind.wire.turn_encoding import encode_turn
from tests.support.dead_letters import Letters
from tests.support.fork_server import run_module
from tests.support.servers import Database
from tests.support.turns import turn_of

REASON = "llm_bad_request"
BACKLOG = """
    INSERT INTO aftermind.jobs (id, namespace, user_id, kind, state, effect_key, run_at)
    SELECT gen_random_uuid(), 'default', 'eve', 'extract', 'queued', gen_random_uuid()::text, now()
    FROM generate_series(1, 1100)
"""  # newer than the dead letters, and more than are searched for an id


def test_a_letter_is_listed_within_80_columns_and_found_by_the_end_of_its_id(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    job, stored = asyncio.run(_mark_dead(database.url))

    def run(*argv: str, family: str = "dead-letters") -> subprocess.CompletedProcess[str]:
        env = {"AFTERMIND_DATABASE_URL": database.relay_url, "AFTERMIND_BROKER_URL": redis_url, "COLUMNS": "80"}
        return run_module(["aftermind.cli", family, *argv], env=os.environ | env, cwd=tmp_path)

    listed, grouped, wide = run("list").stdout, run("stats").stdout, run("list", "--wide").stdout
    got, unknown = run("get", str(job)[-8:], "--json"), run("get", "00000000")
    whole = run("get", str(stored))
    of_namespace = run("get", str(job)[-8:], "--namespace", "default")
    elsewhere = [run("get", each, "--namespace", "acme") for each in (str(job), str(job)[-8:])]
    of_user = run("list", "--user", "alice")
    timeline = run("timeline", str(job)[-8:], family="jobs")
    listed_by_end = run("list", "--id", str(job)[-8:], "--json", family="jobs")
    discarded = run("discard", "--id", str(job)[-8:], "--note", "a test")
    of_none = run("cancel", "--id", "00000000", "--note", "a test", family="jobs")
    got_discarded = run("get", str(job)[-8:], "--json")

    assert max(map(len, [*listed.splitlines(), *grouped.splitlines()])) <= 80
    assert all(text in listed for text in (str(job)[-8:], REASON, "alice"))
    assert f"print-of-{REASON}" in grouped
    assert str(job) in wide
    assert str(job)[-8:] in of_user.stdout, of_user.stderr
    assert json.loads(got.stdout)["job"]["id"] == str(job)
    assert of_namespace.returncode == 0, of_namespace.stderr
    assert [each.returncode for each in elsewhere] == [2, 2]
    assert all("of namespace 'acme'" in each.stderr for each in elsewhere)
    for text in ("user         I like tea.", "answer       no JSON", '"episodes":["e"]'):
        assert text in whole.stdout
    assert timeline.returncode == 0, timeline.stderr  # its turn is unknown here
    assert str(job)[-8:] in timeline.stdout
    assert discarded.returncode == 0, discarded.stderr
    assert json.loads(got_discarded.stdout)["job"]["state"] == "discarded"
    assert [each["id"] for each in json.loads(listed_by_end.stdout)] == [str(job)]
    assert unknown.returncode == of_none.returncode == 2
    assert "neither a dead letter's id nor the end of one" in unknown.stderr
    assert "no recent job's id ends with it" in of_none.stderr


async def _mark_dead(url: str) -> list[UUID]:
    connection = await asyncpg.connect(url.replace("postgresql+asyncpg", "postgresql"))
    try:
        letters, error = Letters(connection), "127.0.0.1:9099 answered 400: " + "x" * 200
        made = await letters.mark_dead(reason=REASON, error=error) + await letters.mark_dead(kind="store", user="bob")
        await connection.execute(
            "UPDATE aftermind.jobs SET raw = $1, answer = $2 WHERE id = $3",
            encode_turn(turn_of("bob")),
            '{"rejected": "no JSON"}',
            made[1],
        )
        await connection.execute(BACKLOG)
        return made
    finally:
        await connection.close()
