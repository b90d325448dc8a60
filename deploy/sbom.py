"""Print the service's CycloneDX SBOM: `python -m deploy.sbom > runyard.cdx.json`, `make sbom`.

The components are the packages pinned in requirements.lock with their allowed digests, and the JavaScript libraries of
the console and the API page. The base image and its Debian packages are not included; they publish their own.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shared import __version__

PROJECT = Path(__file__).parents[1]
LOCK = PROJECT / "requirements.lock"
CONSOLE = PROJECT / "web" / "static" / "vendor" / "manifest.json"
DOCS_PAGE = PROJECT / "web" / "static" / "rapidoc-min.js"
PINNED = re.compile(
    r"^(?P<name>[\w.-]+)(?:\[[\w,-]+\])?==(?P<version>[^\s;\\]+)(?: ; (?P<marker>[^\\]+?))? \\$"
)
DIGEST = re.compile(r"--hash=sha256:([0-9a-f]{64})")
LONGEST_NAME = 60  # a longer field is the text of a license

Component = dict[str, Any]


def document() -> dict[str, Any]:
    """Return the SBOM. The same lock files produce the same document."""
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": service()},
        "components": [*packages(), *libraries()],
    }


def service() -> Component:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    reference = f"pkg:pypi/{project['name']}@{__version__}"
    return {
        "type": "application",
        "bom-ref": reference,
        "name": project["name"],
        "version": __version__,
        "description": project["description"],
        "purl": reference,
    }


def packages() -> Iterator[Component]:
    """Yield the Python packages of the lock file. A package with a marker is installed only where the marker holds."""
    for entry in re.split(r"\n(?=\S)", LOCK.read_text()):
        line = entry.partition("\n")[0]
        found = PINNED.match(line)
        if found is None:
            raise ValueError(f"{LOCK.name}: not a pinned package: {line!r}")
        marker = found["marker"]
        yield {
            **_component("pypi", found["name"], found["version"]),
            "hashes": [{"alg": "SHA-256", "content": digest} for digest in DIGEST.findall(entry)],
            **_license_of(found["name"]),
            **({"properties": [{"name": "runyard:marker", "value": marker}]} if marker else {}),
        }


def libraries() -> Iterator[Component]:
    """Yield the JavaScript libraries of the console and the API page: one file each, with its digest as served."""
    yield {
        **_component("npm", "rapidoc", DOCS_PAGE.read_text().split(maxsplit=3)[2], file=DOCS_PAGE.name),
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(DOCS_PAGE.read_bytes()).hexdigest()}],
        **_licenses("MIT"),
    }
    for library in json.loads(CONSOLE.read_text()):
        yield {
            **_component("npm", library["package"], library["version"], file=library["file"]),
            "hashes": [{"alg": "SHA-256", "content": library["sha256"]}],
            **_licenses(library["license"]),
        }


def _component(kind: str, name: str, version: str, *, file: str = "") -> Component:
    address = f"pkg:{kind}/{quote(name, safe='/')}@{version}"
    return {
        "type": "library",
        "bom-ref": f"{address}#{file}" if file else address,
        "name": name,
        "version": version,
        "purl": address,
    }


def _licenses(expression: str | None) -> Component:
    return {"licenses": [{"expression": expression}]} if expression else {}


def _license_of(name: str) -> Component:
    """Return the license that the installed package declares. Empty if unknown or if the package is not installed."""
    try:
        said = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return {}
    if "License-Expression" in said:
        return _licenses(said["License-Expression"])
    if "License" in said and len(said["License"]) <= LONGEST_NAME:
        return {"licenses": [{"license": {"name": said["License"]}}]}
    return {}


if __name__ == "__main__":
    json.dump(document(), sys.stdout, indent=1)
    sys.stdout.write("\n")
