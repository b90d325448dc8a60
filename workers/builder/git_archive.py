"""Packs a commit's files as a source archive: `python -m workers.builder.git_archive REPOSITORY COMMIT TARGET`.

Reads git's objects without a checkout, so that no filter, hook or attribute of the repository has an effect. The same
commit gives the same bytes. Links and submodules are left out, as `langgraph deploy` leaves out links.
"""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

MODIFIED_AT = 315_619_200  # 1980-01-02: zip files, and thus wheels built from the source, allow no older time
REGULAR, EXECUTABLE, LINK, SUBMODULE = "100644", "100755", "120000", "160000"


def pack(repository: Path, commit: str, target: Path) -> tuple[int, list[str]]:
    """Write the archive. Returns the number of files, and the names of links and submodules that were left out."""
    left_out: list[str] = []
    count = 0
    reader = subprocess.Popen(
        ["git", "-C", str(repository), "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with (
        reader,
        target.open("wb") as file,
        gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for mode, blob, name in _entries(repository, commit):
            if mode in (LINK, SUBMODULE):
                left_out.append(name)
                continue
            info = tarfile.TarInfo(name)
            info.mode = 0o755 if mode == EXECUTABLE else 0o644
            info.mtime = MODIFIED_AT
            content = _content(reader, blob)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
            count += 1
        _pipe(reader.stdin).close()
    return count, left_out


def _entries(repository: Path, commit: str) -> Iterator[tuple[str, str, str]]:
    """Yield `(mode, object id, name)` of each file of the commit."""
    argv = ["git", "-C", str(repository), "ls-tree", "-r", "-z", "--full-tree", commit]
    listed = subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout
    for entry in listed.split(b"\0"):
        if entry:
            facts, _, name = entry.partition(b"\t")
            mode, _, blob = facts.decode().split()
            yield mode, blob, name.decode("utf-8", "surrogateescape")


def _content(reader: subprocess.Popen[bytes], blob: str) -> bytes:
    asking, answers = _pipe(reader.stdin), _pipe(reader.stdout)
    asking.write(f"{blob}\n".encode())
    asking.flush()
    header = answers.readline().split()
    if len(header) != 3:
        raise SystemExit(f"the object {blob} cannot be read")
    content: bytes = answers.read(int(header[2]))
    answers.read(1)
    return content


def _pipe(pipe: IO[Any] | None) -> IO[Any]:
    assert pipe is not None
    return pipe


if __name__ == "__main__":
    files, skipped = pack(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    print(f"packed {files} files")
    if skipped:
        shown = ", ".join(skipped[:5]) + (", …" if len(skipped) > 5 else "")
        print(f"left out {len(skipped)} links and submodules: {shown}")
