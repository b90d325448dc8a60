"""Watching a project's files: what its archive would hold, its configuration and its variables.

Directories are watched one by one, without what is in them: an ignored one (`.venv`, the data directory) costs
nothing. What counts is the state that the files are in, not which events reported it, so none can be missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from cli.deployments.project import Project
from cli.errors import CommandFailed

DEBOUNCE_MS, LOOK_MS = 300, 2000

State = dict[str, tuple[int, int]]


def state_of(project: Project) -> State:
    """The times and sizes of the files a deploy would read."""
    found: State = {}
    for path in (project.folder / project.config_name, project.env_file, *_files(project)):
        try:
            status = path.stat()
        except OSError:
            continue  # it has gone meanwhile
        found[str(path)] = (status.st_mtime_ns, status.st_size)
    return found


def _files(project: Project) -> list[Path]:
    try:
        return [path for _, path in project.files()]
    except CommandFailed:
        return []  # a dependency that is not there: the deploy says so


def changes(read: Callable[[], Project], seen: State) -> Iterator[list[str]]:
    """Names of the files that have changed since `seen`, then since the last answer; for ever."""
    from watchfiles import watch  # of the extra `server`, which other commands do without

    is_polling = False
    while True:
        project = read()
        folders = _folders(project)
        try:
            for _ in watch(
                *folders,
                watch_filter=None,
                recursive=False,
                debounce=DEBOUNCE_MS,
                rust_timeout=LOOK_MS,
                yield_on_timeout=True,
                force_polling=is_polling or None,
            ):
                project = read()
                now = state_of(project)
                changed = {name for name, _ in now.items() ^ seen.items()}
                seen = now
                if changed:
                    yield sorted(_short(project, name) for name in changed)
                if _folders(project) != folders:
                    break
        except OSError:
            if is_polling:
                raise
            is_polling = True  # the system has no watches left


def _folders(project: Project) -> list[Path]:
    try:
        found = set(project.walked())
    except CommandFailed:
        found = set()
    return sorted(
        found | {project.folder, *([project.env_file.parent] if project.env_file.parent.is_dir() else [])}
    )


def _short(project: Project, name: str) -> str:
    path = Path(name)
    return str(path.relative_to(project.folder)) if path.is_relative_to(project.folder) else name
