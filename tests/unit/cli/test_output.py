"""What the command line prints of the processes it starts."""

from __future__ import annotations

import io

from cli.output import Lines


def test_each_line_of_what_a_process_says_bears_its_name() -> None:
    out = io.StringIO()

    Lines(out).show("agent", "Traceback:\n  File\n\nValueError")

    assert out.getvalue().splitlines() == [
        f"agent    │ {text}" for text in ("Traceback:", "  File", "", "ValueError")
    ]
