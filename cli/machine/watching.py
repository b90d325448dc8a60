"""Watching a project's files: those of its archive, its configuration and its env file.

Each directory is watched on its own, not recursively, so an ignored one (`.venv`, the data directory) costs nothing.
An event only triggers a comparison of all files' times and sizes. A missed event therefore loses no change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from cli.deployments.project import Project
from cli.errors import CommandFailed

DEBOUNCE_MS, LOOK_MS = 300, 2000

State = dict[str, tuple[int, int]]


def state_of(project: Project) -> State:
    """Return the modification times and sizes of the files that a deploy would read."""
    state: State = {}
    for path in (project.folder / project.config_name, project.env_file, *_files(project)):
        try:
            status = path.stat()
        except OSError:
            continue  # the file was deleted meanwhile
        state[str(path)] = (status.st_mtime_ns, status.st_size)
    return state


def _files(project: Project) -> list[Path]:
    try:
        return [path for _, path in project.files()]
    except CommandFailed:
        return []  # a dependency does not exist; the deploy reports it


def changes(read: Callable[[], Project], seen: State) -> Iterator[list[str]]:
    """Yield the names of files that differ from `seen`, then from the state at the last comparison, without end.

    Raises OSError if polling fails too.
    """
    from watchfiles import watch  # only the extra `server` installs it; other commands work without

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
                state = state_of(project)
                changed = {name for name, _ in state.items() ^ seen.items()}
                seen = state
                if changed:
                    yield sorted(_short(project, name) for name in changed)
                if _folders(project) != folders:
                    break
        except OSError:
            if is_polling:
                raise
            is_polling = True  # the system has no inotify watches left


def _folders(project: Project) -> list[Path]:
    try:
        folders = set(project.walked())
    except CommandFailed:
        folders = set()
    return sorted(
        folders | {project.folder, *([project.env_file.parent] if project.env_file.parent.is_dir() else [])}
    )


def _short(project: Project, name: str) -> str:
    path = Path(name)
    return str(path.relative_to(project.folder)) if path.is_relative_to(project.folder) else name
