"""Files with secrets: only their user reads them, and nobody else can plant them."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aftermind import Settings, errors, private_files
from aftermind.api.retention.archives import open_archive
from aftermind.cli import make_app_for, stack_processes
from aftermind.db.encryption.keyfiles import audit_keys, master_keys


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_written_is_for_this_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        private_files.write(tmp_path / "a", b"1")
        assert private_files.create(tmp_path / "b", b"1")
        private_files.open_for_append(tmp_path / "c").close()
    finally:
        os.umask(before)

    assert {mode_of(path) for path in tmp_path.iterdir()} == {0o600}
    assert not private_files.create(tmp_path / "b", b"2")
    assert private_files.read(tmp_path / "b") == b"1"


def test_a_symbolic_link_is_replaced_and_never_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("of another user")
    (tmp_path / "link").symlink_to(victim)

    with pytest.raises(private_files.UnsafeFile, match="symbolic link"):
        private_files.read(tmp_path / "link")
    private_files.write(tmp_path / "link", b"mine")

    assert victim.read_text() == "of another user"
    assert not (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("make", [audit_keys, master_keys])
@pytest.mark.parametrize("how", ["link", "dangling link", "writable", "of another user"])
def test_a_key_file_that_others_may_have_planted_is_refused(
    make: Callable[..., Callable[[], object]], how: str, tmp_path: Path
) -> None:
    path = tmp_path / ("audit.key" if make is audit_keys else "encryption.key")
    if how.endswith("link"):
        if how == "link":
            (tmp_path / "planted").write_text("0" * 64)
        path.symlink_to(tmp_path / "planted")
    else:
        path.write_text("0" * 64)
        path.chmod(0o666 if how == "writable" else 0o600)
    if how == "of another user":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(path, 65534, 65534)

    with pytest.raises(errors.InvalidSettings):
        make(None, tmp_path)()


def test_a_lost_master_key_is_not_replaced_by_a_look(tmp_path: Path) -> None:
    keys = master_keys(None, tmp_path)

    assert keys.existing() == ()
    assert list(tmp_path.iterdir()) == []
    assert keys() == keys.existing()


@pytest.mark.parametrize("planted", [True, False])
def test_a_dotenv_that_others_may_write_is_refused(
    planted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("AFTERMIND_NAMESPACE=planted")
    (tmp_path / ".env").chmod(0o666 if planted else 0o644)

    if planted:
        with pytest.raises(errors.InvalidSettings, match=r"\.env"):
            Settings()
    else:
        assert Settings().namespace == "planted"


def test_a_variable_that_is_set_to_nothing_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "")
    monkeypatch.setenv("AFTERMIND_AUDIT_KEY_FILE", "")

    assert Settings().openai_api_key is None
    assert Settings().audit_key is None


def test_a_dotenv_may_name_the_file_of_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").write_text("an audit key of sixteen\n")
    (tmp_path / ".env").write_text(f"AFTERMIND_AUDIT_KEY_FILE={tmp_path / 'key'}\n")

    found = Settings().audit_key

    assert found is not None
    assert found.get_secret_value() == "an audit key of sixteen"


async def test_an_archive_is_not_written_into_a_planted_file(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("of another user")
    (tmp_path / "rows.part").symlink_to(victim)

    await open_archive(str(tmp_path)).write("rows.jsonl", b"{}\n")

    assert victim.read_text() == "of another user"
    assert (tmp_path / "rows.jsonl").read_bytes() == b"{}\n"
    assert mode_of(tmp_path / "rows.jsonl") == 0o600


@pytest.mark.parametrize("before", [None, 0o755, 0o750])
def test_no_other_user_may_enter_the_folder_of_a_deployments_secrets(before: int | None, tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    if before is not None:
        folder.mkdir()
        folder.chmod(before)

    result = CliRunner().invoke(make_app_for(["secrets"]), ["secrets", str(folder)])

    assert result.exit_code == 0, result.output
    assert (folder / "postgres_superuser_password").read_text()
    assert mode_of(folder) == (0o700 if before is None else 0o750)


def test_a_list_comes_from_a_file_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "urls").write_text('["postgresql://a/b", "postgresql://c/d"]\n')
    monkeypatch.setenv("AFTERMIND_REPLICA_URLS_FILE", str(tmp_path / "urls"))

    found = Settings().replica_urls

    assert [each.get_secret_value() for each in found] == ["postgresql://a/b", "postgresql://c/d"]


def test_what_the_stack_writes_down_of_the_environment_has_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERMIND_ENCRYPTION_KEY", "a master key of sixteen")
    monkeypatch.setenv("AFTERMIND_AUDIT_KEY", "an audit key of sixteen")
    monkeypatch.setenv("AFTERMIND_WEBHOOK_KEY", "x")
    monkeypatch.setenv("AFTERMIND_LANGUAGE", "german")

    kept = stack_processes._inherited_settings()

    assert kept["AFTERMIND_LANGUAGE"] == "german"
    assert not [name for name in kept if name.endswith("_KEY")]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_folder_whose_dotenv_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o700)
    os.seteuid(1)
    try:
        with pytest.raises(errors.InvalidSettings, match=r"\.env.*start the process in another folder"):
            Settings()
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("given", "hosts"), [([], ["postgres-replica:5432"]), (["none"], []), (["a:1", "b:2"], ["a:1", "b:2"])]
)
def test_secrets_name_the_replicas_that_are_given(tmp_path: Path, given: list[str], hosts: list[str]) -> None:
    options = [part for each in given for part in ("--replica", each)]
    done = CliRunner().invoke(make_app_for(["secrets"]), ["secrets", str(tmp_path / "secrets"), *options])

    assert done.exit_code == 0, done.output
    urls = json.loads((tmp_path / "secrets" / "agent_replica_urls").read_text())
    assert [url.rpartition("@")[2].partition("/")[0] for url in urls] == hosts


def test_a_password_is_replaced_where_there_is_no_replica(tmp_path: Path) -> None:
    ours = ["secrets", str(tmp_path), "--replica", "none"]
    assert CliRunner().invoke(make_app_for(["secrets"]), ours).exit_code == 0
    before = (tmp_path / "worker_database_url").read_text()
    (tmp_path / "postgres_worker_password").unlink()

    assert CliRunner().invoke(make_app_for(["secrets"]), ours).exit_code == 0

    assert (tmp_path / "worker_database_url").read_text() != before
    assert (tmp_path / "worker_replica_urls").read_text() == "[]"


def test_secrets_keep_the_redis_users_of_other_names(tmp_path: Path) -> None:
    users, ours = tmp_path / "redis_users.acl", ["secrets", str(tmp_path)]
    assert CliRunner().invoke(make_app_for(["secrets"]), ours).exit_code == 0
    of_tenant = "user aftermind-agent-acme on #" + "a" * 64 + " ~acme:* -@all +ping"
    before = users.read_text()
    users.chmod(0o600)
    users.write_text(f"{before}{of_tenant}\n")
    (tmp_path / "redis_worker_password").unlink()

    assert CliRunner().invoke(make_app_for(["secrets"]), ours).exit_code == 0

    after = users.read_text().splitlines()
    assert after[-1] == of_tenant
    assert [line.split()[1] for line in after[:-1]] == [line.split()[1] for line in before.splitlines()]
    assert after[:-1] != before.splitlines()


def test_a_password_whose_file_was_deleted_is_replaced_in_its_urls_alone(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    assert CliRunner().invoke(make_app_for(["secrets"]), ["secrets", str(folder)]).exit_code == 0
    (folder / "worker_database_url").chmod(0o644)
    (folder / "worker_database_url").write_text((folder / "worker_database_url").read_text() + "?sslmode=require")
    before = {path.name: path.read_text() for path in folder.iterdir()}
    for name in ("postgres_worker_password", "redis_web_password"):
        (folder / name).unlink()

    again = CliRunner().invoke(make_app_for(["secrets"]), ["secrets", str(folder)])

    after = {path.name: path.read_text() for path in folder.iterdir()}
    changed = {name for name in after if after[name] != before[name]}
    made = {"postgres_worker_password", "worker_database_url", "worker_replica_urls", "redis_web_password"}
    assert changed == made | {"web_redis_url", "redis_users.acl"}
    old, new = before["postgres_worker_password"], after["postgres_worker_password"]
    assert after["worker_database_url"] == before["worker_database_url"].replace(old, new)
    assert "6 files were written" in again.stdout
    assert "Changed: redis_users.acl, web_redis_url, worker_database_url, worker_replica_urls." in again.stdout
    assert "audit_key" not in again.stdout


def test_a_password_that_is_not_in_its_url_is_an_error_until_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    assert CliRunner().invoke(make_app_for(["secrets"]), ["secrets", str(folder)]).exit_code == 0
    url = (folder / "agent_database_url").read_text()
    (folder / "agent_database_url").chmod(0o644)
    (folder / "agent_database_url").write_text("postgresql://mine:old@db/aftermind")
    (folder / "postgres_agent_password").unlink()

    for _ in range(2):
        failed = CliRunner().invoke(make_app_for(["secrets"]), ["secrets", str(folder)])
        assert isinstance(failed.exception, errors.InvalidSettings)
        assert "agent_database_url" in str(failed.exception)
    (folder / "agent_database_url").write_text(url)
    assert CliRunner().invoke(make_app_for(["secrets"]), ["secrets", str(folder)]).exit_code == 0

    assert (folder / "postgres_agent_password").read_text().strip() in (folder / "agent_database_url").read_text()


def test_urls_follow_the_addresses_that_are_given_and_keep_passwords_and_parameters(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    where = ("--postgres", "db-1:5432", "--replica", "none", "--redis", "redis-1:6379")
    first = _secrets(folder, *where)
    assert "Keep a copy of audit_key, encryption_key, webhook_key elsewhere" in first
    _edit(folder / "agent_database_url", lambda url: url + "?sslmode=verify-full")
    before = _texts(folder)

    assert "0 files were written" in _secrets(folder, *where)
    assert "0 files were written" in _secrets(folder)
    assert _texts(folder) == before
    moved = _secrets(folder, "--postgres", "db-2:5433", "--replica", "db-3:5432", "--redis", "redis-2:6379")

    agent = before["agent_database_url"].replace("@db-1:5432/", "@db-2:5433/")
    names = {name for name in before if name.endswith(("_database_url", "_redis_url", "_replica_urls"))}
    after = _texts(folder)
    assert {name for name in after if after[name] != before[name]} == names
    assert after["agent_database_url"] == agent
    assert json.loads(after["agent_replica_urls"]) == [agent.replace("@db-2:5433/", "@db-3:5432/")]
    assert after["web_redis_url"] == before["web_redis_url"].replace("redis-1", "redis-2")
    assert f"{len(names)} files were written" in moved
    assert all(name in moved for name in names)
    assert "Restart the processes that read them" in moved


def test_a_second_replica_is_added_to_the_first(tmp_path: Path) -> None:
    _secrets(tmp_path, "--replica", "db-2:5432")
    _edit(
        tmp_path / "agent_replica_urls", lambda urls: urls.replace("5432/aftermind", "5432/aftermind?sslmode=require")
    )
    [first] = json.loads((tmp_path / "agent_replica_urls").read_text())

    _secrets(tmp_path, "--replica", "db-2:5432", "--replica", "db-3:5432")
    both = json.loads((tmp_path / "agent_replica_urls").read_text())
    _secrets(tmp_path, "--replica", "none")

    assert both[0] == first
    assert "@db-3:5432/aftermind" in both[1]
    assert (tmp_path / "agent_replica_urls").read_text() == "[]"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("agent_database_url", "postgresql://mine:old@db/aftermind"),
        ("agent_database_url", "postgresql://aftermind_agent_login:old@/aftermind?host=a,b"),
        ("agent_replica_urls", '["postgresql://mine:old@db/aftermind"]'),
        ("agent_replica_urls", "postgresql://db/aftermind"),
        ("web_redis_url", "rediss://mine:old@cache/0"),
    ],
)
def test_a_url_of_another_form_is_kept_and_named(tmp_path: Path, name: str, text: str) -> None:
    _secrets(tmp_path)
    _edit(tmp_path / name, lambda _: text)

    done = CliRunner().invoke(
        make_app_for(["secrets"]),
        ["secrets", str(tmp_path), "--postgres", "a:1", "--replica", "b:1", "--redis", "c:1", "--json"],
    )

    assert done.exit_code == 0, done.output
    assert (tmp_path / name).read_text() == text
    assert f"{name} was edited by hand and stays" in " ".join(done.stderr.split())
    assert json.loads(done.stdout)["files_kept"] == [name]
    assert name not in json.loads(done.stdout)["files_changed"]


def _secrets(folder: Path, *options: str) -> str:
    done = CliRunner().invoke(make_app_for(["secrets"]), ["secrets", str(folder), *options])
    assert done.exit_code == 0, done.output
    return " ".join(done.stdout.split())


def _edit(path: Path, change: Callable[[str], str]) -> None:
    path.chmod(0o644)
    path.write_text(change(path.read_text()))


def _texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_password_of_ones_own_may_have_any_character(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir(0o700)
    (folder / "postgres_agent_password").write_text(r"pa\q{ss}\1")

    done = CliRunner().invoke(make_app_for(["secrets"]), ["secrets", str(folder)])

    assert done.exit_code == 0, done.output
    assert r"pa\q{ss}\1" in (folder / "agent_database_url").read_text()


@pytest.mark.parametrize("option", ["postgres", "replica", "redis"])
@pytest.mark.parametrize("value", ["", "-", " ", "http://db:5432", "db:5432/x", "db:5432,"])
def test_secrets_of_a_host_that_is_none_are_refused_before_a_file_is_written(
    tmp_path: Path, option: str, value: str
) -> None:
    folder = tmp_path / "secrets"
    done = CliRunner().invoke(make_app_for(["secrets"]), ["secrets", str(folder), f"--{option}={value}"])

    assert isinstance(done.exception, errors.InvalidSettings)
    assert f"{option}={value!r}: give a host and its port" in str(done.exception)
    assert not folder.exists()


@pytest.mark.parametrize("host", ["pg-rw.db.svc:5432", "[::1]:5432", "a:5432,b:5432", "10.0.0.1", "pg_1"])
def test_secrets_take_names_and_addresses_of_hosts(tmp_path: Path, host: str) -> None:
    folder = tmp_path / "secrets"
    done = CliRunner().invoke(make_app_for(["secrets"]), ["secrets", str(folder), "--postgres", host])

    assert done.exit_code == 0, done.output
    assert f"@{host}/" in (folder / "agent_database_url").read_text()
