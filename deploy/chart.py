"""Writes the templates of the Helm chart in deploy/helm from the manifests in deploy/kubernetes: `make chart`.

The chart has the kustomize base, the policies of overlays/production and the components below. Expressions take the place
of what deploy/helm/values.yaml names; that file is written by hand.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from shared import __version__

MANIFESTS = Path(__file__).parent / "kubernetes"
CHART = Path(__file__).parent / "helm"
KUBECTL = Path(sys.executable).with_name("kubectl")
COMPONENTS = ("backup", "gateway", "ingress", "internal", "web-autoscaling")
SECTIONS = {"runner-default": "runner"}  # of the values, where it is not the workload's name
SWITCHES = {  # by kind and name: the value without which a manifest is left out
    ("Ingress", "web"): "ingress.enabled",
    ("HTTPRoute", "web"): "gateway.enabled",
    ("CronJob", "backup"): "backup.enabled",
    ("PersistentVolumeClaim", "backups"): "backup.enabled",
    ("HorizontalPodAutoscaler", "web"): "web.autoscaling.enabled",
    ("NetworkPolicy", "runner-to-web"): "internalUrl",
    ("NetworkPolicy", "use-web"): "internalUrl",
}
ABOUT = f"""\
apiVersion: v2
name: runyard
description: A self-hosted platform that builds, serves and runs agent graphs.
type: application
version: {__version__}
appVersion: {__version__}
kubeVersion: ">=1.33.0-0"
"""
WRITTEN_BY = "# Written by `make chart` from deploy/kubernetes.\n"
IMAGE = '"{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"'
SETTINGS = """\
  {{- $urls := dict "RUNYARD_URL" .Values.url "RUNYARD_INTERNAL_URL" .Values.internalUrl }}
  {{- range $name, $value := mergeOverwrite (fromJson `%s`) $urls .Values.settings }}
  {{ $name }}: {{ $value | toString | toJson }}
  {{- end }}
"""
Manifest = dict[str, Any]


def manifests() -> list[Manifest]:
    """Return what `kubectl kustomize` renders: the base, the policies of overlays/production and the components."""
    with tempfile.TemporaryDirectory() as place:
        copied = Path(shutil.copytree(MANIFESTS, Path(place) / "kubernetes"))
        own = copied / "chart"
        own.mkdir()
        shutil.copy(copied / "overlays" / "production" / "network.yaml", own)
        components = [f"../components/{name}" for name in COMPONENTS]
        described = {"resources": ["../base", "network.yaml"], "components": components}
        own.joinpath("kustomization.yaml").write_text(yaml.safe_dump(described))
        done = subprocess.run([KUBECTL, "kustomize", own], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return list(yaml.safe_load_all(done.stdout))


def files() -> dict[str, str]:
    """The text of each generated file by its path in the chart."""
    templates: dict[str, list[str]] = {}
    for manifest in manifests():
        name = f"templates/{manifest['kind'].lower()}.yaml"
        templates.setdefault(name, []).append(_Template(manifest).text())
    return {"Chart.yaml": WRITTEN_BY + ABOUT} | {
        name: WRITTEN_BY + "---\n".join(parts) for name, parts in templates.items()
    }


class _Template:
    """One manifest. Marks stand for expressions until it is YAML, which would quote the expressions."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._expressions: list[str] = []

    def text(self) -> str:
        kind, name = self._manifest["kind"], self._manifest["metadata"]["name"]
        fill = getattr(self, f"_fill_{kind.lower()}", None)
        if fill is not None:
            fill(self._manifest.get("spec", {}))
        for process, pod in self._pods():
            self._fill_pod(process, pod)
        text = yaml.safe_dump(self._manifest, sort_keys=False, width=1000)
        for number, expression in enumerate(self._expressions):
            text = text.replace(f"MARK{number:03}: null", expression).replace(f"MARK{number:03}", expression)
        switch = SWITCHES.get((kind, name))
        return text if switch is None else f"{{{{- if .Values.{switch} }}}}\n{text}{{{{- end }}}}\n"

    def _mark(self, expression: str) -> str:
        self._expressions.append(expression)
        return f"MARK{len(self._expressions) - 1:03}"

    def _value(self, path: str) -> str:
        return self._mark(f"{{{{ toJson .Values.{path} }}}}")

    def _lines_first(self, spec: Manifest, lines: str) -> None:
        """Put lines at the beginning of a mapping."""
        rest = dict(spec)
        spec.clear()
        spec.update({self._mark(lines): None, **rest})

    def _fill_configmap(self, _: Manifest) -> None:
        self._manifest["metadata"]["name"] = "runyard"
        data = json.dumps({key: value for key, value in self._manifest["data"].items() if "URL" not in key})
        self._manifest["data"] = {self._mark(SETTINGS.strip() % data): None}

    def _fill_deployment(self, spec: Manifest) -> None:
        name = self._manifest["metadata"]["name"]
        section = SECTIONS.get(name, name)
        if section == "web":
            self._lines_first(
                spec,
                "{{- if not .Values.web.autoscaling.enabled }}\n"
                "  replicas: {{ .Values.web.replicas }}\n  {{- end }}",
            )
        elif section != "beat":  # which is one process
            spec["replicas"] = self._value(f"{section}.replicas")

    def _fill_job(self, _: Manifest) -> None:
        # A Job cannot be changed: each revision of the release has its own, and Helm deletes the one before.
        metadata = self._manifest["metadata"]
        metadata["name"] = self._mark(f"{metadata['name']}-{{{{ .Release.Revision }}}}")
        del metadata["annotations"]

    def _fill_cronjob(self, spec: Manifest) -> None:
        spec["schedule"] = self._value("backup.schedule")

    def _fill_persistentvolumeclaim(self, spec: Manifest) -> None:
        spec["resources"]["requests"]["storage"] = self._value("backup.storage")

    def _fill_horizontalpodautoscaler(self, spec: Manifest) -> None:
        for name in ("minReplicas", "maxReplicas"):
            spec[name] = self._value(f"web.autoscaling.{name}")

    def _fill_ingress(self, spec: Manifest) -> None:
        spec["rules"][0]["host"] = host = self._value("host")
        spec["tls"] = [{"hosts": [host], "secretName": self._value("ingress.tlsSecret")}]
        self._lines_first(
            spec,
            "{{- with .Values.ingress.class }}\n  ingressClassName: {{ toJson . }}\n  {{- end }}",
        )

    def _fill_httproute(self, spec: Manifest) -> None:
        spec["hostnames"] = [self._value("host")]
        spec["parentRefs"] = [{key: self._value(f"gateway.{key}") for key in ("name", "namespace")}]

    def _fill_networkpolicy(self, spec: Manifest) -> None:
        name = self._manifest["metadata"]["name"]
        if name in ("use-postgres", "use-redis"):
            networks = f".Values.networks.{name.removeprefix('use-')}"
            spec["egress"][0]["to"] = self._mark(
                f"[{{{{ range {networks} }}}}{{ipBlock: {{cidr: {{{{ toJson . }}}}}}}}, {{{{ end }}}}]"
            )

    def _pods(self) -> Iterator[tuple[str, Manifest]]:
        spec: Manifest = self._manifest.get("spec", {})
        name: str = self._manifest["metadata"]["name"]
        if self._manifest["kind"] == "CronJob":
            yield "backup", spec["jobTemplate"]["spec"]["template"]
        elif self._manifest["kind"] == "Job":
            yield "release", spec["template"]
        elif self._manifest["kind"] == "Deployment":
            yield SECTIONS.get(name, name), spec["template"]

    def _fill_pod(self, process: str, pod: Manifest) -> None:
        changing = "{{ list .Values.url .Values.internalUrl .Values.settings | toJson | sha256sum }}"
        pod["metadata"]["annotations"] = {
            "checksum/settings": self._mark(changing)
        }  # a change starts the pod anew
        main, *others = (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
        for container in (main, *others):
            container["image"] = self._mark(IMAGE)
            for source in container.get("envFrom", ()):
                source["configMapRef"]["name"] = "runyard"
            for variable in container["env"]:
                if "valueFrom" in variable:
                    variable["valueFrom"]["secretKeyRef"]["name"] = self._value("secret")
        default = json.dumps(main["resources"])
        main["resources"] = self._mark(
            f"{{{{ toJson (.Values.{process}.resources | default (fromJson `{default}`)) }}}}"
        )


def main() -> None:
    shutil.rmtree(CHART / "templates", ignore_errors=True)
    (CHART / "templates").mkdir(parents=True)
    for name, text in files().items():
        (CHART / name).write_text(text)


if __name__ == "__main__":
    main()
