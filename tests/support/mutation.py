"""Break the product in random places and report whether the tests notice.

    python -m tests.support.mutation --seed S --count N [--tests PATHS]

Each mutation changes one place of a function: it negates a condition, swaps a comparison, drops a statement, or changes
a constant or a returned value. The tests are the unit and contract modules that mention the file and its function most
often, or PATHS. The last commit is tested, in a clone; the working tree is not changed. `survived` means that these
tests passed with the mutation: repeat it with more PATHS before you conclude that no test notices.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

TREE = Path(__file__).parents[2]
ROOMS = ("web", "workers", "shared", "cli")
RINGS = ("tests/unit", "tests/contract")
NEAREST = 10  # number of test modules to run
OPPOSITES = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """The replacement of the text from `start` to `end` in a file, inside a function."""

    file: str
    function: str
    line: int
    start: int
    end: int
    after: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]


def changed(node: ast.AST) -> tuple[ast.expr | ast.stmt, str] | None:
    """Return the part of a node to replace and its replacement, or None for a kind of node that is not broken."""
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            return test, f"(not ({ast.unparse(test)}))"
        case ast.Compare(ops=[operator]) if type(operator) in OPPOSITES:
            opposite = OPPOSITES[type(operator)]()
            return node, f"({ast.unparse(ast.Compare(node.left, [opposite], node.comparators))})"
        case ast.Constant(value=bool() as truth):
            return node, str(not truth)
        case ast.Constant(value=int() | float() as number):
            return node, repr(number * 2 + 1)
        case ast.Expr(value=ast.Call()) | ast.Assign(targets=[ast.Attribute()]) | ast.AugAssign():
            return node, "pass"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            return node, "return None"
    return None


def mutations_of(file: str, source: bytes) -> Iterator[Mutation]:
    """Yield every mutation of a file. Log lines stay as they are."""
    starts = list(accumulate(map(len, source.splitlines(keepends=True)), initial=0))
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in (inner for statement in function.body for inner in ast.walk(statement)):
            if "log." in ast.unparse(node) or (found := changed(node)) is None:
                continue
            part, after = found
            start = starts[part.lineno - 1] + part.col_offset
            end = starts[(part.end_lineno or 0) - 1] + (part.end_col_offset or 0)
            mutation = Mutation(file, function.name, part.lineno, start, end, after)
            with suppress(SyntaxError):  # in an f-string
                compile(mutation.applied(source), file, "exec")
                yield mutation


def draw(tree: Path, seed: int, count: int) -> list[Mutation]:
    """Choose lines of product code at random over all rooms, and break each once."""
    chance = random.Random(seed)
    files = sorted(str(path.relative_to(tree)) for room in ROOMS for path in (tree / room).rglob("*.py"))
    sources = {file: (tree / file).read_bytes() for file in files if "/migrations/" not in file}
    weights = [source.count(b"\n") for source in sources.values()]
    chosen: dict[tuple[str, int], Mutation] = {}
    while len(chosen) < count:
        (file,) = chance.choices(list(sources), weights)
        if found := list(mutations_of(file, sources[file])):
            mutation = chance.choice(found)
            chosen.setdefault((file, mutation.line), mutation)
    return list(chosen.values())


def nearest(mutation: Mutation, tree: Path) -> list[str]:
    """Return the test modules that import or mention the file or the function, most mentions first."""
    module, stem = mutation.file.removesuffix(".py").replace("/", "."), Path(mutation.file).stem
    imported = rf"{re.escape(module)}\b|from {module.rpartition('.')[0]} import [^\n]*\b{stem}\b"
    named = rf"\b{re.escape(mutation.function.strip('_'))}\b|\b{stem}\b"
    counts: Counter[str] = Counter()
    for path in sorted(path for ring in RINGS for path in (tree / ring).rglob("test_*.py")):
        text = path.read_text()
        score = 20 * len(re.findall(imported, text)) + min(len(re.findall(named, text)), 20)
        counts[str(path.relative_to(tree))] = score + 10 * (stem in path.stem)
    return [name for name, score in counts.most_common(NEAREST) if score]


def killer(tree: Path, tests: Sequence[str]) -> str:
    """Run tests until one fails. Returns what failed, or an empty text. pytest exits with 5 if it found none."""
    command = [sys.executable, "-m", "pytest", "-xq", "-m", "not release", "--timeout", "120", *tests]
    ran = subprocess.run(command, cwd=tree, capture_output=True, check=False, text=True)
    failures = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "" if ran.returncode in (0, 5) else (failures or [f"exit code {ran.returncode}"])[0][:150]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--tests", nargs="+", metavar="PATHS", help="the tests of every mutation")
    given = parser.parse_args()
    survived = 0
    with tempfile.TemporaryDirectory(prefix="runyard-mutation-") as folder:
        tree = Path(folder, "tree")
        subprocess.run(["git", "clone", "--quiet", "--shared", TREE, tree], check=True)
        tree.joinpath(".cache").symlink_to(TREE / ".cache")
        if failure := killer(tree, ["--collect-only", *(given.tests or RINGS)]):
            sys.exit(f"The tests cannot be collected without a mutation: {failure}")
        for mutation in draw(tree, given.seed, given.count):
            path, tests = tree / mutation.file, given.tests or nearest(mutation, tree)
            source = path.read_bytes()
            path.write_bytes(mutation.applied(source))
            failure = killer(tree, tests) if tests else ""
            path.write_bytes(source)
            survived += not failure
            change = f"{source[mutation.start : mutation.end]!r:.80} -> {mutation.after!r:.80}"
            place = f"{mutation.file}:{mutation.line} {mutation.function}"
            print("killed" if failure else "survived", place, change, failure, sep=" | ", flush=True)
    print(f"killed: {given.count - survived}, survived: {survived}")


if __name__ == "__main__":
    main()
