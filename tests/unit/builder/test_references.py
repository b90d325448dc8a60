"""Graphs in `langgraph.json`: their references to code, and their names."""

from __future__ import annotations

import re

from tests.unit.builder.conftest import Read, refuse


def test_a_graph_is_a_file_or_a_module_and_may_be_described(read: Read) -> None:
    found = read(
        graphs={
            "file": "./agent.py:graph",
            "module": "pkg.agent:make",
            "told": {"path": "./agent.py:graph", "description": "Says things."},
            "bare": {"path": "pkg:graph"},
        }
    )

    assert found.graphs["file"] == {"path": "./agent.py:graph", "description": None}
    assert found.graphs["module"]["path"] == "pkg.agent:make"
    assert found.graphs["told"]["description"] == "Says things."
    assert found.graphs["bare"]["description"] is None


NAME = "./agent.py:graph"
UUID = "046b5dc7-2108-582c-9c6c-31d556d138f0"
ADDRESS = "it stands in addresses"
UNSEEN = "it must not hold control or format characters"
UUID_LIKE = "it would be taken for the UUID of an assistant"


def test_a_graph_may_have_any_name_that_can_be_read_and_addressed(read: Read) -> None:
    for graph_id in (
        *("agent", "My agent", "a-b_c.d", "v1.2", "Übersetzer", "代理", "a|b:c", "__proto__", "50%", "what?"),
        *("deadbeef", UUID[:-1], f"{UUID}0", "n" * 255),
    ):
        assert list(read(graphs={graph_id: NAME}).graphs) == [graph_id]


def test_a_name_that_no_graph_can_have_is_refused(read: Read) -> None:
    for graph_id, shown, reason in (
        ("", "''", "it must not be empty"),
        ("n" * 256, f"'{'n' * 255}'", "it must not be longer than 255 characters"),
        (" agent", "' agent'", "it must not begin or end with white space"),
        ("agent\u3000", "'agent\\u3000'", "it must not begin or end with white space"),
        ("a/b", "'a/b'", ADDRESS),
        ("a\\b", "'a\\\\b'", ADDRESS),
        ("../x", "'../x'", ADDRESS),
        ("..", "'..'", ADDRESS),
        ("a..b", "'a..b'", ADDRESS),
        (".", "'.'", ADDRESS),
        ("a\nb", "'a\\nb'", UNSEEN),
        ("a\x1b[31mb", "'a\\x1b[31mb'", UNSEEN),
        ("a\x7fb", "'a\\x7fb'", UNSEEN),
        ("\u202eé", "'\\u202e\\xe9'", UNSEEN),
        ("a\u2066b", "'a\\u2066b'", UNSEEN),
        ("a\u200bb", "'a\\u200bb'", UNSEEN),
        ("a\u2028b", "'a\\u2028b'", UNSEEN),
        (UUID, f"'{UUID}'", UUID_LIKE),
        (UUID.upper(), f"'{UUID.upper()}'", UUID_LIKE),
        (UUID.replace("-", ""), f"'{UUID.replace('-', '')}'", UUID_LIKE),
        (f"{{{UUID}}}", f"'{{{UUID}}}'", UUID_LIKE),
        (f"urn:uuid:{UUID}", f"'urn:uuid:{UUID}'", UUID_LIKE),
    ):
        text = f"graphs: {shown} cannot be the name of a graph: {reason}"
        refuse(read, re.escape(text), graphs={graph_id: NAME})
