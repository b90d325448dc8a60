"""What the modules of this room share."""

from __future__ import annotations

from typing import Any

import pytest

from shared.deployments.deployments import DeploymentRef
from tests.support import factories


@pytest.fixture
def deployment(db: Any) -> DeploymentRef:
    return factories.deployment()
