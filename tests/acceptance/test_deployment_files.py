"""Procfile, compose file and embedded stack run the same processes; the compose file is valid and says what it must."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from aftermind.cli import stack_processes
from aftermind.wire import queues
from tests.support.deployed_processes import from_compose, from_kubernetes, read_kubernetes

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "tests" / "support" / "compose-spec.json"
OURS = ("worker-store", "worker-embed", "worker-extract", "reconciler", "web", "flower")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:  # Any: YAML
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


@pytest.fixture(scope="module")
def procfile() -> dict[str, str]:
    lines = (ROOT / "Procfile").read_text().splitlines()
    return dict(line.split(": ", 1) for line in lines if line)


def test_the_compose_file_fits_the_schema_of_the_compose_specification(compose: dict[str, Any]) -> None:
    _check(compose)


def test_a_compose_file_that_is_wrong_does_not_fit_the_schema(compose: dict[str, Any]) -> None:
    wrong = {**compose, "services": {**compose["services"], "redis": {"imagge": "redis"}}}

    with pytest.raises(jsonschema.ValidationError):
        _check(wrong)


def test_every_process_of_the_procfile_is_a_service_and_the_other_way_round(
    compose: dict[str, Any], procfile: dict[str, str]
) -> None:
    others = {"postgres", "postgres-replica", "redis", "migrate", "secrets", "operator", "prometheus", "grafana"}
    assert set(procfile) == {*OURS, "release"}
    assert set(compose["services"]) == {*OURS, *others}
    assert set(from_kubernetes()) == {*OURS, "migrate", "operator"}


def test_the_unit_of_systemd_is_valid() -> None:
    verifier = shutil.which("systemd-analyze")
    if verifier is None:
        pytest.skip("systemd is not installed")

    done = subprocess.run(
        [verifier, "verify", str(ROOT / "deploy" / "systemd" / "aftermind@.service")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_both_name_the_same_queues_as_the_embedded_stack(compose: dict[str, Any], procfile: dict[str, str]) -> None:
    for name, names in stack_processes.GROUPS.items():
        wanted = ",".join(names)
        assert procfile[name].endswith(f"exec aftermind worker --queues {wanted}")
        assert compose["services"][name]["command"] == ["worker", "--queues", wanted]
        assert from_kubernetes()[name].arguments == ["worker", "--queues", wanted]


def test_compose_kubernetes_and_procfile_give_each_process_the_same_variables() -> None:
    files = {"operator": "operator", "migrate": "migrate", **{name: name.partition("-")[0] for name in OURS}}
    compose, kubernetes = from_compose(), from_kubernetes()
    for name, file in files.items():
        lines = [line for line in (ROOT / "deploy/env" / f"{file}.env").read_text().splitlines() if "#" not in line]
        shipped = {key: Path(value).name for key, value in (line.split("=", 1) for line in lines)}
        for given in (compose[name], kubernetes[name]):
            read = {key: Path(value).name for key, value in given.environment.items() if key.endswith("_FILE")}
            assert read == shipped, name
            assert set(given.secrets) == set(shipped.values()), name


def test_the_page_names_the_processes_that_read_each_password() -> None:
    readers: dict[str, set[str]] = {}
    for file in (ROOT / "deploy/env").glob("*.env"):
        for name in re.findall(r"=secrets/(\S+)", file.read_text()):
            server = "redis" if name.endswith("_redis_url") else "postgres"
            role = re.fullmatch(r"(\w+?)_(?:redis_url|database_url|replica_urls)", name)
            password = f"{server}_{role[1]}_password" if role else name
            readers.setdefault(password, set()).update({file.stem} - {"migrate", "operator"})
    kept = {"audit_key", "encryption_key", "webhook_key"}  # a lost one is not made again

    page = (ROOT / "docs/security.md").read_text().partition("| replaced | restart |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", page, flags=re.MULTILINE)

    named = {name: set(re.findall(r"`(\w+)`", text)) for name, text in rows if name != "postgres_replicator_password"}
    assert named == {name: found for name, found in readers.items() if name not in kept}


@pytest.mark.parametrize("found", read_kubernetes(), ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_each_kubernetes_object_fits_the_schema(found: dict[str, Any]) -> None:
    if found["apiVersion"].startswith(("keda.sh/", "external-secrets.io/")):
        pytest.skip("a custom resource: its schema is not one of Kubernetes")
    kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)


def test_a_kubernetes_object_that_is_wrong_does_not_fit_the_schema() -> None:
    wrong = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "dataa": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_pods_get_no_variables_of_services_and_no_rights() -> None:
    """Kubernetes would set AFTERMIND_WEB_PORT=tcp://… for the service `aftermind-web`, which is a setting of ours."""
    pods = [each["spec"]["template"]["spec"] for each in read_kubernetes() if "template" in each.get("spec", {})]

    assert len(pods) == len(OURS) + 2
    for pod in pods:
        assert pod["enableServiceLinks"] is False
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_keda_scales_deployments_that_exist() -> None:
    objects = read_kubernetes()
    deployments = {each["metadata"]["name"] for each in objects if each["kind"] == "Deployment"}
    targets = {each["spec"]["scaleTargetRef"]["name"] for each in objects if each["kind"] == "ScaledObject"}

    assert targets
    assert targets <= deployments


def test_a_drain_leaves_one_pod_of_each_process_that_has_several() -> None:
    objects = read_kubernetes()
    several = {
        each["metadata"]["name"]
        for each in objects
        if each["kind"] in ("Deployment", "StatefulSet") and each["spec"]["replicas"] > 1
    }
    budgets = [each["spec"] for each in objects if each["kind"] == "PodDisruptionBudget"]

    assert {each["selector"]["matchLabels"]["app"] for each in budgets} == several
    assert {each["maxUnavailable"] for each in budgets} == {1}
    spread = {name: pod["topologySpreadConstraints"] for name, pod in _pods().items() if name in several}
    assert all(rule["labelSelector"] == {"matchLabels": {"app": name}} for name, [rule] in spread.items())


def test_network_policies_open_the_ports_of_each_process_and_no_others() -> None:
    opened: dict[str, set[int]] = {}
    for policy in (each["spec"] for each in read_kubernetes() if each["kind"] == "NetworkPolicy"):
        selector = policy["podSelector"]
        for name in [
            *selector.get("matchLabels", {}).values(),
            *selector.get("matchExpressions", [{}])[0].get("values", []),
        ]:
            opened[name] = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    used = {
        name: {port["containerPort"] for container in pod["containers"] for port in container.get("ports", [])}
        for name, pod in _pods().items()
    }

    assert opened.pop("aftermind-flower") == set()  # by port-forward only
    assert opened == {name: used[name] for name in opened}
    assert used.keys() - opened.keys() == {"aftermind-flower"}


def test_every_queue_has_a_worker() -> None:
    assert {name for names in stack_processes.GROUPS.values() for name in names} == set(queues.QUEUES)


def test_redis_writes_every_turn_to_disk_and_never_evicts(compose: dict[str, Any]) -> None:
    command = compose["services"]["redis"]["command"]

    assert "--appendonly yes" in command
    assert "--appendfsync always" in command
    assert "--maxmemory-policy noeviction" in command


def test_what_keeps_data_has_a_volume_and_everything_else_waits_for_the_schema(compose: dict[str, Any]) -> None:
    for name in ("postgres", "postgres-replica", "redis", "web", "flower", "prometheus", "grafana"):
        named = [mount.split(":")[0] for mount in compose["services"][name]["volumes"]]
        assert set(named) & set(compose["volumes"]), f"{name} keeps nothing"
    for name in OURS:
        waits_for = compose["services"][name]["depends_on"]
        assert waits_for["migrate"] == {"condition": "service_completed_successfully"}


def test_every_service_that_stays_up_tells_whether_it_is_well(compose: dict[str, Any]) -> None:
    silent = {name for name, service in compose["services"].items() if "healthcheck" not in service}

    assert silent == {"migrate", "secrets", "operator"}


def test_passwords_are_files_and_nothing_but_loopback_is_open(compose: dict[str, Any]) -> None:
    variables = {
        name: str(value)
        for service in compose["services"].values()
        for name, value in service.get("environment", {}).items()
    }
    for name, value in variables.items():
        if re.search("PASSWORD|KEY|URL|AUTH", name) and not name.startswith(("OPENAI_", "AFTERMIND_FLOWER_URL")):
            assert value.startswith("/run/secrets/"), name
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_flower_asks_for_a_password(compose: dict[str, Any]) -> None:
    assert compose["services"]["flower"]["environment"]["FLOWER_BASIC_AUTH_FILE"] == "/run/secrets/flower_login"


def test_images_are_of_one_version(compose: dict[str, Any]) -> None:
    images = [service["image"] for service in compose["services"].values()]
    images += re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)

    for image in images:
        assert re.search(r":v?\d+\.\d+", image), f"{image} is another one tomorrow"


def test_the_image_has_the_extras_that_settings_turn_on() -> None:
    lock = (ROOT / "requirements-image.lock").read_text()
    for package in ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "boto3", "tiktoken"):
        assert f"\n{package}==" in lock
    assert "--require-hashes --requirement /tmp/requirements-image.lock" in (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-image.lock"])
def test_each_line_of_a_lock_has_hashes_and_no_address(name: str) -> None:
    lock = (ROOT / name).read_text()
    pinned = re.findall(r"^[A-Za-z0-9_.-]+==.*$", lock, flags=re.MULTILINE)

    assert len(pinned) > 90
    assert all(line.endswith("\\") for line in pinned)
    assert not re.search(r"://|^--|index-url", lock, flags=re.MULTILINE)


def test_the_image_has_the_tested_versions() -> None:
    def pins(name: str) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for package, version in re.findall(r"^([A-Za-z0-9_.-]+)==([^ ;]+)", (ROOT / name).read_text(), re.MULTILINE):
            found.setdefault(package, set()).add(version)
        return found

    tested, image = pins("requirements.lock"), pins("requirements-image.lock")
    assert {name: image[name] for name in image.keys() & tested.keys()} == {
        name: tested[name] for name in image.keys() & tested.keys()
    }


def test_every_command_exists(compose: dict[str, Any], procfile: dict[str, str], aftermind: list[str]) -> None:
    shown = subprocess.run([*aftermind, "--help"], capture_output=True, text=True, timeout=180, check=True).stdout
    used = {compose["services"][name]["command"][0] for name in (*OURS, "migrate")}
    used |= {command.partition("exec aftermind ")[2].split()[0] for command in procfile.values()}
    checks = [service.get("healthcheck", {}).get("test", ()) for service in compose["services"].values()]
    used |= {test[2] for test in checks if list(test[1:2]) == ["aftermind"]}

    for command in used:
        assert re.search(rf"\b{command}\b", shown), f"aftermind {command} does not exist"


def test_the_scripts_are_valid_shell() -> None:
    scripts = sorted((ROOT / "deploy").glob("*.sh"))

    assert scripts
    for script in scripts:
        done = subprocess.run(["sh", "-n", str(script)], capture_output=True, text=True, timeout=10, check=False)
        assert done.returncode == 0, done.stderr


def test_the_image_is_built_from_files_that_exist() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)

    assert copied
    for names in copied:
        for name in names.split():
            assert (ROOT / name).exists(), name


def _pods() -> dict[str, dict[str, Any]]:  # Any: YAML
    """The pods that stay up, by the label that selects them."""
    templates = [each["spec"]["template"] for each in read_kubernetes() if "template" in each.get("spec", {})]
    return {each["metadata"]["labels"]["app"]: each["spec"] for each in templates if "metadata" in each}


def _check(compose: dict[str, Any]) -> None:  # Any: YAML
    schema = json.loads(SCHEMA.read_text())
    del schema["$schema"]  # its draft is named with http, which is not its name
    jsonschema.validate(compose, schema, cls=jsonschema.Draft201909Validator)
