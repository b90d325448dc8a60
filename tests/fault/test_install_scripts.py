"""Install scripts of JavaScript packages run in the sandbox: they reach nothing of the service and of other deployments."""

from __future__ import annotations

import dataclasses
import json
from uuid import uuid4

from tests.support.archived import keep
from tests.support.greened import World, child, greened
from tests.support.node_project import FILES, GREETING, make, planned, settings_for
from workers.builder.python import packages
from workers.isolation import sandbox, usage

__all__ = ["child"]

# Looks into each place and writes there, and into the environment of each process.
SCRIPT = """
const fs = require("fs"), path = require("path");
const report = { seen: [], environments: [], variables: Object.keys(process.env) };
const walk = (place, depth) => {
  let names = [];
  try { names = fs.readdirSync(place); } catch {}
  if (names.length) report.seen.push(place);
  try { fs.writeFileSync(path.join(place, "harm.js"), "harm"); } catch {}
  if (depth < 3) for (const name of names.slice(0, 50)) walk(path.join(place, name), depth + 1);
};
for (const place of PLACES) walk(place, 0);
for (const pid of fs.readdirSync("/proc").filter((name) => /^\\d+$/.test(name))) {
  try { report.environments.push(fs.readFileSync(`/proc/${pid}/environ`, "latin1")); } catch {}
}
fs.writeFileSync("report.json", JSON.stringify(report));
"""


@greened
def test_an_install_script_reaches_nothing_but_its_own_project(world: World) -> None:
    found = settings_for(world)
    settings = dataclasses.replace(
        found, passed_on={**found.passed_on, "NPM_CONFIG_REGISTRY": "http://127.0.0.1:9"}
    )
    others = [
        settings.data_dir,
        packages.cache_of(settings, uuid4()),
        settings.data_dir / "revisions" / str(uuid4()) / "project",
    ]
    for folder in others:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "secret").write_text("of another")
    # Below the best level, the script would harm the packages that all tests of this machine share.
    is_sandboxed = sandbox.level(settings) == 2
    places = [*others, *([settings.cache_dir / "shared"] if is_sandboxed else [])]
    files = {
        **FILES,
        "greeting/package.json": json.dumps({**GREETING, "scripts": {"postinstall": "node steal.js"}}),
        "greeting/steal.js": SCRIPT.replace("PLACES", json.dumps(list(map(str, places)))),
    }

    made = make(settings, planned(keep(files), OPENAI_API_KEY="sk-secret"))

    report = json.loads((made.workspace.project / "greeting" / "report.json").read_text())
    assert "OPENAI_API_KEY" not in report["variables"]
    of_the_platform = [
        name for name in report["variables"] if name.startswith(("RUNYARD", "DATABASE", "REDIS"))
    ]
    assert of_the_platform == [usage.MARK]
    assert not [
        environ for environ in report["environments"] if "sk-secret" in environ or "DATABASE_URL" in environ
    ]
    if is_sandboxed:
        writable = str(made.workspace.root), str(packages.cache_of(settings, planned("").deployment_id))
        # Folders above its own are in the sandbox's memory, and writing there changes nothing on the machine.
        shared = settings.cache_dir / "shared"
        changed = [*settings.data_dir.rglob("harm.js"), *shared.glob("harm.js"), *shared.glob("*/harm.js")]
        changed += [path for folder in made.folders for path in folder.rglob("harm.js")]
        assert [path for path in changed if not str(path).startswith(writable)] == []
        assert made.workspace.root / "harm.js" in changed, "it tried"
        readable = (*writable, *map(str, made.folders))
        seen = [place for place in report["seen"] if not place.startswith(readable)]
        assert [place for place in seen if not _leads_to(place, readable)] == []


def _leads_to(place: str, readable: tuple[str, ...]) -> bool:
    """Whether a folder contains one that the script may read."""
    return any(folder.startswith(f"{place}/") for folder in readable)
