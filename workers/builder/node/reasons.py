"""Reasons of failed steps of JavaScript builds: the words of package managers, in a sentence for the project's author."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from workers.builder.config.javascript import LOCK_NAMES

NOISE = re.compile(r"npm warn Unknown (env|user|project) config|npm error Log files were not written|^\s*$")
USAGE = "npm error Clean install a project"  # begins the description of npm's command, after its reason
PREFIX = re.compile(r"^(npm error|npm ERR!|error|\s*\[?ERR_PNPM_\w+\]?|➤ YN\d+: [│└┌·]?)\s*")
# The summary comes first in the errors of npm, after these, and in those of pnpm and of requests of yarn 4.
SUMMARY = re.compile(
    r"npm error (?!code |errno |syscall |path |command failed|A complete log)\S|\s*\[?ERR_PNPM_|➤ YN0035: │ \S"
)
NODE_ERROR = re.compile(r"\w*Error( \[\w+\])?: ")  # of a program, above its stack
LAST = re.compile(
    r"A complete log of this run|Visit https://yarnpkg|For a full report|-debug-\d+\.log$"
    r"|ELIFECYCLE|YN0000: |^\s+at .*:\d+:\d+\)?$|^error Command failed with exit code|^\s*WARN\s|^warning "
)
# In an error of Node: the main module of a package that is installed
NOT_BUILT = re.compile(
    r"Cannot find (?:package|module) '[^']*?node_modules/(?P<package>(?:@[^/']+/)?[^/']+)/(?P<path>[^']+)' imported"
)
OF_STEP = ("the step ", "the build ")  # beginnings of reasons that are not in the output
# Code of the project may have written the output, and the expressions below take longer for longer lines.
MAX_LINE = 500
MAX_LOADING = 2000
Found = dict[str, str | None]  # the named groups of a sentence's patterns
Sentence = Callable[[Found, str], str]  # of groups and of the name of a manager


def _outdated(found: Found, manager: str) -> str:
    return f"{LOCK_NAMES[manager]} does not fit package.json: run {manager} install and commit it"


def _conflict(found: Found, manager: str) -> str:
    return (
        "no set of versions satisfies the peer dependencies:"
        f" {found['owner']} wants {found['peer']} {found['range']}, the project has {found['found']}"
    )


def _missing(found: Found, manager: str) -> str:
    return f"there is no {(found['package'] or '').replace('@npm:', '@')} in the registry"


def _missing_version(found: Found, manager: str) -> str:
    return f"there is no {found['package']}@{found['range']} in the registry"


def _damaged(found: Found, manager: str) -> str:
    return f"{found['package'] or 'a package'} is not what the lock file says"


def _unreachable(found: Found, manager: str) -> str:
    return f"the package registry cannot be reached: {found['error']}"


def _git(found: Found, manager: str) -> str:
    return f"{found['url']} comes from a Git repository that cannot be read: {found['reason']}"


# Tried in this order. The patterns of a sentence are searched in the whole output, each behind the one before.
SENTENCES: tuple[tuple[Sentence, tuple[str, ...]], ...] = (
    (
        _outdated,
        (
            r"ERR_PNPM_OUTDATED_LOCKFILE|Your lockfile needs to be updated|YN0028"
            r"|`?npm ci`? can only install packages when your package\.json and .* are in sync",
        ),
    ),
    (
        _conflict,
        (
            r"ERESOLVE",
            r"Found: (?P<found>\S+)",
            r'peer (?P<peer>[^\s"]+)@"(?P<range>[^"\n]*)" from (?P<owner>\S+)',
        ),
    ),
    (_missing, (r"No matching version found for (?P<package>\S+?)\.?(\s|$)",)),
    (_missing, (r"The requested resource '(?P<package>[^'\n]+)' could not be found",)),
    (_missing, (r"(?m)^(?P<package>\S+) is not in the npm registry",)),
    (_missing, (r"YN\d+: │ (?P<package>\S+): (No candidates found|Package not found)",)),
    (_missing, (r'Couldn\'t find package "(?P<package>[^"\n]+)"',)),
    (
        _damaged,
        (
            r"EINTEGRITY|ERR_PNPM_TARBALL_INTEGRITY|YN0018",
            r"(?<![\w.-])(?P<package>(?:@[\w.-]+/)?[\w.-]+@\d[\w.+-]*)|\Z",
        ),
    ),
    (
        _git,
        (r'(?:ls-remote (?:-\S+ )*|git dependency ")(?P<url>[^\s"]+)', r"(?P<reason>fatal: .*)"),
    ),
    (
        _unreachable,
        (r"(?P<error>(?:connect|getaddrinfo) (?:ECONNREFUSED|ENOTFOUND|ETIMEDOUT|EAI_AGAIN)(?: [\w.:-]+)?)",),
    ),
    (_git, (r"YN0001: │ (?P<url>\S+): Failed listing refs", r"(?P<reason>Fatal Error: .*)")),
    (_unreachable, (r"(?P<error>(?:https?://\S+: )?(?:ESOCKETTIMEDOUT|ERR_SOCKET_TIMEOUT))",)),
    (_unreachable, (r"(?P<error>ECONNREFUSED|ENOTFOUND|ETIMEDOUT|EAI_AGAIN)",)),
    (
        _missing_version,
        (r'Couldn\'t find any versions for "(?P<package>[^"\n]+)" that matches "(?P<range>[^"\n]+)"',),
    ),
)
# The folder of a package whose script failed.
FAILED_SCRIPTS = (
    re.compile(r"npm error path (?P<path>\S+)\nnpm error command failed"),
    re.compile(r"error (?P<path>\S+): Command failed\."),
    re.compile(r"(?<!\S)(?P<path>\S+) (?:pre|post)?install: (?:Failed|.*ELIFECYCLE)"),
)


class Noise:
    """Lines of a package manager's output that help nobody.

    They are empty, or about variables that this service sets, or describe npm's command after the reason of its failure.
    """

    def __init__(self) -> None:
        self._is_usage = False

    def contains(self, line: str) -> bool:
        """Whether this line, the next one of the output, is noise."""
        self._is_usage = self._is_usage or line == USAGE
        return self._is_usage or NOISE.search(line) is not None


def explained(lines: Sequence[str], reason: str, manager: str) -> str:
    """Return the reason why a command failed. `reason` is that of its step: a limit, or the last line of output."""
    if reason.startswith(OF_STEP):
        return reason
    lines = [line[:MAX_LINE] for line in lines]
    output = "\n".join(lines)
    for sentence, patterns in SENTENCES:
        if (found := _search(output, patterns)) is not None:
            return sentence(found, manager)
    if match := next(filter(None, (pattern.search(output) for pattern in FAILED_SCRIPTS)), None):
        return f"the install script of {_package(match['path'])} failed: {_last(lines)}"
    if errors := [line for line in lines if SUMMARY.match(line)]:
        return PREFIX.sub("", errors[0]).strip()
    if errors := [line for line in lines if NODE_ERROR.match(line)]:
        return errors[-1].strip()
    return _last(lines) or reason


def _search(output: str, patterns: Iterable[str]) -> Found | None:
    """Return the named groups of patterns that follow each other; None if one of them is not in the output."""
    found: Found = {}
    at = 0
    for pattern in patterns:
        match = re.compile(pattern).search(output, at)
        if match is None:
            return None
        found |= match.groupdict()
        at = match.end()
    return found


def of_loading(reason: str) -> str:
    """Return the reason why graphs could not be loaded, with advice where a package of a workspace is not built."""
    match = NOT_BUILT.search(reason[:MAX_LOADING])
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
