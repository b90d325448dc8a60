"""The console's scripts without comments, as sent to browsers, have the same meaning. Needs no platform."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.javascript import outcomes
from web.http.static_files import STATIC, without_comments


def test_scripts_mean_the_same_without_their_comments(tmp_path: Path) -> None:
    scripts = {str(path): path.read_bytes() for path in (STATIC / "console").rglob("*.js")}
    pairs = [[name, source.decode(), without_comments(source).decode()] for name, source in scripts.items()]
    assert any(source != sent for _, source, sent in pairs)
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    failures = outcomes("browser", "stripped.mjs", "", "", PAIRS=str(tmp_path / "pairs.json"))
    assert failures == {"every script means the same": None}
