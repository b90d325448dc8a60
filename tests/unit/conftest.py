"""Fixtures shared by several folders of unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from shared import migrations
from shared.deployments.deployments import DeploymentRef
from tests.support import factories
from tests.support.databases import fresh
from tests.support.greened import child

__all__ = ["child"]


@pytest.fixture
def deployment(db: Engine) -> DeploymentRef:
    """A deployment in an otherwise empty database. Its first revision serves the graph `agent`."""
    return factories.deployment()


@pytest.fixture(scope="session")
def migrated(database: str) -> Iterator[str]:
    """The URL of a migrated database. Tests may read it or use it as a template, but must not change it."""
    with fresh(database) as url:
        migrations.upgrade(url)
        yield url
