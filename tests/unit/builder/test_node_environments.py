"""A JavaScript revision's environment: Node, the project's packages, and the command of its graph host.

Node, our tools and the package managers are real. The packages are folders of the project, so that none is downloaded.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from typing import Any

import pytest

from shared.errors import BuildFailed
from shared.settings import Settings
from tests.support.archived import keep
from tests.support.greened import World, constants, greened
from tests.support.node_project import CONFIG, FILES, GREETING, PACKAGE, make, planned, settings_for
from tests.support.outside import serving
from workers.builder import host_command
from workers.builder.environments import Environment
from workers.builder.node import modules, runtime, typed_states
from workers.builder.node.installer import split
from workers.builder.node.resolved import Commands, Resolved

# Takes the place of the graph host: loads each graph and writes it down with its own environment.
STAND_IN = """
const config = JSON.parse(process.env.GRAPH_HOST_CONFIG);
const [path, name] = config.graphs.agent.path.split(":");
const module = await import(new URL(path, `file://${process.cwd()}/`).href);
console.log(JSON.stringify({ graph: module[name], arguments: process.execArgv, env: process.env }));
"""


def hosted(settings: Settings, made: Environment, world: World, **variables: str) -> dict[str, Any]:
    """Return the output of the stand-in for a graph host of the environment."""
    host = world.tmp_path / "node_host"
    host.mkdir(exist_ok=True)
    (host / "main.mjs").write_text(STAND_IN)
    with constants(host_command, NODE_HOST=host):
        command = host_command.host_command(settings, made, variables)
    done = subprocess.run(
        command.argv,
        env=command.env,
        cwd=command.cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def packed(files: dict[str, str]) -> tuple[bytes, str]:
    """Return a package as a registry serves it, and its `integrity` of a lock file."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, io.BytesIO(content.encode()))
    digest = hashlib.sha512(made.getvalue()).digest()
    return made.getvalue(), f"sha512-{base64.b64encode(digest).decode()}"


# Tests about other steps of a build need not resolve the versions first.
LOCK = {
    "": {"name": "app", "version": "1.0.0", "dependencies": PACKAGE["dependencies"]},
    "greeting": {"version": "1.0.0", "hasInstallScript": True},
    "node_modules/greeting": {"resolved": "greeting", "link": True},
}
LOCKED = {
    **FILES,
    "package-lock.json": json.dumps({"lockfileVersion": 3, "requires": True, "packages": LOCK}),
}


@greened
def test_each_package_manager_installs_what_its_lock_file_lists(world: World) -> None:
    settings = settings_for(world)
    yarn = '# yarn lockfile v1\n\n\n"greeting@file:./greeting":\n  version "1.0.0"\n'
    pnpm = (
        "lockfileVersion: '9.0'\n\nimporters:\n\n  .:\n    dependencies:\n      greeting:\n"
        "        specifier: file:./greeting\n        version: file:greeting\n\npackages:\n\n"
        "  greeting@file:greeting:\n    resolution: {directory: greeting, type: directory}\n\nsnapshots:\n\n"
        "  greeting@file:greeting: {}\n"
    )
    for lock, content, declared, node in (
        ("yarn.lock", yarn, "yarn@1.22.22", "22"),
        ("pnpm-lock.yaml", pnpm, "pnpm@9.1.0", "24"),
    ):
        package = json.dumps({**PACKAGE, "packageManager": declared})
        config = json.dumps({**CONFIG, "node_version": node})
        made = make(
            settings, keep({**FILES, lock: content, "package.json": package, "langgraph.json": config})
        )
        assert isinstance(made.requirements, Resolved)
        manager, _, version = declared.partition("@")
        assert (made.requirements.manager, made.requirements.lock) == (manager, None)
        assert made.requirements.manager_version.startswith(version.split(".")[0])
        graph = hosted(settings, made, world)["graph"]
        assert graph.startswith(f"hello agent 7 v{node}."), (lock, declared)


@greened
def test_yarn_of_the_newer_line_and_pnpm_resolve_and_install_too(world: World) -> None:
    settings = settings_for(world)
    for declared, name in (("yarn@4.1.0", "yarn.lock"), ("pnpm@11.0.0", "pnpm-lock.yaml")):
        source = keep({**FILES, "package.json": json.dumps({**PACKAGE, "packageManager": declared})})
        made = make(settings, source)
        assert isinstance(made.requirements, Resolved)
        assert made.requirements.lock_name == name
        assert "greeting" in (made.requirements.lock or "")
        if name == "yarn.lock":  # pnpm installs from a lock file in the test above
            made = make(settings, planned(source, str(made.requirements)))
        assert hosted(settings, made, world)["graph"] == "hello agent 7 v24.19.0"


@greened
def test_versions_are_resolved_once_and_a_host_runs_the_real_program_without_variables_that_change_node(
    world: World,
) -> None:
    settings, said = settings_for(world), list[str]()
    source = keep({**FILES, "langgraph.json": json.dumps({**CONFIG, "env": {"NODE_PATH": "/x"}})})
    first = make(settings, source, said)
    assert isinstance(first.requirements, Resolved)
    assert first.requirements.lock is not None
    assert json.loads(first.requirements.lock)["packages"]["greeting"]["version"] == "1.0.0"
    assert (first.requirements.node, first.requirements.manager) == ("24.19.0", "npm")
    assert any(line.startswith("resolving versions with npm") for line in said)
    made = make(settings, planned(source, str(first.requirements)))
    assert made.requirements == first.requirements
    assert hosted(settings, first, world)["graph"] == "hello agent 7 v24.19.0"
    variables = {
        "NODE_OPTIONS": "--require /x",
        "npm_config_registry": "http://x",
        "API_KEY": "k",
        "NPM_TOKEN": "t",
    }

    found = hosted(dataclasses.replace(settings, host_memory_mb=500), made, world, **variables)

    assert found["graph"] == "hello agent 7 v24.19.0"
    assert found["arguments"] == [
        "--max-old-space-size=300",
        "--max-semi-space-size=16",
        "--import",
        f"{(modules.PROGRAMS / 'loader.mjs').as_uri()}?folder={made.workspace.env}",
    ]
    env = found["env"]
    assert (env["API_KEY"], env["NPM_TOKEN"], env["HOME"]) == ("k", "t", str(made.workspace.home))
    assert not {"NODE_OPTIONS", "NODE_PATH", "npm_config_registry", "VIRTUAL_ENV"} & env.keys()
    assert made.node is not None
    used = made.workspace.packages.read_text().splitlines()
    assert used == [folder.name for folder in made.node.folders], "upkeep leaves these"
    assert made.node.program.read_bytes()[:4] == b"\x7fELF"
    with constants(host_command, NODE_HOST=world.tmp_path):
        small = host_command.host_command(settings, made, {}, memory_mb=200)
    assert "--max-old-space-size=120" in small.argv
    proxied = dataclasses.replace(
        settings, passed_on={"HTTPS_PROXY": "http://p", "SSL_CERT_FILE": "/etc/ssl/ca.pem"}
    )
    with constants(host_command, NODE_HOST=world.tmp_path):
        network = host_command.host_command(proxied, made, {}).env
    assert (network["NODE_USE_ENV_PROXY"], network["NODE_EXTRA_CA_CERTS"]) == ("1", "/etc/ssl/ca.pem")


@greened
def test_a_project_that_cannot_be_prepared_is_loaded_with_tsx(world: World) -> None:
    settings, said = settings_for(world), list[str]()

    broken = make(settings, keep({**LOCKED, "src/kind.ts": "export enum Kind {"}), said)

    assert not modules.are_prepared(broken.workspace)
    assert any(line.startswith("the graphs are loaded with tsx: ") for line in said)
    with constants(host_command, NODE_HOST=world.tmp_path):
        command = host_command.host_command(settings, broken, {})
    assert broken.node is not None
    assert str(broken.node.loader) in command.argv


@greened
def test_commands_of_the_deployment_replace_the_installation_and_follow_it(world: World) -> None:
    settings = settings_for(world)
    package = {
        **PACKAGE,
        "scripts": {"make": "node -e \"fs.writeFileSync('src/kind.ts', process.env.KIND)\""},
    }
    files = {**FILES, "package.json": json.dumps(package), ".npmrc": "//npm.example/:_authToken=${KIND}\n"}
    commands = Commands(install="npm install && npm --version", build="npm run make")
    kind = "export enum Kind { First = 9 }"
    said: list[str] = []

    plan = planned(keep(files), commands=commands, KIND=kind, OTHER="not for packages")
    made = make(settings, plan, said)

    assert hosted(settings, made, world)["graph"] == "hello agent 9 v24.19.0"
    assert isinstance(made.requirements, Resolved)
    assert made.requirements.commands == commands
    assert [line for line in said if line.startswith("running ")] == [
        "running npm install",
        "running npm --version",
        "running npm run make",
    ]


def test_commands_are_split_as_a_shell_would_and_other_shell_characters_are_refused() -> None:
    text = """FOO=1 npm ci&&node -e "a && b(); console.log('x')" """
    assert split("build", text) == [["FOO=1", "npm", "ci"], ["node", "-e", "a && b(); console.log('x')"]]
    for text, shown in (
        ("npm ci; npm test", ";"),
        ("npm ci | cat", "|"),
        ("npm ci &", "&"),
        ("npm ci >x", ">"),
        ("npm ci\nnpm test", "\n"),
        ("npm run $TASK", "$TASK"),
        ("npm run `task`", "`task`"),
        ("(npm ci)", "("),
    ):
        with pytest.raises(BuildFailed) as caught:
            split("install", text)
        assert caught.value.message == f"install_command: shell characters are not supported: {shown!r}"
    for text in ("npm ci 'x", "npm ci && ", "", "&& npm ci"):
        with pytest.raises(BuildFailed, match=r"^install_command: "):
            split("install", text)


@greened
def test_what_fails_is_named_with_its_step(world: World) -> None:
    settings = settings_for(world)
    broken = {**GREETING, "scripts": {"postinstall": "echo no compiler >&2; exit 3"}}
    for files, commands, step, reason in (
        (
            {**LOCKED, "greeting/package.json": json.dumps(broken)},
            {},
            "install",
            "the install script of greeting failed: no compiler",
        ),
        (
            {**FILES, "yarn.lock": "# yarn lockfile v1\n"},
            {},
            "install",
            "yarn.lock does not fit package.json: run yarn install and commit it",
        ),
        (LOCKED, {"build": "npm run nothing"}, "build", 'Missing script: "nothing"'),
        (LOCKED, {"install": "npm ci && "}, "install", "install_command: a command is empty"),
    ):
        with pytest.raises(BuildFailed) as caught:
            make(settings, planned(keep(files), commands=Commands(**commands)))
        found = (caught.value.step, caught.value.message)
        assert found == (step, reason), found
    python = {
        "langgraph.json": json.dumps({"graphs": {"a": "./a.py:graph"}, "dependencies": ["."]}),
        "a.py": "",
    }
    with pytest.raises(BuildFailed, match=r"^build_command: only for JavaScript projects$"):
        make(settings, planned(keep(python), commands=Commands(build="make")))


@greened
def test_no_lock_file_is_read_through_a_link_that_code_of_the_project_has_made(world: World) -> None:
    settings = settings_for(world)
    secret = world.tmp_path / "apps"
    secret.mkdir()
    (secret / "yarn.lock").write_text("of another")
    package = json.dumps({**PACKAGE, "packageManager": "yarn@1.22.22"})
    harmful = f"""
        const fs = require("fs");
        fs.renameSync("../../app", "../../moved");
        fs.symlinkSync({json.dumps(str(secret))}, "../../app");
    """
    files = {f"app/{name}": content for name, content in {**FILES, "package.json": package}.items()}
    files |= {"app/.yarnrc": 'yarn-path "./x.cjs"\n', "app/x.cjs": "process.chdir('src');" + harmful}
    plan = dataclasses.replace(planned(keep(files)), config_path="app/langgraph.json")

    with pytest.raises(BuildFailed, match=r"^yarn.lock cannot be read: its folder"):
        make(settings, plan)


@greened
def test_no_host_gets_a_folder_through_a_link_that_an_install_script_has_made(world: World) -> None:
    settings = settings_for(world)
    for name in ("home", "project"):  # `env` is made anew after the installation
        script = f"""
            const fs = require("fs");
            fs.mkdirSync("../../{name}", {{ recursive: true }});
            fs.renameSync("../../{name}", "../../moved");
            fs.symlinkSync("moved", "../../{name}");
        """
        scripts = {"scripts": {"postinstall": "node replace.js"}}
        package = json.dumps({**GREETING, **scripts})
        files = {**LOCKED, "greeting/package.json": package, "greeting/replace.js": script}
        with pytest.raises(BuildFailed, match=f"^a build step has replaced the folder '{name}' by a link$"):
            make(settings, keep(files))
    assert not list(settings.data_dir.glob("revisions/*/whole"))


@greened
def test_packages_are_installed_once_for_builds_of_a_deployment_with_the_same_lock_file(world: World) -> None:
    settings, said = settings_for(world), list[str]()
    tarball, integrity = packed(
        {"package.json": json.dumps(GREETING), "index.js": FILES["greeting/index.js"]}
    )
    served: list[str] = []

    def registry(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        served.append(environ["PATH_INFO"])
        start_response("200 OK", [("Content-Type", "application/octet-stream")])
        return [tarball]

    def files(port: int, **package: Any) -> dict[str, str]:
        dependencies = {"greeting": "1.0.0"}
        entry = {
            "version": "1.0.0",
            "resolved": f"http://127.0.0.1:{port}/greeting.tgz",
            "integrity": integrity,
        }
        lock = {
            "lockfileVersion": 3,
            "requires": True,
            "packages": {"": {"dependencies": dependencies}, "node_modules/greeting": entry},
        }
        return {
            **{name: content for name, content in FILES.items() if not name.startswith("greeting/")},
            "package.json": json.dumps({"type": "module", "dependencies": dependencies, **package}),
            "package-lock.json": json.dumps(lock),
        }

    with serving(registry) as port:
        project = files(port)
        make(settings, keep(project), said)
    changed = {**project, "src/kind.ts": "export enum Kind { First = 8 }\n"}
    made = make(settings, keep(changed), said)
    make(
        settings,
        keep({**changed, "package.json": files(port, scripts={"prepare": "true"})["package.json"]}),
        said,
    )

    assert served == ["/greeting.tgz"]
    assert hosted(settings, made, world)["graph"] == "hello agent 8 v24.19.0"
    assert [line for line in said if "package-lock.json" in line] == [
        "installing package-lock.json with npm 11.17.0",
        "the packages of package-lock.json are those of the last build",
        "installing package-lock.json with npm 11.17.0",
    ]


@greened
def test_packages_come_from_a_private_registry_with_a_token_of_the_deployment(world: World) -> None:
    settings, said = settings_for(world), list[str]()
    tarball, integrity = packed(
        {"package.json": json.dumps(GREETING), "index.js": FILES["greeting/index.js"]}
    )

    def registry(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        if environ.get("HTTP_AUTHORIZATION") != "Bearer the-token":
            start_response("401 Unauthorized", [])
            return [b"{}"]
        start_response("200 OK", [("Content-Type", "application/json")])
        dist = {"tarball": f"http://{environ['HTTP_HOST']}/greeting.tgz", "integrity": integrity}
        package = {
            "name": "greeting",
            "dist-tags": {"latest": "1.0.0"},
            "versions": {"1.0.0": {**GREETING, "scripts": {}, "dist": dist}},
        }
        return [tarball if environ["PATH_INFO"].endswith(".tgz") else json.dumps(package).encode()]

    with serving(registry) as port:
        for manager in ("npm@11.0.0", "pnpm@10.0.0", "pnpm@11.0.0"):
            package = {"dependencies": {"greeting": "1.0.0"}, "packageManager": manager}
            settings_of_npm = (
                f"registry=http://127.0.0.1:{port}/\n//127.0.0.1:{port}/:_authToken=${{NPM_TOKEN}}\n"
            )
            files = {**FILES, "package.json": json.dumps(package), ".npmrc": settings_of_npm}
            made = make(settings, planned(keep(files), NPM_TOKEN="the-token"), said)
            assert hosted(settings, made, world)["graph"] == "hello agent 7 v24.19.0", manager

        prints = {"postinstall": "echo //npm.example/:_authToken=the-token; exit 1"}
        package = {"dependencies": {"greeting": "1.0.0"}, "scripts": prints}
        literal = settings_of_npm.replace("${NPM_TOKEN}", "the-token")
        files = {**FILES, "package.json": json.dumps(package), ".npmrc": literal}
        with pytest.raises(BuildFailed) as failed:
            make(settings, keep(files), said)

    warning = ".npmrc, line 2: holds a credential as text: refer to a secret of the deployment, such as ${NPM_TOKEN}"
    assert warning in said
    assert "_authToken=***" in "".join(said), "what the script printed"
    assert "the-token" not in "".join((*said, str(failed.value)))
    assert list(settings.data_dir.rglob("_logs/*")) == [], "would hold what the script printed"


def silent(level: str, message: str) -> None:
    """Write no line of the build's log."""


@greened
def test_node_of_the_machine_takes_the_place_of_the_wheel(world: World) -> None:
    wheel = runtime.ensure(settings_for(world), 24, silent)
    prefix = world.tmp_path / "node"
    shutil.copytree(wheel.prefix, prefix, symlinks=True)
    settings = dataclasses.replace(settings_for(world), node_directories=(str(prefix),))

    made = make(settings, keep({**LOCKED, "src/kind.ts": "export enum Kind { First = 8 }\n"}))

    assert made.node is not None
    assert (made.node.program, made.node.version) == (prefix / "bin" / "node", wheel.version)
    assert hosted(settings, made, world)["graph"] == f"hello agent 8 v{wheel.version}"
    of_another_major = runtime.ensure(settings, 22, silent)
    assert of_another_major.version.startswith("22.")
    assert not of_another_major.program.is_relative_to(prefix)
    for directory, reason in (("/nowhere", "/nowhere/bin/node cannot be run"), (str(prefix), "npm")):
        shutil.rmtree(prefix / "lib", ignore_errors=True)
        runtime.of_operator.cache_clear()
        wrong = dataclasses.replace(settings, node_directories=(directory,))
        with pytest.raises(BuildFailed, match=f"RUNYARD_NODE_DIRECTORIES: .*{reason}"):
            make(wrong, keep({**FILES, "src/kind.ts": f"// {reason}"}))


# Types as those of a compiled graph of LangGraph
TYPED = """
interface State {
  text: string; count: number | null; kind?: "a" | "b"; flags: boolean[]; made: Date;
  inner: { name: string; more?: State }; other: unknown;
}
interface Typed<S> {
  "~InputType": Partial<S>; "~OutputType": Partial<Pick<S, keyof S & "text">>; "~RunOutput": S;
  invoke(input: unknown, options?: { tags?: string[]; context?: { user: string } }): Promise<unknown>;
}
export const graph = {} as Typed<State>;
const builder = { addNode(name: string, action: unknown, options?: unknown) { return this; } };
builder.addNode("inner", {} as Typed<{ text: string; other: number }>)
  .addNode("inner", { graph: {} as Typed<{ text: string; more: string[] }> })
  .addNode("calls", () => ({}), { subgraphs: [{} as Typed<{ deep: boolean }>] });
export const make = async () => ({ compile: () => graph });
"""


@greened
def test_types_are_added_to_schemas_of_names_or_a_line_to_the_log(world: World) -> None:
    settings, said = settings_for(world), list[str]()
    graphs = {name: {"path": f"./src/agent.ts:{name}"} for name in ("graph", "make", "missing")}
    made = make(
        settings, keep(LOCKED | {"src/agent.ts": TYPED, "langgraph.json": json.dumps({"graphs": graphs})})
    )
    messages = {"type": "array", "langgraph_type": "messages"}

    def described() -> dict[str, Any]:
        names = ("text", "count", "kind", "flags", "made", "inner", "other", "absent")
        state = {"type": "object", "properties": {**{name: {} for name in names}, "messages": messages}}
        output = {"type": "object", "properties": {"text": {}}}
        return {
            "untyped": True,
            "schemas": {"state_schema": state, "output_schema": output, "input_schema": None},
            "subgraphs": {
                "inner": {"state_schema": {"properties": {"text": {}, "more": {}}}},
                "inner|calls": {"state_schema": {"properties": {"deep": {}}}, "context_schema": {}},
                "unknown": {"state_schema": {"properties": {"text": {}}}},
            },
        }

    found = {name: described() for name in graphs}
    typed_states.add_types(settings, made, found, lambda level, message: said.append(message))

    assert said == []
    assert found["graph"] == found["make"]
    assert "untyped" not in found["missing"]
    assert found["missing"]["schemas"] == described()["schemas"]
    schemas = found["graph"]["schemas"]
    assert schemas["output_schema"]["properties"] == {"text": {"type": "string"}}
    context = {"type": "object", "properties": {"user": {"type": "string"}}}
    assert schemas["context_schema"] == schemas["config_schema"] == context
    assert found["graph"]["subgraphs"] == {
        "inner": {
            "state_schema": {
                "properties": {
                    "text": {"type": "string"},
                    "more": {"type": "array", "items": {"type": "string"}},
                }
            },
            "context_schema": context,
            "config_schema": context,
        },
        "inner|calls": {"state_schema": {"properties": {"deep": {"type": "boolean"}}}, "context_schema": {}},
        "unknown": {"state_schema": {"properties": {"text": {}}}},
    }
    properties = schemas["state_schema"]["properties"]
    assert properties.pop("inner")["required"] == ["name"]
    assert properties == {
        "text": {"type": "string"},
        "count": {"anyOf": [{"type": "null"}, {"type": "number"}]},
        "kind": {"enum": ["a", "b"]},
        "flags": {"type": "array", "items": {"type": "boolean"}},
        "made": {},
        "other": {},
        "absent": {},
        "messages": messages,
    }

    # Given an extraction that fails, it leaves the schemas as they are, and a line in the log.
    found, said = {"graph": described()}, []
    with constants(typed_states, EXTRACTOR=world.tmp_path / "nothing.mjs"):
        typed_states.add_types(settings, made, found, lambda level, message: said.append(message))
    assert found["graph"]["schemas"] == described()["schemas"]
    assert said == ["the types of the graphs' states could not be read: their schemas have names alone"]
