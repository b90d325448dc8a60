"""Generate the reference pages from the code: `make docs`.

A page is written by hand up to the marker; what follows the marker is generated:

- reference/settings.md from shared/settings.py
- reference/cli.md from the commands of `runyard`
- reference/api/*.md from the OpenAPI document, a page for each of its sections
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import fields
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click
from typer.main import get_command

from cli.main import app as command_line
from shared.setting_values import Audience
from shared.settings import Settings
from web.app import create_app
from web.schemas.openapi import document, paths
from web.schemas.operations import SECTIONS, of_view

REFERENCE = Path(__file__).parent / "reference"
MARKER = "<!-- `make docs` writes what follows. -->\n"

Table = Sequence[Sequence[str]]


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each page with the text it should have."""
    sources: dict[str, Callable[[], str]] = {"settings.md": settings, "cli.md": commands}
    api = Api()
    sources |= {f"api/{slug(section)}.md": partial(api.page, section) for section in SECTIONS}
    for name, generated in sources.items():
        path = REFERENCE / name
        written, marker, _ = path.read_text().partition(MARKER)
        assert marker, f"{path} has no marker: {MARKER}"
        yield path, written + MARKER + "\n" + generated().strip("\n") + "\n"


def slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.replace("'", "").lower())


def table(*rows: Sequence[str]) -> str:
    """Return a Markdown table. The first row is its head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(cell.replace("\n", " ") for cell in line) + " |" for line in lines)


# Settings

PRODUCTION = [
    "database_url", "redis_url", "url", "api_key", "encryption_keys", "data_dir", "isolation", "proxy_addresses",
]  # fmt: skip
GROUPS = {
    "PostgreSQL and Redis": ["database_", "redis_"],
    "Addresses and keys": ["listen_host", "port", "url", "internal_url", "app_domain", "api_key", "encryption_keys"],
    "Sign-in": ["oidc_", "session_"],
    "Processes and files": ["processes", "pool", "data_dir", "cache_dir", "cache_mb", "runtime_dir", "log_level", "log_format"],
    "Runs": ["runner_slots", "lease_", "run_timeout_", "drain_", "event_retention_", "max_pending_", "min_cron_"],
    "Limits of requests and keys": [
        "max_body_", "max_archive_", "max_concurrent_", "requests_per_", "streams_per_", "connections_per_", "proxy_",
    ],
    "Graph hosts and isolation": ["hosts_per_", "max_hosts", "host_", "isolation", "bwrap", "sandbox_user"],
    "Builds and what is kept": ["build_timeout_", "kept_revisions", "log_retention_", "max_log_", "run_retention_"],
    "Outgoing requests and OAuth": ["allowed_addresses", "allow_http", "oauth_"],
    "Prices, traces and Celery": ["model_prices", "otlp_", "celery_"],
}  # fmt: skip


def settings() -> str:
    """Return the settings: those that production needs, all others by group, and those for experts.

    Leaves out the settings that `runyard dev` sets for its own processes.
    """
    declared = {spec.name: spec for spec in fields(Settings) if spec.metadata.get("audience")}
    left = [name for name, spec in declared.items() if spec.metadata["audience"] is Audience.OPERATOR]
    parts = ["## What production needs", _settings(declared[name] for name in PRODUCTION)]
    left = [name for name in left if name not in PRODUCTION]
    for title, beginnings in GROUPS.items():
        group = [name for name in left if name.startswith(tuple(beginnings))]
        left = [name for name in left if name not in group]
        parts += [f"## {title}", _settings(declared[name] for name in group)]
    assert not left, f"settings without a group: {left}"
    parts += [
        "## Expert settings",
        "The defaults suit every installation that is known. Change one only when a log line, `runyard doctor` or a page"
        " of these docs names it.",
        _settings(spec for spec in declared.values() if spec.metadata["audience"] is Audience.EXPERT),
    ]
    return "\n\n".join(parts)


def _settings(specs: Any) -> str:
    rows = [
        [
            f"`{spec.metadata['variable']}`",
            spec.metadata["shown"] or shown(spec.default),
            _meaning(spec.metadata),
        ]
        for spec in specs
    ]
    return table(["Variable", "Default", "Meaning"], *rows)


def _meaning(declared: Mapping[str, Any]) -> str:
    """Return the meaning of a setting, with the variable's old name if it has one."""
    old_name = declared["old_name"]
    return declared["meaning"] + (f"; `{old_name}`, its old name, is accepted" if old_name else "")


def shown(default: Any) -> str:
    """Return a default in Markdown, in the form that an operator would write; empty if there is none."""
    if isinstance(default, tuple):
        default = ",".join(default)
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    return "" if default in (None, "") else f"`{default}`"


# Commands

LEFT_OUT = {"--help", "--install-completion", "--show-completion"}
SHARED = {"--url", "--api-key", "--org"}  # options of every command that calls the service, described once


def commands() -> str:
    root: Any = get_command(command_line)
    parts = [
        "## Options of all commands",
        "Before the command:",
        _table_of(_records(root)),
        "After a command that calls the service:",
        _table_of(_records(root.commands["list"], SHARED)),
    ]
    for name, command in sorted(root.commands.items()):
        if not command.hidden:
            parts += _command(f"runyard {name}", command, level=2)
    return "\n\n".join(part for part in parts if part)


def _command(name: str, command: Any, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}"
    yield re.sub(r"\n(?!\n)", " ", (command.help or "").replace("\b\n", "").strip()).replace("\n ", "\n\n")
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    subcommands = getattr(command, "commands", {})
    if not subcommands:
        yield f"```text\n{usage}\n```"
    yield _table_of(_records(command))
    for sub, subcommand in sorted(subcommands.items()):
        if not subcommand.hidden:
            yield from _command(f"{name} {sub}", subcommand, level=3)


def _records(command: Any, only: Set[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """Yield names and meaning of a command's arguments and options: of `only`, or of all but those described once."""
    context = click.Context(command)
    for parameter in command.params:
        names = set(parameter.opts)
        if (
            getattr(parameter, "hidden", False)
            or names & LEFT_OUT
            or (not names & only if only else names & SHARED)
        ):
            continue
        yield parameter.get_help_record(context) or (parameter.make_metavar(context), "")


def _table_of(records: Iterable[tuple[str, str]]) -> str:
    rows = [
        [f"`{re.sub(r'  +', ' ', names).replace('|', '/')}`", _text(meaning)] for names, meaning in records
    ]
    return table(["Argument or option", "Meaning"], *rows) if rows else ""


def _text(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").strip()


# The API

METHODS = ("get", "post", "put", "patch", "delete")
# Refusals that any route may return; reference/api/index.md explains them.
COMMON_ERRORS = frozenset({"400", "401", "403", "408", "413", "414", "422", "429", "431", "503"})
UUID = "0198c7f2-6d3e-7a41-9c1b-2f6d5e8a9b01"
VALUES_BY_FORMAT = {"uuid": UUID, "date-time": "2026-01-31T12:00:00+00:00", "date": "2026-01-31"}
TEXTS_BY_NAME = {
    "graph_id": "agent",
    "assistant_id": UUID,
    "name": "my-agent",
    "url": "https://runyard.example.com/d/my-agent",
}
# Parameters that many routes have, explained in reference/api/index.md.
EXPLAINED = {"Idempotency-Key": "See [Repeat a request safely](index.md#repeat-a-request-safely)."}
DEPTH = 6  # of an example; schemas that contain themselves end there


class Api:
    """The API document, with the routes of deployments at a deployment's own address."""

    def __init__(self) -> None:
        app = create_app(Settings.from_env({}))
        whole, deployment = document(app), document(app, of_deployment=True)
        whole["paths"] = {path: item for path, item in whole["paths"].items() if not path.startswith("/d/")}
        self._schemas = whole["components"]["schemas"] | deployment["components"]["schemas"]
        self._operations: list[
            tuple[str, str, str, dict[str, Any]]
        ] = []  # (variable of the address, method, path, …)
        for variable, described in (("DEPLOYMENT_URL", deployment), ("RUNYARD_URL", whole)):
            known = {path for _, _, path, _ in self._operations}
            for path, item in described["paths"].items():
                if path not in known:
                    self._operations += [
                        (variable, method, path, item[method]) for method in METHODS if method in item
                    ]
        self._roles = {
            (method.lower(), path): of_view(app.view_functions[rule.endpoint]).role
            for of_deployment in (False, True)
            for path, rule in paths(app, of_deployment)
            for method in rule.methods or ()
        }

    def page(self, section: str) -> str:
        """Return the operations of a section, and the fields of their bodies."""
        parts, bodies, shown_at = [], dict[str, None](), dict[str, str]()
        for variable, method, path, operation in self._operations:
            if operation["tags"] == [section]:
                parts += self._operation(variable, method, path, operation, bodies, shown_at)
        if bodies:
            parts += ["## Fields of the bodies"]
            for name in bodies:
                parts += [f"### {name}", self._fields(self._schemas[name])]
        return "\n\n".join(part for part in parts if part)

    def _operation(
        self,
        variable: str,
        method: str,
        path: str,
        operation: Mapping[str, Any],
        bodies: dict[str, None],
        shown_at: dict[str, str],
    ) -> Iterator[str]:
        """Yield the paragraphs of an operation.

        Adds the schema of its body to `bodies`, and that of its answer to `shown_at`: the heading below which it is shown.
        """
        summary = re.sub(r" \((?:GET|POST|PUT|PATCH|DELETE) [^)]*\)$", "", operation["summary"])
        anchor = operation["operationId"].replace("_", "-")
        yield f"## {summary} {{#{anchor}}}"
        role = self._roles[method, path]
        yield f"`{method.upper()} {path}` · " + ("open: no key" if role == "open" else f"role `{role}`")
        yield _prose(operation.get("description", ""))
        queries = [parameter for parameter in operation["parameters"] if parameter["in"] != "path"]
        if queries:
            rows = [
                [
                    f"`{q['name']}`",
                    q["in"],
                    self._type(q["schema"]),
                    EXPLAINED.get(q["name"]) or _text(q.get("description", "")),
                ]
                for q in queries
            ]
            yield table(["Parameter", "In", "Type", "Meaning"], *rows)
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content:
            schema = content["schema"].get("items", content["schema"])
            name = schema["$ref"].rpartition("/")[2]
            bodies |= dict.fromkeys(self._named(content["schema"]))
            yield f"Body: [{name}](#{name.lower()})" + (", an array" if "items" in content["schema"] else "")
        example = content and next(iter(content["examples"].values()))["value"]
        yield _curl(variable, method, path, example, is_open=role == "open")
        yield from self._answer(operation, f"[{summary}](#{anchor})", shown_at)
        errors = [
            status for status in operation["responses"] if status >= "400" and status not in COMMON_ERRORS
        ]
        meanings = [f"{status} ({operation['responses'][status]['description']})" for status in errors]
        yield "Errors: " + ", ".join([*meanings, "[those of every route](index.md#errors)"]) + "."

    def _answer(self, operation: Mapping[str, Any], place: str, shown_at: dict[str, str]) -> Iterator[str]:
        """Yield the response of success with an example, or with the place on the page that has the example already."""
        for status, response in operation["responses"].items():
            if status >= "400":
                continue
            media, content = next(iter(response.get("content", {}).items()), ("", {}))
            if media == "application/json":
                schema = content.get("schema", {})
                if (key := json.dumps(schema)) in shown_at and "$ref" in key:
                    yield f"Answer, {status}: as of {shown_at[key]}."
                    continue
                shown_at[key] = place
                example = self._example(schema, "", DEPTH)
                yield f"Answer, {status}:\n\n```json\n{json.dumps(example, indent=2, ensure_ascii=False)}\n```"
            elif media == "text/event-stream":
                yield f"Answer, {status}: server-sent events. See [Events](../events.md)."
            else:
                yield f"Answer, {status}: {(media and f'`{media}`') or 'no body'}."

    def _fields(self, schema: Mapping[str, Any]) -> str:
        required = schema.get("required", ())
        rows = [
            [
                f"`{name}`" + (" (required)" if name in required else ""),
                self._type(field),
                _text("; ".join([field.get("description", ""), *_bounds(field)]).strip("; ")),
            ]
            for name, field in schema.get("properties", {}).items()
        ]
        return table(["Field", "Type", "Meaning and limits"], *rows) if rows else "Any JSON object."

    def _type(self, schema: Mapping[str, Any]) -> str:
        """Return a schema's type in words, with links to the fields of other schemas."""
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        for word in ("anyOf", "oneOf"):
            if word in schema:
                first, *others = [self._type(each) for each in schema[word]]
                return " or ".join(
                    [first, *("a list of these" if each == f"array of {first}" else each for each in others)]
                )
        if "enum" in schema:
            return ", ".join("null" if value is None else f"`{value}`" for value in schema["enum"])
        kinds = schema.get("type", "any")
        if isinstance(kinds, list):
            return " or ".join(self._type({**schema, "type": kind}) for kind in kinds)
        if kinds == "array":
            return f"array of {self._type(schema['items'])}" if schema.get("items") else "array"
        return schema.get("format", kinds) if kinds != "null" else "null"

    def _named(self, schema: Any) -> Iterator[str]:
        """Yield the names of the schemas that a schema refers to, with those that these refer to."""
        if isinstance(schema, list):
            for each in schema:
                yield from self._named(each)
        elif isinstance(schema, dict):
            for key, value in schema.items():
                if key == "$ref":
                    name = value.rpartition("/")[2]
                    yield name
                    yield from self._named(
                        {k: v for k, v in self._schemas[name].items() if f'/{name}"' not in json.dumps(v)}
                    )
                else:
                    yield from self._named(value)

    def _example(self, schema: Mapping[str, Any], name: str, depth: int) -> Any:
        """Return a value of the schema; names of fields choose plausible texts."""
        if "$ref" in schema:
            return self._example(self._schemas[schema["$ref"].rpartition("/")[2]], name, depth)
        for word in ("example", "const", "default"):
            if word in schema:
                return schema[word]
        if examples := schema.get("examples"):
            return examples[0]
        for word in ("anyOf", "oneOf", "allOf"):
            if word in schema:
                return (
                    None if {"type": "null"} in schema[word] else self._example(schema[word][0], name, depth)
                )
        if "enum" in schema:
            return schema["enum"][0]
        kind = schema.get("type", "object")
        if isinstance(kind, list):
            kind = "null" if "null" in kind else kind[0]
        if kind == "object":
            properties = schema.get("properties", {}) if depth else {}
            return {key: self._example(field, key, depth - 1) for key, field in properties.items()}
        if kind == "array":
            item = self._example(schema.get("items", {}), name, depth - 1) if depth else None
            return [] if item in (None, {}) else [item]
        if kind == "string":
            return VALUES_BY_FORMAT.get(schema.get("format", "")) or (
                UUID if name.endswith("_id") else name or "text"
            )
        return {"integer": 1, "number": 1.0, "boolean": True}.get(kind)


def _prose(text: str) -> str:
    """Return a docstring as a paragraph each, with its line ends removed."""
    return re.sub(r"(?<!\n)\n(?!\n)\s*", " ", cleandoc(text))


def _curl(variable: str, method: str, path: str, body: Any, *, is_open: bool) -> str:
    address = re.sub(r"\{(\w+)\}", lambda match: f"${match[1].upper()}", path)
    parts = [f'curl "${variable}{address}"']
    if method != "get":
        parts[0] += f" -X {method.upper()}"
    if not is_open:
        parts[0] += ' -H "x-api-key: $RUNYARD_API_KEY"'
    if body is not None:
        text = json.dumps(body, ensure_ascii=False)
        text = (text if len(text) <= 100 else json.dumps(body, ensure_ascii=False, indent=2)).replace(
            "'", "'\\''"
        )
        parts += ["-H 'content-type: application/json'", f"-d '{text}'"]
    return "```sh\n" + " \\\n  ".join(parts) + "\n```"


def _bounds(field: Mapping[str, Any]) -> Iterator[str]:
    for word, text in {
        "minLength": "at least {} characters",
        "maxLength": "at most {} characters",
        "minimum": "at least {}",
        "maximum": "at most {}",
        "maxItems": "at most {} items",
    }.items():
        if word in field and (word, field[word]) != ("minLength", 1):
            yield text.format(field[word])


if __name__ == "__main__":
    for page, text in pages():
        page.write_text(text)
