"""A revision's environment on one machine: it is created once and completely, and removed when no longer used.

The package installer and its processes are real. The graph host is not started here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import subprocess
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import gevent
import pytest
from sqlalchemy import text
from werkzeug import Response

from cli.machine.procfile import PROJECT
from shared.errors import BuildFailed
from shared.infra.postgres import connection
from shared.settings import Settings
from tests.support import factories
from tests.support.archived import keep
from tests.support.greened import World, greened
from tests.support.outside import certified, serving
from tests.support.waiting import wait_until
from workers.builder import environments, host_command, workspaces
from workers.builder.environments import Environment, Plan
from workers.builder.python import packages, toolchain
from workers.builder.python.installer import Installer
from workers.builder.python.requirements import Requirements
from workers.builder.steps import StepSandbox
from workers.isolation import sandbox

CONFIG = json.dumps(
    {"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}, "env": {"COLOUR": "red"}}
)
FILES = {"langgraph.json": CONFIG, "agent.py": "graph = None\n"}
NOTHING = "# no packages: these tests are about files\n"
DEPLOYMENT = uuid4()
# A build backend inside the project, so that no package needs to be downloaded.
BACKEND = (
    "[project]\nname = 'slow'\nversion = '1'\n"
    "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
)


def settings_for(world: World) -> Settings:
    found = Settings.from_env({**os.environ, "RUNYARD_DATA_DIR": str(world.tmp_path / "data")})
    return dataclasses.replace(found, cache_dir=PROJECT / ".cache")


def make(
    settings: Settings,
    revision_id: UUID,
    source: str | Plan,
    said: list[str] | None = None,
    *,
    deadline_seconds: float = 60,
    settled: Callable[[str], str | None] = lambda inputs: None,
) -> Environment:
    """Create the environment of an archive without dependencies, or of a plan."""
    lines = said if said is not None else []
    return environments.make(
        settings,
        revision_id,
        planned(source) if isinstance(source, str) else source,
        write_line=lambda level, message: lines.append(message),
        deadline_seconds=deadline_seconds,
        find_requirements=settled,
    )


def planned(digest: str, requirements: str | None = NOTHING) -> Plan:
    return Plan(deployment_id=DEPLOYMENT, digest=digest, config_path=None, requirements=requirements)


@greened
def test_it_is_made_once_even_by_several_and_nothing_of_a_dead_attempt_is_left(world: World) -> None:
    settings, revision_id, digest = settings_for(world), uuid4(), keep(FILES)
    workspace = workspaces.workspace_of(settings, revision_id)
    (workspace.project / "half").mkdir(parents=True)
    workspace.requirements.write_text("half")
    first: list[str] = []
    again: list[str] = []

    makers = [gevent.spawn(make, settings, revision_id, digest, first) for _ in range(3)]
    made, *others = (greenlet.get() for greenlet in makers)
    others.append(make(settings, revision_id, digest, again))

    assert first[:2] == ["fetching the source archive", "unpacked 2 files"]
    assert (first.count("fetching the source archive"), again) == (1, [])
    assert others == [made] * 3
    assert made.workspace == workspace
    assert workspace.python.exists()
    assert workspace.ready_marker.exists()
    assert (workspace.project / "agent.py").read_text() == FILES["agent.py"]
    assert not (workspace.project / "half").exists()
    assert not (workspace.root / "source.tar.gz").exists()
    assert workspace.requirements.read_text() == ""
    assert (made.requirements, made.packages) == (Requirements(), None)
    assert workspace.root.stat().st_mode & 0o777 == 0o700


@greened
def test_what_fails_or_takes_too_long_leaves_nothing(world: World) -> None:
    settings = settings_for(world)
    slow = {"pyproject.toml": BACKEND, "backend.py": "import time\ntime.sleep(300)\n"}
    for files, seconds, step in (
        ({"agent.py": ""}, 60, "configuration"),
        ({**FILES, "pyproject.toml": "[project]\nname = 7\n"}, 60, "install"),
        ({"../outside": "x"}, 60, "unpack"),
        ({**FILES, **slow}, 4, "time"),
    ):
        revision_id = uuid4()
        with pytest.raises(BuildFailed) as caught:
            make(settings, revision_id, keep(files), deadline_seconds=seconds)
        assert caught.value.step == step
        assert "\n" not in caught.value.message
        assert step != "time" or caught.value.message == "the build took more than 4 s"
        assert not workspaces.workspace_of(settings, revision_id).root.exists()


@greened
def test_a_damaged_archive_is_not_unpacked(world: World) -> None:
    settings, digest = settings_for(world), keep(FILES)
    with connection() as conn:
        conn.execute(text("UPDATE archive_chunk SET data = data || 'x'"))

    with pytest.raises(BuildFailed, match="the source archive is damaged"):
        make(settings, uuid4(), digest)
    with pytest.raises(BuildFailed, match="the source archive does not exist any longer"):
        make(settings, uuid4(), "0" * 64)


WHEEL = "iniconfig==2.1.0 --hash=sha256:9deba5723312380e77435581c6bf4935c94cbfab9b1ed33ef8d238ea168eb760"
WHERE = "import iniconfig; print(iniconfig.__file__)"
# A build backend in the project that tries to modify the shared packages and reports the outcome.
HARMFUL = """
import base64, hashlib, os, pathlib, zipfile
def get_requires_for_build_editable(config=None): return []
def build_editable(folder, config=None, metadata=None):
    tried = 0
    for place in PLACES:
        for path in (pathlib.Path(place), *pathlib.Path(place).rglob("*")):
            tried += path.suffix == ".py"
            try:
                (path / "harm.py").touch() if path.is_dir() else path.open("a").write("# harm")
            except OSError:
                pass
    name = "harmful-1-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as wheel:
        wheel.writestr("harmful.pth", os.getcwd())
        wheel.writestr("harmful_report.py", f"tried = {tried}")
        wheel.writestr("harmful-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: harmful\\nVersion: 1\\n")
        wheel.writestr("harmful-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr("harmful-1.dist-info/RECORD", "")
    return name
"""


@greened
def test_wheels_are_shared_and_nobody_s_code_can_change_them(world: World) -> None:
    settings = dataclasses.replace(settings_for(world), cache_dir=world.tmp_path / "cache")
    shared = settings.cache_dir / "shared"
    backend = HARMFUL.replace("PLACES", repr([str(shared / "uv"), str(shared / "packages"), str(shared)]))
    project = BACKEND.replace("slow", "harmful")
    digest = keep({**FILES, "pyproject.toml": project, "backend.py": backend})

    harmful, plain = (make(settings, uuid4(), planned(one, WHEEL)) for one in (digest, keep(FILES)))

    assert harmful.packages == plain.packages
    assert plain.packages is not None
    module = next(plain.packages.rglob("iniconfig/__init__.py"))
    assert module.stat().st_nlink > 1, "a link into the cache"
    wait_until(lambda: is_compiled(plain), what="bytecode made in the background")
    assert toolchain.is_compiled(toolchain.HERE, module.parent)
    assert not list((shared / "uv").rglob("*.pyc"))
    tried, where = said_by(
        harmful, "import harmful_report as h, iniconfig; print(h.tried, iniconfig.__file__)"
    ).split()
    assert where == str(module)
    assert int(tried) > 0, "it saw them"
    if sandbox.level(settings) == 2:
        assert not list(shared.rglob("harm.py"))
        assert not [path for path in shared.rglob("*.py") if "# harm" in path.read_text()]
        argv = host_command.host_command(settings, plain, {}).argv
        writable = [argv[at + 1] for at, word in enumerate(argv) if word == "--bind"]
        assert writable == [str(plain.workspace.home)]
    assert said_by(plain, WHERE).strip() == str(module)


def is_compiled(made: Environment) -> bool:
    assert made.packages is not None
    return (made.packages.parent / packages.COMPILED).exists()


@greened
def test_packages_are_compiled_by_the_next_user_if_a_process_died_meanwhile(world: World) -> None:
    settings = dataclasses.replace(settings_for(world), cache_dir=world.tmp_path / "cache")
    revision_id, plan = uuid4(), planned(keep(FILES), WHEEL)

    def die(*_: object) -> None:
        raise gevent.GreenletExit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packages, "try_locked", die)
        made = make(settings, revision_id, plan)

    assert made.packages is not None
    module = next(made.packages.rglob("iniconfig/__init__.py"))
    assert not is_compiled(made)
    assert not toolchain.is_compiled(toolchain.HERE, module.parent)

    make(settings, revision_id, plan)

    wait_until(lambda: is_compiled(made), what="bytecode made by the next user")
    assert toolchain.is_compiled(toolchain.HERE, module.parent)
    module.write_text("changed = True\n")
    assert not toolchain.is_compiled(toolchain.HERE, module.parent), "its bytecode is older"


@greened
def test_a_cache_that_has_moved_is_found_and_nothing_is_written_through_a_link_of_a_build_step(
    world: World,
) -> None:
    settings = dataclasses.replace(settings_for(world), cache_dir=world.tmp_path / "cache")
    revision_id, plan = uuid4(), planned(keep(FILES), WHEEL)

    def moved(name: str) -> Environment:
        nonlocal settings
        after = dataclasses.replace(settings, cache_dir=world.tmp_path / name)
        settings.cache_dir.rename(after.cache_dir)
        settings = after
        return make(settings, revision_id, plan)

    make(settings, revision_id, plan)
    made = moved("elsewhere")

    assert Path(said_by(made, WHERE)).is_relative_to(world.tmp_path / "elsewhere")

    theirs = world.tmp_path / "theirs"
    theirs.mkdir()
    site = made.workspace.env / "lib" / f"python{made.python_version}" / "site-packages"
    site.rename(site.with_name("kept"))
    site.symlink_to(theirs)
    made = moved("again")

    assert list(theirs.iterdir()) == []
    assert Path(said_by(made, WHERE)).is_relative_to(world.tmp_path / "again")


class Index:
    """A package index whose pages may be cached for ten minutes, like those of the public one."""

    def __init__(self) -> None:
        self.wheels: dict[str, bytes] = {}
        self.asked = 0

    def add(self, version: str) -> str:
        """Publish a version of the package `told`. Returns the requirement that pins it."""
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w") as wheel:
            wheel.writestr("told.py", f"version = {version!r}")
            wheel.writestr(
                f"told-{version}.dist-info/METADATA",
                f"Metadata-Version: 2.1\nName: told\nVersion: {version}\n",
            )
            wheel.writestr(f"told-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"told-{version}.dist-info/RECORD", "")
        self.wheels[f"told-{version}-py3-none-any.whl"] = held.getvalue()
        return f"told=={version} --hash=sha256:{hashlib.sha256(held.getvalue()).hexdigest()}"

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        name = environ["PATH_INFO"].rpartition("/")[2]
        if name:
            return Response(self.wheels[name])(environ, start_response)
        self.asked += 1
        links = "".join(f'<a href="/files/{name}">{name}</a>' for name in self.wheels)
        headers = {"Cache-Control": "max-age=600"}
        return Response(links, mimetype="text/html", headers=headers)(environ, start_response)


@greened
def test_a_version_published_a_moment_ago_is_found(world: World) -> None:
    index = Index()
    with serving(index) as port:
        settings = dataclasses.replace(
            settings_for(world),
            cache_dir=world.tmp_path / "cache",
            passed_on={"UV_DEFAULT_INDEX": f"http://127.0.0.1:{port}/"},
        )

        def made_of(requirements: str, said: list[str]) -> Environment:
            return make(settings, uuid4(), planned(keep(FILES), requirements), said)

        said: list[str] = []
        made_of(index.add("1"), [])
        newer = made_of(index.add("2"), said)
        assert said_by(newer, "import told; print(told.version)").strip() == "2"
        assert not [line for line in said if toolchain.UNSATISFIED in line], (
            "an error that was healed is not shown"
        )
        seen = index.asked
        with pytest.raises(BuildFailed, match="no version of told==3"):
            made_of(f"told==3 --hash=sha256:{'0' * 64}", said)
        assert index.asked == seen + 1
        assert len([line for line in said if toolchain.UNSATISFIED in line]) == 1

        wanted, output = world.tmp_path / "requirements.in", world.tmp_path / "pylock.toml"
        confined = StepSandbox(settings, folder=world.tmp_path, cache=settings.cache_dir / "own")
        installer = Installer(confined, toolchain.find_interpreter(settings, None))
        for version in ("2", "3"):
            index.add(version)
            wanted.write_text(f"told>={version}\n")
            installer.resolve([wanted], output, None, lambda *_: None)
            assert f'version = "{version}"' in output.read_text()


@greened
def test_an_index_that_a_private_authority_certifies_is_reached_from_the_sandbox(world: World) -> None:
    index = Index()
    authority, pair = certified(world.tmp_path)
    with serving(index, ssl=pair) as port:

        def made_with(requirements: str, **variables: str) -> Environment:
            settings = dataclasses.replace(
                settings_for(world),
                cache_dir=world.tmp_path / "cache",
                passed_on={"UV_DEFAULT_INDEX": f"https://localhost:{port}/", **variables},
            )
            return make(settings, uuid4(), planned(keep(FILES), requirements))

        with pytest.raises(BuildFailed, match="certificate"):
            made_with(index.add("1"))
        for version, name in (("2", "SSL_CERT_FILE"), ("3", "PIP_CERT")):
            made = made_with(index.add(version), **{name: authority})
            assert said_by(made, "import told; print(told.version)").strip() == version


def said_by(made: Environment, code: str) -> str:
    """Return the output of a program in the environment."""
    done = subprocess.run([made.workspace.python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


@greened
def test_shared_packages_go_when_nobody_has_used_them_for_a_day(world: World) -> None:
    settings = dataclasses.replace(settings_for(world), cache_dir=world.tmp_path / "cache")
    used, unused, young = (settings.cache_dir / "shared" / "packages" / name for name in ("a", "b", "c"))
    for folder in (used, unused, young):
        folder.mkdir(parents=True)
        (folder / "whole").touch()
    for folder in (used, unused):
        os.utime(folder / "whole", (0, 0))
    workspace = workspaces.workspace_of(settings, uuid4())
    workspace.root.mkdir(parents=True)
    workspace.packages.write_text("a")

    assert packages.remove_unused(settings) == 1

    assert sorted(path.name for path in used.parent.iterdir()) == ["a", "c"]


@greened
def test_shared_files_above_the_limit_go_unless_an_environment_uses_them(world: World) -> None:
    settings = dataclasses.replace(settings_for(world), cache_dir=world.tmp_path / "cache", cache_mb=1)
    shared = settings.cache_dir / "shared"
    used, older, old, young = (shared / "packages" / name for name in ("used", "older", "old", "young"))
    for folder, hours in ((used, 9), (older, 3), (old, 2), (young, 0)):
        folder.mkdir(parents=True)
        (folder / "content").write_bytes(bytes(300_000))
        (folder / "whole").touch()
        at = time.time() - hours * 3600
        os.utime(folder / "whole", (at, at))
    workspace = workspaces.workspace_of(settings, uuid4())
    workspace.root.mkdir(parents=True)
    workspace.packages.write_text("used")

    assert packages.remove_unused(settings) == 1

    assert {path.name for path in used.parent.iterdir()} == {"used", "old", "young"}

    for name in packages.DOWNLOADS:
        (shared / name).mkdir()
        (shared / name / "content").write_bytes(bytes(900_000))
    with workspaces.lock_shared(workspaces.Workspace(shared / "npm")):
        assert packages.remove_unused(settings) == 2

    assert {path.name for path in used.parent.iterdir()} == {"used", "young"}
    assert {path.name for path in shared.iterdir() if path.is_dir()} == {"npm", "packages"}, "npm is in use"


@greened
def test_an_installer_s_cache_goes_with_its_deployment_or_when_it_is_too_large(world: World) -> None:
    settings = settings_for(world)
    deployment, gone = factories.deployment().id, uuid4()
    for owner in (deployment, gone):
        packages.cache_of(settings, owner).mkdir(parents=True)
        (packages.cache_of(settings, owner) / "wheel").write_bytes(bytes(100_000))

    assert packages.remove_caches_of_deleted(settings) == 1
    assert [path.name for path in (settings.data_dir / "caches").iterdir()] == [str(deployment)]

    assert packages.remove_unused(settings) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packages, "MAX_CACHE_BYTES", 50_000)
        assert packages.remove_unused(settings) == 1
    assert not packages.cache_of(settings, deployment).exists()


LOCKED = """
version = 1
requires-python = ">=3.11"
[[package]]
name = "app"
version = "1"
source = { editable = "." }
dependencies = [{ name = "iniconfig" }]
[[package]]
name = "iniconfig"
version = "2.0.0"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://files.pythonhosted.org/packages/x/iniconfig-2.0.0-py3-none-any.whl", hash = "sha256:b6a85871a79d2e3b22d2d1b94ac2824226a63c6b741c88f7ae975f18b6778374" }]
"""


@greened
def test_a_uv_project_gets_what_its_lock_says(world: World) -> None:
    settings, said = settings_for(world), list[str]()
    config = {"graphs": {"agent": "./agent.py:graph"}, "source": {"kind": "uv"}}
    project = BACKEND.replace("slow", "app").replace(
        "version = '1'\n", "version = '1'\ndependencies = ['iniconfig']\n"
    )
    backend = HARMFUL.replace("PLACES", "[]").replace("harmful", "app")
    files = {
        "langgraph.json": json.dumps(config), "agent.py": "graph = None\n", "pyproject.toml": project,
        "backend.py": backend, "uv.lock": LOCKED,
    }  # fmt: skip
    plan = planned(keep(files), None)

    made = make(settings, uuid4(), plan, said)

    assert "reading uv.lock for app" in said
    assert isinstance(made.requirements, Requirements)
    pins = [line.split()[0] for line in made.requirements.wheels]
    assert "iniconfig==2.0.0" in pins
    assert any(pin.startswith("langgraph==") for pin in pins)
    assert str(made.workspace.project / "agent.py") in said_by(made, "import agent; print(agent.__file__)")


@greened
def test_what_was_settled_is_not_settled_again(world: World) -> None:
    settings, digest = settings_for(world), keep({**FILES, "requirements.txt": "iniconfig\n"})
    asked: list[str] = []

    def settled(inputs: str) -> str:
        asked.append(inputs)
        if len(asked) > 2:
            raise BuildFailed("requirements", "known")
        return WHEEL

    made = [make(settings, uuid4(), planned(digest, None), settled=settled) for _ in range(2)]

    assert [each.requirements for each in made] == [Requirements(wheels=(WHEEL,))] * 2
    assert asked == [made[0].inputs] * 2
    other = keep({**FILES, "agent.py": "graph = 1\n", "requirements.txt": "iniconfig\n"})
    more = keep({**FILES, "requirements.txt": "iniconfig>=2\n"})
    for archive in (other, more):
        with pytest.raises(BuildFailed, match="known"):
            make(settings, uuid4(), planned(archive, None), settled=settled)
    assert asked[2] == asked[0], "code alone asks for nothing else"
    assert asked[3] != asked[0]


@greened
def test_an_interpreter_that_is_not_here_is_missed_by_its_name(world: World) -> None:
    digest = keep({**FILES, "langgraph.json": CONFIG.replace("{", '{"python_version": "3.99", ', 1)})
    with pytest.raises(BuildFailed, match=r"python_version: 3\.99 is not installed on this server"):
        make(settings_for(world), uuid4(), digest)
