"""`langgraph.json`: each key is honoured, refused by name, or reported as having no effect."""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from shared.errors import BuildFailed
from tests.unit.builder.conftest import Read, refuse
from workers.builder.config.schema import Cors, Http, LanggraphJson

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def test_the_least_there_can_be(read: Read) -> None:
    found = read()

    assert found.graphs == {"agent": {"path": "./agent.py:graph", "description": None}}
    assert found.plain == (PurePosixPath("."),)
    assert found.directory == PurePosixPath(".")
    assert (found.requirements, found.packages, found.import_paths) == ((), (), ())
    assert (found.env, found.python_version, found.index) == ({}, None, None)
    assert (found.notes, found.warnings) == ((), ())


def test_it_may_lie_anywhere_under_any_name(root: Path, read: Read) -> None:
    (root / "apps/one").mkdir(parents=True)
    (root / "apps/one/agent.py").touch()

    assert read(at="apps/one/my.json").directory == PurePosixPath("apps/one")


IGNORED = {
    "image_distro": "wolfi",
    "api_version": "~=0.4",
    "keep_pkg_tools": ["pip"],
    "node_version": "20",
    "node_loader": "tsx",
    "_INTERNAL_docker_tag": "1",
    "$schema": "https://example.com/schema.json",
}
LEFT_OUT = {
    "dockerfile_lines": ["RUN true"],
    "base_image": "example/base:1",
    "priority": {"path": "./agent.py:first"},
}


def test_a_key_without_meaning_is_noted_and_one_whose_effect_would_be_missed_is_a_warning(read: Read) -> None:
    for key, value in IGNORED.items():
        found = read(**{key: value})
        assert (found.notes, found.warnings) == ((f"{key}: has no meaning here and is ignored",), ())
    for key, value in LEFT_OUT.items():
        found = read(**{key: value})
        assert (found.notes, found.warnings) == ((), (f"{key}: is not done here and is ignored",))
    assert read(encryption=None).warnings == ()
    new = read(**{"$schema": "https://example.com/schema.json", "env": ".env", "image_distro": "wolfi"})
    assert new.warnings == (), "a new project of the public template"


# Invalid values by key, each with a pattern of its error. `...` omits the key.
REFUSED: dict[str, list[tuple[Any, str]]] = {
    "graphs": [
        (..., "graphs: must be a non-empty object"),
        ({}, "graphs: must be a non-empty object"),
        (["./agent.py:graph"], "graphs: must be a non-empty object"),
        ({"a": 7}, "graphs.a: must be"),
        ({"a": {"description": "x"}}, "graphs.a: must be"),
        ({"a": {"path": "./agent.py:graph", "description": 7}}, "graphs.a.description: must be a string"),
        ({"a": "./agent.py"}, 'graphs.a: .* must have the form "./file.py:attribute"'),
        ({"a": "./agent.py:"}, "graphs.a: .* must have the form"),
        ({"a": ":graph"}, "graphs.a: .* must have the form"),
        ({"a": "agent.py:graph"}, "graphs.a: write './agent.py:graph'"),
        ({"a": "./other.py:graph"}, "graphs.a: the file './other.py' is not in the archive"),
        ({"a": "../agent.py:graph"}, "graphs.a: '../agent.py' leads outside"),
        ({"a": "/agent.py:graph"}, "graphs.a: '/agent.py' must be a relative path"),
        ({"a": ".\\agent.py:graph"}, "graphs.a: .* must be a relative path"),
        ({"a": "./agent.ts:graph"}, "graphs.a: the file './agent.ts' is not in the archive"),
        ({"a": "agent.mjs"}, "graphs.a: write './agent.mjs:default' for a file"),
    ],
    "dependencies": [
        (..., "dependencies: must not be empty"),
        ([], "dependencies: must not be empty"),
        (".", "dependencies: must be an array of strings"),
        ([7], "dependencies: must be an array of strings"),
        (["./missing"], "dependencies: './missing' is not a directory of the archive"),
        (["./agent.py"], "is not a directory of the archive"),
        (["../lib"], "dependencies: '../lib' leads outside the archive"),
        ([".", "--index-url=https://evil"], "is not a package requirement"),
        ([".", ""], "dependencies: '' is not a package requirement"),
        ([".", " "], "dependencies: ' ' is not a package requirement"),
        ([".", "httpx\n-e /etc"], "is not a package requirement"),
        ([".", "x @ git+https://user:pass@example.com/x"], "must not hold a user name or password"),
    ],
    "inbox": [
        ([], "^inbox: must be an object"),
        ({"webhok": "x"}, r"^inbox.webhok: not known\. Did you mean webhook\?$"),
        ({"webhook": "a b"}, "^inbox.webhook: must be a URL"),
        ({"webhook": "http://93.184.216.34/"}, "^inbox.webhook: Webhook must use https"),
        ({"webhook": "https://127.0.0.1/"}, "^inbox.webhook: Webhook host blocked: loopback IP range"),
        ({"webhook": "/hook"}, "^inbox.webhook: Invalid webhook hostname"),
        ({"remind_after_seconds": 0}, "^inbox.remind_after_seconds: must be a number of seconds above 0"),
        ({"expire_after_seconds": 10**9}, "^inbox.expire_after_seconds: must be a number of seconds"),
        ({"expire_after_seconds": True}, "^inbox.expire_after_seconds: must be a number of seconds"),
        ({"on_expiry": "leave"}, "^inbox.on_expiry: must be an object"),
        ({"on_expiry": {}}, "^inbox.on_expiry.action: "),
        ({"on_expiry": {"action": "stop"}}, "^inbox.on_expiry.action: must be one of answer, cancel, leave"),
        ({"on_expiry": {"action": "answer"}}, "^inbox.on_expiry.answer: required with the action answer"),
        (
            {"on_expiry": {"action": "leave", "answer": 1}},
            "^inbox.on_expiry.answer: allowed only with the action answer",
        ),
        (
            {"on_expiry": {"action": "answer", "answer": "x" * 70_000}},
            "^inbox.on_expiry.answer: must have at",
        ),
        ({"on_expiry": {"action": "leave", "after": 1}}, r"^inbox.on_expiry.after: not known\."),
    ],
    "replay": [
        ([], "^replay: must be an object"),
        ({"tool": "live"}, r"^replay.tool: not known\. Did you mean tools\?$"),
        ({"tools": "all"}, '^replay.tools: must be "recorded", "live" or a list of tool names'),
        ({"tools": ["search", 1]}, "^replay.tools: must be"),
        ({"tools": [""]}, "^replay.tools: must be"),
        ({"tools": {"search": True}}, "^replay.tools: must be"),
        ({"score": "./evals.py"}, '^replay.score: .* must have the form "./file.py:attribute"'),
        ({"score": "./missing.py:score"}, "^replay.score: the file './missing.py' is not in the archive"),
        ({"score": "./score.ts:score"}, "^replay.score: './score.ts' is JavaScript, the graphs are Python"),
    ],
    "webhooks": [
        ([], "^webhooks: must be an object"),
        ({"retries": 1}, r"^webhooks.retries: not known\.$"),
        ({"header": {}}, r"^webhooks.header: not known\. Did you mean headers\?$"),
        ({"env_prefix": ""}, "^webhooks.env_prefix: must be"),
        ({"url": {"require_https": 1}}, "^webhooks.url.require_https: must be"),
        ({"url": {"disable_loopback": False}}, "^webhooks.url.disable_loopback: false is not allowed"),
        ({"url": {"max_url_length": True}}, "^webhooks.url.max_url_length: must be"),
        ({"url": {"allowed_domains": ["a b"]}}, "^webhooks.url.allowed_domains: must be"),
        ({"url": {"allowed_ports": ["80"]}}, "^webhooks.url.allowed_ports: must be"),
        ({"headers": {"Host": "a"}}, "^webhooks.headers.Host: cannot be set"),
        ({"headers": {"webhook-id": "a"}}, "^webhooks.headers.webhook-id: cannot be set"),
        ({"headers": {"a b": "a"}}, "^webhooks.headers.a b: cannot be set"),
        ({"headers": {"A": 1}}, "^webhooks.headers.A: must be a string"),
        ({"headers": {"A": "a\nb"}}, "^webhooks.headers.A: must be at most"),
        ({"headers": {"A": "${{ env.HOME }}"}}, "^webhooks.headers.A: the variable HOME does not begin"),
        ({"headers": {"A": "${{ HOME }}"}}, "^webhooks.headers.A: a template must have the form"),
    ],
    # Ignored keys are validated too.
    "image_distro": [("bullseye", "^image_distro: must"), (7, "^image_distro: must")],
    "keep_pkg_tools": [(tools, "^keep_pkg_tools: must") for tools in (["pip", "poetry"], "pip", [[]])],
    "api_version": [(version, "^api_version: must") for version in ("latest", 1, "1.2.3.4")],
    "priority": [({"path": "first"}, "^priority: must"), ("./agent.py:first", "^priority: must")],
    "env": [
        ({"D": {"x": 1}}, "env: the value of 'D' must be a string"),
        ({"D": None}, "env: the value of 'D' must be a string"),
        (["A=1"], "env: must be an object"),
        *(
            ({"FINE": "1", name: "x"}, "env: these names cannot be set")
            for name in (
                *("DATABASE_URL", "REDIS_URL", "RUNYARD_PORT", "LD_PRELOAD", "PYTHONPATH", "POSTGRES_URI"),
                *("A=B", ""),
            )
        ),
    ],
    "python_version": [
        ("3.10", "python_version: 3.10 is too old"),
        *(
            (odd, "python_version: .* must have the form")
            for odd in ("3.11.4", "3", 3.11, "latest", f"{HERE}-bullseye")
        ),
    ],
    "pip_installer": [("conda", "pip_installer: must be one of")],
    "encryption": [({"path": "./agent.py:own"}, "^encryption: not supported: this server")],
    **{key: [("x", f"^{key}: this key belongs into 'source' now$")] for key in ("project_root", "package")},
}


@pytest.mark.parametrize("key", REFUSED)
def test_a_value_that_makes_no_sense_is_refused_by_its_key(read: Read, key: str) -> None:
    for value, match in REFUSED[key]:
        refuse(read, match, **{key: value})


def test_an_unknown_key_is_said_to_be_ignored_and_two_names_of_an_image_are_one_too_many(read: Read) -> None:
    assert read(grahps={}).warnings == ("grahps: unknown key, ignored. Did you mean graphs?",)
    wrong = {"graphs": ..., "grahps": {}}, {"dependencies": ..., "dependencis": ["."]}
    for keys, right in zip(wrong, ("graphs", "dependencies"), strict=True):
        refuse(read, rf"^\w+: unknown key\. Did you mean {right}\?$", **keys)
    refuse(read, "^api_version: must not be given with", api_version="0.4", _INTERNAL_docker_tag="x")
    for accepted in ("auto", "uv", None):
        assert read(pip_installer=accepted).notes == ()
    assert read(pip_installer="pip").notes == ("pip_installer: packages are installed by uv",)


def test_every_key_of_the_format_is_known() -> None:
    keys = (
        "dependencies graphs env python_version node_version pip_config_file pip_installer source"
        " dockerfile_lines base_image image_distro api_version keep_pkg_tools store checkpointer auth"
        " encryption priority http webhooks ui ui_config _INTERNAL_docker_tag project_root package"
    )
    assert set(keys.split()) <= LanggraphJson().by_key.keys()


def test_variables_are_text_and_never_read_from_a_file_of_the_archive(read: Read, root: Path) -> None:
    assert read(env={"A": "x", "B": 7, "C": True}).env == {"A": "x", "B": "7", "C": "true"}
    names = "LANGSMITH_PROJECT LANGSMITH_TRACING LANGSMITH_API_KEY LANGCHAIN_TRACING_V2 LANGCHAIN_PROJECT"
    assert read(env=dict.fromkeys(names.split(), "x")).env.keys() == set(names.split())

    (root / ".env").write_text("A=1")

    found = read(env=".env")

    assert found.env == {}
    assert found.notes[0].startswith("env: '.env' is not read on the server")


def test_the_interpreter_has_a_version(read: Read) -> None:
    assert read(python_version=HERE).python_version == HERE
    assert read(python_version=f"{HERE}-bookworm").python_version == HERE
    assert read(python_version="3.99").python_version == "3.99", "whether it is here is seen later"


def test_the_inbox_has_rules(read: Read) -> None:
    assert read().inbox == {}
    rules = {
        "webhook": "https://93.184.216.34/hook",
        "remind_after_seconds": 60,
        "expire_after_seconds": 0.5,
        "on_expiry": {"action": "answer", "answer": None},
    }
    assert read(inbox={**rules, "remind_after_seconds": None}).inbox == {
        name: value for name, value in rules.items() if name != "remind_after_seconds"
    }
    assert read(inbox={"on_expiry": {"action": "cancel"}}).inbox == {"on_expiry": {"action": "cancel"}}


@pytest.mark.parametrize("tools", ["live", "recorded", [], ["search", "get_order"]])
def test_replays_have_rules_and_a_scorer(read: Read, tools: str | list[str]) -> None:
    assert read().replay == {}

    replay = {"tools": tools, "score": "./agent.py:score"}

    assert read(replay=replay).replay == replay


def test_webhooks_have_rules_and_headers(read: Read) -> None:
    assert read().webhooks == {}
    told = {
        "headers": {
            "Authorization": "Bearer ${{ env.LG_WEBHOOK_TOKEN }}",
            "X-Team": "${{env.LG_WEBHOOK_TEAM}}",
        },
        "url": {"allowed_domains": ["*.Example.com"], "disable_loopback": True},
    }
    found = read(webhooks=told, env={"LG_WEBHOOK_TEAM": "blue"}).webhooks
    assert found == {
        "headers": {"Authorization": "Bearer ${{ env.LG_WEBHOOK_TOKEN }}", "X-Team": "blue"},
        "url": {
            "require_https": False,
            "allowed_domains": ["*.example.com"],
            "allowed_ports": [],
            "max_url_length": None,
            "disable_loopback": True,
        },
    }


def test_webhooks_may_lead_back_where_the_operator_lets_calls_go_there(read: Read, lenient: None) -> None:
    found = read(webhooks={"url": {"disable_loopback": False}}).webhooks
    assert found["url"]["disable_loopback"] is False


def test_a_project_s_own_authorization_and_app_are_read_with_it(read: Read) -> None:
    found = read(auth={"path": "./agent.py:auth"}, http={"app": "./agent.py:app"})

    assert (found.auth["path"], found.http) == ("./agent.py:auth", {"app": "./agent.py:app"})
    assert found.warnings == ()
    assert (read().auth, read().http) == ({}, {})

    odd = read(
        auth={"path": "./agent.py:auth", "cach": {}, "cache": {"ttl": 5}, "openapi": {"tags": []}},
        http={"disable_thread": True, "cors": {"allow_origin": "*"}, "logging_headers": {"include": []}},
    )

    assert odd.warnings == (
        "auth.cach: unknown key, ignored. Did you mean cache?",
        "auth.cache.ttl: unknown key, ignored.",
        "auth.openapi.tags: unknown key, ignored.",
        "http.disable_thread: unknown key, ignored. Did you mean disable_threads?",
        "http.cors.allow_origin: unknown key, ignored. Did you mean allow_origins?",
        "http.logging_headers.include: unknown key, ignored. Did you mean includes?",
    )


PATH = "./auth.py:auth"
SWITCHES = [name for name in Http().fields if name.startswith(("enable_", "disable_"))]


def section(read: Read, key: str, value: Any) -> Any:
    """Return one section of a langgraph.json as it is loaded."""
    return getattr(read(**{key: value}), key)


# Invalid values of sections, each with the error text that follows the section's name.
NO_OBJECT = ": must be an object"
NO_ARRAY = ": must be an array"
NO_MINUTES = ": must be a number"
OAUTH = {"authorization_servers": ["https://auth.example/realm", "http://localhost:8080"]}
SECTIONS: dict[str, list[tuple[Any, str]]] = {
    "auth": [
        (PATH, NO_OBJECT),
        ([], NO_OBJECT),
        ({"disable_studio_auth": True}, ".path: None must have the form"),
        ({"path": "./auth.py"}, ".path: './auth.py' must have the form"),
        ({"path": "auth.py:auth"}, ".path: write './auth.py:auth' for a file"),
        ({"path": "./other.py:auth"}, ".path: the file './other.py' is not in the archive"),
        ({"path": "../auth.py:auth"}, ".path: '../auth.py' leads outside the archive"),
        ({"path": "./auth.ts:auth"}, ".path: './auth.ts' is JavaScript, the graphs are Python"),
        ({"path": PATH, "disable_studio_auth": "no"}, ".disable_studio_auth: must be true or false"),
        ({"path": PATH, "cache": 60}, f".cache{NO_OBJECT}"),
        ({"path": PATH, "cache": {"cache_keys": "authorization"}}, f".cache.cache_keys{NO_ARRAY}"),
        ({"path": PATH, "cache": {"cache_keys": ["a b"]}}, f".cache.cache_keys{NO_ARRAY}"),
        *(
            ({"path": PATH, "cache": {"ttl_seconds": seconds}}, f".cache.ttl_seconds{NO_MINUTES} between 0")
            for seconds in (3601, True, -1)
        ),
        ({"path": PATH, "oauth": True}, f".oauth{NO_OBJECT}"),
        *(
            (
                {"path": PATH, "oauth": {"authorization_servers": servers}},
                f".oauth.authorization_servers{NO_ARRAY}",
            )
            for servers in (
                None,
                [],
                "https://a.example",
                ["http://a.example"],
                ["https://"],
                ["https://a?b"],
                ["https://a b"],
                ["https://[a"],
                ["ftp://a"],
                [7],
                ["https://a.example"] * 21,
            )
        ),
        *(
            ({"path": PATH, "oauth": {**OAUTH, "scopes": scopes}}, f".oauth.scopes{NO_ARRAY}")
            for scopes in ("tools", ["a b"], ['a"b'], [""], [7], ["x"] * 21)
        ),
        ({"path": PATH, "cache": {"max_size": 1.5}}, ".cache.max_size: must be a whole number"),
        ({"path": PATH, "openapi": []}, f".openapi{NO_OBJECT}"),
        (
            {"path": PATH, "openapi": {"security": {}}},
            ".openapi.security: must have the form that OpenAPI defines",
        ),
        (
            {"path": PATH, "openapi": {"paths": {"/a": []}}},
            ".openapi.paths: must have the form that OpenAPI defines",
        ),
    ],
    "checkpointer": [
        ("./saver.py:saver", NO_OBJECT),
        ({"path": "./saver.py:saver"}, ".path: not supported: this server keeps checkpoints itself"),
        ({"backend": "mongo"}, ".backend: not supported: this server keeps checkpoints itself"),
        ({"serde": True}, f".serde{NO_OBJECT}"),
        ({"serde": {"pickle_fallback": True}}, ".serde.pickle_fallback: not supported: to read a"),
        ({"serde": {"allowed_msgpack_modules": ["a.B"]}}, ".serde.allowed_msgpack_modules: must be"),
        ({"serde": {"allowed_json_modules": [["a"]]}}, ".serde.allowed_json_modules: must be"),
        ({"serde": {"allowed_json_modules": [["a", 1]]}}, ".serde.allowed_json_modules: must be"),
        ({"serde": {"other": 1}}, ".serde.other: not known"),
        ({"ttl": 5}, f".ttl{NO_OBJECT}"),
        ({"ttl": {"strategy": "forget"}}, ".ttl.strategy: must be one of delete, keep_latest"),
        ({"ttl": {"default_ttl": "5"}}, f".ttl.default_ttl{NO_MINUTES}"),
        ({"ttl": {"default_ttl": -1}}, f".ttl.default_ttl{NO_MINUTES}"),
        ({"ttl": {"sweep_interval_minutes": True}}, f".ttl.sweep_interval_minutes{NO_MINUTES}"),
        ({"ttl": {"other": 1}}, ".ttl.other: not known"),
    ],
    "http": [
        ([1], NO_OBJECT),
        ([], NO_OBJECT),
        *(({name: "yes"}, f".{name}: must be true or false") for name in SWITCHES),
        ({"app": "app.py:app"}, ".app: write './app.py:app' for a file"),
        ({"app": "./none.py:app"}, ".app: the file './none.py' is not in the archive"),
        ({"app": {"path": "./app.py:app"}}, ".app: {'path': './app.py:app'} must have the form"),
        ({"apps": {"/a": "./app.py:app"}}, ".apps: only for JavaScript projects"),
        ({"middleware_order": "last"}, ".middleware_order: must be middleware_first or auth_first"),
        ({"middleware_scope": "all"}, ".middleware_scope: must be custom_routes"),
        ({"middleware_scope": ["custom_routes"]}, ".middleware_scope: must be custom_routes"),
        *(
            ({"mount_prefix": prefix}, ".mount_prefix: must be a path like")
            for prefix in ("api", "/a b", "/a//b", "/a/../b", "/./b", "/{x}", "/ä", 5, "/" + "a" * 300)
        ),
        ({"configurable_headers": ["x-team"]}, f".configurable_headers{NO_OBJECT}"),
        ({"logging_headers": {"includes": "x"}}, f".logging_headers.includes{NO_ARRAY}"),
        ({"configurable_headers": {"excludes": ["a b"]}}, ".configurable_headers.excludes: must be"),
        ({"cors": "*"}, f".cors{NO_OBJECT}"),
        ({"cors": {"allow_origins": "*"}}, f".cors.allow_origins{NO_ARRAY}"),
        ({"cors": {"allow_headers": ["a\r\nb"]}}, f".cors.allow_headers{NO_ARRAY}"),
        ({"cors": {"allow_credentials": 1}}, ".cors.allow_credentials: must be true or false"),
        ({"cors": {"allow_origin_regex": "("}}, ".cors.allow_origin_regex: is no regular expression"),
        ({"cors": {"allow_origin_regex": 7}}, ".cors.allow_origin_regex: must be a regular expression"),
        ({"cors": {"allow_origin_regex": "a" * 501}}, ".cors.allow_origin_regex: must be a regular"),
        ({"cors": {"max_age": -1}}, ".cors.max_age: must be a whole number"),
        ({"cors": {"max_age": True}}, ".cors.max_age: must be a whole number"),
    ],
    "store": [
        ([], NO_OBJECT),
        ({"path": "x"}, ".path: not known"),
        ({"ttl": 5}, f".ttl{NO_OBJECT}"),
        ({"ttl": {"default_ttl": "5"}}, f".ttl.default_ttl{NO_MINUTES} of minutes"),
        ({"ttl": {"default_ttl": -1}}, f".ttl.default_ttl{NO_MINUTES} of minutes"),
        ({"ttl": {"refresh_on_read": 1}}, ".ttl.refresh_on_read: must be true or false"),
        ({"index": {"dims": 3}}, ".index.embed: must be"),
        ({"index": {"embed": "a:b"}}, ".index.dims: must be"),
        ({"index": {"dims": True, "embed": "a:b"}}, ".index.dims: must be"),
        ({"index": {"dims": 3, "embed": "a:b", "fields": []}}, ".index.fields: must be"),
        ({"index": {"dims": 3, "embed": "a:b", "other": 1}}, ".index.other: not known"),
    ],
}


@pytest.mark.parametrize("key", SECTIONS)
def test_what_makes_no_sense_in_a_section_is_refused_by_name(read: Read, key: str) -> None:
    for value, text in SECTIONS[key]:
        refuse(read, f"^{re.escape(key + text)}", **{key: value})
    assert section(read, key, None) == section(read, key, {}) == {}, "a project need not say anything"


def test_an_authorization_needs_no_more_than_its_path(read: Read) -> None:
    assert section(read, "auth", {"path": PATH}) == {
        "path": PATH,
        "disable_studio_auth": False,
        "openapi": {},
        "oauth": None,
        "cache_keys": [],
        "cache_seconds": None,
        "cache_size": None,
    }
    assert section(read, "auth", {"path": "pkg.security:auth"})["path"] == "pkg.security:auth"


def test_how_its_answers_are_kept_and_described_is_kept(read: Read) -> None:
    openapi = {"securitySchemes": {"bearer": {"type": "http"}}, "security": [{"bearer": []}], "paths": {}}
    cache = {"cache_keys": ["Authorization", "X-Team", "x-team"], "ttl_seconds": 3600, "max_size": 100}

    found = section(
        read,
        "auth",
        {"path": PATH, "disable_studio_auth": True, "openapi": openapi, "oauth": OAUTH, "cache": cache},
    )

    assert found["disable_studio_auth"] is True
    assert found["openapi"] == openapi
    assert found["oauth"] == {**OAUTH, "scopes": []}
    assert found["cache_keys"] == ["authorization", "x-team"]
    assert (found["cache_seconds"], found["cache_size"]) == (3600, 100)


def test_how_long_threads_and_items_of_the_store_live_is_kept(read: Read) -> None:
    told = {"strategy": "keep_latest", "default_ttl": 0.5, "sweep_interval_minutes": 5, "sweep_limit": 10}
    assert section(read, "checkpointer", {"ttl": told, "path": None}) == {
        "ttl": {"strategy": "keep_latest", "default_ttl": 0.5}
    }
    assert section(read, "checkpointer", {"ttl": {}}) == {"ttl": {"strategy": "delete", "default_ttl": None}}

    kept = {
        "ttl": {"default_ttl": 1.5, "sweep_interval_minutes": 5},
        "index": {"dims": 3, "embed": "openai:small"},
    }
    assert section(read, "store", kept) == {
        "ttl": {"default_ttl": 1.5, "refresh_on_read": True},
        "index": {"dims": 3, "embed": "openai:small", "fields": ["$"]},
    }


def test_classes_that_checkpoints_may_hold_are_kept(read: Read) -> None:
    classes = [["my_agent.models", "State"], ["my_agent", "file", "Other"]]
    serde = {"allowed_msgpack_modules": classes, "pickle_fallback": False}
    assert section(read, "checkpointer", {"serde": serde}) == {"serde": {"allowed_msgpack_modules": classes}}
    every = {"serde": {"allowed_msgpack_modules": True}}
    assert section(read, "checkpointer", every) == every
    assert section(read, "checkpointer", {"serde": {"allowed_msgpack_modules": []}}) == {}
    assert (
        section(read, "checkpointer", {"serde": {"allowed_json_modules": None}, "backend": "default"}) == {}
    )

    told = {"serde": {"allowed_json_modules": [["my_agent", "State"]], "allowed_msgpack_modules": None}}
    assert section(read, "checkpointer", told) == {}
    (note,) = read(checkpointer=told).notes
    assert note.startswith("checkpointer.serde.allowed_json_modules: has no meaning here")
    assert section(read, "checkpointer", {"serde": None}) == {}
    assert read(checkpointer={"serde": None}).notes == ()


def test_only_what_is_said_is_kept_with_small_letters_and_without_a_last_slash(read: Read) -> None:
    assert section(read, "http", {"app": None, "disable_mcp": None, "cors": None, "mount_prefix": "/"}) == {}
    switches = {"disable_mcp": False, "disable_a2a": True, "disable_ag_ui": True}
    assert section(read, "http", switches) == switches

    found = section(
        read,
        "http",
        {"configurable_headers": {"includes": ["X-Team"], "excludes": None}, "mount_prefix": "/api/"},
    )

    assert found == {"configurable_headers": {"includes": ["x-team"]}, "mount_prefix": "/api"}


def test_everything_there_is_is_kept(read: Read) -> None:
    told = {
        **dict.fromkeys(SWITCHES, True),
        "app": "./app.py:app",
        "middleware_order": "auth_first",
        "middleware_scope": "custom_routes",
        "mount_prefix": "/my-api/v1",
        "configurable_headers": {"includes": ["x-team-*"], "excludes": ["*token*"]},
        "logging_headers": {"includes": ["user-agent"]},
        "cors": {
            "allow_origins": ["https://a.example", "*"],
            "allow_methods": ["GET"],
            "allow_headers": ["x-team"],
            "allow_credentials": True,
            "allow_origin_regex": r"https://[a-z]+\.example",
            "expose_headers": ["x-total"],
            "max_age": 60,
        },
    }
    assert {*told, "apps"} == set(Http().fields)  # `apps` is for JavaScript projects
    assert set(told["cors"]) == set(Cors().fields)

    assert section(read, "http", told) == told


MATCHED_SOON = (
    r"https://.*\.example\.com",
    r"^https?://(localhost|127\.0\.0\.1)(:\d+)?$",
    r"https://(?:[a-z0-9-]+\.)?example\.(com|org)",
    r"(?i)https://[a-z]{1,63}-[0-9]+\.[^.]+\.example",
    r"http://(\d{1,3}\.){3}\d{1,3}(?=:80)",
    r".*",
    r"[(a+)+]\(a+\)+(?#(a+)x{}+",  # parentheses that are no group
)
REPEATS_A_GROUP = "it repeats a group that repeats or chooses"
# Regular expressions whose matching time could block the process, with their errors.
MATCHED_LATE = {
    r"(a+)+b": REPEATS_A_GROUP,
    r"([a]]+)+b": REPEATS_A_GROUP,
    r"(a{,}b)+": REPEATS_A_GROUP,
    r"(a|b)*c": REPEATS_A_GROUP,
    r"(a|aa)*b": REPEATS_A_GROUP,
    r"(?:[a-z-]+\.)*example": REPEATS_A_GROUP,
    r"((a?){4}){4}b": REPEATS_A_GROUP,
    r".*.*.*.*b": "it has more than 3 repetitions",
    r"(?=.*a)(?=.*b).*.*c": "it has more than 3 repetitions",
    r"(a*)\1\1b": "it refers to a group",
    r"((a)?)?(?(2)b|c)": "it refers to a group",
    r"(?P<n>a)(?P=n)": "it refers to a group",
    r"(?x)a # (": "it has a construct that cannot be checked",
}


def test_origins_are_matched_by_a_regular_expression_that_is_soon_matched(read: Read) -> None:
    for regex in MATCHED_SOON:
        told = {"cors": {"allow_origin_regex": regex}}
        assert section(read, "http", told) == told
    for regex, reason in MATCHED_LATE.items():
        with pytest.raises(BuildFailed, match=f"^http.cors.allow_origin_regex: {re.escape(reason)}"):
            section(read, "http", {"cors": {"allow_origin_regex": regex}})
