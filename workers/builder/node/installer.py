"""Resolving and installing the packages of a JavaScript project, in the sandbox of a build.

Install scripts of packages run, as the code of source distributions does in Python projects: inside of the sandbox, with
a cache of the deployment's own, and with no variables but those to which the project's settings of the package manager
refer.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shared.errors import BuildFailed
from workers.builder.config import javascript
from workers.builder.config.javascript import LOCK_NAMES, NodeProject
from workers.builder.node import reasons
from workers.builder.node.resolved import Commands, Resolved, packages_digest
from workers.builder.node.runtime import QUIET, Runtime, network_variables
from workers.builder.steps import StepSandbox, WriteLine
from workers.builder.workspaces import SourceTree, Workspace, read_untrusted, write_untrusted
from workers.graph_host.masking import masker
from workers.isolation import sandbox

RESOLVE, INSTALL, BUILD = "requirements", "install", "build"  # names of steps
MAX_LOCK_BYTES = 4 * 1024 * 1024  # of one that the build makes, which the revision stores
KEPT_LINES = 200
SHELL_CHARACTERS = "&|;<>()\n"  # unquoted, they are words of their own
# Copy the installed packages to the deployment's cache, in place of an older copy, and back. The cache may hold links that
# code of the deployment has made, so both commands run in the sandbox. Packages whose scripts have stored files in the home
# directory, such as a browser, are not copied: a copy would lack these files.
KEEP = 'test -z "$(ls -A "$HOME")" && rm -rf "$1" && mkdir "$1" && cp -a node_modules "$1/new" && mv "$1/new" "$1/$2"'
RESTORE = 'test -d "$1/$2" && rm -rf node_modules && cp -a "$1/$2" node_modules'
FROZEN = {
    "npm": ["ci"],
    "yarn1": ["install", "--frozen-lockfile", "--non-interactive", "--ignore-engines"],
    "yarn4": ["install", "--immutable"],
    "pnpm": ["install", "--frozen-lockfile"],
}
# Write the lock file. Yarn 1 cannot do this without installing.
RESOLVING = {
    "npm": ["install", "--package-lock-only", "--ignore-scripts", "--omit-lockfile-registry-resolved"],
    "yarn1": ["install", "--ignore-scripts", "--non-interactive", "--ignore-engines"],
    "yarn4": ["install", "--mode=update-lockfile"],
    "pnpm": ["install", "--lockfile-only", "--ignore-scripts"],
}


class NodeInstaller:
    """Runs the package manager of one project. Each method raises BuildFailed if its command fails."""

    def __init__(
        self,
        step_sandbox: StepSandbox,
        workspace: Workspace,
        runtime: Runtime,
        project: NodeProject,
        directory: Path,
        variables: Mapping[str, str],
        write_line: WriteLine,
    ) -> None:
        """`directory` is that of the configuration file, `variables` are those of the deployment."""
        self._sandbox = step_sandbox
        self._workspace = workspace
        self._runtime = runtime
        self._project = project
        self._directory = directory
        self._write_line = write_line
        self._root = workspace.project / project.root
        self._has_made_lock = False
        self._manager = runtime.manager(project.manager, project.manager_major)
        self._kind = project.manager
        if project.manager == "yarn":
            self._kind = f"yarn{project.manager_major}"
        referred = {name: variables[name] for name in project.variables if name in variables}
        self._variables = {**referred, **self._manager_variables()}

    def resolved(self, commands: Commands) -> Resolved:
        """Return the set of a project with a lock file. Without one, resolve its versions first."""
        name = LOCK_NAMES[self._project.manager] if self._project.lock is None else self._project.lock.name
        if self._project.lock is None:
            self._write_line("INFO", f"resolving versions with {self._manager.name} {self._manager.version}")
            self._run(RESOLVE, self._command(RESOLVING[self._kind]), self._root)
            content = self._made_lock(name)
        else:
            content = javascript.lock_content(SourceTree(self._workspace.project), self._project.lock)
        return Resolved(
            node=self._runtime.version,
            manager=self._manager.name,
            manager_version=self._manager.version,
            root=str(self._project.root),
            lock_name=name,
            lock_digest=hashlib.sha256(content).hexdigest(),
            lock=content.decode() if self._project.lock is None else None,
            commands=commands,
        )

    def _made_lock(self, name: str) -> bytes:
        """Return the lock file that a step has written. Settings of the project may have run code in that step."""
        self._has_made_lock = True
        folder = self._workspace.root.resolve() / "project" / self._project.root
        if self._root.resolve() != folder:
            raise BuildFailed(RESOLVE, f"{name} cannot be read: its folder has been replaced by a link")
        try:
            content = read_untrusted(self._root / name, MAX_LOCK_BYTES + 1)
            content.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise BuildFailed(RESOLVE, f"{name} cannot be read") from error
        if len(content) > MAX_LOCK_BYTES:
            raise BuildFailed(RESOLVE, f"{name} is larger than {MAX_LOCK_BYTES // 2**20} MiB: commit it")
        return content

    def install(self, resolved: Resolved) -> None:
        """Install exactly the resolved set, then run the project's build command."""
        if resolved.lock is not None and not self._has_made_lock:  # no code of the project has run yet
            path = self._root / resolved.lock_name
            write_untrusted(path, resolved.lock)
            sandbox.give(path)  # an install command may write it again
        if resolved.commands.install is None:
            self._install_or_reuse(resolved)
        else:
            self._run_all(INSTALL, resolved.commands.install, self._root)
        if resolved.commands.build is not None:
            self._run_all(BUILD, resolved.commands.build, self._directory)

    def _install_or_reuse(self, resolved: Resolved) -> None:
        """Install the lock file, or copy the packages that the deployment's last installation kept, if they are the same."""
        digest = packages_digest(self._workspace.project, self._project, resolved)
        if digest is not None and self._copy(RESTORE, digest):
            self._write_line("INFO", f"the packages of {resolved.lock_name} are those of the last build")
            return
        self._write_line(
            "INFO", f"installing {resolved.lock_name} with {self._manager.name} {self._manager.version}"
        )
        self._run(INSTALL, self._command(FROZEN[self._kind]), self._root)
        if digest is not None:
            self._copy(KEEP, digest)

    def _copy(self, script: str, digest: str) -> bool:
        """Run KEEP or RESTORE. Returns whether it succeeded."""
        argv = ["/bin/sh", "-c", script, "sh", str(self._sandbox.cache / "node_modules"), digest]
        return self._sandbox.attempt(argv, cwd=self._root)

    def _run_all(self, step: str, text: str, cwd: Path) -> None:
        for command in split(step, text):
            self._write_line("INFO", f"running {shlex.join(command)}")
            self._run(step, ["/usr/bin/env", *command], cwd)

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return [str(self._runtime.program), str(self._manager.script), *arguments]

    def _run(self, step: str, argv: list[str], cwd: Path) -> None:
        last: deque[str] = deque(maxlen=KEPT_LINES)
        noise = reasons.Noise()
        mask = masker(self._project.credentials)

        def write(level: str, message: str) -> None:
            if not noise.contains(message):
                last.append(mask(message))
                self._write_line(level, last[-1])

        try:
            self._sandbox.run(
                step, argv, write, readonly=self._runtime.folders, variables=self._variables, cwd=cwd
            )
        except BuildFailed as error:
            raise BuildFailed(
                step, reasons.explained(list(last), mask(error.message), self._manager.name)
            ) from error

    def _manager_variables(self) -> dict[str, str]:
        """Return the variables that configure Node and the package manager."""
        passed_on, cache = self._sandbox.passed_on, self._sandbox.cache
        programs = [
            self._root / "node_modules" / ".bin",
            self._manager.launchers,
            self._runtime.npm_launchers,
            self._runtime.prefix / "bin",
        ]
        registry = passed_on.get("NPM_CONFIG_REGISTRY")
        return {
            **network_variables(passed_on),
            **QUIET,
            "PATH": os.pathsep.join((*map(str, programs), passed_on.get("PATH", os.defpath))),
            "CI": "1",  # no questions and no progress bars
            "npm_config_cache": str(cache / "npm"),
            "npm_config_nodedir": str(self._runtime.prefix),  # the headers, for packages with native code
            **MANAGER_VARIABLES[self._kind](cache),
            # pnpm reads the variables in credentials in the user's file only.
            **({"npm_config_userconfig": str(self._root / ".npmrc")} if self._kind == "pnpm" else {}),
            **({"YARN_NPM_REGISTRY_SERVER": registry} if registry and self._kind == "yarn4" else {}),
            **({"YARN_REGISTRY": registry} if registry and self._kind == "yarn1" else {}),
        }


def _npm_variables(cache: Path) -> dict[str, str]:
    return {}


def _yarn1_variables(cache: Path) -> dict[str, str]:
    return {"YARN_CACHE_FOLDER": str(cache / "yarn1")}


def _yarn4_variables(cache: Path) -> dict[str, str]:
    return {
        "YARN_CACHE_FOLDER": str(cache / "yarn4"),
        "YARN_GLOBAL_FOLDER": str(cache / "yarn4-global"),
        "YARN_APPROVED_GIT_REPOSITORIES": "**",  # newer releases of yarn 4 allow none
        "YARN_ENABLE_GLOBAL_CACHE": "false",
        "YARN_ENABLE_IMMUTABLE_INSTALLS": "false",  # of resolving; installing asks for it by an option
        "YARN_ENABLE_TELEMETRY": "false",
        "YARN_IGNORE_PATH": "true",  # another release of yarn in the project
        "YARN_NODE_LINKER": "node-modules",
        # Without threads for archives, each with memory of its own: a thousand packages would take more than a step may.
        "YARN_TASK_POOL_MODE": "async",
    }


def _pnpm_variables(cache: Path) -> dict[str, str]:
    options = {
        "store_dir": str(cache / "pnpm"),
        # No hard links: user code could change packages in the cache through them.
        "package_import_method": "copy",
        "manage_package_manager_versions": "false",  # of another pnpm, which it would download
        "package_manager_strict": "false",
        "pm_on_fail": "ignore",  # the two options above, from pnpm 11 on
    }
    return {f"{prefix}_config_{name}": value for prefix in ("npm", "pnpm") for name, value in options.items()}


MANAGER_VARIABLES: dict[str, Callable[[Path], dict[str, str]]] = {
    "npm": _npm_variables,
    "yarn1": _yarn1_variables,
    "yarn4": _yarn4_variables,
    "pnpm": _pnpm_variables,
}


def split(step: str, text: str) -> list[list[str]]:
    """Return the commands of a text that joins them with `&&`, each as words. Raises BuildFailed."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=SHELL_CHARACTERS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word == "&&":
                commands.append([])
            elif set(word) <= set(SHELL_CHARACTERS) or "$" in word or "`" in word:
                raise BuildFailed(step, f"{step}_command: shell characters are not supported: {word!r}")
            else:
                commands[-1].append(word)
    except ValueError as error:
        raise BuildFailed(step, f"{step}_command: {error}") from error
    if not all(commands):
        raise BuildFailed(step, f"{step}_command: a command is empty")
    return commands
