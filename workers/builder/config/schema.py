"""The schema of `langgraph.json`, a class per section.

Loading checks what the file alone can tell. `manifest` then checks what the file refers to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson
from marshmallow import ValidationError, post_load, pre_load

from shared.deployments import project_rules
from shared.errors import misspelt
from shared.infra import egress
from shared.runs.webhooks import TEMPLATE
from shared.sign_in_settings import LOCAL_NAMES
from shared.store import MAX_TTL_MINUTES
from workers.builder.config import fields
from workers.builder.config.fields import (
    IGNORED,
    NOT_DONE,
    Nested,
    Section,
    StrictSection,
    Value,
    drop,
    drop_if_empty,
    is_text,
    why_not_quick,
)
from workers.builder.config.references import AppPaths, ComponentPaths, EntryPoint, GraphPaths, is_path

PACKAGE_NAME = re.compile(r"[@A-Za-z0-9._~/-]{1,214}")


class UiConfig(Section):
    """Options for the bundles of the components of `ui`."""

    shared = fields.array(
        "must be an array of at most 100 names of packages",
        lambda entry: is_text(entry, PACKAGE_NAME),
        most=100,
        load_default=list,
    )


HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
MAX_CACHE_KEYS = 20


def _is_header(value: Any) -> bool:
    return is_text(value, HEADER)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _objects(kind: type) -> Value:
    return Value(
        "must have the form that OpenAPI defines",
        lambda value: (
            isinstance(value, kind)
            and all(map(_is_object, value.values() if isinstance(value, dict) else value))
        ),
    )


class AuthCache(Section):
    """Loads the field names of `shared.deployments.user_code.Auth`."""

    cache_keys = fields.array(
        f"must be an array of at most {MAX_CACHE_KEYS} names of headers",
        _is_header,
        most=MAX_CACHE_KEYS,
        load_default=list,
        post_load=lambda names: sorted({name.lower() for name in names}),
    )
    cache_seconds = fields.number(most=3600, data_key="ttl_seconds", load_default=None)
    cache_size = fields.whole_number(most=1_000_000, data_key="max_size", load_default=None)


class AuthOpenapi(Section):
    securitySchemes = _objects(dict)
    security = _objects(list)
    paths = _objects(dict)


MAX_OAUTH_ITEMS = 20
SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")  # characters of RFC 6749


def _is_server(value: Any) -> bool:
    """Return whether a value is the address of an authorization server: https, or http on this machine."""
    if not is_text(value, re.compile(r"https?://[\x21-\x7e]{1,500}")):
        return False
    try:
        parts = urlsplit(value)
        is_local = parts.hostname in LOCAL_NAMES and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    return (
        bool(parts.hostname) and (parts.scheme == "https" or is_local) and not (parts.query or parts.fragment)
    )


class Oauth(Section):
    """The description of the MCP server for clients of OAuth."""

    authorization_servers = fields.array(
        f"must be an array of 1 to {MAX_OAUTH_ITEMS} https addresses of authorization servers",
        _is_server,
        least=1,
        most=MAX_OAUTH_ITEMS,
        required=True,
    )
    scopes = fields.array(
        f"must be an array of at most {MAX_OAUTH_ITEMS} names of scopes without spaces and quotes",
        lambda value: is_text(value, SCOPE),
        most=MAX_OAUTH_ITEMS,
        load_default=list,
    )


class Auth(Section):
    """The project's own authorization, and the cache of its answers."""

    disable_studio_auth = fields.boolean(load_default=False)
    path = EntryPoint(required=True)
    cache = Nested(AuthCache, load_default=lambda: AuthCache().load({}))
    openapi = Nested(AuthOpenapi, load_default=dict)
    oauth = Nested(Oauth, load_default=None)

    @post_load
    def finish(self, loaded: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        cache = loaded.pop("cache")
        return {**loaded, **cache}


MAX_ITEMS = 100
ITEM = re.compile(r"[\x21-\x7e]{1,300}")  # an origin, a method, a header or a pattern of headers
MAX_REGEX = 500
MAX_AGE_SECONDS = 86_400 * 365


def _items(**kwargs: Any) -> Value:
    error = f"must be an array of at most {MAX_ITEMS} strings without spaces"
    return fields.array(error, lambda item: is_text(item, ITEM), most=MAX_ITEMS, **kwargs)


def _lower(names: list[str]) -> list[str]:
    return [name.lower() for name in names]


class HeaderPatterns(Section):
    ERROR = "must be an object with `includes` and `excludes`"

    includes = _items(post_load=_lower)
    excludes = _items(post_load=_lower)


def _require_quick(pattern: str) -> None:
    if reason := why_not_quick(pattern):
        raise ValidationError(reason)


class Cors(Section):
    allow_origins = _items()
    allow_methods = _items()
    allow_headers = _items()
    expose_headers = _items()
    allow_credentials = fields.boolean()
    allow_origin_regex = Value(
        f"must be a regular expression of at most {MAX_REGEX} characters",
        lambda value: isinstance(value, str) and len(value) <= MAX_REGEX,
        validate=_require_quick,
    )
    max_age = fields.whole_number("must be a whole number of seconds", most=MAX_AGE_SECONDS)


def _is_prefix(value: Any) -> bool:
    prefix = value.rstrip("/") if isinstance(value, str) else "?"
    return prefix == "" or is_path(prefix)


class Http(Section):
    """The project's own app, disabled interfaces, and CORS."""

    enable_custom_route_auth = fields.boolean()
    disable_assistants = fields.boolean()
    disable_threads = fields.boolean()
    disable_runs = fields.boolean()
    disable_store = fields.boolean()
    disable_mcp = fields.boolean()
    disable_a2a = fields.boolean()
    disable_ag_ui = fields.boolean()
    disable_ui = fields.boolean()
    disable_meta = fields.boolean()
    disable_webhooks = fields.boolean()
    middleware_order = fields.one_of(
        "middleware_first", "auth_first", error="must be middleware_first or auth_first"
    )
    # A project's middleware cannot wrap the built-in routes. The author confirms this by setting `custom_routes`.
    middleware_scope = fields.one_of("custom_routes", error="must be custom_routes")
    cors = Nested(Cors)
    configurable_headers = Nested(HeaderPatterns, error=HeaderPatterns.ERROR)
    logging_headers = Nested(HeaderPatterns, error=HeaderPatterns.ERROR)
    app = EntryPoint()
    apps = AppPaths()
    mount_prefix = Value(
        'must be a path like "/api"', _is_prefix, post_load=lambda path: drop_if_empty(path.rstrip("/"))
    )


MAX_DIMS = 16_000  # limit of pgvector's `vector` type


class StoreTtl(StrictSection):
    default_ttl = fields.number("must be a number of minutes", load_default=None)
    sweep_interval_minutes = fields.number("must be a number of minutes", post_load=drop)
    refresh_on_read = fields.boolean(nullable=False, load_default=True)


class StoreIndex(StrictSection):
    dims = fields.whole_number(
        f"must be a number between 1 and {MAX_DIMS}", least=1, most=MAX_DIMS, required=True
    )
    embed = fields.text('must be "provider:model" or "./file.py:function"', "(?s).*:.*", required=True)
    paths = fields.array(
        "must be an array of paths",
        lambda path: isinstance(path, str),
        least=1,
        data_key="fields",
        attribute="fields",
        load_default=lambda: ["$"],
    )


class Store(StrictSection):
    """The TTL of store items, and the index for semantic search."""

    ttl = Nested(StoreTtl)
    index = Nested(StoreIndex)


MAX_CLASSES = 1000
NOT_BELOW_ZERO = "must be a number, and not below 0"


def _is_class(value: Any) -> bool:
    return (
        isinstance(value, list) and len(value) > 1 and all(isinstance(part, str) and part for part in value)
    )


def _classes(**kwargs: Any) -> Value:
    """Classes by module and name, or True for any class."""
    return Value(
        'must be true or an array of classes like ["my_agent.models", "State"]',
        lambda value: (
            isinstance(value, bool)
            or (isinstance(value, list) and len(value) <= MAX_CLASSES and all(map(_is_class, value)))
        ),
        **kwargs,
    )


class CheckpointerTtl(StrictSection):
    """Without `default_ttl` only threads with a TTL of their own expire. This service sweeps every minute."""

    strategy = fields.one_of("delete", "keep_latest", nullable=False, load_default="delete")
    default_ttl = fields.number(NOT_BELOW_ZERO, most=MAX_TTL_MINUTES, load_default=None)
    sweep_interval_minutes = fields.number(NOT_BELOW_ZERO, most=MAX_TTL_MINUTES, post_load=drop)
    sweep_limit = fields.number(NOT_BELOW_ZERO, most=MAX_TTL_MINUTES, post_load=drop)


class CheckpointerSerde(StrictSection):
    pickle_fallback = Value(
        "not supported: to read a pickle is to run whatever is in it; name your classes in allowed_msgpack_modules",
        lambda value: not value,
        post_load=drop,
    )
    allowed_msgpack_modules = _classes(post_load=drop_if_empty)
    # Concerns a JSON format of older LangGraph releases, which this service never reads.
    allowed_json_modules = _classes(
        post_load=drop, remark=(IGNORED[0], f"{IGNORED[1]}: checkpoints hold no such JSON")
    )


class Checkpointer(Section):
    """The lifetime of threads, and the classes that checkpoints may contain.

    A project cannot choose another checkpoint storage. Fenced writes, rollback, thread copies and reading states
    without user code depend on the service's own saver.
    """

    warns_of_unknown = False

    ttl = Nested(CheckpointerTtl)
    serde = Nested(CheckpointerSerde, post_load=drop_if_empty)

    def refuse_unknown(self, config: Mapping[str, Any]) -> None:
        for name, value in config.items():
            if value and name not in self.by_key and (name, value) != ("backend", "default"):
                raise ValidationError({name: "not supported: this server keeps checkpoints itself"})


MAX_HEADERS = 50
HEADER_VALUE = re.compile(r"[\x20-\x7e]{0,4096}")
DOMAIN = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|[0-9A-Fa-f:.]+")
# Headers that the service sets itself: addressing, content and signature.
SERVICE_HEADERS = re.compile(
    r"host|connection|content-.*|transfer-encoding|te|trailer|upgrade|expect|accept-encoding|webhook-.*",
    re.IGNORECASE,
)
NO_LOOPBACK = "false is not allowed by this service: its operator can (RUNYARD_ALLOWED_ADDRESSES=127.0.0.1)"


def _require_permission(disable_loopback: bool) -> None:
    if not disable_loopback and not egress.allows_loopback():
        raise ValidationError(NO_LOOPBACK)


class WebhookUrl(StrictSection):
    require_https = fields.boolean(nullable=False, load_default=False)
    disable_loopback = fields.boolean(nullable=False, load_default=True, validate=_require_permission)
    max_url_length = fields.whole_number("must be a positive number", least=1, load_default=None)
    allowed_domains = fields.array(
        'must be an array of names like "a.example" or "*.example"',
        lambda name: is_text(name, DOMAIN),
        load_default=list,
        post_load=_lower,
    )
    allowed_ports = fields.array(
        "must be an array of port numbers",
        lambda port: type(port) is int and 0 < port < 65536,
        load_default=list,
    )


class Webhooks(StrictSection):
    """Allowed webhook addresses, and headers added to each delivery."""

    # The prefix of the variables that header values may refer to.
    env_prefix = fields.text("must be a non-empty string", nullable=False, load_default="LG_WEBHOOK_")
    url = Nested(WebhookUrl, load_default=dict)
    headers = Value(
        f"must be an object of at most {MAX_HEADERS} strings",
        lambda value: isinstance(value, dict) and len(value) <= MAX_HEADERS,
        load_default=dict,
    )


def _is_default_answer(value: Any) -> bool:
    return len(orjson.dumps(value)) <= project_rules.MAX_DEFAULT_ANSWER_BYTES


class OnExpiry(StrictSection):
    """The action for a question that expires. `answer` may be null."""

    action = fields.one_of(*project_rules.EXPIRY_ACTIONS, required=True)
    answer = Value(
        f"must have at most {project_rules.MAX_DEFAULT_ANSWER_BYTES} bytes as JSON", _is_default_answer
    )

    @pre_load
    def prepare(self, config: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        prepared = super().prepare(config)
        if "answer" in config:
            prepared["answer"] = config["answer"]
        if reason := project_rules.default_answer_refusal(prepared):
            raise ValidationError({"answer": reason})
        return prepared


def _seconds() -> Value:
    most = project_rules.MAX_INBOX_SECONDS
    return Value(
        f"must be a number of seconds above 0, at most {most}",
        lambda value: type(value) in (int, float) and 0 < value <= most,
    )


class Inbox(StrictSection):
    """Rules for questions to people: their webhook, and times until a reminder and until they expire."""

    webhook = fields.text("must be a URL or a path", r"\S+")
    remind_after_seconds = _seconds()
    expire_after_seconds = _seconds()
    on_expiry = Nested(OnExpiry)


def _are_tool_names(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= project_rules.MAX_LIVE_TOOLS
        and all(isinstance(name, str) and 0 < len(name) <= project_rules.MAX_TOOL_NAME for name in value)
    )


class Replay(StrictSection):
    """Rules for replays of past runs: the tools that may be executed, and the function that scores outputs."""

    tools = Value(
        'must be "recorded", "live" or a list of tool names,'
        f" at most {project_rules.MAX_LIVE_TOOLS} of {project_rules.MAX_TOOL_NAME} characters",
        lambda value: value in ("recorded", "live") or _are_tool_names(value),
    )
    score = EntryPoint()


def _header(name: str, value: Any, prefix: str, env: Mapping[str, str]) -> str:
    """Return the header's value. Variables missing in the project's `env` stay templates for the deployment."""
    if not HEADER.fullmatch(name) or SERVICE_HEADERS.fullmatch(name):
        raise ValidationError("cannot be set")
    if not isinstance(value, str):
        raise ValidationError("must be a string")
    for variable in TEMPLATE.findall(value):
        if not variable.startswith(prefix):
            raise ValidationError(f"the variable {variable} does not begin with {prefix}")
    if "${{" in TEMPLATE.sub("", value):
        raise ValidationError("a template must have the form ${{ env.NAME }}")
    filled = TEMPLATE.sub(lambda match: env.get(match[1], match[0]), value)
    if not HEADER_VALUE.fullmatch(filled):
        raise ValidationError("must be at most 4096 printable ASCII characters")
    return filled


ENCRYPTION = (
    "not supported: this server searches, sorts and filters what it stores and reads it without user code, so it could"
    " not call a project's own encryption; keep its database on an encrypted volume"
)
MOVED = "this key belongs into 'source' now"
PACKAGE_TOOLS = frozenset({"pip", "setuptools", "wheel"})
API_VERSION = r"(?i)(~=|>~=)?\d+(\.\d+){0,2}(-?[a-z]+\.?\d*)?"


def _are_tools(value: Any) -> bool:
    is_list = isinstance(value, list) and all(isinstance(tool, str) for tool in value)
    return value in (True, False) or (is_list and PACKAGE_TOOLS.issuperset(value))


def _is_priority(value: Any) -> bool:
    return not value or (isinstance(value, dict) and ":" in str(value.get("path")))


def _unsupported(reason: str) -> Value:
    """A key that fails the build, because a project that relies on it must not run without it."""
    return Value(reason, lambda value: not value)


class Env(Value):
    """The project's variables, or the path of a file that only the deploy command reads. Loads the variables."""

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> dict[str, str]:
        if isinstance(value, str):
            return {}
        env = super()._deserialize(value, *args, **kwargs)
        for name, item in env.items():
            if item is None or isinstance(item, dict | list):
                raise ValidationError(f"the value of {name!r} must be a string")
        values = {
            name: item if isinstance(item, str) else orjson.dumps(item).decode() for name, item in env.items()
        }
        if names := project_rules.refused_variables(values):
            raise ValidationError(f"these names cannot be set by a deployment: {', '.join(sorted(names))}")
        return values


class PythonVersion(Value):
    """A version like "3.11" or "3.11-bookworm". Loads the first part."""

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> str:
        match = re.fullmatch(r"(\d+)\.(\d+)(-[a-z]+)?", value) if isinstance(value, str) else None
        if match is None or "bullseye" in value:
            raise ValidationError(f'{value!r} must have the form "3.11"')
        version = (int(match[1]), int(match[2]))
        if version < (3, 11):
            raise ValidationError(f"{value} is too old, 3.11 is the oldest that is supported")
        return f"{version[0]}.{version[1]}"


class Source(StrictSection):
    """The package of a uv workspace to deploy."""

    unknown_text = "unknown key"

    kind = fields.one_of("uv", error="must be 'uv'", required=True)
    root = fields.text("must be a non-empty string")
    package = fields.text("must be a non-empty string")


class LanggraphJson(Section):
    project_root = _unsupported(MOVED)
    package = _unsupported(MOVED)
    encryption = _unsupported(ENCRYPTION)
    pip_installer = Value(
        "must be one of auto, pip, uv", lambda value: not value or value in ("auto", "pip", "uv")
    )
    # Keys that describe a container image or the file itself. Most templates have them; ignoring them loses nothing.
    # A wrong value is still the author's mistake.
    image_distro = fields.one_of("debian", "wolfi", "bookworm", remark=IGNORED)
    api_version = fields.text('must have the form "1.2.3"', API_VERSION, remark=IGNORED)
    keep_pkg_tools = Value(
        "must be true or an array of pip, setuptools and wheel", _are_tools, remark=IGNORED
    )
    node_version = Value(remark=IGNORED)  # of JavaScript projects, with node_loader: see config/javascript.py
    node_loader = Value(remark=IGNORED)
    internal_docker_tag = Value(data_key="_INTERNAL_docker_tag", remark=IGNORED)
    json_schema = Value(data_key="$schema", remark=IGNORED)
    dockerfile_lines = Value(remark=NOT_DONE)
    base_image = Value(remark=NOT_DONE)
    ui = ComponentPaths()
    ui_config = Nested(UiConfig, load_default=dict)
    priority = Value(
        'must be an object with a "path" of the form "./file.py:attribute"', _is_priority, remark=NOT_DONE
    )
    graphs = GraphPaths()
    source = Nested(Source, error='must be an object, {"kind": "uv"}')
    env = Env(
        "must be an object of strings or the path of a file", _is_object, nullable=False, load_default=dict
    )
    auth = Nested(Auth, empty=({},), load_default=dict)
    http = Nested(Http, load_default=dict)
    dependencies = fields.array(
        "must be an array of strings", lambda entry: isinstance(entry, str), load_default=list
    )
    store = Nested(Store, load_default=dict)
    webhooks = Nested(Webhooks, load_default=dict)
    inbox = Nested(Inbox, load_default=dict)
    replay = Nested(Replay, load_default=dict)
    checkpointer = Nested(Checkpointer, empty=({}, [], "", False, 0), load_default=dict)
    python_version = PythonVersion(load_default=None)
    pip_config_file = Value("must be a path", lambda value: isinstance(value, str), load_default=None)

    @pre_load
    def prepare(self, config: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        for key in ("graphs",) if config.get("source") else ("graphs", "dependencies"):
            if key not in config and (similar := misspelt(key, config)):
                raise ValidationError({similar: f"unknown key. Did you mean {key}?"})
        if config.get("source") is not None and config.get("dependencies"):
            reason = "must be empty when there is a source: uv.lock says what is installed"
            raise ValidationError({"dependencies": reason})
        if config.get("api_version") and config.get("_INTERNAL_docker_tag"):
            raise ValidationError({"api_version": "must not be given with _INTERNAL_docker_tag"})
        return super().prepare(config)

    @post_load
    def finish(self, loaded: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Fill the project's variables into the headers of webhooks."""
        if loaded["webhooks"]:
            prefix, headers = loaded["webhooks"].pop("env_prefix"), loaded["webhooks"]["headers"]
            for name, value in headers.items():
                try:
                    headers[name] = _header(name, value, prefix, loaded["env"])
                except ValidationError as error:
                    raise ValidationError({"webhooks": {"headers": {name: error.messages}}}) from error
        return loaded
