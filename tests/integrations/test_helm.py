"""The Helm chart, rendered by Helm's own library: the objects of deploy/kubernetes, with the values put in."""

from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm"
Objects = dict[tuple[str, str], dict[str, Any]]  # Any: YAML; by kind and name
WORKERS = ("worker-store", "worker-embed", "worker-extract")


def render(**values: Any) -> Objects:  # Any: values of the chart
    made = helm_python.Chart.load(CHART).render(values, name="aftermind", namespace="default")
    return by_name(each for text in made.values() for each in yaml.safe_load_all(text))


def read(*files: str) -> Objects:
    return by_name(each for file in files for each in yaml.safe_load_all((CHART / "files" / file).read_text()))


def by_name(objects: Any) -> Objects:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects if each}


def pod(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = objects[kind, name]["spec"]["template"]["spec"]
    return found


def test_without_values_the_chart_has_the_objects_of_the_kubernetes_files() -> None:
    rendered = render()

    for key in (("Job", "aftermind-migrate"), ("ConfigMap", "aftermind-migrate")):
        assert rendered[key]["metadata"].pop("annotations")["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert rendered == read("aftermind.yaml", "availability.yaml")


def test_with_autoscaling_the_number_of_workers_is_kedas() -> None:
    rendered = render(keda={"enabled": True, "prometheus": "http://metrics:9090"}, availability=False)

    assert rendered.keys() == read("aftermind.yaml", "keda.yaml").keys()
    for name in WORKERS:
        assert "replicas" not in rendered["Deployment", f"aftermind-{name}"]["spec"]
        [trigger] = rendered["ScaledObject", f"aftermind-{name}"]["spec"]["triggers"]
        assert trigger["metadata"]["serverAddress"] == "http://metrics:9090"
    assert rendered["Deployment", "aftermind-reconciler"]["spec"]["replicas"] == 2


def test_values_reach_every_process_that_they_name() -> None:
    resources = {"requests": {"cpu": "1"}}
    rendered = render(
        image="registry/aftermind@sha256:0",
        secret="from-vault",
        modelSecret="model",
        settings={"AFTERMIND_EXTRACTOR": "rules"},
        processes={
            "worker-store": {"replicas": 7, "pod": {"nodeSelector": {"disk": "fast"}}},
            "web": {"replicas": 3, "resources": resources},
        },
        webStorage={"size": "9Gi", "className": "fast"},
    )

    pods = [each["spec"]["template"]["spec"] for each in rendered.values() if "template" in each.get("spec", {})]
    containers = [container for each in pods for container in each["containers"]]
    assert {each["image"] for each in containers} == {"registry/aftermind@sha256:0"}
    assert {each["secret"]["secretName"] for one in pods for each in one["volumes"] if "secret" in each} == {
        "from-vault"
    }
    named = {each["valueFrom"]["secretKeyRef"]["name"] for container in containers for each in container.get("env", ())}
    assert named == {"model"}
    for name in ("migrate", "worker", "reconciler", "web"):
        before = read("aftermind.yaml")["ConfigMap", f"aftermind-{name}"]["data"]
        assert rendered["ConfigMap", f"aftermind-{name}"]["data"] == {**before, "AFTERMIND_EXTRACTOR": "rules"}
    assert rendered["Deployment", "aftermind-worker-store"]["spec"]["replicas"] == 7
    assert pod(rendered, "Deployment", "aftermind-worker-store")["nodeSelector"] == {"disk": "fast"}
    web = rendered["StatefulSet", "aftermind-web"]["spec"]
    [claim] = web["volumeClaimTemplates"]
    assert (web["replicas"], claim["spec"]["storageClassName"]) == (3, "fast")
    assert claim["spec"]["resources"]["requests"]["storage"] == "9Gi"
    assert pod(rendered, "StatefulSet", "aftermind-web")["containers"][0]["resources"] == resources
    for each in rendered.values():
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


def test_a_changed_setting_restarts_the_pods_that_read_it() -> None:
    def annotations(**settings: str) -> dict[str, dict[str, str]]:
        rendered = render(settings=settings)
        deployments = {name: each for (kind, name), each in rendered.items() if kind in ("Deployment", "StatefulSet")}
        return {name: each["spec"]["template"]["metadata"].get("annotations", {}) for name, each in deployments.items()}

    before, after = annotations(AFTERMIND_EXTRACTOR="rules"), annotations(AFTERMIND_EXTRACTOR="off")

    assert {name for name, each in before.items() if each != after[name]} == before.keys() - {"aftermind-flower"}


@pytest.mark.parametrize(
    "values",
    [
        {"imagge": "aftermind:1"},
        {"processes": {"worker": {"replicas": 2}}},
        {"processes": {"web": {"replicas": -1}}},
        {"settings": {"AFTERMIND_RECALL_LIMIT": 5}},
        {"keda": {"enabled": "yes"}},
        {"webStorage": {"sizes": "2Gi"}},
    ],
    ids=lambda each: next(iter(each)),
)
def test_a_value_that_is_wrong_is_refused(values: dict[str, Any]) -> None:  # Any: see `render`
    with pytest.raises(helm_python.HelmValuesError):
        render(**values)


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    found = helm_python.lint(CHART)

    assert found["errors"] == []
    assert {each["error"] for each in found["messages"]} <= {"icon is recommended"}
