"""The console's files: complete, licensed, self-hosted, and small enough for a browser."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.support.javascript import JS, NODE, environment
from web.http import static_files
from web.http.static_files import STATIC

CONSOLE, VENDOR = STATIC / "console", STATIC / "vendor"
LOCK = STATIC.parent / "vendoring" / "package-lock.json"
MOST_BYTES = 320_000  # total compressed size
# Imports in our own files match only at the beginning of a line, because code samples in strings contain imports too.
# A vendored library is one long line.
OURS = re.compile(
    r"""^(?:(?:import|export)\b[^"'`;=]*\bfrom\s*|import\s*|.*\bimport\(\s*)["']([^"']+)["']""", re.MULTILINE
)
THEIRS = re.compile(r"""(?:\bfrom\s*|\bimport\s*\(?\s*)["']([\w@./-]+)["']""")
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc")
SANITIZED = {"markdown.js"}  # its HTML comes from DOMPurify


@cache
def manifest() -> list[dict]:
    return json.loads((VENDOR / "manifest.json").read_text())


def scripts(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.js"))
    assert found
    return found


def without_types(text: str) -> str:
    """Return a script without its comments, which contain imports of types."""
    return re.sub(r"/\*.*?\*/|^\s*//.*?$", "", text, flags=re.DOTALL | re.MULTILINE)


def test_every_library_is_what_the_manifest_and_the_lock_file_say_and_has_its_licence() -> None:
    listed = {one["file"]: one["sha256"] for one in manifest()}
    on_disk = {path.name: path for path in VENDOR.iterdir() if path.suffix == ".css" or path.suffix == ".js"}
    assert listed == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in on_disk.items()}

    packages = json.loads(LOCK.read_text())["packages"]
    for one in manifest():
        assert packages[f"node_modules/{one['package']}"]["version"] == one["version"]

    for one in manifest():
        name = one["package"].rpartition("/")[2]
        assert len((VENDOR / f"{name}.LICENSE.txt").read_text()) > 500


def test_imports_are_relative_and_lead_to_a_file() -> None:
    found = [(path, OURS.findall(without_types(path.read_text()))) for path in scripts(CONSOLE)]
    found += [(path, THEIRS.findall(path.read_text())) for path in scripts(VENDOR)]
    for path, names in found:
        for name in names:
            assert name.startswith("."), f"{path}: {name}"
            target = (path.parent / name).resolve()
            assert target.is_file(), f"{path}: {name}"
            assert target.is_relative_to(STATIC)


def test_nothing_comes_from_another_origin_and_no_text_becomes_markup() -> None:
    for path in [*scripts(CONSOLE), *CONSOLE.rglob("*.css"), *CONSOLE.rglob("*.html")]:
        text = without_types(path.read_text()).replace("http://www.w3.org/", "")
        assert not re.findall(r"""(?:fetch|import|url|src=|href=)\(?\s*["'`]?(?:https?:)?//""", text), path
    for path in scripts(CONSOLE):
        if path.name not in SANITIZED:
            assert not MARKUP.findall(path.read_text()), path


def test_it_is_small() -> None:
    styles = [*CONSOLE.rglob("*.css"), *VENDOR.rglob("*.css")]
    files = [*scripts(CONSOLE), *scripts(VENDOR), *styles, CONSOLE / "index.html"]
    sent = [static_files.read(str(path.relative_to(STATIC))).zipped or b"" for path in files]
    assert all(sent)
    assert sum(map(len, sent)) <= MOST_BYTES


def test_comments_are_left_out_and_lines_keep_their_numbers() -> None:
    source = b"/** one\n * two */\nconst a = 1; // three\n  // four\n  /** five */ f();\n  /** six */\nconst u = 'http://x';\n"
    sent = b"\n\nconst a = 1; // three\n\n  /** five */ f();\n\nconst u = 'http://x';\n"
    assert static_files.without_comments(source) == sent


def test_every_page_is_in_the_table_of_routes() -> None:
    table = re.findall(r'import\("\./pages/([^"]+)"\)', (CONSOLE / "main.js").read_text())
    pages = {path.name for path in (CONSOLE / "pages").glob("*.js")}
    assert set(table) == {
        name for name in pages if "export default" in (CONSOLE / "pages" / name).read_text()
    }


# The console's functions, executed in Node


FILES = [*sorted((JS / "console").glob("*parts.mjs")), JS / "console" / "schedule.mjs"]
ROWS = [
    (file.name, row)
    for file in FILES
    for row in re.findall(r'^  test\("([^"]+)"', file.read_text(), re.MULTILINE)
]


@cache
def failures(file: str) -> dict[str, str | None]:
    done = subprocess.run(
        [NODE / "node", "--test-force-exit", f"--test-reporter={JS / 'reporter.mjs'}", JS / "console" / file],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout + done.stderr
    return {told["row"]: told["failure"] for told in lines}


@pytest.mark.parametrize(("file", "row"), ROWS)
def test_the_console_s_parts(file: str, row: str) -> None:
    assert row in failures(file), "it was not run"
    assert failures(file)[row] is None, failures(file)[row]
