"""Shared sets of npm packages: which lock files may be shared, and that a set is installed once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

from shared.settings import Settings
from tests.support.archived import keep
from tests.support.greened import World, greened
from tests.support.node_project import CONFIG, make, planned, settings_for
from workers.builder import environments
from workers.builder.config.javascript import NodeProject
from workers.builder.environments import Environment
from workers.builder.node import modules, shared_sets
from workers.builder.node.resolved import Commands, Resolved
from workers.builder.node.runtime import Runtime
from workers.builder.python import packages
from workers.builder.workspaces import Workspace, workspace_of

LEAST = {
    "version": "1.0.0",
    "resolved": "https://registry.npmjs.org/p-finally/-/p-finally-1.0.0.tgz",
    "integrity": "sha512-LICb2p9CB7FS+0eR1oqWnHhp0FljGLZCWBE9aix0Uye9W8LTQPwMTYVGWQWIw9RdQiDg4+epXQODwIYJtSJaow==",
}
PLACE = "node_modules/p-finally"
PACKAGE: dict[str, Any] = {
    "name": "app",
    "version": "1.0.0",
    "type": "module",
    "dependencies": {"p-finally": "1.0.0"},
}
PROJECT = NodeProject(
    major=24,
    root=PurePosixPath(),
    manager="npm",
    manager_major=None,
    lock=PurePosixPath("package-lock.json"),
    variables=frozenset(),
)
NODE = Runtime("24.1.0", Path("/node"), Path("/node"), Path("/tools"))


def lock_of(places: dict[str, Any]) -> str:
    return json.dumps({"lockfileVersion": 3, "packages": {"": PACKAGE, **places}})


def shared_set(
    folder: Path, places: dict[str, Any], package: dict[str, Any] | None = None, **fields: Any
) -> shared_sets.SharedSet | None:
    folder.mkdir(exist_ok=True)
    (folder / "package.json").write_text(json.dumps({**PACKAGE, **(package or {})}))
    (folder / "package-lock.json").write_text(lock_of(places))
    resolved = Resolved(**{
        "node": "24.1.0", "manager": "npm", "manager_version": "11.0.0", "root": ".",
        "lock_name": "package-lock.json", "lock_digest": "", "lock": None, **fields,
    })  # fmt: skip
    return shared_sets.of_project(folder, PROJECT, resolved, NODE)


def test_a_set_is_shared_if_its_lock_file_determines_every_file(tmp_path: Path) -> None:
    whole = shared_set(tmp_path, {PLACE: LEAST})
    assert whole is not None
    nested = {f"{PLACE}/node_modules/@scope/other": LEAST}
    for places in (
        nested,
        {PLACE: {**LEAST, "resolved": shared_sets.PUBLIC_REGISTRY}},
        {PLACE: {"inBundle": True}},
    ):
        assert shared_set(tmp_path, places) is not None, places
    script = {**LEAST, "hasInstallScript": True}
    assert shared_set(tmp_path, {"node_modules/esbuild": script}) is not None, "it works without its script"
    assert shared_set(tmp_path, {"node_modules/esbuild": {**script, "name": "another"}}) is None
    for change in (
        {"integrity": "sha1-PcNFNCIPyXrRm7UYJVoCWdbmZDA="},
        {"integrity": f"{LEAST['integrity']} sha1-PcNFNCIPyXrRm7UYJVoCWdbmZDA="},
        {"integrity": None},
        {"hasInstallScript": True},
        {"link": True},
        {"resolved": "https://elsewhere.example/p-finally-1.0.0.tgz"},
        {"resolved": "git+ssh://git@github.com/a/b.git#1"},
        {"resolved": "file:p-finally-1.0.0.tgz"},
        {"resolved": 1},
    ):
        assert shared_set(tmp_path, {PLACE: {**LEAST, **change}}) is None, change
    for place in (
        "packages/own",
        "../../other",
        "node_modules/..",
        "node_modules/a/../../b",
        "node_modules/.bin",
    ):
        assert shared_set(tmp_path, {place: LEAST}) is None, place


def test_a_project_with_settings_scripts_or_commands_of_its_own_shares_nothing(tmp_path: Path) -> None:
    assert shared_set(tmp_path, {PLACE: LEAST}, manager="pnpm") is None
    assert shared_set(tmp_path, {PLACE: LEAST}, commands=Commands(build="npm run build")) is None
    for package in ({"scripts": {"postinstall": "x"}}, {"scripts": {"prepare": "x"}}, {"workspaces": ["a"]}):
        assert shared_set(tmp_path, {PLACE: LEAST}, package) is None, package
    assert shared_set(tmp_path, {PLACE: LEAST}, {"scripts": {"test": "x"}}) is not None
    for name in (".npmrc", "binding.gyp"):
        (tmp_path / name).touch()
        assert shared_set(tmp_path, {PLACE: LEAST}) is None, name
        (tmp_path / name).unlink()


def test_the_name_of_a_set_depends_on_what_determines_its_packages(tmp_path: Path) -> None:
    name = shared_set(tmp_path, {PLACE: LEAST})
    assert shared_set(tmp_path, {PLACE: LEAST}, {"version": "2.0.0", "scripts": {"test": "x"}}) == name
    others = [
        shared_set(tmp_path, {PLACE: LEAST, f"{PLACE}-x": LEAST}),
        shared_set(tmp_path, {PLACE: LEAST}, {"overrides": {"p-finally": "1.0.0"}}),
        shared_set(tmp_path, {PLACE: LEAST}, manager_version="11.0.1"),
    ]
    assert name is not None
    assert None not in others
    assert len({name.name, *(each.name for each in others if each is not None)}) == 4


def test_a_link_in_the_archive_is_replaced_and_not_followed(tmp_path: Path) -> None:
    workspace, elsewhere = Workspace(tmp_path / "workspace"), tmp_path / "elsewhere"
    place = workspace.project / "node_modules"
    for folder in (workspace.project, elsewhere):
        folder.mkdir(parents=True)
    (elsewhere / "kept.js").touch()
    place.symlink_to(elsewhere)

    shared_sets.link(workspace, PROJECT, tmp_path / "set")

    assert place.readlink() == tmp_path / "set" / "node_modules"
    assert (elsewhere / "kept.js").exists()


@greened
def test_a_change_of_sources_installs_no_packages_again(world: World) -> None:
    settings, said = settings_for(world), list[str]()
    plans = [planned(keep(files(text))) for text in ("one", "two")]

    first = make(settings, plans[0], said)
    second = make(settings, plans[1], said)

    assert first.packages is not None
    assert first.packages == second.packages
    assert "the packages of package-lock.json are installed already" in said
    for made in (first, second):
        place = made.workspace.project / "node_modules"
        assert (place / "p-finally" / "package.json").is_file()
        assert place.is_symlink()
        assert modules.are_prepared(made.workspace)
        assert made.packages in made.folders
        assert made.workspace.packages.read_text().splitlines()[-1] == first.packages.name, "upkeep leaves it"
    index = json.loads((second.workspace.env / modules.INDEX).read_text())
    assert any("/p-finally/" in url or url.endswith("/agent.ts") for url, *_ in index["files"])
    assert not (first.packages / "src").exists()

    # Given a set that was removed, it is installed again for an environment that uses it.
    shutil.rmtree(first.packages)
    assert found(settings, second).packages == first.packages
    assert (first.packages / "node_modules" / "p-finally").is_dir()
    place = second.workspace.project / "node_modules"
    place.unlink()
    place.symlink_to(packages.Packages(settings).folder / "another" / "node_modules")
    assert found(settings, second).workspace == second.workspace
    assert place.readlink() == first.packages / "node_modules", "made anew"


def found(settings: Settings, made: Environment) -> Environment:
    """Return the environment as another process finds it, or makes it again."""
    build_id = UUID(made.workspace.root.name)
    assert workspace_of(settings, build_id) == made.workspace
    plan = planned(keep(files("two")), str(made.requirements))
    return environments.make(
        settings, build_id, plan, write_line=lambda level, message: None, deadline_seconds=300
    )


def files(text: str) -> dict[str, str]:
    agent = f"import settled from 'p-finally'; export const graph = `{text} ${{typeof settled}}`;"
    return {
        "langgraph.json": json.dumps(CONFIG),
        "package.json": json.dumps(PACKAGE),
        "package-lock.json": lock_of({PLACE: LEAST}),
        "src/agent.ts": agent,
    }
