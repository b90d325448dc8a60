"""Prepared modules: a project finds through them what tsx finds, at the place of its source."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import javascript
from tests.support.node_hosts import loader, modules_of, prepare
from workers.builder.node import modules

STAND_IN = """
const module = await import(new URL("src/agent.ts", `file://${process.cwd()}/`).href);
console.log(JSON.stringify(await module.graph));
"""
LEGACY = {
    "package.json": '{"name": "legacy", "version": "1.0.0", "main": "index.js"}',
    "index.js": "exports.whole = require('./part').part;",
    "part.js": "exports.part = 'part';",
}
MODULES = {
    "package.json": json.dumps(
        {"type": "module", "version": "3.2.1", "imports": {"#lib/*": "./src/lib/*.js"}}
    ),
    "tsconfig.base.json": """{ // a comment
        "compilerOptions": {
            "experimentalDecorators": true, "paths": {"@/*": ["./src/*"], "exact": ["./src/lib/exact.ts"]},
        },
    }""",
    "tsconfig.json": '{"extends": "./tsconfig.base.json", "compilerOptions": {"module": "nodenext"}}',
    "src/agent.ts": """
        import { readFileSync } from "node:fs";
        import { Worker } from "node:worker_threads";
        import type { Nothing } from "./types.js";
        import { a } from "./lib/a.js";
        import { b } from "@/lib/b";
        import exact from "exact";
        import { inFolder } from "./folder";
        import { mapped } from "#lib/mapped";
        import { version } from "../package.json";
        import data from "./data.json" with { type: "json" };
        import { common } from "./common.cjs";
        import ofModule from "./of_module.mjs";
        import legacy from "legacy";
        import { part } from "legacy/part";
        import plain from "./plain.js";
        enum Kind { One = 1 }
        function mark(target: any, key: string) { target.marks = [key]; }
        class Marked { @mark field = 1; }
        const where = (): string => new Error("here" as string).stack!.split("\\n")[1]!.trim();
        const name = "computed";
        const computed = await import(`./lib/${name}.js`);
        const note = readFileSync(new URL("./note.txt", import.meta.url), "utf8");
        const sent = (worker: Worker) => new Promise((resolve) => worker.on("message", resolve));
        export const graph = {
          a, b, exact, inFolder, mapped, version, data, common, ofModule, whole: legacy.whole, part, plain, note,
          kind: Kind.One, marks: (Marked.prototype as any).marks, where: where(), computed: computed.default,
          aliased: (await import("@/lib/b")).b, document: (await import("./data.json")).default,
          ofWorker: await sent(new Worker(new URL("./worker.ts", import.meta.url))),
        };
    """,
    "src/worker.ts": """
        import { parentPort } from "node:worker_threads";
        import { a } from "./lib/a.js";
        parentPort!.postMessage(`worker ${a as string}`);
    """,
    "src/types.ts": "export type Nothing = 1;",
    "src/lib/a.ts": "export const a: string = 'a';",
    "src/lib/b.ts": "export const b: string = 'b';",
    "src/lib/exact.ts": "export default 'exact' as string;",
    "src/lib/mapped.ts": "export const mapped: string = 'mapped';",
    "src/lib/computed.ts": "export default 'computed' as string;",
    "src/folder/index.ts": "export const inFolder: string = 'in a folder';",
    "src/data.json": '{"n": 1, "a-b": 2}',
    "src/note.txt": "a note",
    "src/common.cts": "export const common: string = require('./data.json').n + __dirname.slice(-4);",
    "src/of_module.mts": "export default 'of a module' as string;",
    "src/plain.js": "export default 'plain';",
    **{f"node_modules/legacy/{name}": content for name, content in LEGACY.items()},
}
COMMON = {
    "package.json": '{"name": "common"}',
    "src/agent.ts": """
        import { other } from "./other";
        import * as data from "./data.json";
        enum Kind { Two = 2 }
        const where = (): string => new Error("here" as string).stack!.split("\\n")[1]!.trim();
        const late = import("./late.js");
        export const graph = (async () => ({
          other, kind: Kind.Two, n: data.n, folder: __dirname.slice(-4), where: where(),
          late: (await late).late, required: require("./other").other,
        }))();
    """,
    "src/other.ts": "export const other: string = 'other';",
    "src/late.ts": "export const late: string = 'late';",
    "src/data.json": '{"n": 1}',
}


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def load(project: Path, options: list[str]) -> subprocess.CompletedProcess[str]:
    """Load the graph of a project with Node's options, and print it."""
    main = project.with_suffix(".mjs")
    main.write_text(STAND_IN)
    command = [javascript.NODE / "node", *options, main]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


def loaded(project: Path, options: list[str]) -> Any:
    done = load(project, options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_kind_of_import_finds_what_tsx_finds(tmp_path: Path) -> None:
    for name, files in (("modules", MODULES), ("common", COMMON)):
        project = written(tmp_path / name, files)
        prepare(project, {"agent": "./src/agent.ts:graph"})

        found = loaded(project, loader(project))

        assert found == loaded(project, loader(None))
        assert f"{project}/src/agent.ts:" in found["where"]


def test_scripts_are_compiled_once_and_not_executed_by_the_build(tmp_path: Path) -> None:
    agent = "import './lib.js'; console.log('executed'); export const graph: string = 'compiled';"
    project = written(
        tmp_path / "app",
        {
            "package.json": '{"type": "module"}',
            "src/agent.ts": agent,
            "src/lib.ts": "throw new Error('executed');",
        },
    )

    prepare(project, {"agent": "./src/agent.ts:graph"})
    (project / "src/lib.ts").write_text("const unused: string = '';")

    index = json.loads((modules_of(project) / modules.INDEX).read_text())
    assert {Path(url).name for url, *_ in index["files"]} >= {"agent.ts", "lib.ts"}
    assert "Error: executed" in load(project, loader(project)).stderr, (
        "hosts read what the build has compiled"
    )


def test_an_import_that_cannot_be_found_prepares_nothing(tmp_path: Path) -> None:
    project = written(
        tmp_path / "app",
        {
            "package.json": '{"type": "module"}',
            "src/agent.ts": "import { x } from 'nowhere'; export const graph = x;",
        },
    )

    with pytest.raises(AssertionError, match="Cannot find package 'nowhere'"):
        prepare(project, {"agent": "./src/agent.ts:graph"})

    assert not (modules_of(project) / modules.INDEX).exists()
