"""The compose file is run: its commands, variables, secrets, scripts and roles, as processes of this machine.

There is no Docker here, so host names become loopback ports and mounts become folders; nothing else is added or left
out. A service sees the secrets that the file gives it and no others.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import redis
import yaml

from aftermind.stack import binaries, ports
from aftermind.stack.identity import Identity, for_postgres
from tests.support.servers import psql
from tests.support.waiting import wait_until_sync

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "aftermind.cli"]  # the image's entrypoint, `aftermind`
PROCESSES = ("worker-store", "worker-embed", "worker-extract", "reconciler", "web", "flower")


@dataclass
class Deployment:
    """The services of the compose file, as processes."""

    folder: Path
    compose: dict[str, Any]  # Any: YAML
    ports: Mapping[str, int]
    programs: Path
    identity: Identity
    running: dict[str, psutil.Popen] = field(default_factory=dict)

    def command(self, service: str) -> list[str]:
        """What the service runs."""
        given = self.compose["services"][service]["command"]
        return shlex.split(given) if isinstance(given, str) else list(given)

    def environment(self, service: str) -> dict[str, str]:
        """What the service is told: its variables of the compose file, those of the image, and nothing of ours."""
        state = self.folder / "state" / service
        state.mkdir(parents=True, exist_ok=True)
        found = {
            name: self._mapped(service, name, _interpolated(str(value)))
            for name, value in self.compose["services"][service].get("environment", {}).items()
        }
        own = {"AFTERMIND_METRICS_PORT": str(ports.choose(1)[0])} if "AFTERMIND_METRICS_PORT" in found else {}
        if service == "web":
            own["AFTERMIND_WEB_PORT"] = str(self.ports["web"])
        if service == "flower":
            own["FLOWER_PORT"] = str(self.ports["flower"])
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(state), "AFTERMIND_STATE_DIR": str(state), **found, **own}

    def secrets(self, service: str) -> Path:
        """A folder with the secrets that the file gives the service."""
        folder = self.folder / "run" / service
        if not folder.exists():
            folder.mkdir(parents=True)
            for name in self.compose["services"][service].get("secrets", ()):
                source = ROOT / self.compose["secrets"][name]["file"]
                text = (self.folder / source.parent.name / source.name).read_text()
                (folder / name).write_text(self._hosts(text))
        return folder

    def run(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """A command of the image in a service's environment, to its end."""
        argv = [*COMMAND, *(command or self.command(service))]
        return subprocess.run(
            argv,
            env=self.environment(service),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def start(self, service: str, argv: list[str] | None = None, env: Mapping[str, str] | None = None) -> None:
        """Start a service."""
        log = (self.folder / f"{service}.log").open("wb")
        self.running[service] = psutil.Popen(
            argv or [*COMMAND, *self.command(service)],
            env=dict(env or self.environment(service)),
            cwd=self.folder / "state" / service if (self.folder / "state" / service).exists() else self.folder,
            stdout=log,
            stderr=log,
        )
        log.close()

    def log(self, service: str) -> str:
        """The end of what a service wrote."""
        return (self.folder / f"{service}.log").read_text()[-3000:]

    def stop(self) -> None:
        """End everything: clients first."""
        for processes in (PROCESSES, ("redis", "postgres-replica"), ("postgres",)):
            ending = [self.running[name] for name in processes if name in self.running]
            for process in ending:
                if process.is_running():
                    process.send_signal(signal.SIGINT if processes[-1].startswith("postgres") else signal.SIGTERM)
            _, alive = psutil.wait_procs(ending, timeout=30)
            for process in alive:
                process.kill()

    def _mapped(self, service: str, name: str, value: str) -> str:
        here = {"PRIMARY_HOST": "127.0.0.1", "PRIMARY_PORT": str(self.ports["postgres"])}
        return here.get(name) or value.replace("/run/secrets", str(self.secrets(service)))

    def _hosts(self, text: str) -> str:
        for name, usual in (("postgres-replica", 5432), ("postgres", 5432), ("redis", 6379)):
            text = text.replace(f"@{name}:{usual}", f"@127.0.0.1:{self.ports[name]}")
        return text


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Everything that `docker compose up` starts, up."""
    names = ("postgres", "postgres-replica", "redis", "web", "flower")
    folder, programs = tmp_path_factory.mktemp("compose"), binaries.postgres_bin()
    made = Deployment(
        folder=folder,
        compose=yaml.safe_load((ROOT / "docker-compose.yml").read_text()),
        ports=dict(zip(names, ports.choose(len(names)), strict=True)),
        programs=programs,
        identity=for_postgres(programs / "postgres", data=folder / "postgres"),
    )
    try:
        assert made.command("secrets") == ["secrets", "/secrets"]
        written = made.run("secrets", "secrets", str(folder / "secrets"))
        assert written.returncode == 0, written.stdout + written.stderr
        _start_postgres(made)
        _start_redis(made)
        migrated = made.run("migrate")
        assert migrated.returncode == 0, migrated.stdout + migrated.stderr
        _start_replica(made)
        for name in PROCESSES:
            made.start(name)
        wait_until_sync(lambda: _status(made, "/readyz") == 200, timeout=90, description="the service is ready")
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def api(deployment: Deployment) -> Iterator[httpx.Client]:
    """A client with a key that an operator made."""
    made = deployment.run("operator", "keys", "create", "a test")
    assert made.returncode == 0, made.stderr
    headers = {"Authorization": f"Bearer {made.stdout.strip().splitlines()[-1]}"}
    with httpx.Client(base_url=_url(deployment), headers=headers, timeout=30, trust_env=False) as client:
        yield client


def test_a_turn_becomes_a_fact_and_is_recalled_over_http(deployment: Deployment, api: httpx.Client) -> None:
    taken = api.post("/v1/users/ann/turns", json={"messages": ["I live in Oslo."], "session_id": "s"}).json()

    def done(step: str) -> bool:
        return bool(api.get(taken["status_url"]).json()[step] == "done")

    wait_until_sync(lambda: done("stored"), timeout=60, description="the turn is stored")
    wait_until_sync(lambda: done("extracted"), timeout=60, description="the turn is mined")
    facts = api.get("/v1/users/ann/facts").json()["items"]
    assert [(fact["predicate"], fact["object"]) for fact in facts] == [("lives_in", "Oslo")]
    block = api.post("/v1/users/ann/recall", json={"query": "Where do I live?"}).json()
    assert "Oslo" in block["text"]
    assert block["degraded"] is None
    assert api.post("/v1/users/ann/forget", json={"everything": True}).status_code == 200

    assert all(process.is_running() for process in deployment.running.values())
    with redis.Redis.from_url(_admin_url(deployment)) as operator:
        assert operator.execute_command("ACL", "WHOAMI") == b"aftermind-operator"


def test_doctor_finds_nothing_wrong_and_the_audit_trail_is_whole(deployment: Deployment, api: httpx.Client) -> None:
    assert api.get("/v1/users/ann/export").status_code == 200
    wait_until_sync(
        lambda: deployment.run("operator", "doctor").returncode == 0, timeout=120, description="doctor finds nothing"
    )

    seen = deployment.run("operator", "doctor")
    assert " bad" not in re.sub(r"^0 bad", "", seen.stdout, flags=re.MULTILINE), seen.stdout
    verified = deployment.run("operator", "audit", "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "whole" in verified.stdout


@pytest.mark.parametrize("service", PROCESSES)
def test_each_health_check_of_the_file_passes(deployment: Deployment, service: str) -> None:
    kind, *test = deployment.compose["services"][service]["healthcheck"]["test"]
    assert kind == "CMD"
    argv = [sys.executable, *test[1:]] if test[0] == "python" else [*COMMAND, *test[1:]]
    argv = [each.replace(":8377", f":{deployment.ports['web']}") for each in argv]
    argv = [each.replace("5577", str(deployment.ports["flower"])) for each in argv]
    env = deployment.environment(service)

    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stdout + done.stderr + deployment.log(service)


def test_no_service_connects_as_a_role_that_row_level_security_does_not_bind(deployment: Deployment) -> None:
    others = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
    query = f"SELECT DISTINCT usename FROM pg_stat_activity WHERE {others}"
    roles = set(psql(_superuser_url(deployment), query).split())
    bypassing = "SELECT rolname FROM pg_roles WHERE (rolsuper OR rolbypassrls) AND rolname NOT LIKE 'pg\\_%'"

    assert roles == {"aftermind_agent_login", "aftermind_worker_login"}
    assert psql(_superuser_url(deployment), bypassing) == "postgres"
    assert "ALLOW_OWNER" not in (ROOT / "docker-compose.yml").read_text()


def test_the_replica_follows_and_serves(deployment: Deployment) -> None:
    query = "SELECT pg_is_in_recovery()"
    assert psql(_superuser_url(deployment, "postgres-replica"), query) == "t"


def test_flower_has_the_broker_and_its_own_login_alone(deployment: Deployment) -> None:
    assert set(deployment.compose["services"]["flower"]["secrets"]) == {"flower_redis_url", "flower_login"}
    url = f"http://127.0.0.1:{deployment.ports['flower']}"
    login = tuple((deployment.folder / "secrets" / "flower_login").read_text().split(":"))

    def shows() -> bool:
        try:
            return httpx.get(f"{url}/workers", auth=login, trust_env=False, timeout=5).status_code == 200  # type: ignore[arg-type]
        except httpx.TransportError:
            return False

    wait_until_sync(shows, timeout=60, description="Flower answers")
    for path in ("/", "/metrics", "/healthcheck"):
        assert httpx.get(f"{url}{path}", trust_env=False, timeout=5).status_code == 401, path


def test_every_secret_of_the_file_is_written_by_its_secrets_service(deployment: Deployment) -> None:
    written = {path.name for path in (deployment.folder / "secrets").iterdir()}

    assert set(deployment.compose["secrets"]) <= written
    assert (deployment.folder / "secrets").stat().st_mode & 0o077 == 0
    again = deployment.run("secrets", "secrets", str(deployment.folder / "secrets"))
    assert "0 files are new" in again.stdout


def _start_postgres(made: Deployment) -> None:
    """As the image does it: initdb, the scripts of docker-entrypoint-initdb.d, the server with the file's flags."""
    data, secrets = made.folder / "postgres", made.secrets("postgres")
    data.mkdir(mode=0o700)
    if made.identity.owner is not None:
        os.chown(data, *made.identity.owner)
    password = secrets / "postgres_superuser_password"
    argv = ["initdb", "-D", str(data), "--username=postgres", f"--pwfile={password}", "--auth=scram-sha-256"]
    _must([*made.identity.prefix, str(made.programs / argv[0]), *argv[1:], "--no-sync"], {})
    name, *flags = made.command("postgres")
    assert name == "postgres"
    here = ["-c", f"port={made.ports['postgres']}", "-c", "unix_socket_directories=", "-c", "fsync=off"]
    made.start("postgres", [*made.identity.prefix, str(made.programs / name), "-D", str(data), *flags, *here])
    wait_until_sync(
        lambda: _is_ready(made, "postgres"), timeout=60, description=f"Postgres answers: {made.log('postgres')}"
    )
    env = {
        **made.environment("postgres"),
        "PGDATA": str(data),
        "SECRETS": str(secrets),
        "PGHOST": "127.0.0.1",
        "PGPORT": str(made.ports["postgres"]),
        "PGPASSWORD": password.read_text(),
    }
    [script] = [each.split(":")[0] for each in made.compose["services"]["postgres"]["volumes"] if "initdb" in each]
    _must(["sh", str(ROOT / script)], env)
    psql(_superuser_url(made), "SELECT pg_reload_conf()")


def _start_replica(made: Deployment) -> None:
    data = made.folder / "postgres-replica"
    data.mkdir(mode=0o700)
    if made.identity.owner is not None:
        os.chown(data, *made.identity.owner)
    env = {
        **made.environment("postgres-replica"),
        "PGDATA": str(data),
        "SECRETS": str(made.secrets("postgres-replica")),
    }
    here = ["-c", f"port={made.ports['postgres-replica']}", "-c", "unix_socket_directories=", "-c", "fsync=off"]
    script = str(ROOT / "deploy" / "postgres-replica.sh")
    made.start("postgres-replica", [*made.identity.prefix, "sh", script, *here], env)
    wait_until_sync(lambda: _is_ready(made, "postgres-replica"), timeout=60, description="the replica answers")


def _start_redis(made: Deployment) -> None:
    name, *flags = made.command("redis")
    assert name == "redis-server"
    flags = [each.replace("/run/secrets", str(made.secrets("redis"))) for each in flags]
    here = ["--port", str(made.ports["redis"]), "--bind", "127.0.0.1", "--dir", str(made.folder)]
    made.start("redis", [str(binaries.redis_server()), *flags, *here])

    def answers() -> bool:
        try:
            return bool(redis.Redis(port=made.ports["redis"]).ping())  # the health check: without a login
        except redis.ConnectionError:
            return False

    wait_until_sync(answers, timeout=30, description="Redis answers")


def _interpolated(value: str) -> str:
    """As Compose puts variables in, of an environment without any."""
    return re.sub(r"\$\{\w+:-(.*?)\}", r"\1", value)


def _must(argv: list[str], env: Mapping[str, str]) -> None:
    done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _is_ready(made: Deployment, service: str) -> bool:
    argv = [str(made.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(made.ports[service])]
    return subprocess.run(argv, check=False, timeout=10).returncode == 0


def _superuser_url(made: Deployment, service: str = "postgres") -> str:
    password = (made.folder / "secrets" / "postgres_superuser_password").read_text()
    return f"postgresql://postgres:{password}@127.0.0.1:{made.ports[service]}/aftermind"


def _admin_url(made: Deployment) -> str:
    return (made.secrets("operator") / "operator_redis_url").read_text()


def _url(made: Deployment) -> str:
    return f"http://127.0.0.1:{made.ports['web']}"


def _status(made: Deployment, path: str) -> int:
    try:
        return httpx.get(f"{_url(made)}{path}", timeout=5, trust_env=False).status_code
    except httpx.TransportError:
        return 0
