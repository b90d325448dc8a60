"""`python -m shared.migrations`: upgrade the database, or write the next version."""

from __future__ import annotations

import os
import sys

from shared import migrations
from shared.infra import schema
from shared.settings import Settings


def main(arguments: list[str]) -> str | None:
    """What went wrong, if anything."""
    settings = Settings.from_env(os.environ)
    url = settings.database_url
    if url is None:
        return "DATABASE_URL must name the database to migrate"
    match arguments:
        case []:
            try:
                schema.applied(url)  # before SQLAlchemy, which fails on other encodings with a traceback
                migrations.upgrade(url, pooler=settings.database_pooler)
            except (schema.NotUtf8, migrations.DevelopmentDatabase) as error:
                return str(error)
        case ["new", subject]:
            migrations.write_version(url, subject)
        case _:
            return migrations.__doc__
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
