"""Break the product in random places and show whether the suite notices.

    python -m tests.support.mutations draw --seed 7 --count 60 LIST.json      choose mutations of this tree
    python -m tests.support.mutations run LIST.json RESULT.json [--tree DIR]  apply each in a checkout, run the tests of its room

A mutation names a file, a function and the text of a node before and after, so that a list also works on a later
state of the tree. A mutation whose text no longer exists is reported as `missing`. A run changes files of its tree
and restores them: give it a separate checkout (`git worktree add`). It stops at the first failure of each mutation.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

TREE = Path(__file__).parents[2]
ROOMS = ("web", "workers", "shared", "cli")
UNTOUCHED = ("shared/migrations/",)
LONGEST_SECONDS = 900  # time limit for the tests of one mutation
NEAREST = 10  # number of test modules to try first
NOTHING_COLLECTED = 5  # pytest's exit code
# Tests by path prefix of the mutated file. The longest prefix wins; each list begins with the cheapest ring.
TESTS = {
    "cli": ["tests/unit/cli", "tests/contract/test_cli_access.py", "tests/e2e/test_cli.py", "tests/e2e/test_up.py"],
    "cli/backups": ["tests/unit/cli/test_backup.py", "tests/e2e/test_backup.py"],
    "cli/runs": ["tests/unit/cli", "tests/e2e/test_cli.py", "tests/e2e/test_cli_served.py"],
    "shared": ["tests/unit", "tests/contract"],
    "shared/access": ["tests/unit/access", "tests/contract"],
    "shared/deployments": ["tests/unit/deployments", "tests/unit/runs", "tests/contract"],
    "shared/eventlog": ["tests/unit/eventlog", "tests/contract/test_sse.py", "tests/contract/test_sse_joining.py"],
    "shared/figures": ["tests/unit/figures", "tests/contract"],
    "shared/hosts": ["tests/unit/runner", "tests/contract", "tests/e2e/test_guarded.py"],
    "shared/infra": ["tests/unit/infra", "tests/unit/runner", "tests/contract"],
    "shared/oauth": ["tests/unit/oauth", "tests/contract", "tests/e2e/test_oauth.py"],
    "shared/protocol": ["tests/unit/protocol", "tests/contract", "tests/e2e/test_protocol_python.py"],
    "shared/removal": ["tests/unit/removal", "tests/contract"],
    "shared/runs": ["tests/unit/runs", "tests/unit/runner", "tests/contract"],
    "shared/threads": ["tests/unit/threads", "tests/unit/runs", "tests/contract"],
    "shared/user_code": ["tests/unit/user_code", "tests/contract", "tests/e2e/test_guarded.py"],
    "web": ["tests/unit/web", "tests/contract"],
    "workers": ["tests/unit", "tests/fault/test_faults.py", "tests/fault/test_processes.py"],
    "workers/builder": ["tests/unit/builder", "tests/fault/test_build_steps.py", "tests/e2e/test_builds.py"],
    "workers/graph_host": ["tests/unit/graph_host", "tests/unit/runner", "tests/e2e/test_sdk.py", "tests/fault/test_hosts.py"],
    "workers/isolation": ["tests/unit/isolation", "tests/unit/builder", "tests/fault/test_isolation.py"],
    "workers/runner": ["tests/unit/runner", "tests/e2e/test_sdk.py", "tests/fault"],
    "workers/upkeep": ["tests/unit/upkeep", "tests/contract/test_webhook_deliveries.py", "tests/fault"],
}  # fmt: skip
OPPOSITES = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """One change: the source text of a node in a function of a file, and its replacement."""

    file: str
    function: str
    before: str
    after: str

    def apply(self, tree: Path) -> str | None:
        """Change the file. Returns its previous text, or None if the text to replace is missing."""
        path = tree / self.file
        source = path.read_text() if path.exists() else ""
        for function in functions(ast.parse(source)):
            start, end = span(source.splitlines(keepends=True), function)
            if function.name == self.function and self.before in source[start:end]:
                start = source.index(self.before, start)
                path.write_text(source[:start] + self.after + source[start + len(self.before) :])
                return source
        return None


def functions(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(module) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def span(lines: list[str], node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Return the start and end offset of a node in characters. Columns of a syntax tree count bytes."""
    start = sum(map(len, lines[: node.lineno - 1])) + _column(lines[node.lineno - 1], node.col_offset)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    last = sum(map(len, lines[: node.end_lineno - 1]))
    return start, last + _column(lines[node.end_lineno - 1], node.end_col_offset)


def _column(line: str, bytes_before: int) -> int:
    return len(line.encode()[:bytes_before].decode())


def mutations_of(file: str, source: str) -> Iterator[Mutation]:
    """Yield every mutation of a file."""
    lines = source.splitlines(keepends=True)
    for function in functions(ast.parse(source)):
        for node in ast.walk(function):
            if not isinstance(node, (ast.expr, ast.stmt)) or node is function:
                continue
            start, end = span(lines, node)
            before = source[start:end]
            after = changed(node, before)
            if after and "log." not in before:
                yield Mutation(file, function.name, before, after)


def changed(node: ast.AST, source: str) -> str | None:
    """Return the text that breaks a node, or None for a kind of node that is not broken."""
    match node:
        case ast.If(test=test) | ast.While(test=test):
            condition = ast.unparse(test)
            head, found, rest = source.partition(":\n")
            return f"{head.split(maxsplit=1)[0]} not ({condition}){found}{rest}" if "\n" not in head else None
        case ast.Compare(ops=[operator]) if type(operator) in OPPOSITES:
            return ast.unparse(ast.Compare(node.left, [OPPOSITES[type(operator)]()], node.comparators))
        case ast.Constant(value=bool()):
            return str(not node.value)
        case ast.Constant(value=int() | float() as number) if number not in (0, 1):
            return repr(number * 2 + 1)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            return "pass"
        case ast.Return(value=ast.expr()):
            return "return None"
    return None


def draw(tree: Path, seed: int, count: int) -> list[Mutation]:
    """Choose mutations at random, in each room in proportion to its lines and at least two."""
    chance = random.Random(seed)
    rooms: dict[str, list[Mutation]] = {room: [] for room in ROOMS}
    lines: Counter[str] = Counter()
    for path in sorted(path for room in ROOMS for path in (tree / room).rglob("*.py")):
        file, source = str(path.relative_to(tree)), path.read_text()
        room = file.partition("/")[0]
        lines[room] += source.count("\n")
        if not file.startswith(UNTOUCHED):
            rooms[room].extend(mutations_of(file, source))
    shares = {room: max(2, round(count * lines[room] / lines.total())) for room in ROOMS}
    return [mutation for room in ROOMS for mutation in chance.sample(rooms[room], shares[room])][:count]


def tests_of(file: str, tree: Path) -> list[str]:
    """Return the tests of a file's room that the tree has."""
    start = max((start for start in TESTS if file.startswith(start)), key=len)
    return [test for test in TESTS[start] if (tree / test).exists()]


def nearest(mutation: Mutation, tree: Path) -> list[str]:
    """Return up to NEAREST test modules of the room that mention the file or the function, most mentions first."""
    module, stem = mutation.file.removesuffix(".py").replace("/", "."), Path(mutation.file).stem
    words = re.compile(rf"{re.escape(module)}\b|\b{stem}\b|\b{re.escape(mutation.function.strip('_'))}\b")
    counts: Counter[str] = Counter()
    for test in tests_of(mutation.file, tree):
        path = tree / test
        for one in sorted(path.rglob("test_*.py")) if path.is_dir() else [path]:
            counts[str(one.relative_to(tree))] = len(words.findall(one.read_text())) + 20 * (stem in one.stem)
    return [name for name, count in counts.most_common(NEAREST) if count]


def failed(tree: Path, tests: list[str]) -> str:
    """Run tests until one fails. Returns the report line that names it, or an empty text if none fails."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--timeout",
        "120",
        "-p",
        "no:cacheprovider",
        *tests,
    ]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    try:
        ran = subprocess.run(
            command, cwd=tree, env=env, capture_output=True, timeout=LONGEST_SECONDS, check=False, text=True
        )
    except subprocess.TimeoutExpired:
        return f"longer than {LONGEST_SECONDS} s"
    if ran.returncode in (0, NOTHING_COLLECTED):
        return ""
    lines = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0] if lines else (ran.stdout + ran.stderr)[-300:]


def outcome(mutation: Mutation, tree: Path, *, whole_room: bool) -> tuple[str, str]:
    """Return `killed`, `survived` or `missing`, and the test that failed."""
    before = mutation.apply(tree)
    if before is None:
        return "missing", ""
    try:
        near = nearest(mutation, tree)
        by = failed(tree, near) if near else ""
        by = by or (failed(tree, tests_of(mutation.file, tree)) if whole_room else "")
    finally:
        (tree / mutation.file).write_text(before)
    return ("killed" if by else "survived"), by


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--seed", type=int, default=7)
    drawing.add_argument("--count", type=int, default=60)
    drawing.add_argument("list", type=Path)
    running = commands.add_parser("run")
    running.add_argument("list", type=Path)
    running.add_argument("result", type=Path)
    running.add_argument("--tree", type=Path, default=TREE)
    running.add_argument(
        "--near", action="store_true", help="only the test modules that name the changed file"
    )
    given = parser.parse_args()
    if given.command == "draw":
        chosen = [asdict(mutation) for mutation in draw(TREE, given.seed, given.count)]
        given.list.write_text(json.dumps(chosen, indent=1))
        return
    results = []
    for entry in json.loads(given.list.read_text()):
        result, by = outcome(Mutation(**entry), given.tree, whole_room=not given.near)
        results.append(entry | {"outcome": result, "by": by})
        print(result, entry["file"], entry["function"], by, flush=True)
        given.result.write_text(json.dumps(results, indent=1))
    print(dict(Counter(result["outcome"] for result in results)))


if __name__ == "__main__":
    main()
