"""docker-compose.yml, deploy/sandbox.yml and the chart, read by Docker Compose and Helm themselves."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from cryptography.fernet import Fernet

from cli.machine.procfile import PROJECT
from deploy import chart
from shared import __version__
from shared.settings import Settings
from tests.support import deploy_tools

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="Docker Compose is in a package for Linux on x86_64 only",
)
REQUIRED = {
    "POSTGRES_PASSWORD": "one",
    "REDIS_PASSWORD": "two",
    "RUNYARD_API_KEY": "three",
    "RUNYARD_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
}
SANDBOX = ("--file", "docker-compose.yml", "--file", "deploy/sandbox.yml")
NEWEST = kubernetes_validate.latest_version()
EVERYTHING = {
    "internalUrl": "http://web:8123",
    "gateway": {"enabled": True},
    "web": {"autoscaling": {"enabled": True}},
}
Manifest = dict[str, Any]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the files that Compose reads."""
    (tmp_path / "deploy").mkdir()
    for name in ("docker-compose.yml", "deploy/sandbox.yml", "deploy/seccomp.json", "deploy/Dockerfile"):
        shutil.copy(PROJECT / name, tmp_path / name)
    return tmp_path


def config(project: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [deploy_tools.compose(), *options, "config", "--format", "json"],
        cwd=project,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


def services(done: subprocess.CompletedProcess[str]) -> dict[str, Manifest]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["services"]


def test_compose_starts_without_a_file_and_passes_on_what_the_file_says(project: Path) -> None:
    refused = config(project)
    assert refused.returncode != 0
    assert "is missing a value: set it in .env" in refused.stderr

    assert services(config(project, **REQUIRED))["web"]["environment"]["RUNYARD_API_KEY"] == "three"

    written = {
        **REQUIRED,
        "RUNYARD_RUNNER_SLOTS": "7",
        "RUNYARD_DEV_DEPLOYMENT": "open",
        "DATABASE_URL": "no",
    }
    (project / ".env").write_text("".join(f"{name}={value}\n" for name, value in written.items()))
    found = services(config(project))

    given = found["runner"]["environment"]
    settings = Settings.from_env(given)
    assert settings.runner_slots == 7
    assert settings.database_url == "postgresql://runyard:one@postgres:5432/runyard"
    assert settings.internal_url == "http://web:8123"
    assert (given["RUNYARD_DEV_DEPLOYMENT"], given["POSTGRES_PASSWORD"]) == ("", "")
    assert not Settings.from_env(found["beat"]["environment"]).encryption_keys


def test_compose_gives_user_code_level_1_and_with_the_sandbox_level_2(project: Path) -> None:
    found = services(config(project, **REQUIRED))
    sandboxed = services(config(project, *SANDBOX, **REQUIRED))

    for name in ("runner", "builder"):
        assert (found[name]["user"], found[name]["cap_drop"]) == ("0:0", ["ALL"])
        assert "SYS_PTRACE" in found[name]["cap_add"]
        own = sandboxed[name]
        assert (own["user"], own.get("cap_add")) == ("10001:10001", None)
        assert own["security_opt"] == [
            "no-new-privileges:true", "seccomp=deploy/seccomp.json", "apparmor=unconfined", "systempaths=unconfined",
        ]  # fmt: skip
        assert [volume["source"] for volume in own["volumes"]] == ["sandboxed"]
        assert own["environment"]["RUNYARD_ISOLATION"] == "require"
    assert found["web"] == sandboxed["web"]


def test_helm_renders_what_kustomize_renders() -> None:
    rendered = deploy_tools.render_chart(chart.CHART, EVERYTHING)

    assert _by_name(_as_kustomize(rendered)) == _by_name(_without_annotations(chart.manifests()))
    assert deploy_tools.lint_chart(chart.CHART)["errors"] == []


def test_values_of_the_chart_are_where_they_belong() -> None:
    values = {
        "image": {"repository": "here/runyard", "tag": "7"},
        "secret": "own",
        "host": "agents.example",
        "url": "https://agents.example",
        "settings": {"RUNYARD_DRAIN_SECONDS": "20"},
        "networks": {"postgres": ["10.1.0.0/16", "10.2.0.0/16"]},
        "ingress": {"class": "traefik", "tlsSecret": "tls"},
        "backup": {"enabled": False},
        "web": {"replicas": 4},
        "runner": {"resources": {"limits": {"memory": "9Gi"}}},
    }

    rendered = deploy_tools.render_chart(chart.CHART, values)

    for manifest in rendered:
        kubernetes_validate.validate(manifest, NEWEST, strict=True)
    found = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in rendered}
    assert not {"CronJob", "PersistentVolumeClaim", "HTTPRoute", "HorizontalPodAutoscaler"} & {
        kind for kind, _ in found
    }
    data = found["ConfigMap", "runyard"]["data"]
    assert Settings.from_env(data).drain_seconds == 20
    assert Settings.from_env(data).internal_url == data["RUNYARD_URL"] == "https://agents.example"
    web, runner = (found["Deployment", name]["spec"] for name in ("web", "runner-default"))
    assert (web["replicas"], runner["replicas"]) == (4, 2)
    (container,) = runner["template"]["spec"]["containers"]
    assert (container["image"], container["resources"]) == ("here/runyard:7", {"limits": {"memory": "9Gi"}})
    secrets = [
        variable["valueFrom"]["secretKeyRef"]["name"]
        for variable in container["env"]
        if "valueFrom" in variable
    ]
    assert set(secrets) == {"own"}
    (rule,) = found["NetworkPolicy", "use-postgres"]["spec"]["egress"]
    assert [peer["ipBlock"]["cidr"] for peer in rule["to"]] == ["10.1.0.0/16", "10.2.0.0/16"]
    ingress = found["Ingress", "web"]["spec"]
    assert (ingress["ingressClassName"], ingress["rules"][0]["host"]) == ("traefik", "agents.example")
    assert ingress["tls"] == [{"hosts": ["agents.example"], "secretName": "tls"}]


def _by_name(manifests: list[Manifest]) -> dict[tuple[str, str], Manifest]:
    return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests}


def _without_annotations(manifests: list[Manifest]) -> list[Manifest]:
    """Manifests of kustomize, but for what Helm does its own way: names with a digest, a Job that is replaced."""
    for manifest in manifests:
        if manifest["kind"] == "ConfigMap":
            manifest["metadata"]["name"] = "runyard"
        if manifest["kind"] == "Job":
            del manifest["metadata"]["annotations"]
        for container in _containers(manifest):
            for source in container.get("envFrom", ()):
                source["configMapRef"]["name"] = "runyard"
    return manifests


def _as_kustomize(manifests: list[Manifest]) -> list[Manifest]:
    """Manifests of Helm with the names of kustomize."""
    for manifest in manifests:
        if manifest["kind"] == "ConfigMap":
            assert manifest["data"].pop("RUNYARD_URL") == "https://runyard.example.com"
        if manifest["kind"] == "Job":
            assert manifest["metadata"]["name"] == "release-1"
            manifest["metadata"]["name"] = "release"
        for container in _containers(manifest):
            assert container["image"] == f"registry.example.com/runyard:{__version__}"
            container["image"] = "runyard"
        for pod in _templates(manifest):
            assert pod["metadata"].pop("annotations").keys() == {"checksum/settings"}
    return manifests


def _templates(manifest: Manifest) -> list[Manifest]:
    spec = manifest.get("spec", {})
    spec = spec["jobTemplate"]["spec"] if "jobTemplate" in spec else spec
    return [spec["template"]] if "template" in spec else []


def _containers(manifest: Manifest) -> list[Manifest]:
    return [
        container
        for pod in _templates(manifest)
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
    ]
