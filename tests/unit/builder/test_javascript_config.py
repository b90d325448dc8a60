"""A JavaScript project's `langgraph.json`, `package.json` and lock file."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from shared.errors import BuildFailed
from tests.unit.builder.conftest import Read, refuse
from workers.builder.config.javascript import NodeProject
from workers.builder.workspaces import SourceTree

GRAPHS = {"agent": "./src/agent.ts:graph"}
EMPTY = {"graphs": GRAPHS, "dependencies": ...}


@pytest.fixture
def root(root: Path) -> Path:
    """A project with a script, a `package.json` and the lock file of npm."""
    (root / "src").mkdir()
    for name in ("src/agent.ts", "src/auth.mts", "src/view.tsx", "embed.js"):
        (root / name).touch()
    write(root, "package.json")
    write(root, "package-lock.json")
    return root


def write(root: Path, name: str, **content: Any) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(json.dumps(content))


def node_of(read: Read, **config: Any) -> NodeProject:
    node = read(**{**EMPTY, **config}).node
    assert node is not None
    return node


def test_a_project_with_scripts_is_installed_by_its_lock_file(read: Read) -> None:
    found = read(**EMPTY)

    assert found.graphs["agent"]["path"] == "./src/agent.ts:graph"
    assert (found.plain, found.packages, found.notes, found.warnings) == ((), (), (), ())
    assert found.node == NodeProject(
        major=24,
        root=PurePosixPath("."),
        manager="npm",
        manager_major=None,
        lock=PurePosixPath("package-lock.json"),
        variables=frozenset(),
    )
    assert read().node is None


def test_a_reference_without_a_name_is_the_default_export(read: Read) -> None:
    for entry in ("./src/agent.ts", "./src/agent.ts:", {"path": "./src/agent.ts:default"}):
        assert read(**{**EMPTY, "graphs": {"a": entry}}).graphs["a"]["path"] == "./src/agent.ts:default"


def test_keys_of_python_have_no_meaning_or_are_refused(read: Read) -> None:
    found = read(
        **{**EMPTY, "dependencies": ["."], "python_version": "3.9", "pip_installer": "uv"},
        node_loader="tsx",
        checkpointer={"serde": {"allowed_msgpack_modules": [["a", "B"]]}},
    )
    assert sorted(found.notes) == [
        f"{key}: has no meaning here and is ignored"
        for key in ("checkpointer.serde", "dependencies", "pip_installer", "python_version")
    ]
    assert (found.warnings, found.checkpointer) == ((), {})


def test_what_cannot_be_done_is_refused_in_a_sentence(read: Read) -> None:
    deny = "^{}$".format
    for config, sentence in (
        (
            {"graphs": {**GRAPHS, "b": "./agent.py:graph"}},
            deny("graphs: Python and JavaScript graphs in one project are not supported: deploy them apart"),
        ),
        (
            {"graphs": {"a": "./src/view.tsx:g"}},
            "^graphs.a: './src/view.tsx': files that end in .tsx or .jsx are",
        ),
        *(
            (
                {"node_version": value},
                deny(re.escape(f'node_version: must be a major version such as "24", not {shown}')),
            )
            for value, shown in (
                (24, "24"),
                ("24.1", '"24.1"'),
                ("v20.16.0", '"v20.16.0"'),
                ("22.x", '"22.x"'),
                (">=22", '">=22"'),
                ("lts/*", '"lts/*"'),
                ("", '""'),
            )
        ),
        ({"node_version": "18"}, deny("node_version: must be 20 or newer")),
        (
            {"node_version": "26"},
            deny("node_version: 26 is not installed on this server, which has 22 and 24"),
        ),
        (
            {"node_loader": "ts-node/esm"},
            deny("node_loader: 'ts-node/esm' is not supported: this server loads TypeScript with tsx"),
        ),
        ({"env": []}, deny("env: must be an object")),
        (
            {"auth": {"path": "./auth.py:auth"}},
            deny(r"auth.path: './auth.py' is Python, the graphs are JavaScript"),
        ),
        (
            {"replay": {"score": "./evals.py:score"}},
            r"^replay.score: './evals.py' is Python, the graphs are JavaScript",
        ),
        ({"http": {"app": "pkg.app:app"}}, "^http.app: 'pkg.app' is Python, the graphs are JavaScript"),
        (
            {"http": {"apps": {"/a": "./app.py:app"}}},
            "^http.apps./a: './app.py' is Python, the graphs are JavaScript",
        ),
        ({"http": {"apps": ["./app.ts:app"]}}, "^http.apps: must be an object of at most 50 paths"),
        ({"http": {"apps": {"a b": "./app.ts:app"}}}, "^http.apps: 'a b' must be a path like \"/dashboard\""),
        ({"http": {"apps": {"/": "./app.ts:app"}}}, "^http.apps: '/' must be a path"),
        ({"http": {"apps": {"/a": "./app.ts:app", "/a/": "./b.ts:app"}}}, "^http.apps"),
        ({"http": {"apps": {"/a": 7}}}, "^http.apps./a: 7 must have the form"),
        ({"http": {"apps": {"/a": "./nowhere.ts:app"}}}, "^http.apps./a: the file './nowhere.ts' is not in"),
        (
            {"store": {"index": {"dims": 3, "embed": "openai:text-embedding-3-small"}}},
            "^store.index.embed: 'openai:text-embedding-3-small' cannot be used with JavaScript graphs: name a"
            ' file, "./embed.ts:embed"$',
        ),
        ({"source": {"kind": "uv"}}, deny("source: only for Python projects")),
        ({"pip_config_file": "./pip.conf"}, deny("pip_config_file: only for Python projects")),
        ({"checkpointer": {"path": "./saver.ts:saver"}}, "^checkpointer.path: not supported"),
    ):
        refuse(read, sentence, **{**EMPTY, **config})
    assert read(**EMPTY, auth={"path": "./src/auth.mts:auth"}).auth["path"] == "./src/auth.mts:auth"
    assert (
        read(**EMPTY, store={"index": {"dims": 3, "embed": "./embed.js:embed"}}).store["index"]["dims"] == 3
    )


def test_node_is_never_older_than_the_project_names(read: Read, root: Path) -> None:
    for named, engines, major in (
        (None, None, 24),
        ("20", None, 24),
        ("22", None, 22),
        ("24", None, 24),
        (None, ">=22", 24),
        (None, ">= 20.0.0 < 23", 22),
        ("20", "^22.12.0 || ^20", 22),
        ("22", ">=24", 24),
        (None, "lts/*", 24),
    ):
        write(root, "package.json", **({} if engines is None else {"engines": {"node": engines}}))
        assert node_of(read, node_version=named).major == major, (named, engines)
    for named, engines in ((None, ">=26"), ("24", "^22"), (None, "18.x")):
        write(root, "package.json", engines={"node": engines})
        sentence = rf'^package.json asks for Node ".*{engines[-2:]}": this server has 22 and 24$'
        refuse(read, sentence, **{**EMPTY, "node_version": named})
    write(root, "package.json")
    assert node_of(read, node_version="20").warnings == (
        "Node 20 is past its end of life: the project runs on Node 24",
    )


def test_the_lock_file_chooses_the_package_manager(read: Read, root: Path) -> None:
    (root / "package-lock.json").unlink()
    for lock, content, declared, manager in (
        ("npm-shrinkwrap.json", "{}", None, ("npm", None)),
        ("yarn.lock", "# yarn lockfile v1\n", None, ("yarn", 1)),
        ("yarn.lock", "# yarn lockfile v1\n", "yarn@4.1.0", ("yarn", 1)),
        ("yarn.lock", "__metadata:\n  version: 8\n", "yarn@4.1.0+sha224.abc", ("yarn", 4)),
        ("pnpm-lock.yaml", "lockfileVersion: '9.0'\n", None, ("pnpm", 10)),
        ("pnpm-lock.yaml", "lockfileVersion: '9.0'\n", "pnpm@9.1.0", ("pnpm", 9)),
        ("pnpm-lock.yaml", "lockfileVersion: '9.0'\n", "pnpm@12.0.0", ("pnpm", 11)),
        ("pnpm-lock.yaml", "lockfileVersion: '9.0'\n", "npm@11.0.0", ("pnpm", 10)),
        (None, "", None, ("npm", None)),
        (None, "", "pnpm@11.2.3", ("pnpm", 11)),
        (None, "", "yarn@4.9.0", ("yarn", 4)),
    ):
        write(root, "package.json", **({} if declared is None else {"packageManager": declared}))
        if lock is not None:
            (root / lock).write_text(content)
        node = node_of(read)
        assert (node.manager, node.manager_major) == manager, (lock, declared)
        assert node.lock == (lock and PurePosixPath(lock))
        if lock is not None:
            (root / lock).unlink()
    write(root, "package.json", devEngines={"packageManager": {"name": "pnpm"}})
    assert node_of(read).manager == "pnpm"
    for lock, content, sentence in (
        (
            "bun.lock",
            "",
            "^bun.lock: this server installs with npm, yarn or pnpm: commit one of their lock files$",
        ),
        ("yarn.lock", "__metadata:\n  version: 6\n", "^yarn.lock: its format is older than that of yarn 4"),
        (
            "pnpm-lock.yaml",
            "lockfileVersion: '6.0'\n",
            "^pnpm-lock.yaml: its format is older than that of pnpm 9",
        ),
    ):
        (root / lock).write_text(content)
        refuse(read, sentence, **EMPTY)
        (root / lock).unlink()


def test_of_several_lock_files_one_is_used_with_a_warning(read: Read, root: Path) -> None:
    (root / "yarn.lock").write_text("# yarn lockfile v1\n")

    assert node_of(read).lock == PurePosixPath("yarn.lock")
    assert node_of(read).warnings == (
        "yarn.lock is used, and package-lock.json is not: a project needs one lock file",
    )
    write(root, "package.json", packageManager="npm@11.0.0")
    assert node_of(read).lock == PurePosixPath("package-lock.json")


def test_packages_are_installed_at_the_nearest_lock_file_above_the_configuration(
    read: Read, root: Path
) -> None:
    write(root, "apps/agents/package.json", engines={"node": "22.x"})
    (root / "apps/agents/src").mkdir()
    (root / "apps/agents/src/agent.ts").touch()
    (root / ".npmrc").write_text("//npm.example/:_authToken=${NPM_TOKEN}\n")

    node = node_of(read, at="apps/agents/langgraph.json")

    assert (node.root, node.lock) == (PurePosixPath("."), PurePosixPath("package-lock.json"))
    assert (node.major, node.variables) == (22, {"NPM_TOKEN"})
    (root / "package-lock.json").unlink()
    assert node_of(read, at="apps/agents/langgraph.json").root == PurePosixPath("apps/agents")


@pytest.mark.parametrize(
    ("name", "line", "credential"),
    [
        (".npmrc", "//npm.example/:_authToken=npm_abc123", "npm_abc123"),
        (".npmrc", '//npm.example/:_password = "c2VjcmV0" ', "c2VjcmV0"),
        (".npmrc", "registry=https://me:pass-word@npm.example/", "pass-word"),
        (".yarnrc.yml", "    npmAuthToken: 'npm_abc123'", "npm_abc123"),
        (".yarnrc", '"//npm.example/:_authToken" npm_abc123', "npm_abc123"),
        (".npmrc", "; _authToken=npm_abc123", None),
        (".npmrc", '//npm.example/:_authToken = "${NPM_TOKEN}"', None),
        (".npmrc", "registry=https://me:${PASSWORD}@npm.example/", None),
        (".npmrc", "always-auth=true", None),
    ],
)
def test_a_credential_as_text_in_settings_is_warned_of_with_its_line(
    read: Read, root: Path, name: str, line: str, credential: str | None
) -> None:
    (root / name).write_text(f"# of our registry\n{line}\n")

    node = node_of(read)

    assert node.credentials == ({credential} - {None})
    place = f"{name}, line 2: holds a credential as text"
    assert [warning.startswith(place) for warning in node.warnings] == [True] * len(node.credentials)
    assert "npm_abc123" not in f"{node}"


def test_files_that_repeat_what_is_searched_for_do_not_hold_up_the_builder(read: Read, root: Path) -> None:
    long = 300_000
    write(
        root,
        "package.json",
        engines={"node": "||".join(f"{major}.0.0" for major in range(long // 20))},
        workspaces=["*a" * 100] * 1000,
    )
    (root / ".npmrc").write_text(f"_auth{' ' * long}\n{'https://' * (long // 10)}\n" + "${a" * (long // 10))
    (root / "package-lock.json").unlink()
    write(root, f"{'a' * 200}/package.json")
    (root / f"{'a' * 200}/src").mkdir()
    (root / f"{'a' * 200}/src/agent.ts").touch()

    assert node_of(read, at=f"{'a' * 200}/langgraph.json").root == PurePosixPath(".")
    (root / "yarn.lock").write_text("__metadata:" + "\n" * 8 * long)
    node = node_of(read)
    assert (node.major, node.manager_major) == (24, 1)
    assert len(node.warnings[0]) < 400


def test_a_workspace_without_a_lock_file_is_installed_at_its_root(read: Read, root: Path) -> None:
    (root / "package-lock.json").unlink()
    write(root, "apps/agent/package.json")
    (root / "apps/agent/src").mkdir()
    (root / "apps/agent/src/agent.ts").touch()

    for workspaces, at in (
        (["libs/*", "apps/*"], "."),
        (["./apps/agent/"], "."),
        ({"packages": ["apps/**"]}, "."),
        (["libs/*"], "apps/agent"),
        (None, "apps/agent"),
    ):
        write(root, "package.json", workspaces=workspaces, packageManager="yarn@4.1.0")
        node = node_of(read, at="apps/agent/langgraph.json")
        assert (node.root, node.manager) == (PurePosixPath(at), "yarn" if at == "." else "npm"), workspaces
    write(root, "package.json")
    (root / "pnpm-workspace.yaml").write_text("packages:\n  - apps/*\n")
    node = node_of(read, at="apps/agent/langgraph.json")
    assert (node.root, node.manager) == (PurePosixPath("."), "pnpm")


def test_no_file_is_read_through_a_folder_that_leads_outside_the_archive(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    write(outside, "package.json")
    (root / "apps").symlink_to(outside)
    (root / "own").symlink_to("src")
    write(root, "src/package.json")

    tree = SourceTree(root)

    with pytest.raises(BuildFailed, match=r"^apps/package.json cannot be read: its folder leads outside"):
        tree.content(PurePosixPath("apps/package.json"))
    assert tree.content(PurePosixPath("own/package.json")) == b"{}"


def test_a_package_file_that_cannot_be_used_is_refused(read: Read, root: Path) -> None:
    (root / "package.json").write_text("{")
    refuse(read, "^package.json is not valid JSON: ", **EMPTY)
    write(root, "package.json", dependencies={"a": "git+https://user:pass@git.example/a.git"})
    refuse(read, "^package.json: a URL must not hold a user name or password$", **EMPTY)
    write(root, "package.json", dependencies={"@a/b": "git+ssh://git@git.example/a.git"})
    write(root, "package-lock.json", resolved="https://token@npm.example/@a/b.tgz")
    refuse(read, "^package-lock.json: a URL must not hold a user name or password$", **EMPTY)
    write(root, "package-lock.json", resolved="https://npm.example/@a/b.tgz")
    assert node_of(read).manager == "npm"
    (root / "package.json").unlink()
    refuse(read, "^package.json is missing$", **EMPTY)


def test_components_are_installed_with_the_project_or_beside_the_scripts_of_a_python_project(
    root: Path, read: Read
) -> None:
    found = read(**EMPTY, ui={"agent": "./src/view.tsx"}, ui_config={"shared": ["@acme/theme"]}).components
    assert found is not None
    assert (found.sets, found.shared) == ({"agent": PurePosixPath("src/view.tsx")}, ("@acme/theme",))
    assert found.node.root == PurePosixPath(".")

    write(root, "pages/package.json")
    write(root, "pages/package-lock.json")
    (root / "pages" / "cards").mkdir()
    (root / "pages" / "cards" / "index.tsx").touch()
    found = read(ui={"agent": "./pages/cards/index.tsx"}).components
    assert found is not None
    assert found.node.root == PurePosixPath("pages")

    assert read(**EMPTY).components is None
    assert read(**EMPTY, ui={"agent": "./src/view.tsx"}, http={"disable_ui": True}).components is None


def test_components_that_cannot_be_bundled_are_refused(root: Path, read: Read) -> None:
    refuse(read, "^ui: must be an object of name", **EMPTY, ui=["./src/view.tsx"])
    refuse(read, "^ui.agent: must be a script", **EMPTY, ui={"agent": "./src/view.py"})
    refuse(
        read, "^ui.agent: the file './gone.tsx' is not in the archive", **EMPTY, ui={"agent": "./gone.tsx"}
    )
    for path in ("../view.tsx", "./src/../../view.tsx"):
        refuse(read, f"^ui.agent: '{path}' leads outside the archive", **EMPTY, ui={"agent": path})
    refuse(read, "^ui.agent: '/view.tsx' must be a relative path", **EMPTY, ui={"agent": "/view.tsx"})
    for name in ("a/b", "..", ""):
        refuse(read, "^ui: .* cannot be the name of components", **EMPTY, ui={name: "./src/view.tsx"})
    refuse(read, "^ui_config.shared: must be an array", **EMPTY, ui_config={"shared": ["a b"]})
    (root / "package.json").unlink()
    refuse(read, "^package.json is missing", ui={"agent": "./src/view.tsx"})
