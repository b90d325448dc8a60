"""Conversion of a graph host's records of model and tool calls to attributes of spans.

The names follow OpenTelemetry's semantic conventions for generative AI. A record comes from a process that executes
user code. A field of a wrong type is therefore ignored, and a text is cut.

A record has the fields of the CALL frame (`workers/graph_host/frames.py`) and, as far as known:

    name              of the model's class or the tool
    provider, model, response_model, response (id), finish: [reason …], stop: [text …], settings: {parameter: value},
    usage: {input_tokens, output_tokens, input_token_details, output_token_details}, first: when the first token came
                      of a model call
    tool_call         the model's id of a tool call
    error, message    class and text of the error with which the call failed
    interrupted       true if a tool asked a question of a person
    system, input, output, arguments, result: JSON as text, cut: true if a part is missing
                      of a deployment that asks for content
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

MAX_CALLS = 1_000  # of an attempt
MAX_NAME = 200
MAX_MESSAGE = 1_000
MAX_CONTENT = 32_768  # characters of JSON of one attribute
OPERATIONS = ("chat", "text_completion", "execute_tool")
TOOL = "execute_tool"

# LangChain's names of providers and those of the convention. Other names are used as they are.
PROVIDERS = {
    "azure": "azure.ai.openai",
    "azure_openai": "azure.ai.openai",
    "amazon_bedrock": "aws.bedrock",
    "bedrock": "aws.bedrock",
    "bedrock_converse": "aws.bedrock",
    "google_genai": "gcp.gemini",
    "google_vertexai": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "mistralai": "mistral_ai",
    "ibm": "ibm.watsonx.ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
    "moonshot": "moonshot_ai",
}

Convert = Callable[[Any], Any]  # returns None for a value of another type


def _text(value: Any) -> str | None:
    return value[:MAX_NAME] if isinstance(value, str) and value else None


def _texts(value: Any) -> list[str] | None:
    return [text for each in value[:4] if (text := _text(each))] or None if isinstance(value, list) else None


def _content(value: Any) -> str | None:
    return value[:MAX_CONTENT] if isinstance(value, str) else None


def _integer(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 62 else None


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) else None


def _provider(value: Any) -> str | None:
    return None if (name := _text(value)) is None else PROVIDERS.get(name.lower(), name.lower())


MODEL: dict[str, tuple[str, Convert]] = {
    "provider": ("gen_ai.provider.name", _provider),
    "model": ("gen_ai.request.model", _text),
    "stop": ("gen_ai.request.stop_sequences", _texts),
    "response_model": ("gen_ai.response.model", _text),
    "response": ("gen_ai.response.id", _text),
    "finish": ("gen_ai.response.finish_reasons", _texts),
    "system": ("gen_ai.system_instructions", _content),
    "input": ("gen_ai.input.messages", _content),
    "output": ("gen_ai.output.messages", _content),
}
TOOLS: dict[str, tuple[str, Convert]] = {
    "name": ("gen_ai.tool.name", _text),
    "tool_call": ("gen_ai.tool.call.id", _text),
    "arguments": ("gen_ai.tool.call.arguments", _content),
    "result": ("gen_ai.tool.call.result", _content),
}
SETTINGS: dict[str, tuple[str, Convert]] = {
    "temperature": ("gen_ai.request.temperature", _number),
    "top_p": ("gen_ai.request.top_p", _number),
    "top_k": ("gen_ai.request.top_k", _integer),
    "max_tokens": ("gen_ai.request.max_tokens", _integer),
    "max_completion_tokens": ("gen_ai.request.max_tokens", _integer),
    "max_output_tokens": ("gen_ai.request.max_tokens", _integer),
    "frequency_penalty": ("gen_ai.request.frequency_penalty", _number),
    "presence_penalty": ("gen_ai.request.presence_penalty", _number),
    "seed": ("gen_ai.request.seed", _integer),
    "n": ("gen_ai.request.choice.count", _integer),
    "reasoning_effort": ("gen_ai.request.reasoning.level", _text),
}
USAGE = {
    "input_tokens": ("gen_ai.usage.input_tokens", _integer),
    "output_tokens": ("gen_ai.usage.output_tokens", _integer),
}
INPUT_DETAILS = {
    "cache_read": ("gen_ai.usage.cache_read.input_tokens", _integer),
    "cache_creation": ("gen_ai.usage.cache_write.input_tokens", _integer),
}
# The name before the newest version of the convention, which backends still read.
CACHE_CREATION = {"cache_creation": ("gen_ai.usage.cache_creation.input_tokens", _integer)}
OUTPUT_DETAILS = {"reasoning": ("gen_ai.usage.reasoning.output_tokens", _integer)}


def name_of(record: Mapping[str, Any]) -> str:
    """Return the name of a call's span."""
    return f"{record['operation']} {_text(record.get('name')) or 'unknown'}"


def attributes_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a call's span. Raises ValueError for an operation that is none."""
    operation = record["operation"]
    if operation not in OPERATIONS:
        raise ValueError(f"operation {operation!r:.40}")
    attributes: dict[str, Any] = {"gen_ai.operation.name": operation}
    if operation == TOOL:
        _convert(attributes, TOOLS, record)
    else:
        _convert(attributes, MODEL, record)
        _convert(attributes, SETTINGS, record.get("settings"))
        _add_usage(attributes, record.get("usage"))
        if (first := _number(record.get("first"))) is not None:
            attributes["gen_ai.request.stream"] = True
            attributes["gen_ai.response.time_to_first_chunk"] = max(first - record["from"], 0.0)
    if (error := _text(record.get("error"))) is not None:
        attributes["error.type"] = error
    for flag, name in (("cut", "runyard.content_cut"), ("interrupted", "runyard.interrupted")):
        if record.get(flag) is True:
            attributes[name] = True
    return attributes


def failure_of(record: Mapping[str, Any]) -> str | None:
    """Return the text of a failed call's error; None if it succeeded."""
    error, message = _text(record.get("error")), record.get("message")
    return message[:MAX_MESSAGE] if error and isinstance(message, str) else error


def _add_usage(attributes: dict[str, Any], usage: Any) -> None:
    if isinstance(usage, dict):
        _convert(attributes, USAGE, usage)
        for table in (INPUT_DETAILS, CACHE_CREATION):
            _convert(attributes, table, usage.get("input_token_details"))
        _convert(attributes, OUTPUT_DETAILS, usage.get("output_token_details"))


def _convert(attributes: dict[str, Any], table: Mapping[str, tuple[str, Convert]], fields: Any) -> None:
    if isinstance(fields, dict):
        for field, value in fields.items():
            if field in table and (converted := table[field][1](value)) is not None:
                attributes[table[field][0]] = converted
