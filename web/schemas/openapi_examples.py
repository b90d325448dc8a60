"""Example bodies in the API document. `/docs` fills them in.

Each body schema declares its `example`; one without an example accepts an empty body. For callers that may read the
deployment, the examples name its first graph and hold an input for it. For other callers they hold a placeholder.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

EXAMPLE = "example"  # the name of each example in the document
GRAPH = "GRAPH_ID"
MESSAGES = {"messages": [{"role": "user", "content": "Hello"}]}


def with_graph(
    document: dict[str, Any], graph_id: str, input_schema: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the document with examples that name this graph and hold an input for it."""
    values = sample(input_schema or {}, input_schema or {})
    known = {"assistant_id": graph_id, "graph_id": graph_id, "input": values, "values": values}

    def filled(example: Any) -> Any:
        if isinstance(example, list):
            return [filled(one) for one in example]
        named = {name: known[name] for name in known.keys() & example.keys()}
        inner = {"params": filled(example["params"])} if "params" in example else {}
        return {**example, **named, **inner}

    document = deepcopy(document)
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        for content in operation.get("requestBody", {}).get("content", {}).values():
            example = content["examples"][EXAMPLE]
            example["value"] = filled(example["value"])
    for schema in document.get("components", {}).get("schemas", {}).values():
        if "examples" in schema:
            schema["examples"] = filled(schema["examples"])
    return document


DEEPEST = 10  # levels: a schema may contain itself
SAMPLES: dict[str, Any] = {
    "string": "Hello",
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "array": [],
    "null": None,
}


def sample(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> Any:
    """Return a small value that fits a JSON Schema. An object gets its required properties, or else the first one."""
    if depth > DEEPEST:
        return None
    if "default" in schema:
        return schema["default"]
    if schema.get("enum"):
        return schema["enum"][0]
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return sample((root.get("$defs") or {}).get(name) or {}, root, depth + 1)
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        return sample(one, root, depth + 1)
    properties = schema.get("properties") or {}
    if "messages" in properties:
        return MESSAGES
    if not properties:
        return SAMPLES.get(schema.get("type", ""), {})
    names = schema.get("required") or list(properties)[:1]
    return {name: sample(properties[name], root, depth + 1) for name in names if name in properties}
