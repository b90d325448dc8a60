"""`langgraph.json`: each key is honoured, refused by name, or reported as having no effect."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from shared.errors import BuildFailed
from workers.builder.config import dependencies, manifest
from workers.builder.config.manifest import Manifest
from workers.builder.config.pip_config import PipConfig
from workers.builder.config.schema import LanggraphJson

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
GRAPHS = {"agent": "./agent.py:graph"}
Read = Callable[..., Manifest]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text("graph = None")
    return tmp_path


@pytest.fixture
def read(root: Path) -> Read:
    """Return a function that reads a manifest of the given keys, added to the minimum that a project needs."""

    def reading(at: str = "langgraph.json", **config: Any) -> Manifest:
        whole = {"dependencies": ["."], "graphs": GRAPHS, **config}
        path = root / at
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({key: value for key, value in whole.items() if value is not ...}))
        return manifest.read(root, at)

    return reading


def refuse(read: Read, match: str, **config: Any) -> None:
    """Check that a configuration is refused with a matching message."""
    with pytest.raises(BuildFailed) as caught:
        pytest.fail(f"{config} is accepted as {read(**config)}")
    assert re.search(match, caught.value.message), f"{config}: {caught.value.message}"
    assert (caught.value.step, caught.value.status) == ("configuration", "BUILD_FAILED")


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


def test_a_file_that_says_nothing_or_lies_elsewhere_is_refused(root: Path) -> None:
    for content, match in (
        (None, "langgraph.json is not in the archive"),
        (b"{", "langgraph.json is not valid JSON"),
        (b"[" * 5000, "langgraph.json is not valid JSON"),
        (b"\xff\xfe{}", "langgraph.json is not valid JSON"),
        (b"[]", "must hold a JSON object"),
        (b'"text"', "must hold a JSON object"),
        (b"null", "must hold a JSON object"),
        (b'{"graphs": {"a": "./a\\u0000.py:g"}}', "NUL"),
        (b'{"x": "' + b"x" * 2**20 + b'"}', "larger than 1024 KiB"),
    ):
        if content is not None:
            (root / "langgraph.json").write_bytes(content)
        with pytest.raises(BuildFailed, match=match):
            manifest.read(root, None)

    for path in ("../langgraph.json", "/etc/passwd", "a\\b.json", "a/../../b.json", "x\0y"):
        with pytest.raises(
            BuildFailed, match=r"the configuration file .* (relative path|outside the archive)"
        ):
            manifest.read(root, path)

    (root / "secret").write_text(json.dumps({"dependencies": ["."], "graphs": GRAPHS}))
    (root / "langgraph.json").unlink()
    (root / "langgraph.json").symlink_to(root / "secret")
    with pytest.raises(BuildFailed, match="cannot be read"):
        manifest.read(root, None)


IGNORED = {
    "image_distro": "wolfi",
    "api_version": "~=0.4",
    "keep_pkg_tools": ["pip"],
    "node_version": "20",
    "_INTERNAL_docker_tag": "1",
    "$schema": "https://example.com/schema.json",
}
LEFT_OUT = {
    "dockerfile_lines": ["RUN true"],
    "base_image": "example/base:1",
    "ui": {"panel": "./panel.tsx"},
    "ui_config": {"shared": []},
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
        ({"a": "./agent.ts:graph"}, "graphs.a: './agent.ts' is a JavaScript graph"),
        ({"a": "./agent.mjs:graph"}, "JavaScript"),
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


def test_a_graph_is_a_file_or_a_module_and_may_be_described(read: Read) -> None:
    found = read(
        graphs={
            "file": "./agent.py:graph",
            "module": "pkg.agent:make",
            "told": {"path": "./agent.py:graph", "description": "Says things."},
            "bare": {"path": "pkg:graph"},
        }
    )

    assert found.graphs["file"] == {"path": "./agent.py:graph", "description": None}
    assert found.graphs["module"]["path"] == "pkg.agent:make"
    assert found.graphs["told"]["description"] == "Says things."
    assert found.graphs["bare"]["description"] is None


NAME = "./agent.py:graph"
UUID = "046b5dc7-2108-582c-9c6c-31d556d138f0"
ADDRESS = "it stands in addresses"
UNSEEN = "it must not hold control or format characters"
UUID_LIKE = "it would be taken for the UUID of an assistant"


def test_a_graph_may_have_any_name_that_can_be_read_and_addressed(read: Read) -> None:
    for graph_id in (
        *("agent", "My agent", "a-b_c.d", "v1.2", "Übersetzer", "代理", "a|b:c", "__proto__", "50%", "what?"),
        *("deadbeef", UUID[:-1], f"{UUID}0", "n" * 255),
    ):
        assert list(read(graphs={graph_id: NAME}).graphs) == [graph_id]


def test_a_name_that_no_graph_can_have_is_refused(read: Read) -> None:
    for graph_id, shown, reason in (
        ("", "''", "it must not be empty"),
        ("n" * 256, f"'{'n' * 255}'", "it must not be longer than 255 characters"),
        (" agent", "' agent'", "it must not begin or end with white space"),
        ("agent\u3000", "'agent\\u3000'", "it must not begin or end with white space"),
        ("a/b", "'a/b'", ADDRESS),
        ("a\\b", "'a\\\\b'", ADDRESS),
        ("../x", "'../x'", ADDRESS),
        ("..", "'..'", ADDRESS),
        ("a..b", "'a..b'", ADDRESS),
        (".", "'.'", ADDRESS),
        ("a\nb", "'a\\nb'", UNSEEN),
        ("a\x1b[31mb", "'a\\x1b[31mb'", UNSEEN),
        ("a\x7fb", "'a\\x7fb'", UNSEEN),
        ("\u202eé", "'\\u202e\\xe9'", UNSEEN),
        ("a\u2066b", "'a\\u2066b'", UNSEEN),
        ("a\u200bb", "'a\\u200bb'", UNSEEN),
        ("a\u2028b", "'a\\u2028b'", UNSEEN),
        (UUID, f"'{UUID}'", UUID_LIKE),
        (UUID.upper(), f"'{UUID.upper()}'", UUID_LIKE),
        (UUID.replace("-", ""), f"'{UUID.replace('-', '')}'", UUID_LIKE),
        (f"{{{UUID}}}", f"'{{{UUID}}}'", UUID_LIKE),
        (f"urn:uuid:{UUID}", f"'urn:uuid:{UUID}'", UUID_LIKE),
    ):
        text = f"graphs: {shown} cannot be the name of a graph: {reason}"
        refuse(read, re.escape(text), graphs={graph_id: NAME})


def test_a_directory_is_a_package_or_plain_and_all_else_a_requirement(read: Read, root: Path) -> None:
    wanted = ["httpx>=0.27", "langchain_openai", "x @ git+https://example.com/x.git@v1", "agent.py"]

    assert read(dependencies=[".", *wanted]).requirements == tuple(wanted)

    for name in ("app", "lib", "old", "flat", "tools/saw"):
        (root / name).mkdir(parents=True)
    (root / "app/agent.py").touch()
    (root / "lib/pyproject.toml").write_text("[project]\nname = 'lib'\nversion = '1'\n")
    (root / "old/setup.py").touch()
    (root / "flat/__init__.py").touch()
    (root / "tools/saw/__init__.py").touch()

    found = read(
        at="app/langgraph.json", dependencies=[".", "../lib", "./../old", "../flat", "../tools", "../flat"]
    )

    assert found.packages == (PurePosixPath("lib"), PurePosixPath("old"))
    paths = [PurePosixPath(name) for name in ("app", "flat", "tools", "flat")]
    assert found.plain == tuple(paths)
    assert found.import_paths == (PurePosixPath(), PurePosixPath("tools")), "flat is a package of its parent"


def test_a_package_of_a_plain_directory_may_not_stand_for_a_library_or_for_another(
    root: Path, read: Read
) -> None:
    for name in sorted(dependencies.RESERVED_PACKAGES):
        (root / name).mkdir()
        (root / name / "anything.py").touch()
        refuse(read, f"a package named '{name}', which is reserved")
        shutil.rmtree(root / name)

    for name in ("pydantic", "my-tools"):
        (root / name).mkdir()
        (root / name / "__init__.py").touch()
    refuse(read, "'pydantic', which is reserved", dependencies=["./pydantic"])
    refuse(read, "'my-tools' cannot be imported: its name has a hyphen", dependencies=["./my-tools"])

    for name in ("a/tools", "b/tools"):
        (root / name).mkdir(parents=True)
        (root / name / "x.py").touch()
    refuse(read, "'a' and 'b' both hold a package named 'tools'", dependencies=["./a", "./b"])


def test_credentials_in_requirements_of_the_project_are_refused(root: Path, read: Read) -> None:
    for name in dependencies.REQUIREMENT_FILES:
        (root / name).write_text("x @ git+https://token@example.com/x.git")
        refuse(read, f"^{name}: a URL must not hold a user name or password")
        (root / name).unlink()


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


def test_a_pip_configuration_says_where_packages_come_from_or_is_refused(root: Path, read: Read) -> None:
    (root / "pip.conf").write_text(
        "[global]\nindex-url = https://one/simple\nextra-index-url =\n  https://two\n  https://three\n"
        "[install]\nfind-links = https://four ./wheels\n"
    )

    index = read(pip_config_file="./pip.conf").index

    urls = ("https://one/simple", ("https://two", "https://three"))
    assert index is not None
    assert index == PipConfig(*urls, ("https://four",), ("wheels",))
    assert index.within(Path("/p")) == PipConfig(*urls, ("https://four", "/p/wheels"))

    (root / "odd.conf").write_text("no section\n")
    (root / "told.conf").write_text("[global]\nindex-url = https://user:pass@one/simple\n")
    (root / "far.conf").write_text("[global]\nfind-links = ../wheels\n")

    refuse(read, "pip_config_file: 'odd.conf' is not a pip configuration", pip_config_file="odd.conf")
    refuse(read, "must not hold a user name or password", pip_config_file="told.conf")
    refuse(read, "pip_config_file: 'none.conf' is not in the archive", pip_config_file="none.conf")
    refuse(read, "leads outside", pip_config_file="../pip.conf")
    refuse(read, "find-links: '../wheels' leads outside", pip_config_file="far.conf")
    refuse(read, "pip_config_file: must be a path", pip_config_file=7)


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


@pytest.mark.parametrize(("key", "name"), [("auth", "path"), ("http", "app")])
def test_with_a_lock_file_its_authorization_and_app_are_of_a_package_that_is_installed(
    root: Path, read: Read, key: str, name: str
) -> None:
    (root / "pyproject.toml").write_text('[tool.uv.workspace]\nmembers = ["one"]')
    (root / "one").mkdir()
    (root / "one/agent.py").write_text("graph = None")
    (root / "one/pyproject.toml").write_text('[project]\nname = "one"\nversion = "1"')
    (root / "uv.lock").write_text(
        'version = 1\n[[package]]\nname = "one"\nversion = "1"\nsource = { editable = "one" }'
    )
    locked = {"dependencies": ..., "source": {"kind": "uv"}, "graphs": {"a": "./one/agent.py:graph"}}

    assert read(**locked, **{key: {name: "./one/agent.py:own"}})
    refuse(
        read,
        rf"^{key}\.{name}: 'agent.py' is in none of the packages that are installed",
        **locked,
        **{key: {name: "./agent.py:own"}},
    )
