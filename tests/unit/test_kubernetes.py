"""deploy/kubernetes agrees with the Procfile and the settings, and is valid by Kubernetes' schemas.

The manifests are read as `kubectl kustomize` renders them. The suite runs no cluster.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from cli.machine import health
from cli.machine.procfile import WITHHELD, read
from deploy import chart
from shared.settings import VARIABLES, Settings
from workers.isolation import bubblewrap

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
KUBECTL = Path(sys.executable).with_name("kubectl")
NEWEST = kubernetes_validate.latest_version()
OVERLAYS = ("overlays/trial", "overlays/production")
WITHOUT_SCHEMA = ("keda.sh", "gateway.networking.k8s.io")  # resources that others define
RENDERED = ("base", "pools/gpu", *OVERLAYS)
PROCESSES = {line.name for line in read()}
DRAINING = {"web", "runner", "builder"}
USES = {  # server → processes that connect to it
    "postgres": {"release", "web", "runner", "builder", "backup"},
    "redis": {"web", "runner", "builder", "beat"},
    "internet": {"web", "runner", "builder"},
}
PORTS = {"postgres": 5432, "redis": 6379}
GIVEN_BY_YOU = {  # keys of the Secrets that the reader of docs/operating/kubernetes.md creates
    "runyard": {
        "DATABASE_URL", "REDIS_URL", "RUNYARD_API_KEY", "RUNYARD_ENCRYPTION_KEYS", "POSTGRES_PASSWORD", "REDIS_PASSWORD",
        "DATABASE_READ_URL", "DATABASE_DIRECT_URL", "REDIS_BROKER_URL", "REDIS_EVENTS_URL",
    },
    "runyard-scaler": {"api-key"},
}  # fmt: skip
OPTIONAL = {  # keys that may be missing, and who uses them
    "DATABASE_READ_URL": {"web"},
    "DATABASE_DIRECT_URL": {"release", "backup", "runner", "builder"},
    "REDIS_BROKER_URL": {"web", "runner", "builder", "beat"},
    "REDIS_EVENTS_URL": {"web", "runner", "builder"},
}
Manifest = dict[str, Any]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="kubectl has a wheel for Linux only",
)


@cache
def rendered(folder: str) -> list[Manifest]:
    return render(FOLDER / folder)


@cache
def with_components(*names: str, base: str = "overlays/production") -> list[Manifest]:
    """An overlay of somebody's own: one of ours, and components."""
    with tempfile.TemporaryDirectory() as place:
        copied = Path(shutil.copytree(FOLDER, Path(place) / "kubernetes"))
        own = copied / "own"
        own.mkdir()
        components = [f"../components/{name}" for name in names]
        own.joinpath("kustomization.yaml").write_text(
            yaml.safe_dump({"resources": [f"../{base}"], "components": components})
        )
        return render(own)


def render(folder: Path) -> list[Manifest]:
    done = subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Yield `(component, pod template)` of every Deployment, StatefulSet, Job and CronJob."""
    for manifest in of_kind(manifests, "Deployment", "StatefulSet", "Job", "CronJob"):
        spec = manifest["spec"]
        template = spec["jobTemplate"]["spec"]["template"] if "jobTemplate" in spec else spec["template"]
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
    checked = [m for m in rendered(folder) if not m["apiVersion"].startswith(WITHOUT_SCHEMA)]

    assert checked
    for manifest in checked:
        kubernetes_validate.validate(manifest, NEWEST, strict=True)


# Reads the schemas of all kinds, 1 MB, once and not for each manifest.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)


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
        assert names & set(OPTIONAL) == {name for name, users in OPTIONAL.items() if process in users}
        assert ("DATABASE_URL" in names) == (process in USES["postgres"])
        assert ("REDIS_URL" in names) == (process in USES["redis"])
        assert container["envFrom"] == [{"configMapRef": {"name": configuration["metadata"]["name"]}}]

    docs = (FOLDER.parents[1] / "docs" / "operating" / "kubernetes.md").read_text()

    assert not of_kind(manifests, "Secret")
    for _, pod in pods(manifests):
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
            for variable in container.get("env", ()):
                reference = variable.get("valueFrom", {}).get("secretKeyRef")
                if reference is not None:
                    assert reference["key"] in GIVEN_BY_YOU[reference["name"]]
                    assert reference.get("optional", False) == (reference["key"] in OPTIONAL)
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
        is_waiting = process in USES["postgres"] - {"release", "backup"}
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
        kept = [volume["name"] for volume in spec.get("volumes", ()) if "emptyDir" not in volume]
        assert kept == (["backups"] if process == "backup" else [])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_find_what_they_are_for_and_web_takes_connections_of_labelled_namespaces(
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

    labelled = {"namespaceSelector": {"matchLabels": {"runyard/calls-web": "true"}}}
    own = [source for source in sources if source != labelled]
    assert len(sources) - len(own) == 1
    if overlay == "overlays/trial":  # with components/internal
        (source,) = own
        assert source["podSelector"]["matchExpressions"][0]["values"] == ["runner"]
    else:
        assert own == []


def allowed(manifests: list[Manifest], process: str) -> list[Manifest]:
    """Return the egress rules of the network policies that apply to pods of this process."""
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

    inside = {8123} if overlay == "overlays/trial" and process == "runner" else set()  # components/internal
    assert reached == {53, *inside, *(PORTS[server] for server in PORTS if process in USES[server])}
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


def test_streams_pass_the_ingress_or_the_gateway_at_once_and_for_long() -> None:
    (ingress,) = of_kind(rendered("overlays/production"), "Ingress")
    said = {name.rpartition("/")[2]: value for name, value in ingress["metadata"]["annotations"].items()}

    assert "ingressClassName" not in ingress["spec"]
    assert said["proxy-buffering"] == "False"
    assert int(said["proxy-read-timeout"].removesuffix("s")) >= 3600
    assert int(said["client-max-body-size"].removesuffix("m")) * 1024**2 >= Settings().max_archive_bytes

    (route,) = of_kind(with_components("authority", "gateway"), "HTTPRoute")
    (service,) = of_kind(rendered("base"), "Service")
    (rule,) = route["spec"]["rules"]

    assert route["apiVersion"] == "gateway.networking.k8s.io/v1"
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    assert rule["backendRefs"] == [
        {"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}
    ]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/"}}]


def test_a_backup_is_made_every_night_for_the_alert_and_web_is_scaled_by_processor() -> None:
    manifests = rendered("overlays/production")
    (backup,) = of_kind(manifests, "CronJob")
    (claim,) = of_kind(manifests, "PersistentVolumeClaim")
    pod = backup["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    minute, hour, *rest = backup["spec"]["schedule"].split()
    assert (minute.isdecimal(), hour.isdecimal(), rest) == (True, True, ["*", "*", "*"])
    command = container["args"][-1].partition(" && ")[0].split()
    assert command[:2] == ["runyard", "backup"]
    assert {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}[command[2]] == "backups"
    assert pod["volumes"][-1]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert "RunyardBackupOld" in (FOLDER.parent / "grafana" / "alerts.yml").read_text()

    (autoscaler,) = of_kind(manifests, "HorizontalPodAutoscaler")
    (web,) = (m for m in of_kind(manifests, "Deployment") if m["metadata"]["name"] == "web")
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == "web"
    assert "replicas" not in web["spec"]
    (budget,) = (m for m in of_kind(manifests, "PodDisruptionBudget") if m["metadata"]["name"] == "web")
    assert autoscaler["spec"]["minReplicas"] > budget["spec"]["maxUnavailable"]


def test_every_pod_of_ours_trusts_a_private_authority_with_its_component() -> None:
    for process, pod in pods(with_components("authority", "gateway")):
        spec = pod["spec"]
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            assert {"name": "authority", "mountPath": "/etc/ssl/runyard", "readOnly": True} in container[
                "volumeMounts"
            ], process
        variables = {variable["name"]: variable.get("value") for variable in spec["containers"][0]["env"]}
        assert variables["SSL_CERT_FILE"] == variables["REQUESTS_CA_BUNDLE"] == "/etc/ssl/runyard/ca.pem"
        assert {"name": "authority", "configMap": {"name": "runyard-authority"}} in spec["volumes"]
    assert any(Path("/etc/ssl/runyard").is_relative_to(shown) for shown in bubblewrap.ETC)


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


def test_a_sandbox_is_for_runners_and_builders_alone() -> None:
    manifests = with_components("sandbox", base="overlays/trial")

    for manifest in manifests:
        kubernetes_validate.validate(manifest, NEWEST, strict=True)
    sandboxed = {name for name, pod in pods(manifests) if pod["spec"].get("hostUsers") is False}
    assert sandboxed == {"runner", "builder"}
    for name, pod in pods(manifests):
        profile = pod["spec"]["containers"][0]["securityContext"].get("seccompProfile")
        assert (profile is not None) == (name in sandboxed)


def test_the_chart_is_generated_from_these_manifests_and_has_a_value_for_each_expression() -> None:
    files = chart.files()
    for name, text in files.items():
        assert (chart.CHART / name).read_text() == text, "run `make chart`"
    templates = {f"templates/{path.name}" for path in (chart.CHART / "templates").iterdir()}
    assert templates | {"Chart.yaml"} == set(files)

    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    expressions = set(re.findall(r"\.Values\.([\w.]+)", "".join(files.values())))

    assert expressions == set(_paths(values))


def _paths(values: Manifest, above: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _paths(value, f"{above}{name}.")
        else:
            yield f"{above}{name}"


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
