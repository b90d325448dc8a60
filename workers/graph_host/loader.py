"""Loading of a revision's graphs from their entries (`path:attribute`).

An attribute may be a compiled graph, a builder, an entrypoint, or a factory: a function (plain, async or a context
manager) that returns a graph for each use. In each case the graph of a run saves its checkpoints through the
platform's saver. An entry that cannot be loaded raises LoadFailed with a text for the person who deploys.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import typing
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore

from .checkpoints.saver import HostSaver
from .output import short_traceback
from .project.users import AUTH_USER
from .serialization import text_of

UNNAMED = Pregel.name  # the name of a graph that was compiled without a name
# Access contexts: the purposes of opening a graph, as `ServerRuntime` names them.
RUN, READ = "threads.create_run", "assistants.read"
READ_STATE, UPDATE_STATE = "threads.read", "threads.update"

RELATIVE = "attempted relative import"  # part of the interpreter's error message
RELATIVE_IMPORT = """
A file that is named by its path belongs to no package, so it can import nothing relatively. Import by name
("from helper import f" instead of "from .helper import f"), or name the graph by its module: "package.module:graph"."""
MISSING_MODULE = "\nAdd it to the project's requirements."

Modules = dict[str, ModuleType]  # by the path of the module's file


class LoadFailed(Exception):
    """A graph cannot be loaded. The message is for the person who deploys."""


class NotAGraph(Exception):
    """A graph factory returned an object that is not a graph."""


@dataclass
class LoadedGraph:
    """One graph of the revision. Either `graph` is set and serves every use, or `factory` returns one for each use."""

    graph_id: str
    location: str  # path:attribute, as in the configuration
    description: str | None
    saver: HostSaver
    store: BaseStore | None = None
    graph: Pregel | None = None
    factory: Callable[..., Any] | None = None
    config_parameter: inspect.Parameter | None = None
    runtime_parameter: inspect.Parameter | None = None
    context_keys: dict[type, frozenset[str] | None] = field(default_factory=dict)

    @asynccontextmanager
    async def opened(self, config: RunnableConfig, access: str, context: Any) -> AsyncIterator[Pregel]:
        """Call the factory and yield its graph for one use. Errors of the factory are not wrapped."""
        assert self.factory is not None
        args, kwargs = self._arguments(config, access, context)
        created = self.factory(*args, **kwargs)
        if inspect.isawaitable(created):
            created = await created
        if isinstance(created, AbstractAsyncContextManager) and not _is_graph(created):
            async with created as inner:
                yield self.prepared(inner)
        elif isinstance(created, AbstractContextManager) and not _is_graph(created):
            with created as inner:
                yield self.prepared(inner)
        else:
            yield self.prepared(created)

    def prepared(self, value: Any) -> Pregel:
        """Return a copy of a graph with the platform's saver and store, and with a name. Raises NotAGraph."""
        if isinstance(value, StateGraph):
            value = value.compile()
        if not isinstance(value, Pregel):
            raise NotAGraph(f"graph '{self.graph_id}': {text_of(type(value), repr)} is not a graph")
        name = self.graph_id if value.name == UNNAMED else value.name
        return value.copy(update={"checkpointer": self.saver, "store": self.store, "name": name})

    def context_for(self, graph: Pregel, context: dict[str, Any]) -> dict[str, Any] | None:
        """Return the entries of a run's context that the graph's context schema declares."""
        schema = graph.context_schema
        if schema is None:
            return context or None
        if schema not in self.context_keys:
            self.context_keys[schema] = _known_keys(schema)
        keys = self.context_keys[schema]
        if keys is not None:
            context = {key: value for key, value in context.items() if key in keys}
        return context if context or _works_empty(schema) else None

    def _arguments(
        self, config: RunnableConfig, access: str, context: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        arguments: list[tuple[inspect.Parameter, Any]] = []
        if self.config_parameter is not None:
            arguments.append((self.config_parameter, config))
        if self.runtime_parameter is not None:
            user = (config.get("configurable") or {}).get(AUTH_USER)
            arguments.append((self.runtime_parameter, _server_runtime(access, user, self.store, context)))
        if len(arguments) > 1:
            order = list(inspect.signature(self.factory).parameters)  # type: ignore[arg-type]
            arguments.sort(key=lambda argument: order.index(argument[0].name))
        by_name = inspect.Parameter.KEYWORD_ONLY
        args = [value for parameter, value in arguments if parameter.kind is not by_name]
        return args, {parameter.name: value for parameter, value in arguments if parameter.kind is by_name}


def load_all(
    graphs: dict[str, Any], saver: HostSaver, store: BaseStore | None = None, modules: Modules | None = None
) -> dict[str, LoadedGraph]:
    """Load all entries. Raises LoadFailed for the first that cannot be loaded."""
    modules = {} if modules is None else modules
    return {graph_id: _load(graph_id, spec, saver, store, modules) for graph_id, spec in graphs.items()}


def _load(
    graph_id: str, spec: Any, saver: HostSaver, store: BaseStore | None, modules: Modules
) -> LoadedGraph:
    description = None
    if isinstance(spec, dict):
        description, spec = spec.get("description"), spec.get("path")
    location, _, attribute = str(spec).partition(":")
    if not location or not attribute:
        raise LoadFailed(f"graph '{graph_id}': '{spec}' is not of the form path:attribute")
    value = _attribute(f"graph '{graph_id}'", location, attribute, modules)
    entry = LoadedGraph(graph_id, str(spec), description, saver, store)
    if _is_graph(value):
        try:
            entry.graph = entry.prepared(value)
        except Exception as error:  # any error of the builder's compile()
            raise LoadFailed(
                f"graph '{graph_id}': {spec} does not compile\n{short_traceback(error)}"
            ) from error
    elif callable(value) and not isinstance(value, type):
        _inspect_factory(entry, value)
    else:
        raise LoadFailed(
            f"graph '{graph_id}': '{attribute}' in {location} is no graph: {type(value).__name__}"
        )
    return entry


def load_attribute(key: str, location: str) -> Any:
    """Return the object that `path:attribute` names in the configuration entry `key`. Raises LoadFailed."""
    path, _, attribute = location.partition(":")
    module = _from_file(key, path, {})
    if not hasattr(module, attribute):
        raise LoadFailed(f"{key}: {path} has no '{attribute}'")
    return getattr(module, attribute)


def load_object(key: str, location: str, modules: Modules) -> Any:
    """Return the object that `file.py:object` or `module:object` names. Raises LoadFailed.

    Shares already loaded modules with the graphs.
    """
    path, _, attribute = location.rpartition(":")
    if not path or not attribute:
        raise LoadFailed(f"{key}: '{location}' is not of the form path:object")
    if path.endswith(".py") and not _is_file(path):
        path = f"./{path}"
    return _attribute(key, path, attribute, modules)


def _is_graph(value: Any) -> bool:
    return isinstance(value, (Pregel, StateGraph))


def _attribute(key: str, location: str, attribute: str, modules: Modules) -> Any:
    module = _module(key, location, modules)
    if not hasattr(module, attribute):
        raise LoadFailed(f"{key}: {location} has no '{attribute}'")
    return getattr(module, attribute)


def _module(key: str, location: str, modules: Modules) -> ModuleType:
    try:
        return _from_file(key, location, modules) if _is_file(location) else importlib.import_module(location)
    except LoadFailed:
        raise
    except BaseException as error:  # any error that the user's module raises on import
        if isinstance(error, ModuleNotFoundError) and error.name == location:
            hint = f"no module named '{location}'; a file is written with a slash: './{location}'"
            raise LoadFailed(f"{key}: {hint}") from error
        raise LoadFailed(f"{key}: {location} failed\n{short_traceback(error)}{_hint(error)}") from error


def _hint(error: BaseException) -> str:
    """Return advice on a failed import, on lines of its own; empty if there is none."""
    if isinstance(error, ImportError) and RELATIVE in str(error):
        return RELATIVE_IMPORT
    if isinstance(error, ModuleNotFoundError) and error.name and _is_third_party(error.name):
        return MISSING_MODULE
    return ""


def _is_third_party(name: str) -> bool:
    """Whether a top-level module that was not found is neither the project's nor the standard library's."""
    if not name.isidentifier() or name in sys.stdlib_module_names:
        return False
    patterns = (name, f"{name}.py", f"*/{name}", f"*/{name}.py")
    return not any(any(Path().glob(pattern)) for pattern in patterns)


def _is_file(location: str) -> bool:
    return "/" in location or "\\" in location


def _from_file(key: str, location: str, modules: Modules) -> ModuleType:
    """Return the module of a file. Executes it once, even if it contains several graphs.

    Two executions would create different classes with the same name, and a state restored from a checkpoint would
    contain the classes of the last execution.
    """
    path = os.path.realpath(location)
    if path in modules:
        return modules[path]
    if not os.path.isfile(path):
        raise LoadFailed(f"{key}: no such file: {location}")
    name = "__" + os.path.splitext(os.path.basename(path))[0]
    if name in sys.modules:
        name += "_" + hashlib.sha256(os.path.relpath(path).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadFailed(f"{key}: {location} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    modules[path] = module
    return module


def _inspect_factory(entry: LoadedGraph, factory: Callable[..., Any]) -> None:
    """Find the factory's parameters for the config and the runtime. Raises LoadFailed."""
    where = f"graph '{entry.graph_id}': the factory"
    hints = _hints(factory)
    for parameter in parameters_of(where, factory):
        annotation = hints.get(parameter.name, parameter.annotation)
        if _is_runtime(annotation):
            if entry.runtime_parameter is not None:
                raise LoadFailed(f"{where} takes the runtime twice")
            entry.runtime_parameter = parameter
        elif parameter.default is not inspect.Parameter.empty and entry.config_parameter is not None:
            continue
        elif entry.config_parameter is not None:
            raise LoadFailed(
                f"{where} takes {entry.config_parameter.name!r} and {parameter.name!r}: one parameter is given the"
                " config, a second must be annotated ServerRuntime"
            )
        else:
            entry.config_parameter = parameter
    if entry.runtime_parameter is not None and _runtime_types() is None:
        raise LoadFailed(f"{where} takes a ServerRuntime, which the project's langgraph-sdk does not have")
    entry.factory = factory


def parameters_of(where: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function of the project, without variadic ones. Raises LoadFailed."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise LoadFailed(f"{where} has no readable signature") from error
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [parameter for parameter in parameters if parameter.kind not in variadic]


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    function = inspect.unwrap(factory)
    if not inspect.isroutine(function):
        function = type(factory).__call__
    try:
        return typing.get_type_hints(function)
    except Exception:  # an annotation cannot be evaluated; its text is used instead
        return {}


def _is_runtime(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.split("[")[0].rsplit(".")[-1] == "ServerRuntime"
    origin = typing.get_origin(annotation) or annotation
    names = (getattr(annotation, "__name__", ""), getattr(origin, "__name__", ""))
    return "ServerRuntime" in names


def _runtime_types() -> tuple[Any, Any] | None:
    """Return the classes of ServerRuntime for runs and for reads; None if langgraph-sdk has none."""
    try:
        from langgraph_sdk import runtime
    except ImportError:
        return None
    variants = {variant.__name__: variant for variant in _variants(getattr(runtime, "ServerRuntime", None))}
    run = next((v for name, v in variants.items() if "Execution" in name), None)
    read = next((v for name, v in variants.items() if "Read" in name), None)
    return (run, read) if run and read else None


def _variants(alias: Any) -> list[Any]:
    union = getattr(alias, "__value__", alias)
    return [typing.get_origin(variant) or variant for variant in typing.get_args(union)]


def _server_runtime(access: str, user: Any, store: BaseStore | None, context: Any) -> Any:
    types = _runtime_types()
    assert types is not None  # checked when the factory was loaded
    run, read = types
    if access == RUN:
        return run(access_context=access, user=user, store=store, context=context)
    return read(access_context=access, user=user, store=store)


def _known_keys(schema: Any) -> frozenset[str] | None:
    """Return the keys that a context schema declares; None if it accepts any key."""
    fields = getattr(schema, "model_fields", None)
    if fields is not None:
        if schema.model_config.get("extra") == "allow":
            return None
        return frozenset(fields) | {field.alias for field in fields.values() if field.alias}
    try:
        hints = typing.get_type_hints(schema)
    except Exception:  # an annotation cannot be evaluated; the names are sufficient
        hints = getattr(schema, "__annotations__", {})
    return frozenset(hints) or None


def _works_empty(schema: Any) -> bool:
    """Whether the schema can be created without values. Otherwise the graph gets None, as in the user's own tests."""
    if typing.is_typeddict(schema) or schema is dict:
        return True
    try:
        schema()
    except Exception:  # any error of the schema's validation
        return False
    return True
