"""The command line: a client of the service's HTTP API that can also start the whole service on one machine.

`main` registers the commands. Each is a function in one of the packages `machine` (up, dev, demo, process, health),
`deployments` (deploy to logs), `runs` (run, runs, threads), `operating` (workers, keys, usage …), `backups` and
`doctor`. `commands` has their decorator, `output` what they print with; they call the service through `client`.
"""

from importlib.util import find_spec
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]  # root of the clone, or the `app` folder of an installed wheel
KEPT_KEY, KEPT_URL = "admin.key", "url"  # files that `runyard up` writes in the data directory
SERVER_PACKAGE = "gunicorn"  # only the extra `server` installs it


def has_server() -> bool:
    """Return whether the packages of the extra `server` are installed."""
    return find_spec(SERVER_PACKAGE) is not None
