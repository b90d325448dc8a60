"""What several folders of unit tests use."""

from tests.support.greened import child

__all__ = ["child"]
