"""Temporary databases beside the shared test database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from sqlalchemy import NullPool, create_engine, make_url, text

from shared.infra.postgres import driver_url


@contextmanager
def fresh(server_url: str, template: str | None = None, options: str = "") -> Iterator[str]:
    """Create a database and yield its URL. `template` is a URL of a database without connections, which is copied."""
    name = f"fresh_{uuid4().hex}"
    server = create_engine(driver_url(server_url), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with server.connect() as connection:
        like = "" if template is None else f" TEMPLATE {make_url(template).database}"
        connection.execute(text(f"CREATE DATABASE {name}{like} {options}"))
    url = make_url(driver_url(server_url)).set(database=name, drivername="postgresql")
    yield url.render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
