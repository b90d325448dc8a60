"""A worker process starts with the standard library patched before anything takes a part of it."""

from __future__ import annotations

import subprocess
import sys


def test_the_brokers_pauses_do_not_stop_the_greenlets() -> None:
    script = (
        "import runpy, sys; sys.argv = ['celery', '--version'];"
        "\ntry: runpy.run_module('workers', run_name='__main__')\nexcept SystemExit: pass"
        "\nimport kombu.utils.functional as kombu, time, gevent"
        "\nassert kombu.sleep is time.sleep and 'gevent' in kombu.sleep.__module__, kombu.sleep"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
