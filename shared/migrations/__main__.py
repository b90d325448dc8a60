"""`python -m shared.migrations`: upgrade the database, or write the next version.

With `--stay` the process does not end after the upgrade, but waits for a signal: honcho needs this.
"""

from __future__ import annotations

import os
import signal
import sys

from shared import migrations
from shared.infra import database_version
from shared.settings import Settings


def main(arguments: list[str]) -> str | None:
    """Execute the command. Returns an error message, or None."""
    settings = Settings.from_env(os.environ)
    url = settings.database_direct_url or settings.database_url
    if url is None:
        return "DATABASE_URL must name the database to migrate"
    match arguments:
        case [] | ["--stay"]:
            try:
                database_version.applied(url)  # first: SQLAlchemy fails on other encodings with a traceback
                migrations.upgrade(url, pooler=settings.database_pooler)
            except (database_version.NotUtf8, database_version.DevelopmentDatabase) as error:
                return str(error)
            if arguments:
                _stay()
        case ["new", subject]:
            migrations.write_version(url, subject)
        case _:
            return migrations.__doc__
    return None


def _stay() -> None:
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    sys.stdout.write("The database is ready. This process waits for the end of the others.\n")
    sys.stdout.flush()
    signal.sigwait(signals)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
