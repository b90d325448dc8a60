"""deploy/kubernetes says what the Procfile and the settings say, and Kubernetes' schemas allow it: no cluster runs in the suite.

The manifests are read as `kubectl kustomize` renders them.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from cli.machine import health
from cli.machine.procfile import WITHHELD, read
from shared.settings import VARIABLES, Settings

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
KUBECTL = Path(sys.executable).with_name("kubectl")
NEWEST = kubernetes_validate.latest_version()
OVERLAYS = ("overlays/trial", "overlays/production")
RENDERED = ("base", "pools/gpu", *OVERLAYS)
PROCESSES = {line.name for line in read()}
DRAINING = {"web", "runner", "builder"}
USES = {  # which process talks to whom
    "postgres": {"release", "web", "runner", "builder"},
    "redis": {"web", "runner", "builder", "beat"},
    "internet": {"web", "runner", "builder"},
}
PORTS = {"postgres": 5432, "redis": 6379}
GIVEN_BY_YOU = {  # keys of Secrets that docs/kubernetes.md has made
    "runyard": {
        "DATABASE_URL", "REDIS_URL", "RUNYARD_API_KEY", "RUNYARD_ENCRYPTION_KEYS", "POSTGRES_PASSWORD", "REDIS_PASSWORD",
    },
    "runyard-scaler": {"api-key"},
}  # fmt: skip
Manifest = dict[str, Any]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="kubectl has a wheel for Linux only",
)


@cache
def rendered(folder: str) -> list[Manifest]:
    return render(FOLDER / folder)


def render(folder: Path) -> list[Manifest]:
    done = subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """The component and the pod of everything that has one."""
    for manifest in of_kind(manifests, "Deployment", "StatefulSet", "Job"):
        template = manifest["spec"]["template"]
        yield template["metadata"]["labels"]["app.kubernetes.io/component"], template


def ours(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    return ((name, pod) for name, pod in pods(manifests) if name in PROCESSES)


def labels_match(selector: Manifest, labels: dict[str, str]) -> bool:
    exact = selector.get("matchLabels", {}).items() <= labels.items()
    return exact and all(
        labels.get(rule["key"]) in rule["values"] for rule in selector.get("matchExpressions", ())
    )


@pytest.mark.parametrize("folder", RENDERED)
def test_the_newest_schema_allows_every_manifest(folder: str) -> None:
    checked = [manifest for manifest in rendered(folder) if "keda.sh" not in manifest["apiVersion"]]

    assert checked
    for manifest in checked:
        kubernetes_validate.validate(manifest, NEWEST, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_its_processes_get_known_settings_and_only_the_keys_that_they_use(overlay: str) -> None:
    manifests = rendered(overlay)
    commands = {name: pod["spec"]["containers"][0]["args"] for name, pod in ours(manifests)}
    assert commands == {name: ["runyard", "process", name] for name in PROCESSES}

    (configuration,) = of_kind(manifests, "ConfigMap")

    assert set(configuration["data"]) <= set(VARIABLES.values())
    assert Settings.from_env(configuration["data"]).port == 8123
    for process, pod in ours(manifests):
        container = pod["spec"]["containers"][0]
        names = {variable["name"] for variable in container["env"]}
        assert names <= set(VARIABLES.values())
        assert not names & set(WITHHELD.get(process, ()))
        assert ("RUNYARD_API_KEY" in names) == (process == "web")
        assert ("DATABASE_URL" in names) == (process in USES["postgres"])
        assert ("REDIS_URL" in names) == (process in USES["redis"])
        assert container["envFrom"] == [{"configMapRef": {"name": configuration["metadata"]["name"]}}]

    docs = (FOLDER.parents[1] / "docs" / "kubernetes.md").read_text()

    assert not of_kind(manifests, "Secret")
    for _, pod in pods(manifests):
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
            for variable in container.get("env", ()):
                reference = variable.get("valueFrom", {}).get("secretKeyRef")
                assert reference is None or reference["key"] in GIVEN_BY_YOU[reference["name"]]
    assert all(key in docs for keys in GIVEN_BY_YOU.values() for key in keys)


@pytest.mark.parametrize("folder", RENDERED)
def test_pods_drain_are_probed_wait_for_tables_and_are_restricted_as_they_need(folder: str) -> None:
    (configuration,) = of_kind(rendered("base"), "ConfigMap")
    drain = Settings.from_env(configuration["data"]).drain_seconds
    for process, pod in ours(rendered(folder)):
        if process in DRAINING:
            hook = pod["spec"]["containers"][0].get("lifecycle", {}).get("preStop", {})
            before = hook.get("sleep", {}).get("seconds", 0)
            assert pod["spec"]["terminationGracePeriodSeconds"] - before >= drain + 10
            assert (before > 0) == (process == "web")

    for process, pod in ours(rendered(folder)):
        container = pod["spec"]["containers"][0]
        live, ready = (container.get(name) for name in ("livenessProbe", "readinessProbe"))
        if process == "release":
            assert (live, ready) == (None, None)
        elif process == "web":
            assert container["ports"] == [{"name": "http", "containerPort": 8123}]
            assert [probe["httpGet"] for probe in (live, ready)] == [
                {"path": "/ok", "port": "http"}, {"path": "/ok?ready=1", "port": "http"},
            ]  # fmt: skip
        else:
            assert live["exec"]["command"] == ["runyard", "health", process]
            assert ready["exec"]["command"] == ["runyard", "health", process, "--ready"]
            assert min(live["timeoutSeconds"], ready["timeoutSeconds"]) > health.ANSWER_SECONDS

    for process, pod in ours(rendered(folder)):
        waits = [container["args"] for container in pod["spec"].get("initContainers", ())]
        is_waiting = process in USES["postgres"] - {"release"}
        assert waits == ([["runyard", "health", "database", "--wait", "600"]] if is_waiting else [])

    for process, pod in pods(rendered(folder)):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            context = container["securityContext"]
            assert (context["allowPrivilegeEscalation"], context["capabilities"]) == (
                False,
                {"drop": ["ALL"]},
            )
            assert "memory" in container["resources"]["limits"]
            if process in PROCESSES:
                assert context["readOnlyRootFilesystem"]
                assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}
        assert all("emptyDir" in volume for volume in spec.get("volumes", ()))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_find_what_they_are_for_and_web_takes_no_connection_from_pods_of_the_namespace(
    overlay: str,
) -> None:
    manifests = rendered(overlay)
    labels = [pod["metadata"]["labels"] for _, pod in pods(manifests)]
    for manifest in of_kind(manifests, "Deployment", "StatefulSet"):
        template = manifest["spec"]["template"]["metadata"]["labels"]
        assert labels_match(manifest["spec"]["selector"], template)
        for spread in manifest["spec"]["template"]["spec"].get("topologySpreadConstraints", ()):
            assert labels_match(spread["labelSelector"], template)
    for manifest in of_kind(manifests, "Service"):
        assert (
            sum(labels_match({"matchLabels": manifest["spec"]["selector"]}, found) for found in labels) == 1
        )
    for manifest in of_kind(manifests, "PodDisruptionBudget"):
        assert any(labels_match(manifest["spec"]["selector"], found) for found in labels)

    of_web = {"app.kubernetes.io/name": "runyard", "app.kubernetes.io/component": "web"}
    sources = [
        source
        for policy in of_kind(manifests, "NetworkPolicy")
        if labels_match(policy["spec"]["podSelector"], of_web)
        for rule in policy["spec"].get("ingress", ())
        for source in rule["from"]
    ]

    assert [set(source) for source in sources] == [{"namespaceSelector"}]
    (rule,) = sources[0]["namespaceSelector"]["matchExpressions"]
    assert "runyard" not in rule["values"]


def allowed(manifests: list[Manifest], process: str) -> list[Manifest]:
    """What the policies let pods of this process connect to."""
    labels = {"app.kubernetes.io/name": "runyard", "app.kubernetes.io/component": process}
    policies = [
        policy["spec"]
        for policy in of_kind(manifests, "NetworkPolicy")
        if labels_match(policy["spec"]["podSelector"], labels)
    ]
    assert any(set(policy["policyTypes"]) == {"Egress", "Ingress"} for policy in policies), (
        "nothing is denied"
    )
    return [rule for policy in policies for rule in policy.get("egress", ())]


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("process", sorted(PROCESSES))
def test_a_process_reaches_what_it_needs_and_no_more(overlay: str, process: str) -> None:
    rules = allowed(rendered(overlay), process)
    reached = {port["port"] for rule in rules for port in rule.get("ports", ())}
    everywhere = [rule for rule in rules if "ports" not in rule]

    assert reached == {53, *(PORTS[server] for server in PORTS if process in USES[server])}
    assert len(everywhere) == (1 if process in USES["internet"] else 0)
    for rule in everywhere:
        (four, six) = (peer["ipBlock"] for peer in rule["to"])
        assert {"10.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"} <= set(four["except"])
        assert {"fc00::/7", "fe80::/10"} <= set(six["except"])


def test_servers_of_the_trial_take_our_pods_alone_and_redis_evicts_nothing() -> None:
    manifests = rendered("overlays/trial")
    takes = {policy["metadata"]["name"]: policy["spec"] for policy in of_kind(manifests, "NetworkPolicy")}
    for server, port in PORTS.items():
        (rule,) = takes[f"to-{server}"]["ingress"]
        (source,) = rule["from"]
        (expression,) = source["podSelector"]["matchExpressions"]
        assert (set(expression["values"]), rule["ports"][0]["port"]) == (USES[server], port)
    (redis,) = (pod for name, pod in pods(manifests) if name == "redis")
    args = redis["spec"]["containers"][0]["args"]
    assert args[args.index("--maxmemory-policy") + 1] == "noeviction"


def test_streams_pass_the_ingress_at_once_and_for_long() -> None:
    (ingress,) = of_kind(rendered("overlays/production"), "Ingress")
    said = {name.rpartition("/")[2]: value for name, value in ingress["metadata"]["annotations"].items()}

    assert said["proxy-buffering"] == "off"
    assert int(said["proxy-read-timeout"]) >= 3600
    assert int(said["proxy-body-size"].removesuffix("m")) * 1024**2 >= Settings().max_archive_bytes


def test_runners_are_scaled_by_what_waits_in_their_pool() -> None:
    manifests = rendered("overlays/production")
    (scaled,) = of_kind(manifests, "ScaledObject")
    (key,) = of_kind(manifests, "TriggerAuthentication")
    (target,) = (
        m
        for m in of_kind(manifests, "Deployment")
        if m["metadata"]["name"] == scaled["spec"]["scaleTargetRef"]["name"]
    )

    assert "replicas" not in target["spec"]
    pool = target["spec"]["template"]["metadata"]["labels"]["runyard/pool"]
    assert {"name": "RUNYARD_POOL", "value": pool} in target["spec"]["template"]["spec"]["containers"][0][
        "env"
    ]
    fields = [trigger["metadata"]["valueLocation"] for trigger in scaled["spec"]["triggers"]]
    assert fields == [f'pools.#(name=="{pool}").{field}' for field in ("oldest_wait_seconds", "pending")]
    for trigger in scaled["spec"]["triggers"]:
        assert trigger["type"] == "metrics-api"
        assert trigger["authenticationRef"]["name"] == key["metadata"]["name"]
        assert trigger["metadata"]["url"] == "http://web.runyard.svc:8123/v2/workers"
    (reference,) = key["spec"]["secretTargetRef"]
    assert reference["key"] in GIVEN_BY_YOU[reference["name"]]


def test_a_sandbox_is_for_runners_and_builders_alone(tmp_path: Path) -> None:
    copied = tmp_path / "kubernetes"
    subprocess.run(["cp", "-r", FOLDER, copied], check=True)
    own = copied / "overlays" / "own"
    own.mkdir()
    own.joinpath("kustomization.yaml").write_text(
        yaml.safe_dump({"resources": ["../trial"], "components": ["../../components/sandbox"]})
    )

    manifests = render(own)

    for manifest in manifests:
        kubernetes_validate.validate(manifest, NEWEST, strict=True)
    sandboxed = {name for name, pod in pods(manifests) if pod["spec"].get("hostUsers") is False}
    assert sandboxed == {"runner", "builder"}
    for name, pod in pods(manifests):
        profile = pod["spec"]["containers"][0]["securityContext"].get("seccompProfile")
        assert (profile is not None) == (name in sandboxed)


def test_dashboard_and_alerts_come_as_config_maps_that_are_small_enough_to_be_applied() -> None:
    folder = FOLDER.parent / "grafana"

    found = {manifest["metadata"]["name"]: manifest for manifest in render(folder)}

    assert {name: list(manifest["data"]) for name, manifest in found.items()} == {
        "runyard-dashboard": ["runyard.json"],
        "runyard-alerts": ["alerts.yml"],
    }
    assert found["runyard-dashboard"]["metadata"]["labels"] == {"grafana_dashboard": "1"}
    for manifest in found.values():
        kubernetes_validate.validate(manifest, NEWEST, strict=True)
        ((name, content),) = manifest["data"].items()
        assert content == (folder / name).read_text()
        assert len(yaml.safe_dump(manifest)) < 256 * 1024, "`kubectl apply` keeps it whole in an annotation"
