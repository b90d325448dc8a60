"""The control plane keeps to its own API document, whatever it is sent.

Every operation gets requests that the document allows and requests that it does not; most of them name
records that exist. What comes back must be documented, in its status, its type and its schema.
"""

from __future__ import annotations

from typing import Any

from tests.contract.conforming import operations, require_conforming
from tests.contract.conftest import ControlPlane
from tests.contract.documented import records

CONTROL_PLANE = "^/v[12]/"
EXAMPLES = 30


def test_it_keeps_to_its_document(control: ControlPlane) -> None:
    document: Any = control.get("/openapi.json").json
    described = operations(control.client.application, document, path_regex=CONTROL_PLANE)
    require_conforming(described, lambda operation: records(control), examples=EXAMPLES)
