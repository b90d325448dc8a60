"""Schemas of a deployment's source, and refusals of sources that this service cannot build.

A field without a meaning for uploaded source is stored and returned, as clients expect. A field that would change what
is built is refused, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from marshmallow import ValidationError, post_load, validates_schema

from shared.deployments import project_rules, secrets, shares, sources
from shared.deployments.next_revision import REPOSITORY
from shared.deployments.records import ENVIRONMENTS, SOURCES
from shared.errors import Invalid
from shared.figures.budgets import COST_DECIMALS, MAX_COST
from shared.infra.egress import HIDDEN, MAX_URL_LENGTH
from shared.runs import webhooks
from web.schemas import fields

UPLOAD = "internal_source"
RENAMED_TYPES = {"serverless": "dev_zero", "dedicated": "prod"}
TYPES = ("dev", "prod", "dev_free", "dev_zero", "dev_free_zero")
DEFAULT_TYPE = "prod"
NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*"
POOL = r"[a-z0-9][a-z0-9_-]*"
PREVIEW, MAX_PREVIEW = r"[a-z0-9]+(-[a-z0-9]+)*", 40  # comes after `<deployment>--` in a preview's address
SPEC_BYTES = 64 * 1024
MAX_SECRETS = secrets.MOST
MAX_TIMEOUT_SECONDS = 30 * 24 * 3600
MIN_MEMORY_MB, MAX_MEMORY_MB = 128, 1024 * 1024

FIXED = ("integration_id", "repo_url", "deployment_type", "custom_url", "template_id")
UNSUPPORTED_CONFIG = ("listener_id", "listener_config")
COMMANDS = ("install_command", "build_command")
# Commands run without a shell. A single `&` is refused, too.
SHELL_CHARACTERS = re.compile(r"""["`\\\n\r\0\t|;$<>]|(?<!&)&(?:&&)*(?!&)""")
MAX_COMMAND = 1000


class DeploymentType(fields.OneOf):
    """A deployment type. Its newer names are also accepted."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(*TYPES, *RENAMED_TYPES, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        word = super()._deserialize(value, attr, data, **kwargs)
        return RENAMED_TYPES.get(word, word)


class SecretValue(fields.StrictString):
    """Text that fits into a process's environment."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        text = super()._deserialize(value, attr, data, **kwargs)
        if len(text.encode()) > project_rules.MAX_VALUE_BYTES:
            rule = f"must have at most {project_rules.MAX_VALUE_BYTES} bytes"
            raise ValidationError([fields.Rule(rule, "string_too_long")])
        return text


class Megabytes(fields.StrictInteger):
    """Memory of a graph host in megabytes, or 0. Below the minimum not even the graph library could be loaded."""

    def __init__(self, **kwargs: Any) -> None:
        meaning = {"description": f"0, or at least {MIN_MEMORY_MB}"}
        super().__init__(minimum=0, maximum=MAX_MEMORY_MB, metadata=meaning, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        size = super()._deserialize(value, attr, data, **kwargs)
        if 0 < size < MIN_MEMORY_MB:
            rule = f"must be 0 or greater than or equal to {MIN_MEMORY_MB}"
            raise ValidationError([fields.Rule(rule, "greater_than_equal")])
        return size


VARIABLE = {
    "description": "Name of an environment variable. Variables that the service sets itself are not allowed"
}


class SecretItem(fields.Schema):
    name = fields.StrictString(required=True, min_length=1, metadata=VARIABLE)
    value = SecretValue(required=True)


class SecretChange(fields.Schema):
    name = fields.StrictString(required=True, min_length=1, metadata=VARIABLE)
    value = SecretValue(required=True, allow_none=True)


UNSUPPORTED = {"description": "Not supported by this service: leave it out"}


class SourceConfig(fields.Schema):
    integration_id = fields.StrictString(allow_none=True)
    repo_url = fields.StrictString(
        allow_none=True,
        metadata={
            "description": f"URL of a git repository. Required if `source` is `{REPOSITORY}`. Must begin with"
            " https:// unless the operator allows http://. Cannot be changed later"
        },
    )
    deployment_type = DeploymentType(allow_none=True)
    build_on_push = fields.StrictBoolean(
        allow_none=True, metadata={"description": "Must be false if `repo_ref` is a tag"}
    )
    custom_url = fields.StrictString(
        allow_none=True, metadata={"description": "Set by the service: leave it out of a new deployment"}
    )
    resource_spec = fields.JsonObject(allow_none=True, max_bytes=SPEC_BYTES, searchable=True)
    listener_id = fields.StrictString(allow_none=True, metadata=UNSUPPORTED)
    listener_config = fields.JsonObject(
        allow_none=True, max_bytes=SPEC_BYTES, searchable=True, metadata=UNSUPPORTED
    )
    install_command = fields.StrictString(
        max_length=MAX_COMMAND,
        allow_none=True,
        metadata={
            "description": "Command that installs the packages of a JavaScript project, in place of the builder's own."
            " Several are joined with `&&`. Other shell characters are not allowed. An empty text removes it"
        },
    )
    build_command = fields.StrictString(
        max_length=MAX_COMMAND,
        allow_none=True,
        metadata={
            "description": "Command that a JavaScript project needs after its packages are installed, with the rules of"
            " `install_command`"
        },
    )
    template_id = fields.StrictString(allow_none=True)


class SourceRevisionConfig(fields.Schema):
    repo_ref = fields.StrictString(
        allow_none=True,
        metadata={"description": f"A branch, `{sources.TAGS}TAG`, or the 40 hexadecimal digits of a commit"},
    )
    langgraph_config_path = fields.StrictString(min_length=1, max_length=1024, allow_none=True)
    image_uri = fields.StrictString(allow_none=True, metadata=UNSUPPORTED)
    source_tarball_path = fields.StrictString(
        min_length=1,
        allow_none=True,
        metadata={"description": "The `object_path` of an upload URL of this deployment"},
    )


class AgentIdentity(fields.Schema):
    agent_id = fields.StrictString(required=True, pattern=NAME, max_length=200)
    environment = fields.OneOf(*ENVIRONMENTS, required=True)


MAX_TOKENS = 10**15


class Tokens(fields.StrictInteger):
    """A limit of tokens."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(minimum=0, maximum=MAX_TOKENS, **kwargs)


class Dollars(fields.StrictNumber):
    """A limit in US dollars."""

    decimals = fields.Rule(f"must have at most {COST_DECIMALS} decimals", "decimal_max_places")

    def __init__(self, **kwargs: Any) -> None:
        meaning = {"description": f"US dollars, with at most {COST_DECIMALS} decimals"}
        super().__init__(minimum=0, maximum=MAX_COST, metadata=meaning, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        dollars = Decimal(repr(super()._deserialize(value, attr, data, **kwargs)))
        if dollars != round(dollars, COST_DECIMALS):
            raise ValidationError([self.decimals])
        return dollars


class KeyBudgets(fields.Schema):
    """Budgets that a deployment and a key have in common. 0, or an empty text, removes one."""

    max_tokens_per_day = Tokens(allow_none=True)
    max_run_tokens = Tokens(allow_none=True)
    max_cost_per_day = Dollars(allow_none=True)
    max_run_cost = Dollars(allow_none=True)
    budget_webhook = fields.StrictString(
        pattern=r"\S*",
        max_length=MAX_URL_LENGTH,
        allow_none=True,
        metadata={
            "description": "URL that is called at 50, 80 and 100 % of each limit of a day. It is shown without the"
            " values of its query"
        },
    )


def check_webhook(
    url: str | None,
    loc: tuple[str, ...],
    rules: Mapping[str, Any] = MappingProxyType({}),
    url_of: Callable[[str], str] | None = None,
) -> None:
    """Raise Invalid, with the place of the field, if a webhook may not be called. Resolves the host name."""
    if url:
        if HIDDEN in url:
            raise Invalid(f"the URL has {HIDDEN} in place of a hidden part: send the whole URL", loc=loc)
        try:
            webhooks.check(url, rules, url_of=url_of)
        except Invalid as error:
            raise Invalid(error.message, loc=loc) from error


class Limits(KeyBudgets):
    """Limits of a deployment. 0 means no limit of its own: the settings of the runners apply."""

    max_concurrent_runs = fields.StrictInteger(minimum=0, maximum=1_000_000, allow_none=True)
    hosts_per_runner = fields.StrictInteger(minimum=0, maximum=64, allow_none=True)
    run_timeout_seconds = fields.StrictNumber(minimum=0, maximum=MAX_TIMEOUT_SECONDS, allow_none=True)
    memory_mb = Megabytes(allow_none=True)
    max_user_tokens_per_day = Tokens(allow_none=True)
    max_user_cost_per_day = Dollars(allow_none=True)
    max_thread_tokens_per_day = Tokens(allow_none=True)
    max_thread_cost_per_day = Dollars(allow_none=True)


class Seconds(fields.StrictNumber):
    """A number of seconds above 0."""

    def __init__(self, **kwargs: Any) -> None:
        meaning = {"description": "Above 0"}
        super().__init__(maximum=project_rules.MAX_INBOX_SECONDS, metadata=meaning, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        seconds = super()._deserialize(value, attr, data, **kwargs)
        if seconds <= 0:
            raise ValidationError([fields.Rule("must be greater than 0", "greater_than")])
        return seconds


class ExpiryRule(fields.StrictSchema):
    action = fields.OneOf(*project_rules.EXPIRY_ACTIONS, required=True)
    answer = fields.AnyJson(
        max_bytes=project_rules.MAX_DEFAULT_ANSWER_BYTES,
        metadata={"description": "Required with the action `answer`, else not allowed"},
    )

    @validates_schema
    def require_answer(self, loaded: dict[str, Any], **kwargs: Any) -> None:
        if reason := project_rules.default_answer_refusal(loaded):
            raise ValidationError({"answer": [fields.Rule(reason)]})


class InboxRules(fields.StrictSchema):
    """Rules for questions to people, with the fields of the key `inbox` of a langgraph.json. null counts as absent."""

    webhook = fields.StrictString(
        pattern=r"\S+",
        max_length=MAX_URL_LENGTH,
        allow_none=True,
        metadata={"description": "A URL, or a path at the deployment, as for runs"},
    )
    remind_after_seconds = Seconds(allow_none=True)
    expire_after_seconds = Seconds(allow_none=True)
    on_expiry = fields.Nested(ExpiryRule, allow_none=True)

    @post_load
    def drop_absent(self, loaded: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {name: value for name, value in loaded.items() if value is not None}


class TrafficShare(fields.Schema):
    revision_id = fields.UuidField(required=True)
    percent = fields.StrictInteger(minimum=0, maximum=shares.WHOLE, required=True)


class RevisionContent(fields.Schema):
    """Fields that a PATCH of a deployment and a new revision have in common."""

    revision_source = fields.OneOf(*SOURCES, allow_none=True)
    source_config = fields.Nested(SourceConfig, allow_none=True)
    source_revision_config = fields.Nested(SourceRevisionConfig, allow_none=True)
    secrets = fields.ListOf(fields.Nested(SecretItem), max_items=MAX_SECRETS, allow_none=True)
    # Changes of single secrets, for clients that do not know the other values. null removes a secret.
    secret_changes = fields.ListOf(fields.Nested(SecretChange), max_items=MAX_SECRETS, allow_none=True)
    secret_references = fields.ListOf(fields.JsonObject(), allow_none=True, metadata=UNSUPPORTED)
    tracked_packages = fields.ListOf(fields.StrictString(max_length=1024), max_items=1000, allow_none=True)


def refuse_unsupported(body: Mapping[str, Any], *, source: str | None) -> None:
    """Raise Invalid (400) for sources that this service cannot build, and for a repository URL or ref not allowed."""
    if source not in (None, UPLOAD, REPOSITORY):
        raise _unsupported(
            f"The source {source!r} is not supported by this service: upload the source"
            f" ({UPLOAD!r}; `langgraph deploy --remote`), or name a git repository ({REPOSITORY!r}).",
            "source" if "source" in body else "revision_source",
        )
    if (body.get("source_revision_config") or {}).get("image_uri"):
        raise _unsupported(
            "Images are not supported by this service: upload the source (`langgraph deploy --remote`).",
            "source_revision_config",
            "image_uri",
        )
    if body.get("secret_references"):
        raise _unsupported(
            "secret_references are not supported by this service: send the values as secrets.",
            "secret_references",
        )
    for name in UNSUPPORTED_CONFIG:
        if (body.get("source_config") or {}).get(name):
            raise _unsupported(f"{name} is not supported by this service.", "source_config", name)
    for name in COMMANDS:
        if SHELL_CHARACTERS.search((body.get("source_config") or {}).get(name) or ""):
            raise _unsupported(
                f"{name} must be commands without shell characters, joined with &&: there is no shell.",
                "source_config",
                name,
            )
    _check_repository(body)


def _check_repository(body: Mapping[str, Any]) -> None:
    config, revision = body.get("source_config") or {}, body.get("source_revision_config") or {}
    if config.get("repo_url"):
        sources.check_url(config["repo_url"])
    if revision.get("repo_ref"):
        sources.check_ref(revision["repo_ref"])
        if config.get("build_on_push") and revision["repo_ref"].startswith(sources.TAGS):
            raise _unsupported("build_on_push must be false for a tag.", "source_config", "build_on_push")


def require_repository(body: Mapping[str, Any]) -> None:
    """Raise Invalid if a deployment from a repository does not name the repository."""
    if body["source"] == REPOSITORY and not (body.get("source_config") or {}).get("repo_url"):
        raise Invalid("this field is required", loc=sources.URL_LOC, kind="missing")


def changeable_config(sent: Mapping[str, Any] | None, current: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a source_config that may change. Raises Invalid (400) for a change of a fixed field."""
    sent = sent or {}
    for name in FIXED:
        if sent.get(name) is not None and sent[name] != current.get(name):
            raise _unsupported(f"{name} of a deployment cannot be changed.", "source_config", name)
    return {name: value for name, value in sent.items() if name not in FIXED}


def _unsupported(message: str, *path: str) -> Invalid:
    return Invalid(message, loc=("body", *path), status=400)
