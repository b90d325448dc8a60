"""The control plane keeps to its own API document, whatever it is sent.

Every operation gets requests that the document allows and requests that it does not; half of them name
records that exist. What comes back must be documented, in its status, its type and its schema.
"""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.core.failures import FailureGroup
from schemathesis.generation import GenerationMode

from tests.contract.conftest import ADMIN_KEY, ControlPlane
from tests.contract.documented import records

CONTROL_PLANE = "^/v[12]/"
EXAMPLES = 30
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture
def operations(control: ControlPlane) -> list[Any]:
    """Every operation of the control plane, as the document describes it."""
    generation = GenerationConfig(modes=list(GenerationMode), with_security_parameters=False)
    config = SchemathesisConfig(projects=ProjectsConfig(default=ProjectConfig(generation=generation)))
    document: Any = control.get("/openapi.json").json
    schema = schemathesis.openapi.from_dict(closed(document), config=config)
    schema.app = control.client.application
    return [found.ok() for found in schema.include(path_regex=CONTROL_PLANE).get_all_operations()]


def closed(document: dict[str, Any]) -> dict[str, Any]:
    """The document, with answers that have not a field more than it says."""
    for schema in document["components"]["schemas"].values():
        if "title" in schema and "properties" in schema:
            schema["additionalProperties"] = False
    return document


def test_it_keeps_to_its_document(control: ControlPlane, operations: list[Any]) -> None:
    failures = []
    for operation in operations:
        known = records(control)
        try:
            exercise(operation, known)
        except (FailureGroup, AssertionError) as failure:
            failure.add_note(operation.label)
            failures.append(failure)
    if failures:
        raise BaseExceptionGroup("the API does not keep to its document", failures)


def exercise(operation: Any, known: dict[str, str]) -> None:
    """Send an operation what it allows and what it does not; raises what the checks find."""
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, exists=st.booleans())
    def check(case: Case, exists: bool) -> None:
        if exists:
            case.path_parameters.update(
                {name: known.get(name, sent) for name, sent in case.path_parameters.items()}
            )
        case.call_and_validate(headers={"X-Api-Key": ADMIN_KEY}, checks=CHECKS)

    check()
