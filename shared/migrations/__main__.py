"""`python -m shared.migrations`: upgrade the database, or write the next version."""

from __future__ import annotations

import os
import sys

from shared import migrations
from shared.settings import Settings


def main(arguments: list[str]) -> int:
    url = Settings.from_env(os.environ).database_url
    if url is None:
        print("DATABASE_URL must name the database to migrate", file=sys.stderr)
        return 2
    match arguments:
        case []:
            migrations.upgrade(url)
        case ["new", subject]:
            migrations.write_version(url, subject)
        case _:
            print(migrations.__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
