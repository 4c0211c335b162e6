"""What ships is run: each file's own commands, variables, secrets and roles, as processes of this machine.

Compose and Kubernetes files with the tree's code; the Procfile with an installed wheel, each line started as the unit
of systemd does. The servers are those of the compose file, so the roles and Redis users are those that `aftermind
secrets` writes, and no variable is added.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis

from aftermind.stack import binaries, ports
from aftermind.stack.run_without_root import for_postgres
from tests.support.deployed_processes import (
    NAMES,
    ROOT,
    Deployment,
    from_compose,
    from_kubernetes,
    from_procfile,
    read_compose,
    start_servers,
)
from tests.support.servers import psql
from tests.support.waiting import wait_until_sync

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SERVERS = ("postgres", "postgres-replica", "redis")


@pytest.fixture(scope="module", params=["compose", "kubernetes", "procfile"])
def deployment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Everything that one of the files starts, up."""
    kind: str = request.param
    folder, programs = tmp_path_factory.mktemp(kind), binaries.postgres_bin()
    compose = from_compose()
    ours = {"compose": from_compose, "kubernetes": from_kubernetes, "procfile": from_procfile}[kind]()
    names = (*SERVERS, "web", "flower")
    made = Deployment(
        folder=folder,
        processes={**{name: compose[name] for name in (*SERVERS, "secrets")}, **ours},
        ports=dict(zip(names, ports.choose(len(names)), strict=True)),
        programs=programs,
        identity=for_postgres(programs / "postgres", data=folder / "postgres"),
    )
    if kind == "procfile":
        made.command = (str(request.getfixturevalue("wheel_python").with_name("aftermind")),)
    try:
        _write_secrets(made, kind)
        start_servers(made)
        made.start_all()
        yield made
    finally:
        for group in (NAMES, ("redis", "postgres-replica"), ("postgres",)):
            made.stop(*group)
        shutil.rmtree(folder, ignore_errors=True)


def _write_secrets(made: Deployment, kind: str) -> None:
    hosts = [f"127.0.0.1:{made.ports[name]}" for name in SERVERS]
    where = ["--postgres", hosts[0], "--replica", hosts[1], "--redis", hosts[2]] if kind == "procfile" else []
    assert made.processes["secrets"].arguments == ["secrets", "/secrets"]
    written = made.run("secrets", "secrets", str(made.folder / "secrets"), *where)
    assert written.returncode == 0, written.stdout + written.stderr
    if kind == "procfile":
        (made.folder / "deploy").symlink_to(ROOT / "deploy")
        # Flower's port is a default of the settings, which other tests of this machine use too.
        lines = (ROOT / "Procfile").read_text()
        (made.folder / "Procfile").write_text(
            lines.replace("exec aftermind flower", f"exec aftermind flower --port {made.ports['flower']}")
        )


@pytest.fixture(scope="module")
def api(deployment: Deployment) -> Iterator[httpx.Client]:
    """A client with a key that an operator made."""
    made = deployment.run("operator", "api-keys", "create", "a test")
    assert made.returncode == 0, made.stderr
    headers = {"Authorization": f"Bearer {made.stdout.strip().splitlines()[-1]}"}
    with httpx.Client(base_url=deployment.url, headers=headers, timeout=30, trust_env=False) as client:
        yield client


def test_a_turn_becomes_a_fact_and_is_recalled_over_http(deployment: Deployment, api: httpx.Client) -> None:
    taken = api.post("/v1/users/ann/turns", json={"messages": ["I live in Oslo."], "session_id": "s"}).json()

    def done(step: str) -> bool:
        return bool(api.get(taken["status_url"]).json()[step] == "done")

    wait_until_sync(lambda: done("stored"), description="the turn is stored")
    wait_until_sync(lambda: done("extracted"), description="the turn is mined")
    facts = api.get("/v1/users/ann/facts").json()["items"]
    assert [(fact["predicate"], fact["object"]) for fact in facts] == [("lives_in", "Oslo")]

    def recalled() -> bool:
        block = api.post("/v1/users/ann/recall", json={"query": "Where do I live?"}).json()
        return "Oslo" in block["text"] and block["degraded"] is None

    wait_until_sync(recalled, description="the turn is recalled, and nothing may be missing")
    assert api.post("/v1/users/ann/forget", json={"everything": True}).status_code == 200

    assert all(process.is_running() for process in deployment.running.values())


def test_an_application_needs_the_variables_of_the_agent_only(deployment: Deployment) -> None:
    if not deployment.processes["operator"].shell:
        pytest.skip("deploy/env/ is of the Procfile")
    (deployment.folder / "shop.py").write_text(
        """
from aftermind.sync import Memory

with Memory() as memory:
    memory.remember("I live in Oslo.", user_id="shop").extracted(timeout=60)
    block = memory.recall("Where do I live?", user_id="shop")
    print(block.text, block.degraded, [fact.text for fact in memory.facts.query(user_id="shop")])
    print(memory.forget(user_id="shop").rows["episodes"], memory.history(user_id="shop"))
"""
    )

    python = Path(deployment.command[0]).with_name("python")
    done = subprocess.run(
        ["sh", "-c", f"set -a; . deploy/env/agent.env; exec {python} shop.py"],
        env=deployment.environment("operator"),  # no variable of AFTERMIND
        cwd=deployment.folder,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "I live in Oslo." in done.stdout
    assert "None ['user lives in Oslo']\n1 []" in done.stdout


def test_a_webhook_is_sealed_by_the_service_and_no_key_is_made_beside_the_given_ones(
    deployment: Deployment, api: httpx.Client
) -> None:
    assert api.post("/v1/webhooks", json={"url": "https://1.1.1.1/hook"}).status_code == 201

    made = [path for path in deployment.folder.rglob("*.key") if path.name in ("audit.key", "webhook.key")]
    assert made == []


def test_doctor_finds_nothing_wrong_and_the_audit_trail_is_whole(deployment: Deployment, api: httpx.Client) -> None:
    assert api.get("/v1/users/ann/export").status_code == 200
    wait_until_sync(
        lambda: deployment.run("operator", "doctor").returncode == 0, timeout=120, description="doctor finds nothing"
    )

    seen = deployment.run("operator", "doctor")
    assert " bad" not in re.sub(r"^0 bad", "", seen.stdout, flags=re.MULTILINE), seen.stdout
    verified = deployment.run("operator", "audit", "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "intact" in verified.stdout


@pytest.mark.parametrize("name", NAMES)
def test_each_health_check_by_command_passes(deployment: Deployment, name: str) -> None:
    probe = deployment.processes[name].probe
    if not probe:
        assert deployment.running[name].is_running()
        return

    done = deployment.run(name, *probe, timeout=180)

    assert done.returncode == 0, done.stdout + done.stderr + deployment.log(name)


def test_no_process_connects_as_a_role_that_row_level_security_does_not_bind(deployment: Deployment) -> None:
    others = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
    query = f"SELECT DISTINCT usename FROM pg_stat_activity WHERE {others}"
    roles = set(psql(deployment.superuser_url(), query).split())
    bypassing = "SELECT rolname FROM pg_roles WHERE (rolsuper OR rolbypassrls) AND rolname NOT LIKE 'pg\\_%'"

    assert roles == {"aftermind_agent_login", "aftermind_worker_login"}
    assert psql(deployment.superuser_url(), bypassing) == "postgres"


def test_each_process_connects_to_redis_as_the_user_of_its_role(deployment: Deployment) -> None:
    url = (deployment.folder / "secrets" / "operator_redis_url").read_text()
    with redis.Redis.from_url(re.sub(r"@[^/]+", f"@127.0.0.1:{deployment.ports['redis']}", url)) as operator:
        assert operator.execute_command("ACL", "WHOAMI") == b"aftermind-operator"
    for name, role in (("web", "web"), ("worker-store", "worker"), ("reconciler", "reconciler"), ("flower", "flower")):
        seen = deployment.processes[name]
        given = seen.shell or " ".join(seen.environment.values())
        if seen.shell:
            given = (ROOT / given.split()[3].rstrip(";")).read_text()
        assert re.findall(r"(\w+)_redis_url", given) == [role], name


def test_flower_has_the_broker_and_its_own_login_alone(deployment: Deployment) -> None:
    url = f"http://127.0.0.1:{deployment.ports['flower']}"
    user, password = (deployment.folder / "secrets" / "flower_login").read_text().strip().split(":")

    def shows() -> bool:
        try:
            return httpx.get(f"{url}/workers", auth=(user, password), trust_env=False, timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    wait_until_sync(shows, description="Flower answers")
    for path in ("/", "/metrics", "/healthcheck"):
        assert httpx.get(f"{url}{path}", trust_env=False, timeout=5).status_code == 401, path
    if not deployment.processes["flower"].shell:
        assert set(deployment.processes["flower"].secrets) == {"flower_redis_url", "flower_login"}


def test_every_secret_that_a_file_names_is_written(deployment: Deployment) -> None:
    folder = deployment.folder / "secrets"
    written = {path.name for path in folder.iterdir()}
    named = {secret for process in deployment.processes.values() for secret in process.secrets}
    named |= set(read_compose()["secrets"])
    named |= set(re.findall(r"=secrets/(\S+)", "".join(each.read_text() for each in (ROOT / "deploy/env").iterdir())))

    assert named <= written
    assert folder.stat().st_mode & 0o077 == 0
    again = deployment.run("secrets", "secrets", str(folder))
    assert "0 files were written" in again.stdout


def test_every_process_ends_within_its_grace_period(deployment: Deployment) -> None:
    """Last: it stops the deployment."""
    for name in NAMES:
        process = deployment.running[name]
        process.terminate()
    for name in NAMES:
        code = deployment.running[name].wait(30)
        assert code in (0, -15, 143), f"{name} ended with {code}: {deployment.log(name)}"


def test_the_health_checks_of_the_compose_file_are_valid_commands() -> None:
    for name in ("web", "flower"):
        kind, *test = read_compose()["services"][name]["healthcheck"]["test"]
        assert (kind, test[0]) == ("CMD", "python")
        compile(test[2], name, "exec")
        subprocess.run([sys.executable, "-c", "import urllib.request, socket"], check=True, timeout=30)


def test_no_shipped_file_lets_a_role_bypass_row_level_security() -> None:
    files = [ROOT / "docker-compose.yml", ROOT / "Procfile", *(ROOT / "deploy").rglob("*")]
    assert [file for file in files if file.is_file() and "ALLOW_OWNER" in file.read_text(errors="replace")] == []
