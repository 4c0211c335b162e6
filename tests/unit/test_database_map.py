"""The map of databases: each tenant is placed in one, and a map that would mix tenants is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aftermind import Memory, Settings, errors
from aftermind.api.address_resolution import ENDPOINTS
from aftermind.cli import make_app_for

HOME = {"database_url": "postgresql://home/a", "redis_url": "redis://home", "relay_url": "postgresql://relay@home/a"}
EU = {"database_url": "postgresql://eu/a"}
RABBIT = "amqp://home//"


@pytest.mark.parametrize(
    ("namespace", "database"),
    [("acme", "eu"), ("team-1", "us"), ("team-eu-1", "eu"), ("team-", "us"), ("acme2", "default"), ("Acme", "default")],
)
def test_a_name_goes_before_a_prefix_and_a_longer_prefix_before_a_shorter_one(namespace: str, database: str) -> None:
    settings = Settings(
        **HOME,
        databases={"eu": EU, "us": {"database_url": "postgresql://us/a"}},
        placement={"acme": "eu", "team-*": "us", "team-eu-*": "eu", "acm*": "us", "acme2*": "default"},
    )

    assert settings.database_for(namespace) == database


def test_without_a_map_every_namespace_is_in_the_one_database() -> None:
    settings = Settings(**HOME)

    assert settings.database_names == ("default",)
    assert settings.database_for("acme") == "default"
    assert settings.spool_dir == settings.state_dir / "spool"


def test_a_database_has_its_own_addresses_keys_and_spool_and_shares_the_redis() -> None:
    settings = Settings(**HOME, databases={"eu": EU}, database="eu")

    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == EU["database_url"]
    assert settings.relay_url is None, "the role of one database is no role of another one"
    assert settings.redis_url is not None
    assert settings.redis_url.get_secret_value() == HOME["redis_url"]
    assert settings.redis_prefix == "aftermind:db-eu:"
    assert settings.spool_dir.name == "spool-eu"
    back = settings.of_database("default")
    assert back.relay_url is not None
    assert (back.redis_prefix, back.spool_dir.name) == ("aftermind:", "spool")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"databases": {"EU": EU}}, "AFTERMIND_DATABASES='EU': a name has lower-case letters"),
        ({"databases": {"default": EU}}, "AFTERMIND_DATABASES='default': .*is AFTERMIND_DATABASE_URL"),
        ({"databases": {"eu": {}}}, "AFTERMIND_DATABASES='eu.database_url': a postgresql:// URL is required"),
        ({"databases": {"eu": {"database_url": "sqlite:x"}}}, "'eu.database_url': a postgresql:// URL"),
        ({"databases": {"eu": {**EU, "url": "x"}}}, "'eu.url': a database has database_url, relay_url"),
        ({"databases": {"eu": {**EU, "replica_urls": "x"}}}, "'eu.replica_urls': it is a list of URLs"),
        ({"databases": {"eu": {**EU, "relay_url": ["x"]}}}, "'eu.relay_url': it is a URL"),
        ({"databases": {"eu": {"database_url": HOME["database_url"]}}}, "'eu.database_url': default has the same"),
        ({"databases": {"eu": EU}, "broker_url": RABBIT}, "'eu.broker_url': default has the same: .*virtual host"),
        ({"databases": {"eu": EU}, "index_url": "qdrant://x"}, "'eu.index_url': give each database a separate index"),
        ({"placement": {"acme": "eu"}}, "AFTERMIND_PLACEMENT='acme: eu': there is no such database"),
        ({"databases": {"eu": EU}, "placement": {"a*b": "eu"}}, "AFTERMIND_PLACEMENT='a\\*b': a rule is a namespace"),
        ({"databases": {"eu": EU}, "placement": {"": "eu"}}, "AFTERMIND_PLACEMENT='': a rule is a namespace"),
        ({"database": "eu"}, "AFTERMIND_DATABASE='eu': there is no such database"),
    ],
)
def test_a_map_that_would_mix_tenants_or_names_nothing_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=says):
        Settings(**{**HOME, **given})


def test_an_unusable_address_of_any_database_is_refused_when_a_memory_is_made_and_no_error_has_a_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(errors.InvalidSettings, match="not a URL") as caught:
        Memory(settings=Settings(**HOME, databases={"eu": {"database_url": "postgresql://me:secret@eu:port/a"}}))
    assert "secret" not in str(caught.value)

    monkeypatch.setenv("AFTERMIND_DATABASES", '{"eu": {"database_url": "postgresql://me:secret@eu/a"')
    with pytest.raises(errors.InvalidSettings, match=r"AFTERMIND_DATABASES=.*not valid JSON. Write an o") as caught:
        Settings(**HOME)
    assert "secret" not in str(caught.value)


def test_one_index_for_several_databases_is_refused() -> None:
    with pytest.raises(errors.InvalidSettings, match="name an index for each"):
        Memory(settings=Settings(**HOME, databases={"eu": EU}), index="qdrant://localhost:6333")


def test_redis_users_have_the_keys_of_every_database_that_shares_the_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = {"database_url": "postgresql://us/a", "redis_url": "redis://us"}
    monkeypatch.setenv("AFTERMIND_DATABASE_URL", HOME["database_url"])
    monkeypatch.setenv("AFTERMIND_REDIS_URL", HOME["redis_url"])
    monkeypatch.setenv("AFTERMIND_DATABASES", json.dumps({"eu": EU, "us": elsewhere}))
    monkeypatch.setenv("AFTERMIND_PLACEMENT", '{"acme": "eu"}')

    every, of_acme = (
        CliRunner().invoke(make_app_for(["redis_acl"]), ["redis-acl", *more]) for more in ([], ["--namespace", "acme"])
    )

    assert (every.exit_code, of_acme.exit_code) == (0, 0)
    for user in every.stdout.splitlines():
        assert "~aftermind:" in user
        assert "~aftermind:db-eu:" in user
        assert "db-us" not in user
    assert "~aftermind:db-eu:pending:acme/*" in of_acme.stdout
    assert "~aftermind:pending" not in of_acme.stdout


@pytest.mark.parametrize(
    ("broker", "database"),
    [
        ("amqp://rabbit", 0),
        ("redis://other/2", 2),
        ("unix:///run/redis.sock?db=3", 3),
        ("redis+socket:///run/redis.sock?virtual_host=4", 4),
        ("sentinel://s1/service?db=5", 5),
    ],
)
def test_redis_users_reach_the_channels_of_the_database_of_a_separate_broker(
    monkeypatch: pytest.MonkeyPatch, broker: str, database: int
) -> None:
    monkeypatch.setenv("AFTERMIND_REDIS_URL", HOME["redis_url"])
    monkeypatch.setenv("AFTERMIND_BROKER_URL", broker)

    done = CliRunner().invoke(make_app_for(["redis_acl"]), ["redis-acl"])

    assert done.exit_code == 0
    assert f"&aftermind:/{database}.celeryev" in done.stdout


def test_a_store_that_is_named_in_the_program_is_used_whatever_the_map_is() -> None:
    settings = Settings(**HOME, databases={"eu": EU}, placement={"acme": "eu"})

    memory = Memory("inmemory", settings=settings, namespace="acme")

    assert not memory.settings.databases


def test_a_database_beside_the_embedded_stack_needs_its_own_redis(tmp_path: Path) -> None:
    known = {"postgres_url": "postgresql://stack/a", "replica_urls": [], "redis_url": "redis://stack"}
    (tmp_path / ENDPOINTS).write_text(json.dumps(known))

    with pytest.raises(errors.InvalidSettings, match="database 'eu' needs its own redis_url: AFTERMIND_DATABASES="):
        Memory(settings=Settings(databases={"eu": EU}, state_dir=tmp_path))


def test_secrets_writes_redis_users_for_each_database_that_shares_the_redis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    apart = {"database_url": "postgresql://us/a", "redis_url": "redis://us"}
    monkeypatch.setenv("AFTERMIND_DATABASES", json.dumps({"eu": EU, "us": apart}))

    done = CliRunner().invoke(make_app_for(["secrets"]), ["secrets", "made"])

    assert done.exit_code == 0, done.output
    users = (tmp_path / "made" / "redis_users.acl").read_text().splitlines()
    (worker,) = (line for line in users if line.startswith("user aftermind-worker "))
    assert "aftermind:db-eu:" in worker
    assert "db-us" not in worker, "another Redis has users of its own"
