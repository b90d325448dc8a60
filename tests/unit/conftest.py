"""What several folders of unit tests use."""

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
    """A deployment on empty tables, whose first revision serves the graph `agent`."""
    return factories.deployment()


@pytest.fixture(scope="session")
def migrated(database: str) -> Iterator[str]:
    """The address of a database that the migrations have made: to be read, or to be copied."""
    with fresh(database) as url:
        migrations.upgrade(url)
        yield url
