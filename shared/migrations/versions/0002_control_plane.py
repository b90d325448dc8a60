"""What the control plane keeps beside deployments: one function a resource."""

from __future__ import annotations

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Each resource's tables and columns, in the order they lean on each other."""
