"""The default assistants of a revision: made once, and configured by the deployment's variables."""

from __future__ import annotations

from typing import Any

import pytest

import tests.support.factories as make
from shared import assistants
from shared.deployments.deployments import DeploymentRef
from shared.errors import BuildFailed
from shared.infra.postgres import connection
from workers.builder import graphs


def deploy(deployment: DeploymentRef, variable: str = "") -> dict[str, Any]:
    """Let the graph `fresh` be served with this variable; its default assistant."""
    configs = graphs.configs({"LANGGRAPH_CONFIG": variable})
    with connection() as conn:
        graphs.make_default_assistants(conn, deployment.id, {"fresh": {"description": None}}, configs)
        return assistants.record(assistants.get(conn, deployment.id, assistants.default_id("fresh")))


def test_default_assistants_are_configured_by_a_variable(db: Any) -> None:
    deployment = make.deployment()
    first = deploy(deployment, '{"fresh": {"configurable": {"a": 1}, "recursion_limit": 7}, "other": {}}')
    assert first["config"] == {"configurable": {"a": 1}, "recursion_limit": 7}
    assert (first["context"], first["version"]) == ({"a": 1}, 1)

    again = deploy(deployment, '{"fresh": {"configurable": {"a": 2}}}')
    assert (again["config"], again["context"], again["version"]) == ({"configurable": {"a": 2}}, {"a": 2}, 1)
    gone = deploy(deployment)
    assert (gone["config"], gone["context"]) == ({}, {})


def test_a_default_assistant_that_somebody_changed_stays(db: Any) -> None:
    deployment = make.deployment()
    made = deploy(deployment)
    with connection() as conn:
        assistants.change(conn, deployment, made["assistant_id"], {"context": {"mine": 1}})
    assert deploy(deployment, '{"fresh": {"configurable": {"a": 1}}}')["context"] == {"mine": 1}


def test_a_default_assistant_may_be_configured_by_its_context(db: Any) -> None:
    deployment = make.deployment()
    for n in (1, 2):  # when it is created, and when it is configured anew
        assistant = deploy(deployment, f'{{"fresh": {{"context": {{"a": {n}}}, "recursion_limit": 7}}}}')
        assert assistant["config"] == {"configurable": {"a": n}, "recursion_limit": 7}
        assert (assistant["context"], assistant["version"]) == ({"a": n}, 1)


@pytest.mark.parametrize(
    "variable",
    [
        "{nope",
        "[1]",
        "null",
        '{"fresh": 3}',
        '{"fresh": {"a": "\\u0000"}}',
        '{"fresh": {"configurable": 3}}',
        '{"fresh": {"context": 3}}',
        '{"fresh": {"context": {"a": 1}, "configurable": {"a": 2}}}',
    ],
)
def test_a_configuration_that_is_none_fails_the_build(variable: str) -> None:
    with pytest.raises(BuildFailed, match="LANGGRAPH_CONFIG"):
        graphs.configs({"LANGGRAPH_CONFIG": variable})
