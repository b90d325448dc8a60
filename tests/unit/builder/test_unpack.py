"""Untrusted archives: refusals, unpacked files, and no writes outside the target."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import random
import resource
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from shared.errors import BuildFailed
from workers.builder import environments, unpack

ROOT = Path(unpack.__file__).parents[2]
Entry = tuple[tarfile.TarInfo, bytes]
Unpacked = Callable[..., Path]


def file(name: str, data: bytes = b"x", **fields: object) -> Entry:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def special(name: str, type: bytes, target: str = "") -> Entry:
    return file(name, b"", type=type, linkname=target)


def directory(name: str) -> Entry:
    return special(name, tarfile.DIRTYPE)


def tar(
    *entries: Entry, format: int = tarfile.PAX_FORMAT, pax_headers: dict[str, str] | None = None
) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=format, pax_headers=pax_headers) as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


@pytest.fixture
def unpacked(tmp_path: Path) -> Unpacked:
    """Return a function that unpacks bytes into a new folder and returns the folder."""

    def unpacking(data: bytes, *, packed: bytes | None = None) -> Path:
        archive = tmp_path / "source.tar.gz"
        archive.write_bytes(gzip.compress(data) if packed is None else packed)
        target = tmp_path / "in" / f"project-{next(numbers)}"
        unpack.unpack(archive, target)
        return target

    numbers = itertools.count()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "victim").write_text("untouched")
    return unpacking


@pytest.fixture(autouse=True)
def untouched(tmp_path: Path) -> Iterator[None]:
    """Check after each test that nothing outside the target has changed."""
    yield
    if (tmp_path / "in").exists():
        assert (tmp_path / "in" / "victim").read_text() == "untouched"
        assert {path.name.split("-")[0] for path in (tmp_path / "in").iterdir()} <= {"victim", "project"}


def test_files_and_directories_are_written(unpacked: Unpacked) -> None:
    long = "d" * 200 + "/" + "f" * 200 + ".py"

    project = unpacked(
        tar(
            directory("./"),
            file("langgraph.json", b"{}"),
            file("./pkg/run.sh", b"#!", mode=0o4777),
            file("pkg/__init__.py", b"", mode=0o600, uid=12345, uname="someone"),
            directory("empty"),
            file(long, b"long"),
            file("täst.py", b"name"),
        )
    )

    assert (project / "langgraph.json").read_bytes() == b"{}"
    assert (project / long).read_bytes() == b"long"
    assert (project / "täst.py").read_bytes() == b"name"
    assert (project / "empty").is_dir()
    assert (project / "pkg/run.sh").stat().st_mode & 0o7777 == 0o755
    module = (project / "pkg/__init__.py").stat()
    assert module.st_mode & 0o7777 == 0o644
    assert module.st_uid == os.getuid()


def test_the_data_and_keys_of_dev_are_not_unpacked(tmp_path: Path) -> None:
    """`langgraph deploy` uploads the whole folder of a project without a .gitignore."""
    archive, target = tmp_path / "source.tar.gz", tmp_path / "project"
    entries = [directory(".runyard"), file(".runyard/admin.key", b"key"), file("agent.py", b"")]
    archive.write_bytes(gzip.compress(tar(*entries, file("nested/.runyard/secret.key", b"key"))))

    # In a process of its own, because it limits the memory of its process.
    command = [sys.executable, "-m", "workers.builder.unpack", str(archive), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert [path.name for path in target.rglob("*") if path.is_file()] == ["agent.py"]
    first, warning = done.stdout.splitlines()
    assert first == "unpacked 1 file"
    assert warning.startswith("WARNING: 2 of its files are in .runyard,")


def test_every_tar_format_and_several_gzip_members_are_read(unpacked: Unpacked) -> None:
    name = "a" * 90 + "/" + "b" * 90
    for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        assert (unpacked(tar(file(name, b"data"), format=format)) / name).read_bytes() == b"data"

    data = tar(file("a.py", b"a" * 5000))
    packed = gzip.compress(data[:3000]) + gzip.compress(data[3000:])
    assert (unpacked(b"", packed=packed) / "a.py").read_bytes() == b"a" * 5000


def test_of_doubles_the_last_wins_and_an_empty_archive_has_no_files(unpacked: Unpacked) -> None:
    project = unpacked(
        tar(file("a.py", b"old", mode=0o755), file("a.py", b"new"), directory("d"), directory("d"))
    )

    assert (project / "a.py").read_bytes() == b"new"
    assert (project / "a.py").stat().st_mode & 0o777 == 0o644

    assert list(unpacked(tar()).iterdir()) == []


OUTSIDE = (
    "../victim",
    "a/../../victim",
    "a/..",
    "..",
    "/etc/passwd",
    "//victim",
    "a\\..\\victim",
    "C:victim",
)
ODD_NAMES = (*OUTSIDE, "c:/victim", "a" * 256, "d/" * 600 + "f", "bad\udcff.py")


def test_a_name_that_is_not_plainly_inside_is_refused(unpacked: Unpacked) -> None:
    for name in ODD_NAMES:
        for entry in (file(name), directory(name)):
            with pytest.raises(
                BuildFailed, match=r"refused: .*(relative path|leaves|too long|UTF-8)"
            ) as caught:
                unpacked(tar(file("before.py"), entry))
            assert caught.value.step == "unpack"


def test_pax_paths_are_held_to_the_same_rules(unpacked: Unpacked) -> None:
    outside = {"path": "../victim"}
    for data, reason in (
        (tar(file("harmless.py", pax_headers=outside)), "leaves the archive"),
        (tar(file("harmless.py", pax_headers={"path": "a\0b"})), "refused"),
        (tar(file("harmless.py"), pax_headers=outside), "leaves the archive"),
    ):
        with pytest.raises(BuildFailed, match=reason):
            unpacked(data)


def test_a_name_is_a_file_or_a_directory(unpacked: Unpacked) -> None:
    for entries in (
        (file("a"), file("a/b")),
        (file("a"), directory("a")),
        (file("a"), directory("a/b")),
        (directory("a"), file("a")),
        (file("a/b"), file("a")),
        (file("."),),
    ):
        with pytest.raises(BuildFailed, match="is a file and a directory"):
            unpacked(tar(*entries))


def test_anything_but_files_and_directories_is_refused(unpacked: Unpacked) -> None:
    links = (tarfile.SYMTYPE, tarfile.LNKTYPE)
    devices = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
    for type in (*links, *devices, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, b"Z"):
        with pytest.raises(BuildFailed, match="'odd' is neither a regular file nor a directory"):
            unpacked(tar(file("a.py"), special("odd", type, "../victim")))


def test_a_file_through_a_link_or_a_chain_of_long_links_is_refused(unpacked: Unpacked) -> None:
    with pytest.raises(BuildFailed, match="neither a regular file"):
        unpacked(tar(special("out", tarfile.SYMTYPE, ".."), file("out/victim", b"overwritten")))

    # These entries bypass the standard library's filter, because the path is too long to resolve.
    component = "d" * 247
    entries, path = [], ""
    for letter in "abcdefghijklmnop":
        entries += [directory(path + component), special(path + letter, tarfile.SYMTYPE, component)]
        path += component + "/"
    link = "/".join("abcdefghijklmnop") + "/" + "l" * 254
    entries += [
        special(link, tarfile.SYMTYPE, "../" * 16),
        special("escape", tarfile.SYMTYPE, link + "/../../victim"),
        file("escape", b"overwritten"),
    ]

    with pytest.raises(BuildFailed, match="refused"):
        unpacked(tar(*entries))


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a"}


def test_headers_that_lie_about_the_size_are_refused(unpacked: Unpacked) -> None:
    for headers in (
        {**SPARSE, "GNU.sparse.realsize": "9"},
        {"GNU.sparse.map": "0,1,5,1", "GNU.sparse.size": "6"},
        {"GNU.sparse.size": "99999999999", "GNU.sparse.numblocks": "1"},
        {"size": "-1024"},
        {"size": "99999999999999"},
    ):
        with pytest.raises(BuildFailed, match="refused"):
            unpacked(tar(file("a.py", b"1\n0\n1\n", pax_headers=headers), file("b.py")))

    data = bytearray(tar(file("a.py"), format=tarfile.GNU_FORMAT))
    data[124:136] = b"\xff" * 12  # -1 in base-256 encoding
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    with pytest.raises(BuildFailed, match="impossible size"):
        unpacked(bytes(data))


def test_what_unpacks_to_too_much_or_too_many_entries_is_refused(
    unpacked: Unpacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpack, "MAX_BYTES", 100_000)
    noise = random.Random(1).randbytes(60_000)

    with pytest.raises(BuildFailed, match="unpacks to more than"):
        unpacked(tar(file("a", noise), file("b", noise)))

    monkeypatch.setattr(unpack, "MAX_ENTRIES", 10)

    with pytest.raises(BuildFailed, match="more than 10 entries"):
        unpacked(tar(*(file("same", b"") for _ in range(11))))


def test_a_bomb_is_refused_in_a_file_after_the_end_and_among_the_headers(unpacked: Unpacked) -> None:
    for data, reason in (
        (tar(file("zeros", bytes(40 * unpack.MIB))), "more than 200 times its size"),
        (tar(file("a.py")) + bytes(40 * unpack.MIB), "more than 200 times its size"),
        (tar(file("a.py", pax_headers={"comment": "0" * 30 * unpack.MIB})), "impossible size"),
    ):
        with pytest.raises(BuildFailed, match=reason):
            unpacked(data)


def test_headers_without_end_are_refused(unpacked: Unpacked) -> None:
    block = tar(file("a.py", pax_headers={"comment": "x"}))[:1024]  # a header that describes the next entry

    with pytest.raises(BuildFailed, match="refused"):
        unpacked(block * 3000)

    data = bytearray(tar(file("a.py"), file("b.py")))
    data[1024 + 5] ^= 1

    with pytest.raises(BuildFailed, match="damaged header"):
        unpacked(bytes(data))


def test_what_is_no_archive_or_cut_off_anywhere_is_refused(unpacked: Unpacked) -> None:
    data = tar(*(file(f"{n}.py", random.Random(n).randbytes(700)) for n in range(4)))
    packed = gzip.compress(data)
    small = gzip.compress(tar(file("a.py")))
    end = len(data.rstrip(b"\0")) // 512 * 512
    for part in (
        *(b"", b"hello", b"PK\x03\x04zip", gzip.compress(b""), gzip.compress(b"hello" * 1000)),
        *(gzip.compress(data[:size]) for size in range(0, end, 512)),
        *(packed[:size] for size in range(10, len(packed) - 100, 97)),
        *(small[:size] for size in range(len(small) - 8, len(small))),
    ):
        with pytest.raises(BuildFailed, match="it is not a whole gzip tar archive"):
            unpacked(b"", packed=part)


def test_zeros_after_the_end_are_padding(unpacked: Unpacked) -> None:
    for padding in (1, 511, 512, 1024, 10_240, unpack.MIB):
        data = tar(file("a.py")).rstrip(b"\0").ljust(1536, b"\0") + bytes(padding)
        for packed in (gzip.compress(data), gzip.compress(data) + bytes(padding)):
            assert (unpacked(b"", packed=packed) / "a.py").read_bytes() == b"x"


def test_a_gzip_file_whose_checksum_or_length_is_wrong_is_refused(unpacked: Unpacked) -> None:
    for size in (100, 100_000):  # in the reader's first block, and after many blocks
        packed = gzip.compress(tar(file("a.py", random.Random(1).randbytes(size))))
        for at, reason in ((-8, "CRC check failed"), (-1, "Incorrect length of data")):
            damaged = bytearray(packed)
            damaged[at] ^= 1
            with pytest.raises(BuildFailed, match=f"it is damaged, or other bytes follow its end: {reason}"):
                unpacked(b"", packed=bytes(damaged))


def test_what_follows_the_end_is_refused(unpacked: Unpacked) -> None:
    data, second = tar(file("a.py")), tar(file("b.py"))
    within = (data + second, data[:1024] + bytes(512) + second, data + b"more", data + bytes(9000) + b"x")
    after = (gzip.compress(second), gzip.compress(b"more"), bytes(512) + gzip.compress(second))

    for packed in (*map(gzip.compress, within), *(gzip.compress(data) + part for part in after)):
        with pytest.raises(BuildFailed, match="it goes on after its end, with a second archive"):
            unpacked(b"", packed=packed)
    with pytest.raises(BuildFailed, match=r"other bytes follow its end: Not a gzipped file \(b'ga'\)"):
        unpacked(b"", packed=gzip.compress(data) + b"garbage")


def test_bytes_turned_at_random_never_escape(unpacked: Unpacked) -> None:
    dice = random.Random(7)
    entries = [file("a/b.py", b"1" * 600, pax_headers={"comment": "c" * 50}), directory("c"), file("c/d.py")]
    whole = tar(*entries)
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(dice.randrange(1, 6)):
            data[dice.randrange(len(whole))] = dice.randrange(256)
        with suppress(BuildFailed):
            unpacked(bytes(data))


def _run(
    folder: Path, entry: Entry, *, max_file_bytes: int = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
) -> subprocess.CompletedProcess[str]:
    """Unpack an archive of one entry in a process with a file size limit."""
    archive = folder / "a.tar.gz"
    archive.write_bytes(gzip.compress(tar(entry)))
    return subprocess.run(
        environments.unpack_command(archive, folder / "project"),
        env={"PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes)),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_process_says_what_it_did_or_why_it_refused(tmp_path: Path) -> None:
    done = _run(tmp_path, file("../victim"))
    assert done.returncode == 1
    assert done.stdout == "the source archive is refused: '../victim' leaves the archive\n"

    (tmp_path / "project").rmdir()
    done = _run(tmp_path, file("b/c.py"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "unpacked 1 file\n", "")
    assert (tmp_path / "project/b/c.py").is_file()


def test_a_full_disk_is_no_fault_of_the_archive_and_a_header_that_makes_the_reader_search_ends(
    tmp_path: Path,
) -> None:
    full = _run(tmp_path, file("a.bin", bytes(100_000)), max_file_bytes=50_000)
    assert (full.returncode, full.stdout) == (1, "the source archive cannot be unpacked: File too large\n")

    (tmp_path / "second").mkdir()
    searching = _run(tmp_path / "second", file("a.py", b"9" * 4000 + b"\n", pax_headers=SPARSE))
    assert searching.returncode == 1
    assert searching.stdout.startswith("the source archive is refused: it is not a whole gzip tar archive")
