"""Requests made from the API document, allowed and forbidden ones, and a look at what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import schemathesis
from flask import Flask
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

from tests.contract.conftest import ADMIN_KEY

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

Known = Mapping[str, str]  # ids of records that exist, by the path parameter that names them


def operations(app: Flask, document: dict[str, Any], *, path_regex: str = ".*") -> list[Any]:
    """The operations of a document, as it describes them."""
    generation = GenerationConfig(modes=list(GenerationMode), with_security_parameters=False)
    config = SchemathesisConfig(projects=ProjectsConfig(default=ProjectConfig(generation=generation)))
    schema = schemathesis.openapi.from_dict(closed(document), config=config)
    schema.app = app
    return [found.ok() for found in schema.include(path_regex=path_regex).get_all_operations()]


def closed(document: dict[str, Any]) -> dict[str, Any]:
    """The document, with answers that have not a field more than it says."""
    for schema in document["components"]["schemas"].values():
        if "title" in schema and "properties" in schema:
            schema["additionalProperties"] = False
    return document


def require_conforming(
    operations: list[Any],
    records: Callable[[Any], Known],
    *,
    examples: int,
    change: Callable[[Case, bool], None] = lambda case, exists: None,
    timeout: float | None = None,
) -> None:
    """Each operation keeps to the document, whatever it is sent; raises what the checks find.

    Most of what is sent names records that exist. A stream is read for `timeout` seconds.
    """
    failures = []
    for operation in operations:
        try:
            _exercise(operation, records(operation), examples, change, timeout)
        except (FailureGroup, AssertionError) as failure:
            failure.add_note(operation.label)
            failures.append(failure)
    if failures:
        raise BaseExceptionGroup("the API does not keep to its document", failures)


def _exercise(
    operation: Any, known: Known, examples: int, change: Callable[[Case, bool], None], timeout: float | None
) -> None:
    allowed, forbidden = (operation.as_strategy(generation_mode=mode) for mode in GenerationMode)
    cases = st.one_of(allowed, allowed, forbidden)

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, exists=st.sampled_from((True, True, False)))
    def check(case: Case, exists: bool) -> None:
        if exists:
            case.path_parameters.update(
                {name: known.get(name, sent) for name, sent in case.path_parameters.items()}
            )
        change(case, exists)
        case.call_and_validate(headers={"X-Api-Key": ADMIN_KEY}, checks=CHECKS, timeout=timeout)

    check()
