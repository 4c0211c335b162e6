"""The addresses in the name of a spool file: one spelling, no credentials, short enough for a file system."""

import fcntl
from pathlib import Path

import pytest

from aftermind.outbox.spool import Spool, stranded_files
from aftermind.outbox.spool_deployment import Deployment, database_address, describe_target, redis_address

REDIS = {
    "redis://:p%40x@LOCALHOST/0": "127.0.0.1:6379/0/am:",
    "redis://127.0.0.1": "127.0.0.1:6379/0/am:",
    "rediss://u:p@[::1]:6380/2": "127.0.0.1:6380/2/am:",
    "redis://h/0?db=4": "h:6379/4/am:",
    "redis://?host=b": "b:6379/0/am:",
    "redis://[2001:db8:0::1]": "2001:db8::1:6379/0/am:",
    "redis://h./00": "h:6379/0/am:",
    "unix:///run/r.sock?db=1": "/run/r.sock/1/am:",
    "redis+socket:///run/r.sock?virtual_host=1": "/run/r.sock/1/am:",
    "sentinel://u:p@b:26379,a/mymaster?db=3": "a:26379,b:26379/mymaster/3/am:",
    "redis+cluster://:x@h2,h1:7000": "h1:7000,h2:6379/0/am:",
}
DATABASES = {
    "postgresql://u:p@h2:1,h1/db": "h1:5432,h2:1/db",
    "postgresql:///db?host=/run/pg": "/run/pg:5432/db",
    "postgresql+asyncpg://u:p@localhost/": "127.0.0.1:5432/u",
    "postgresql://u@h?database=staging": "h:5432/staging",
    "postgresql://u@h/prod?dbname=other": "h:5432/prod",
    "postgresql://u@h?dbname=other": "h:5432/other",
    "postgresql:///db?host=/run/PG": "/run/PG:5432/db",
    "postgresql://h?service=prod": "service=prod",
}


@pytest.mark.parametrize("url", REDIS)
def test_a_redis_has_one_address_however_it_is_spelled(url: str) -> None:
    assert redis_address(url, "am:") == REDIS[url]


@pytest.mark.parametrize("url", DATABASES)
def test_a_database_has_one_address_however_it_is_spelled(url: str) -> None:
    assert database_address(url) == DATABASES[url]


def test_a_database_that_the_environment_names_has_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PGHOST": "db.example", "PGPORT": "6000", "PGDATABASE": "prod"}.items():
        monkeypatch.setenv(name, value)

    assert database_address("postgresql://u:p@") == "db.example:6000/prod"


def test_empty_files_and_those_of_a_running_process_are_not_reported(tmp_path: Path) -> None:
    foreign = tmp_path / f"2-b{Deployment('x', 'y').file_suffix}.spool"
    foreign.write_bytes(bytes(900))
    (tmp_path / f"3-c{Deployment('x', 'y').file_suffix}.spool").touch()
    held = tmp_path / f"4-d{Deployment('x', 'y').file_suffix}.spool"
    held.write_bytes(bytes(900))
    with held.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        own = Spool(tmp_path, max_bytes=1_000, deployment=Deployment("r", "d"))

        assert stranded_files(tmp_path, Deployment("r", "d")) == [foreign]
        assert not own.has_files()


def test_a_long_list_of_hosts_fits_into_a_file_name_and_stays_distinct() -> None:
    hosts = ",".join(f"a-host-with-a-long-name-{number}" for number in range(9))
    first, other = (Deployment(redis_address(f"sentinel://{hosts}/{name}", "am:"), "d") for name in ("one", "two"))
    path = Path(f"1764518400000000-0a1b2c3d4e5f{first.file_suffix}.spool")

    assert len(path.name) < 140
    assert first.owns(path)
    assert not Deployment(other.redis, "another").owns(path)


def test_a_name_without_addresses_is_for_any_deployment_and_an_edited_one_for_none() -> None:
    deployment = Deployment("r", "d")

    assert deployment.owns(Path("1-2.spool"))
    assert not deployment.owns(Path("1-2@x.spool"))
    assert describe_target(Path("1-2@h%2F0.spool")) == "h/0"
