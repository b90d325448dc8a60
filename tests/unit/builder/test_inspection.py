"""Inspection of a project: the host's description is checked, merged with langgraph.json, and reused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any
from uuid import uuid4

import orjson
import pytest

import tests.support.factories as make
from shared import assistants
from shared.deployments.deployments import DeploymentRef
from shared.deployments.user_code import ANY, Route, from_stored
from shared.errors import BuildFailed
from shared.infra.postgres import connection
from workers.builder import built_in_routes, inspection, publish
from workers.builder.config.manifest import Manifest

SETTINGS = {
    "disable_studio_auth": True,
    "openapi": {"security": [{"bearer": []}]},
    "cache_keys": ["authorization"],
    "cache_seconds": 60,
    "cache_size": None,
    "oauth": None,
}
AUTH = {"path": "./own.py:auth", **SETTINGS}
DESCRIBED_AUTH = {"parameters": ["authorization"], "handlers": [["threads", "create"], ["*", "*"]]}
ROUTE = {"path": "/hello/{name}", "methods": ["GET", "HEAD"], "kind": "http"}
DESCRIBED_APP: dict[str, Any] = {"routes": [ROUTE], "openapi": None, "middleware": [], "cors": None}


def manifest(auth: Mapping[str, Any] = {}, **http: Any) -> Manifest:
    return Manifest(directory=PurePosixPath(), graphs={}, auth=auth, http=http)


def with_app(**http: Any) -> Manifest:
    return manifest(app="./own.py:app", **http)


class Log(list[str]):
    """A log that collects the warnings of a build."""

    def __call__(self, level: str, message: str) -> None:
        assert level == "WARNING"
        self.append(message)


@pytest.fixture
def log() -> Log:
    return Log()


def app(*routes: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    described = {**DESCRIBED_APP, "routes": list(routes) or [ROUTE], **changes}
    return {"user_code": {"auth": None, "app": described}}


def auth(**changes: Any) -> dict[str, Any]:
    return {"user_code": {"auth": {**DESCRIBED_AUTH, **changes}, "app": None}}


def route(path: str, *methods: str, kind: str = "http") -> dict[str, Any]:
    return {"path": path, "methods": list(methods), "kind": kind}


def test_both_are_stored_as_the_service_reads_them(log: Log) -> None:
    answer = {"user_code": {"auth": DESCRIBED_AUTH, "app": {**DESCRIBED_APP, "openapi": {"info": {}}}}}

    found = inspection.describe_user_code(answer, manifest(AUTH, app="./own.py:app"), log)

    assert found is not None
    stored = from_stored(orjson.loads(orjson.dumps(found)))
    assert stored.auth is not None
    assert stored.auth.parameters == ["authorization"]
    assert stored.auth.handlers == {("threads", "create"), (ANY, ANY)}
    assert {name: getattr(stored.auth, name) for name in SETTINGS} == SETTINGS
    assert stored.app is not None
    assert stored.app.routes == [Route(path="/hello/{name}", methods=["GET", "HEAD"], kind="http")]
    assert stored.app.openapi == {"info": {}}
    assert log == []


def test_a_project_without_either_has_nothing_stored(log: Log) -> None:
    answers: tuple[dict[str, Any], ...] = (
        {},
        {"user_code": None},
        {"user_code": {"auth": None, "app": None}},
    )
    for answer in answers:
        assert inspection.describe_user_code(answer, manifest(), log) is None
        assert inspection.effective_http(answer, manifest(disable_mcp=True)) == {"disable_mcp": True}


def test_a_handler_that_is_never_asked_is_a_warning(log: Log) -> None:
    handlers = [["runs", "create"], ["threads", "wipe"], ["store", "put"], ["*", "list_namespaces"]]

    found = inspection.describe_user_code(auth(handlers=handlers), manifest(AUTH), log)

    assert found is not None
    assert found["auth"]["handlers"] == [["store", "put"], ["*", "list_namespaces"]]
    assert log == [
        "auth: the handler of 'runs', 'create' is never called: there is no such action",
        "auth: the handler of 'threads', 'wipe' is never called: there is no such action",
    ]


INVALID: list[tuple[dict[str, Any], Manifest, str]] = [
    ({"user_code": [1]}, manifest(), "it is no object"),
    ({}, manifest(AUTH), "'auth' is missing"),
    ({"user_code": {"auth": []}}, manifest(AUTH), "'auth' is missing"),
    (auth(), manifest(), "'auth' is not of the configuration"),
    (app(), manifest(disable_mcp=True), "'app' is not of the configuration"),
    (auth(), with_app(), "'auth' is not of the configuration"),
    (auth(parameters=None), manifest(AUTH), "its parameters are no array of names"),
    (auth(parameters=["a"] * 101), manifest(AUTH), "its parameters are no array of names"),
    (auth(parameters=["a" * 201]), manifest(AUTH), "its parameters are no array of names"),
    (auth(parameters=["a\0"]), manifest(AUTH), "it has a NUL character"),
    (auth(handlers={}), manifest(AUTH), "its handlers are no pairs"),
    (auth(handlers=[["threads"]]), manifest(AUTH), "its handlers are no pairs"),
    (auth(handlers=[["threads", None]]), manifest(AUTH), "its handlers are no pairs"),
    (auth(handlers=["ab"]), manifest(AUTH), "its handlers are no pairs"),
    (app(routes=None), with_app(), "its routes are no array of at most 1000"),
    (app(routes=[ROUTE] * 1001), with_app(), "its routes are no array of at most 1000"),
    (app({**ROUTE, "kind": "gopher"}), with_app(), "a route of an unknown kind"),
    (app({**ROUTE, "path": "hello"}), with_app(), "a route's path is not valid: 'hello'"),
    (app({**ROUTE, "path": None}), with_app(), "a route's path is not valid: 'None'"),
    (app({**ROUTE, "path": "/" + "a" * 500}), with_app(), "a route's path is not valid: '/aaa"),
    (app({**ROUTE, "path": "/{a:path}/{b:path}"}), with_app(), "a route has too many parameters"),
    (app({**ROUTE, "path": "/{a}" * 11}), with_app(), "a route has too many parameters"),
    (app({**ROUTE, "methods": None}), with_app(), "a route's methods are not valid"),
    (app({**ROUTE, "methods": ["get"]}), with_app(), "a route's methods are not valid"),
    (app(middleware="GZip"), with_app(), "its middleware are no pairs of name and path"),
    (app(cors=[]), with_app(), "its CORS settings are no object"),
    (app(openapi=[]), with_app(), "its OpenAPI document is no object"),
    (app(openapi={"info": {"title": "\0"}}), with_app(), "it has a NUL character"),
    (app(openapi={"info": {"n": 2**80}}), with_app(), "could not be described"),
]


def test_a_description_that_makes_no_sense_fails_the_build(log: Log) -> None:
    for answer, config, reason in INVALID:
        with pytest.raises(BuildFailed, match=reason) as failed:
            inspection.describe_user_code(answer, config, log)
        assert failed.value.step == "graphs"


def test_a_route_has_no_more_parts_than_the_service_reads_and_a_large_document_is_left_out(log: Log) -> None:
    found = inspection.describe_user_code(app({**ROUTE, "name": "hello"}), with_app(), log)

    assert found is not None
    assert found["app"]["routes"] == [ROUTE]

    found = inspection.describe_user_code(app(openapi={"info": {"title": "a" * 2**20}}), with_app(), log)

    assert found is not None
    assert found["app"]["openapi"] is None
    assert log == ["http.app: its OpenAPI document is larger than 1024 KiB and is left out"]


@pytest.mark.parametrize(
    ("versions", "version"),
    [
        ({"langgraph": "1.4.13"}, "1.4.13"),
        ({"langgraph": "1.0\0"}, None),
        ({"langgraph": 1}, None),
        ([], None),
        (None, None),
    ],
)
def test_the_version_of_langgraph_is_that_of_the_host_s_answer(versions: Any, version: str | None) -> None:
    assert inspection.langgraph_version({"versions": versions}) == version


def test_middleware_fails_the_build_unless_it_is_said_to_be_for_the_app_s_own_routes(log: Log) -> None:
    answer = app(middleware=[["GZipMiddleware", "/"], ["Guard", "/"], ["Guard", "/threads"]])

    with pytest.raises(
        BuildFailed, match=r"^http.app: its middleware \(GZipMiddleware, Guard\) cannot"
    ) as no:
        inspection.describe_user_code(answer, with_app(), log)

    assert no.value.step == "configuration"
    assert '"middleware_scope": "custom_routes"' in no.value.message
    found = inspection.describe_user_code(answer, with_app(middleware_scope="custom_routes"), log)
    assert found is not None
    assert found["app"]["routes"] == [ROUTE]
    assert log == []


def test_middleware_below_a_path_of_the_app_alone_is_accepted_and_may_answer(log: Log) -> None:
    answer = app(middleware=[["guard", "/admin"], ["serveStatic", "/files/{name}"], ["logger", "/admin"]])

    found = inspection.describe_user_code(answer, with_app(), log)

    assert found is not None
    assert found["app"]["routes"] == [
        ROUTE, route("/admin", kind="mount"), route("/files/{name}", kind="mount")
    ]  # fmt: skip


@pytest.mark.parametrize(
    "path", ["/", "/threads", "/ok", "/docs/more", "/ui", "/.well-known", "/{any}/admin"]
)
def test_middleware_below_a_path_of_built_in_routes_is_refused(path: str, log: Log) -> None:
    with pytest.raises(BuildFailed, match=r"^http.app: its middleware \(guard\) cannot"):
        inspection.describe_user_code(app(middleware=[["guard", path]]), with_app(), log)


def test_middleware_below_a_path_is_refused_where_built_in_routes_have_a_prefix(log: Log) -> None:
    with pytest.raises(BuildFailed, match=r"^http.app: its middleware \(guard\) cannot"):
        inspection.describe_user_code(app(middleware=[["guard", "/api"]]), with_app(mount_prefix="/api"), log)


def test_what_the_app_says_to_browsers_is_taken_over_unless_langgraph_json_does() -> None:
    answer = app(cors={"allow_origins": ["https://a.example"], "allow_private_network": True})

    assert inspection.effective_http(answer, with_app())["cors"] == {"allow_origins": ["https://a.example"]}
    assert inspection.effective_http(app(cors={"allow_origins": "*"}), with_app())["cors"] == {
        "allow_origins": ["*"]
    }
    config = with_app(cors={"allow_origins": []})
    assert inspection.effective_http(answer, config) == config.http
    with pytest.raises(BuildFailed, match=r"^http.app: CORSMiddleware.max_age: must be"):
        inspection.effective_http(app(cors={"max_age": "long"}), with_app())


def test_open_routes_instead_of_built_in_ones_are_a_warning(log: Log) -> None:
    routes = [route("/threads/{any}", "GET"), route("/hello", "GET"), route("", kind="mount")]
    config = manifest(AUTH, app="./own.py:app")
    answer = {"user_code": {"auth": DESCRIBED_AUTH, "app": {**DESCRIBED_APP, "routes": routes}}}

    assert inspection.describe_user_code(answer, config, log)

    assert len(log) == 1
    assert log[0].endswith("enable_custom_route_auth is not set: GET /threads/{any}")
    log.clear()
    asked = manifest(AUTH, app="./own.py:app", enable_custom_route_auth=True)
    assert inspection.describe_user_code(answer, asked, log)
    assert inspection.describe_user_code(app(*routes), with_app(), log), (
        "nothing is guarded that could be open"
    )
    assert log == []


def test_the_same_build_with_the_same_variables_brings_the_same(db: Any) -> None:
    deployment = make.deployment(serving=False)
    document = {"auth": {**DESCRIBED_AUTH, **SETTINGS}, "app": None}
    kept = {"inspector": inspection.inspector(), "http": {"disable_mcp": True}}
    built = make.revision(deployment.id, manifest=kept, user_code=document)
    make.revision(deployment.id, number=2, build_id=built, manifest={"inspector": "an older one"})

    with connection() as conn:
        found = inspection.earlier_inspection(conn, deployment.id, uuid4(), built, {})
        others = inspection.earlier_inspection(conn, deployment.id, uuid4(), built, {"KEY": "another"})

    assert found is not None
    assert "agent" in found.graphs
    assert (found.user_code, found.http) == (document, {"disable_mcp": True})
    assert others is None


def test_an_app_s_route_covers_a_built_in_one_if_they_share_a_path_and_a_method() -> None:
    for covering in (
        route("/threads", "POST"),
        route("/threads/{x}", "GET"),
        route("/threads/mine", "GET"),
        route("/threads/{x:uuid}/state", "GET", "HEAD"),
        route("/{a}/{b}/{c}", "POST"),
        route("/threads"),
        route("/assistants/{x}/subgraphs/{name}/more", "GET"),
        route("/assistants/{x}/subgraphs/{rest:path}", "GET"),
        route("/store", kind="mount"),
        route("/{x}", kind="mount"),
        route("/threads/{x}/stream/events", kind="websocket"),
    ):
        assert built_in_routes.covering([covering]) != [], covering
    for beside in (
        *(route(path, "GET") for path in ("/", "/docs", "/info", "/metrics", "/hello", "/hello/{rest:path}")),
        route("/threads", "GET"),
        route("/threads/", "POST"),
        route("/threads/{x}/files", "GET"),
        route("/threads/{x}/runs", "PUT"),
        route("/static", kind="mount"),
        route("/{rest:path}", "DELETE"),  # routes for all paths come after the built-in ones
        route("", kind="mount"),
        route("/threads/files", kind="websocket"),
    ):
        assert built_in_routes.covering([beside]) == [], beside


def test_they_are_named_as_people_read_them() -> None:
    routes = [
        route("/threads/{x}", "HEAD", "GET"),
        route("/threads/{x}/stream/events", kind="websocket"),
        route("/store/", kind="mount"),
    ]

    assert built_in_routes.covering(routes) == [
        "GET /threads/{x}",
        "WEBSOCKET /threads/{x}/stream/events",
        "all of /store/",
    ]


# The default assistants of a revision


def deploy(deployment: DeploymentRef, variable: str = "", description: str | None = None) -> dict[str, Any]:
    """Deploy the graph `fresh` with this LANGGRAPH_CONFIG value. Returns its default assistant."""
    configs = publish.assistant_configs({"LANGGRAPH_CONFIG": variable})
    with connection() as conn:
        publish.make_default_assistants(conn, deployment.id, {"fresh": {"description": description}}, configs)
        return assistants.RECORD.show(assistants.get(conn, deployment.id, assistants.default_id("fresh")))


def test_default_assistants_are_configured_by_a_variable(db: Any) -> None:
    deployment = make.deployment()
    first = deploy(deployment, '{"fresh": {"configurable": {"a": 1}, "recursion_limit": 7}, "other": {}}')
    assert first["config"] == {"configurable": {"a": 1}, "recursion_limit": 7}
    assert (first["context"], first["version"]) == ({"a": 1}, 1)

    again = deploy(deployment, '{"fresh": {"configurable": {"a": 2}}}')
    assert (again["config"], again["context"], again["version"]) == ({"configurable": {"a": 2}}, {"a": 2}, 1)
    gone = deploy(deployment, description="Greets people.")
    assert (gone["config"], gone["context"], gone["description"]) == ({}, {}, "Greets people.")
    assert deploy(deployment)["description"] is None


def test_a_default_assistant_that_somebody_changed_stays(db: Any) -> None:
    deployment = make.deployment()
    made = deploy(deployment)
    with connection() as conn:
        assistants.change(conn, deployment, made["assistant_id"], {"context": {"mine": 1}})
    assert deploy(deployment, '{"fresh": {"configurable": {"a": 1}}}')["context"] == {"mine": 1}

    deployment = make.deployment()
    for n in (1, 2):  # created first, then reconfigured
        assistant = deploy(deployment, f'{{"fresh": {{"context": {{"a": {n}}}, "recursion_limit": 7}}}}')
        assert assistant["config"] == {"configurable": {"a": n}, "recursion_limit": 7}
        assert (assistant["context"], assistant["version"]) == ({"a": n}, 1)


def test_a_configuration_that_is_none_fails_the_build() -> None:
    for variable in (
        *("{nope", "[1]", "null", '{"fresh": 3}', '{"fresh": {"a": "\\u0000"}}'),
        *('{"fresh": {"configurable": 3}}', '{"fresh": {"context": 3}}'),
        '{"fresh": {"context": {"a": 1}, "configurable": {"a": 2}}}',
    ):
        with pytest.raises(BuildFailed, match="LANGGRAPH_CONFIG"):
            publish.assistant_configs({"LANGGRAPH_CONFIG": variable})
