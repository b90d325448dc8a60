"""`deploy/Dockerfile` and `.dockerignore` agree with the repository and the settings. No image is built here."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib

import pytest
import yaml

from cli.machine.procfile import PROJECT, read
from deploy import sbom
from shared import __version__
from shared.settings import VARIABLES, Settings
from tests.support import dockerfile

ARGUMENTS, STAGES = dockerfile.read(PROJECT / "deploy" / "Dockerfile")
BUILD, FINAL = STAGES
IGNORED = (PROJECT / ".dockerignore").read_text().splitlines()
COPIED = [source for source, _ in BUILD.copied]
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
WHEEL = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]


def test_both_stages_have_one_base_with_pythons_that_the_service_supports() -> None:
    assert [stage.base for stage in STAGES] == ["${BASE}", "${BASE}"]
    assert ARGUMENTS["BASE"].startswith("python:3.")

    [own] = re.findall(r"python:(3\.\d+)", ARGUMENTS["BASE"])
    versions = [own, *BUILD.variables["PYTHONS"].split()]

    oldest = PYPROJECT["project"]["requires-python"].removeprefix(">=")
    assert all(int(version.partition(".")[2]) >= int(oldest.partition(".")[2]) for version in versions)
    assert len(versions) == len(set(versions)) > 2


@pytest.mark.parametrize("source", COPIED)
def test_what_it_copies_is_there_and_is_let_through(source: str) -> None:
    assert (PROJECT / source).exists()
    assert dockerfile.lets_through(IGNORED, source)


def test_it_copies_all_that_the_wheel_is_made_of() -> None:
    project = PYPROJECT["project"]
    needed = {*WHEEL["only-include"], *WHEEL["force-include"], project["readme"], *project["license-files"]}

    lacking = {
        name
        for name in needed
        if not any(name == source or name.startswith(f"{source}/") for source in COPIED)
    }
    assert lacking == set()


@pytest.mark.parametrize(
    "path",
    [
        ".env", ".git/config", ".runyard/admin.key", ".venv/bin/python", ".cache/uv/x", "dist/x.whl", "tests/conftest.py",
        "examples/chat/.env", "examples/chat/.env.local", "examples/chat/.runyard/admin.key",
        "shared/__pycache__/errors.pyc", "web/vendoring/package.json", "docker-compose.yml", "deploy/sbom.py",
    ],
)  # fmt: skip
def test_it_is_sent_no_key_and_nothing_that_it_does_not_need(path: str) -> None:
    assert not dockerfile.lets_through(IGNORED, path)


def test_whatever_it_installs_has_a_digest() -> None:
    installing = [
        step.text for step in BUILD.all("RUN") if re.search(r"pip (install|sync)|uv build", step.text)
    ]

    assert len(installing) == 4
    for text in installing:
        assert "--require-hashes" in text or text.endswith("--no-deps /src/dist/*.whl")
    assert not [step.text for step in FINAL.all("RUN") if "pip" in step.text]


def test_it_has_the_exporter_of_traces_and_the_client_programs_of_the_postgresql_that_compose_starts() -> (
    None
):
    locked = set(re.findall(r"^([\w.-]+)(?:\[.*?\])?==", sbom.LOCK.read_text(), re.MULTILINE))
    extra = {re.split("[><=]", name)[0] for name in PYPROJECT["project"]["optional-dependencies"]["otel"]}
    assert extra <= locked

    server = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())["services"]["postgres"]["image"]
    [install] = [step.text for step in FINAL.all("RUN") if "apt-get" in step.text]
    assert "postgresql-client-${POSTGRES}" in install
    assert re.search(rf":(pg)?{FINAL.variables['POSTGRES']}\b", server)


def test_it_is_no_root_and_can_only_write_its_data() -> None:
    data_dir = FINAL.variables["RUNYARD_DATA_DIR"]
    [user] = FINAL.all("USER")
    uid, gid = user.text.split(":")

    assert int(uid) > 0
    assert int(gid) > 0
    assert f"install -d -o {uid} -g {gid} -m 0700 {data_dir}" in [step.text for step in FINAL.all("RUN")]
    assert FINAL.all("VOLUME")[0].text == data_dir
    after = FINAL.instructions[FINAL.instructions.index(user) :]
    assert not {step.word for step in after} & {"RUN", "COPY", "ADD"}


def test_its_variables_programs_and_command_are_those_of_the_service() -> None:
    own = {name: value for name, value in FINAL.variables.items() if name.startswith("RUNYARD_")}

    assert set(own) <= set(VARIABLES.values())
    settings = Settings.from_env(own)
    assert (settings.listen_host, str(settings.data_dir)) == ("0.0.0.0", "/var/lib/runyard")
    assert FINAL.all("EXPOSE")[0].text == str(settings.port)

    places = FINAL.variables["PATH"].split(":")

    assert places[0] == "/opt/runyard/bin"
    assert "UV_PYTHON_BIN_DIR=/opt/pythons/bin" in "".join(step.text for step in BUILD.all("RUN"))
    assert "/opt/pythons/bin" in places
    assert ("COPY", "--from=build /opt /opt") in [(step.word, step.text) for step in FINAL.instructions]

    [command], [health] = FINAL.all("CMD"), FINAL.all("HEALTHCHECK")

    assert command.text == '["runyard", "process", "web"]'
    assert health.text.endswith('CMD ["runyard", "health", "web"]')
    assert "web" in {line.name for line in read()}


# The SBOM: each package of the lock file and each library of the console, with its digest


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

    libraries = [part for ref, part in PARTS.items() if ref.startswith("pkg:npm/")]
    digests = {part["hashes"][0]["content"] for part in libraries}
    assert digests == {hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    notice = (PROJECT / "NOTICE").read_text()
    entries = dict(re.findall(r"^  (\S+ \S+) \((.+)\)\n(?:    .+\n)*?    Copyright", notice, re.MULTILINE))
    licenses = {
        f"{part['name']} {part['version']}": part["licenses"][0]["expression"].strip("()")
        for part in libraries
    }
    assert entries.keys() == licenses.keys()
    assert all(entries[name].startswith(expression) for name, expression in licenses.items())
    texts = re.findall(r"web/static/\S+\.txt", notice)
    assert set(texts) == {
        str(file.relative_to(PROJECT)) for file in (PROJECT / "web" / "static").rglob("*LICENSE.txt")
    }


def test_the_licence_is_apache_2_0_unchanged() -> None:
    text = (PROJECT / "LICENSE").read_bytes()

    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    # The digest of https://www.apache.org/licenses/LICENSE-2.0.txt
    assert (
        hashlib.sha256(text).hexdigest() == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    )


def test_a_package_for_other_machines_says_so_and_one_that_is_here_its_license() -> None:
    markers = {
        part["name"]: part["properties"][0]["value"] for part in PARTS.values() if "properties" in part
    }

    assert "win32" in markers["colorama"]
    [flask] = [part for part in PARTS.values() if part["name"] == "flask"]
    assert flask["licenses"] == [{"expression": "BSD-3-Clause"}]
