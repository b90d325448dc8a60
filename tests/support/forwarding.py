"""A program `runyard` for scripts of tests that runs each command in the tests' own process.

Starting the command line takes ten times as long as most commands.
"""

from __future__ import annotations

import json
import os
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

from tests.support.commands import invoke

PROGRAM = """#!{python} -ISE
import json, os, socket, sys
with socket.create_connection(("127.0.0.1", {port})) as server, server.makefile("rw") as file:
    print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]), file=file, flush=True)
    code, out, err = json.loads(file.readline())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        words, environment, folder = json.loads(self.rfile.readline())
        others = dict.fromkeys(os.environ.keys() - environment.keys())
        with chdir(folder):
            ran = invoke(*words, env={**others, **environment})
        self.wfile.write(json.dumps([ran.exit_code, ran.stdout, ran.stderr]).encode() + b"\n")


@contextmanager
def program(folder: Path) -> Iterator[Path]:
    """Create the program in this folder. It works while the block runs and its thread waits for the script."""
    with socketserver.TCPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        path = folder / "runyard"
        path.write_text(PROGRAM.format(python=sys.executable, port=server.server_address[1]))
        path.chmod(0o755)
        try:
            yield path
        finally:
            server.shutdown()
            thread.join()
