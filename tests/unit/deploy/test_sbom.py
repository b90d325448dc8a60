"""The list of parts: each package of the lock file and each library of the console, with its digest."""

from __future__ import annotations

import hashlib
import json
import re

from deploy import sbom
from shared import __version__

DOCUMENT = sbom.document()
PARTS = {part["bom-ref"]: part for part in DOCUMENT["components"]}


def test_it_is_a_document_of_cyclonedx_about_this_release() -> None:
    assert (DOCUMENT["bomFormat"], DOCUMENT["specVersion"], DOCUMENT["version"]) == ("CycloneDX", "1.5", 1)
    assert DOCUMENT["metadata"]["component"]["purl"] == f"pkg:pypi/runyard@{__version__}"
    assert len(PARTS) == len(DOCUMENT["components"])
    for part in PARTS.values():
        assert {"type", "bom-ref", "name", "version", "purl", "hashes"} <= part.keys()
        assert all(re.fullmatch("[0-9a-f]{64}", digest["content"]) for digest in part["hashes"])
        assert part["hashes"]


def test_every_package_of_the_lock_file_is_in_it() -> None:
    locked = re.findall(r"^([\w.-]+)(?:\[.*?\])?==([^\s;]+)", sbom.LOCK.read_text(), re.MULTILINE)

    packages = {ref for ref in PARTS if ref.startswith("pkg:pypi/")}
    assert packages == {f"pkg:pypi/{name}@{version}" for name, version in locked}
    digests = sum(len(PARTS[ref]["hashes"]) for ref in packages)
    assert digests == sbom.LOCK.read_text().count("--hash=")


def test_every_library_that_is_sent_to_browsers_is_in_it_as_it_is_sent() -> None:
    files = [
        sbom.DOCS_PAGE,
        *(sbom.CONSOLE.parent / found["file"] for found in json.loads(sbom.CONSOLE.read_text())),
    ]

    digests = {part["hashes"][0]["content"] for ref, part in PARTS.items() if ref.startswith("pkg:npm/")}
    assert digests == {hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_a_package_for_other_machines_says_so_and_one_that_is_here_its_license() -> None:
    markers = {
        part["name"]: part["properties"][0]["value"] for part in PARTS.values() if "properties" in part
    }

    assert "win32" in markers["colorama"]
    [flask] = [part for part in PARTS.values() if part["name"] == "flask"]
    assert flask["licenses"] == [{"expression": "BSD-3-Clause"}]
