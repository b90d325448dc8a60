"""Reasons of failed steps of JavaScript builds: the words of package managers, in a sentence for the project's author."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from workers.builder.config.javascript import LOCK_NAMES

NOISE = re.compile(r"npm warn Unknown (env|user|project) config|^\s*$")
PREFIX = re.compile(r"^(npm error|npm ERR!|error|\s*\[?ERR_PNPM_\w+\]?|➤ YN\d+: [│└┌·]?)\s*")
# The summary comes first in npm's errors, after these.
NPM_ERROR = re.compile(r"npm error (?!code |errno |syscall |path |command failed|A complete log)\S")
NODE_ERROR = re.compile(r"\w*Error( \[\w+\])?: ")  # of a program, above its stack
LAST = re.compile(
    r"A complete log of this run|Visit https://yarnpkg|For a full report|\S+-debug-\d+\.log$"
    r"|ELIFECYCLE|^error Command failed with exit code|^\s*WARN\s|^warning "
)
# In an error of Node: the main module of a package that is installed
NOT_BUILT = re.compile(
    r"Cannot find (?:package|module) '[^']*?node_modules/(?P<package>(?:@[^/']+/)?[^/']+)/(?P<path>[^']+)' imported"
)
OF_STEP = ("the step ", "the build ")  # beginnings of reasons that are not in the output
Sentence = Callable[[re.Match[str], str], str]  # of a match in the output of a manager


def _outdated(match: re.Match[str], manager: str) -> str:
    return f"{LOCK_NAMES[manager]} does not fit package.json: run {manager} install and commit it"


def _conflict(match: re.Match[str], manager: str) -> str:
    return (
        "no set of versions satisfies the peer dependencies:"
        f" {match['owner']} wants {match['peer']} {match['range']}, the project has {match['found']}"
    )


def _missing(match: re.Match[str], manager: str) -> str:
    return f"there is no {match['package'].replace('@npm:', '@')} in the registry"


def _damaged(match: re.Match[str], manager: str) -> str:
    return f"{match['package'] or 'a package'} is not what the lock file says"


def _unreachable(match: re.Match[str], manager: str) -> str:
    return f"the package registry cannot be reached: {match[0].strip()}"


def _git(match: re.Match[str], manager: str) -> str:
    return f"{match['url']} comes from a Git repository that cannot be read: {match['reason'].strip()}"


# Tried in this order. Each pattern is searched in the whole output.
SENTENCES: tuple[tuple[re.Pattern[str], Sentence], ...] = (
    (
        re.compile(
            r"ERR_PNPM_OUTDATED_LOCKFILE|Your lockfile needs to be updated|YN0028"
            r"|`?npm ci`? can only install packages when your package\.json and .* are in sync"
        ),
        _outdated,
    ),
    (
        re.compile(
            r"ERESOLVE[\s\S]*?Found: (?P<found>\S+)[\s\S]*?"
            r'peer (?P<peer>[^\s"]+)@"(?P<range>[^"]*)" from (?P<owner>\S+)'
        ),
        _conflict,
    ),
    (re.compile(r"No matching version found for (?P<package>\S+?)\.?(\s|$)"), _missing),
    (re.compile(r"The requested resource '(?P<package>[^']+)' could not be found"), _missing),
    (re.compile(r"(?m)^(?P<package>\S+) is not in the npm registry"), _missing),
    (re.compile(r"YN\d+: │ (?P<package>\S+): (No candidates found|Package not found)"), _missing),
    (re.compile(r'Couldn\'t find package "(?P<package>[^"]+)"'), _missing),
    (
        re.compile(
            r"(?:EINTEGRITY|ERR_PNPM_TARBALL_INTEGRITY|YN0018)"
            r"(?:[\s\S]*?(?P<package>(?:@[\w.-]+/)?[\w.-]+@\d[\w.+-]*))?"
        ),
        _damaged,
    ),
    (re.compile(r"git .*?ls-remote (?P<url>\S+)[\s\S]*?(?P<reason>fatal: .*)"), _git),
    (
        re.compile(r"(?:connect|getaddrinfo) (?:ECONNREFUSED|ENOTFOUND|ETIMEDOUT|EAI_AGAIN)(?: [\w.:-]+)?"),
        _unreachable,
    ),
    (re.compile(r"ECONNREFUSED|ENOTFOUND|ETIMEDOUT|EAI_AGAIN"), _unreachable),
)
OLD_YARN_MISSING = re.compile(r'Couldn\'t find any versions for "([^"]+)" that matches "([^"]+)"')
# The folder of a package whose script failed.
FAILED_SCRIPTS = (
    re.compile(r"npm error path (?P<path>\S+)\nnpm error command failed"),
    re.compile(r"error (?P<path>\S+): Command failed\."),
    re.compile(r"(?P<path>\S*node_modules/\S+) (?:pre|post)?install: (?:Failed|.*ELIFECYCLE)"),
)


def is_noise(line: str) -> bool:
    """Whether a line of a package manager's output is empty, or about variables that this service sets."""
    return NOISE.search(line) is not None


def explained(lines: Sequence[str], reason: str, manager: str) -> str:
    """Return the reason why a command failed. `reason` is that of its step: a limit, or the last line of output."""
    if reason.startswith(OF_STEP):
        return reason
    output = "\n".join(lines)
    for pattern, sentence in SENTENCES:
        if match := pattern.search(output):
            return sentence(match, manager)
    if match := OLD_YARN_MISSING.search(output):
        return f"there is no {match[1]}@{match[2]} in the registry"
    if match := next(filter(None, (pattern.search(output) for pattern in FAILED_SCRIPTS)), None):
        return f"the install script of {_package(match['path'])} failed: {_last(lines)}"
    if errors := [line for line in lines if NPM_ERROR.match(line)]:
        return PREFIX.sub("", errors[0]).strip()
    if errors := [line for line in lines if NODE_ERROR.match(line)]:
        return errors[-1].strip()
    return _last(lines) or reason


def of_loading(reason: str) -> str:
    """Return the reason why graphs could not be loaded, with advice where a package of a workspace is not built."""
    match = NOT_BUILT.search(reason)
    if match is None:
        return reason
    return f"'{match['package']}' has no {match['path']}: give a build_command that builds it"


def _package(path: str) -> str:
    """Return the name of the package in a folder."""
    parts = path.rpartition("node_modules/")[2].rstrip("/").split("/")
    return (
        "/".join(parts[:2])
        if parts[0].startswith("@")
        else parts[0]
        if "node_modules/" in path
        else parts[-1]
    )


def _last(lines: Sequence[str]) -> str:
    """Return the last line of output that says something."""
    texts = (PREFIX.sub("", line).strip() for line in reversed(lines) if not LAST.search(line))
    return next(filter(None, texts), "")
