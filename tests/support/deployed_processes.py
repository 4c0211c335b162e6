"""The shipped deployments as processes of this machine: what each of their files gives a process, and nothing else.

There is no container runtime here, so host names become loopback ports and mounts become folders.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import redis
import yaml

from aftermind.stack import binaries, ports
from aftermind.stack.run_without_root import Identity
from tests.support.servers import psql
from tests.support.waiting import wait_until_sync

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "aftermind.cli")  # the image's entrypoint, `aftermind`
NAMES = ("worker-store", "worker-embed", "worker-extract", "reconciler", "web", "flower")
COMPOSE_SECRETS = "/run/secrets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What a file says of one process. `secrets`: names of files that it finds in the folder `mounted_at`.

    `shell`: the line of a Procfile; `probe`: the command of its health check, without `aftermind`.
    """

    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[str] = ()
    mounted_at: str = COMPOSE_SECRETS
    shell: str = ""
    probe: Sequence[str] = ()


def read_compose() -> dict[str, Any]:  # Any: YAML
    """The compose file."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


def from_compose() -> dict[str, Process]:
    """The services of the compose file."""
    made = {}
    for name, service in read_compose()["services"].items():
        command = service.get("command", [])
        test = service.get("healthcheck", {}).get("test", [])
        made[name] = Process(
            arguments=shlex.split(command) if isinstance(command, str) else list(command),
            environment={key: _interpolated(str(value)) for key, value in service.get("environment", {}).items()},
            secrets=service.get("secrets", ()),
            probe=test[2:] if test[1:2] == ["aftermind"] else (),
        )
    return made


def read_kubernetes() -> list[dict[str, Any]]:  # Any: YAML
    """Every object of the Kubernetes files."""
    files = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
    return [each for file in files for each in yaml.safe_load_all(file.read_text())]


def from_kubernetes() -> dict[str, Process]:
    """The containers of the Kubernetes files, by their names."""
    objects = read_kubernetes()
    maps = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
    made = {}
    for pod in (each["spec"]["template"]["spec"] for each in objects if "template" in each.get("spec", {})):
        items = {each["name"]: each["secret"]["items"] for each in pod["volumes"] if "secret" in each}
        for container in pod["containers"]:
            mounts = [mount for mount in container["volumeMounts"] if mount["name"] in items]
            [mount] = mounts
            given = [maps[each["configMapRef"]["name"]] for each in container["envFrom"]]
            probe = container.get("livenessProbe", {}).get("exec", {}).get("command", [])
            made[container["name"]] = Process(
                arguments=container["args"],
                environment={key: str(value) for each in given for key, value in each.items()},
                secrets=[item["key"] for item in items[mount["name"]]],
                mounted_at=mount["mountPath"],
                probe=probe[1:],
            )
    return made


def from_procfile() -> dict[str, Process]:
    """The lines of the Procfile. Its processes share one folder, where the files of all roles are."""
    lines = dict(line.split(": ", 1) for line in (ROOT / "Procfile").read_text().splitlines() if line)
    lines["migrate"] = lines.pop("release")
    lines["operator"] = "set -a; . deploy/env/operator.env; exec aftermind doctor"
    return {name: Process(shell=line) for name, line in lines.items()}


@dataclass
class Deployment:
    """Processes of one deployment, over servers that run as the compose file has them.

    `folder` holds `secrets/` and what the processes write; `command` is `aftermind`, of the tree or of a wheel.
    """

    folder: Path
    processes: Mapping[str, Process]
    ports: dict[str, int]
    programs: Path
    identity: Identity
    command: Sequence[str] = COMMAND
    running: dict[str, psutil.Popen] = field(default_factory=dict)

    def environment(self, name: str) -> dict[str, str]:
        """The variables that the file gives a process, those of the image, and no others of this machine."""
        process = self.processes[name]
        state = self.folder / "state" / name
        state.mkdir(parents=True, exist_ok=True)
        path = f"{self._command_folder()}{os.pathsep}{self.programs}{os.pathsep}{os.environ['PATH']}"
        if process.shell:
            taken = {"PORT": str(self.ports["web"])} if name == "web" else {}
            return {"PATH": path, "HOME": str(state), **taken}
        found = {key: self._mapped(name, key, value) for key, value in process.environment.items()}
        own = {"AFTERMIND_METRICS_PORT": str(ports.choose(1)[0])} if "AFTERMIND_METRICS_PORT" in found else {}
        if name == "web":
            own["AFTERMIND_WEB_PORT"] = str(self.ports["web"])
        if name == "flower":
            own["FLOWER_PORT"] = str(self.ports["flower"])
        return {"PATH": path, "HOME": str(state), "AFTERMIND_STATE_DIR": str(state), **found, **own}

    def mounted(self, name: str) -> Path:
        """A folder with the secrets that a process is given, as Kubernetes mounts them: by symbolic links."""
        folder = self.folder / "run" / name
        if not folder.exists():
            (folder / "..data").mkdir(parents=True)
            for secret in self.processes[name].secrets:
                text = (self.folder / "secrets" / secret).read_text()
                (folder / "..data" / secret).write_text(self._hosts(text))
                (folder / secret).symlink_to(Path("..data") / secret)
        return folder

    def run(self, name: str, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """A command of the image in a process's environment, to its end."""
        return subprocess.run(
            self.argv(name, *arguments),
            env=self.environment(name),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def argv(self, name: str, *arguments: str) -> list[str]:
        """How a process, or a command in its environment, is started."""
        process = self.processes[name]
        if not process.shell:
            return [*self.command, *(arguments or process.arguments)]
        if arguments:
            return ["sh", "-c", f"{process.shell.partition('exec ')[0]} exec aftermind {shlex.join(arguments)}"]
        return _unit_command(name) if name in NAMES else ["sh", "-c", process.shell]

    def start(self, name: str, argv: list[str] | None = None, env: Mapping[str, str] | None = None) -> None:
        """Start a process."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = psutil.Popen(
                argv or self.argv(name),
                env=dict(env or self.environment(name)),
                cwd=self.folder if self.processes[name].shell else self._state(name),
                stdout=log,
                stderr=log,
            )

    def start_all(self) -> None:
        """Migrate, start every process of ours, and wait until the service is ready."""
        migrated = self.run("migrate")
        assert migrated.returncode == 0, migrated.stdout + migrated.stderr
        for name in NAMES:
            self.start(name)
        wait_until_sync(
            lambda: self.status("/readyz") == 200,
            timeout=120,
            description="the service is ready",
        )

    def stop(self, *names: str) -> None:
        """End processes by SIGTERM (servers by SIGINT); those that do not end are killed, and named."""
        ending = {name: self.running.pop(name) for name in names if name in self.running}
        for name, process in ending.items():
            if process.is_running():
                process.send_signal(signal.SIGINT if name.startswith("postgres") else signal.SIGTERM)
        _, alive = psutil.wait_procs(list(ending.values()), timeout=40)
        for process in alive:
            process.kill()
            process.wait()

    def status(self, path: str) -> int:
        """What the service answers without a key; 0 if it does not."""
        try:
            return httpx.get(f"{self.url}{path}", timeout=5, trust_env=False, verify=False).status_code
        except httpx.TransportError:
            return 0

    @property
    def url(self) -> str:
        """Where the service is."""
        return f"http://127.0.0.1:{self.ports['web']}"

    def log(self, name: str) -> str:
        """The end of what a process wrote."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def superuser_url(self, server: str = "postgres") -> str:
        """The database, as the image's superuser."""
        password = (self.folder / "secrets" / "postgres_superuser_password").read_text()
        return f"postgresql://postgres:{password}@127.0.0.1:{self.ports[server]}/aftermind"

    def _mapped(self, name: str, key: str, value: str) -> str:
        here = {"PRIMARY_HOST": "127.0.0.1", "PRIMARY_PORT": str(self.ports["postgres"])}
        return here.get(key) or value.replace(self.processes[name].mounted_at, str(self.mounted(name)))

    def _hosts(self, text: str) -> str:
        for server, usual in (("postgres-replica", 5432), ("postgres", 5432), ("redis", 6379)):
            text = text.replace(f"@{server}:{usual}", f"@127.0.0.1:{self.ports[server]}")
        return text

    def _state(self, name: str) -> Path:
        state = self.folder / "state" / name
        return state if state.exists() else self.folder

    def _command_folder(self) -> Path:
        """A folder with an `aftermind` for the lines of a Procfile."""
        folder = self.folder / "bin"
        if not folder.exists():
            folder.mkdir()
            script = folder / "aftermind"
            script.write_text(f'#!/bin/sh\nexec {shlex.join(self.command)} "$@"\n')
            script.chmod(0o755)
        return folder


def start_servers(made: Deployment, *, replica: bool = True) -> None:
    """Postgres, its replica and Redis as the compose file starts them, with the roles and users of `secrets`."""
    _start_postgres(made)
    _start_redis(made)
    if replica:
        _start_replica(made)


def _start_postgres(made: Deployment) -> None:
    """As the image does it: initdb, the scripts of docker-entrypoint-initdb.d, the server with the file's flags."""
    data, secrets = made.folder / "postgres", made.mounted("postgres")
    data.mkdir(mode=0o700)
    if made.identity.owner is not None:
        os.chown(data, *made.identity.owner)
    password = secrets / "postgres_superuser_password"
    argv = ["initdb", "-D", str(data), "--username=postgres", f"--pwfile={password}", "--auth=scram-sha-256"]
    _must([*made.identity.prefix, str(made.programs / argv[0]), *argv[1:], "--no-sync"], {})
    name, *flags = made.processes["postgres"].arguments
    assert name == "postgres"
    here = ["-c", f"port={made.ports['postgres']}", "-c", "unix_socket_directories=", "-c", "fsync=off"]
    made.start("postgres", [*made.identity.prefix, str(made.programs / name), "-D", str(data), *flags, *here])
    wait_until_sync(lambda: _is_ready(made, "postgres"), description="Postgres answers")
    env = {
        **made.environment("postgres"),
        "PGDATA": str(data),
        "SECRETS": str(secrets),
        "PGHOST": "127.0.0.1",
        "PGPORT": str(made.ports["postgres"]),
        "PGPASSWORD": password.read_text(),
    }
    volumes = read_compose()["services"]["postgres"]["volumes"]
    [script] = [each.split(":")[0] for each in volumes if "initdb" in each]
    _must(["sh", str(ROOT / script)], env)
    psql(made.superuser_url(), "SELECT pg_reload_conf()")


def _start_replica(made: Deployment) -> None:
    data = made.folder / "postgres-replica"
    data.mkdir(mode=0o700)
    if made.identity.owner is not None:
        os.chown(data, *made.identity.owner)
    env = {
        **made.environment("postgres-replica"),
        "PGDATA": str(data),
        "SECRETS": str(made.mounted("postgres-replica")),
    }
    here = ["-c", f"port={made.ports['postgres-replica']}", "-c", "unix_socket_directories=", "-c", "fsync=off"]
    script = str(ROOT / "deploy" / "postgres-replica.sh")
    made.start("postgres-replica", [*made.identity.prefix, "sh", script, *here], env)
    wait_until_sync(lambda: _is_ready(made, "postgres-replica"), description="the replica answers")


def _start_redis(made: Deployment) -> None:
    name, *flags = made.processes["redis"].arguments
    assert name == "redis-server"
    flags = [each.replace(COMPOSE_SECRETS, str(made.mounted("redis"))) for each in flags]
    here = ["--port", str(made.ports["redis"]), "--bind", "127.0.0.1", "--dir", str(made.folder)]
    made.start("redis", [str(binaries.redis_server()), *flags, *here])

    def answers() -> bool:
        try:
            # The health check of compose, as its user.
            return bool(redis.Redis(port=made.ports["redis"], username="health", password="health").ping())
        except redis.ConnectionError:
            return False

    wait_until_sync(answers, description="Redis answers")


def _unit_command(name: str) -> list[str]:
    """What systemd runs for an instance of the unit: a line of the Procfile in its working directory."""
    text = (ROOT / "deploy" / "systemd" / "aftermind@.service").read_text()
    [line] = [each.partition("=")[2] for each in text.splitlines() if each.startswith("ExecStart=")]
    return shlex.split(line.replace("$$", "$").replace("%i", name))


def _interpolated(value: str) -> str:
    """As Compose puts variables in, of an environment without any."""
    return re.sub(r"\$\{\w+:-(.*?)\}", r"\1", value)


def _must(argv: list[str], env: Mapping[str, str]) -> None:
    done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _is_ready(made: Deployment, server: str) -> bool:
    argv = [str(made.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(made.ports[server])]
    return subprocess.run(argv, check=False, timeout=10).returncode == 0
