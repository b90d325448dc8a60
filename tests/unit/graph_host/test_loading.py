"""Loading graphs: the forms in which a project may define them, import side effects, and reasons for refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.hosted import HOSTED
from tests.support.hosts import HostProcess, Run, graph_host


@pytest.mark.parametrize(
    ("graph_id", "error"), [("failing_factory", "RuntimeError"), ("wrong_factory", "NotAGraph")]
)
def test_a_factory_that_fails_fails_the_run(host: HostProcess, graph_id: str, error: str) -> None:
    run = host.run(graph_id, {})

    assert run.answer["__error__"]["error"] == error
    assert run.outcome["state"] is None


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("./missing.py:graph", "no such file"),
        ("./graphs.py:missing", "has no 'missing'"),
        ("./graphs.py", "path:attribute"),
        ("./graphs.py:not_a_graph", "is no graph"),
        ("./graphs.py:two_unannotated", "'a' and 'b'"),
        ("graphs.py:steps", "./graphs.py"),
        ("./broken.py:graph", "ZeroDivisionError"),
        ("./exits.py:graph", "SystemExit"),
        ("./syntax.py:graph", "SyntaxError"),
        ("by_name:graph", 'Import by name\n("from helper import f" instead of "from .helper import f")'),
        ("./relative.py:graph", 'relative.py", line 2'),
        ("./unconnected.py:graph", "./unconnected.py:graph does not compile"),
        (
            "./needs_package.py:graph",
            "ModuleNotFoundError: No module named 'not_installed'\nAdd it to the project's requirements.",
        ),
    ],
)
def test_what_cannot_be_loaded_is_said_for_the_deployer(tmp_path: Path, entry: str, words: str) -> None:
    (tmp_path / "graphs.py").write_bytes((HOSTED / "graphs.py").read_bytes())
    for name in ("shared", "web", "workers"):
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "broken.py").write_text("def f():\n    return 1 / 0\n\ngraph = f()\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "syntax.py").write_text("def (:\n")
    (tmp_path / "relative.py").write_text("# first\nfrom .helper import graph\n")
    (tmp_path / "by_name.py").write_text("from relative import graph\n")
    (tmp_path / "needs_package.py").write_text("import not_installed\n")
    (tmp_path / "unconnected.py").write_text(
        "from langgraph.graph import StateGraph\ngraph = StateGraph(dict).add_node('a', print)\n"
    )

    with graph_host(tmp_path, {"agent": entry}) as host:
        error = host.ready["error"]
        code = host.process.wait()

    assert error["step"] == "load"
    assert "'agent'" in error["message"]
    assert words in error["message"]
    assert "importlib" not in error["message"]
    assert code == 3


@pytest.mark.parametrize("name", ["mine", "json.part"])
def test_a_missing_module_of_the_project_is_no_missing_requirement(tmp_path: Path, name: str) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mine.py").touch()
    (tmp_path / "agent.py").write_text(f"import {name}\n")

    with graph_host(tmp_path, {"agent": "./agent.py:graph"}) as host:
        message = host.ready["error"]["message"]

    assert "ModuleNotFoundError" in message
    assert "requirements" not in message


def test_a_module_name_is_imported_and_local_dependencies_are_found(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").touch()
    (tmp_path / "app" / "agent.py").write_text(
        "import helper_of_mine\nfrom typing import TypedDict\nfrom langgraph.graph import StateGraph\n"
        "class S(TypedDict, total=False):\n    a: str\n"
        "def n(s): return {'a': helper_of_mine.WORD + __name__}\n"
        "graph = StateGraph(S).add_node(n).set_entry_point('n').compile()\n"
    )
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "helper_of_mine.py").write_text("WORD = 'found '\n")

    with graph_host(
        tmp_path, {"g": {"path": "app.agent:graph", "description": "d"}}, paths=[str(tmp_path / "libs")]
    ) as host:
        assert host.ready["graphs"] == ["g"]
        assert host.run("g", {}).values == {"a": "found app.agent"}


def test_a_factory_may_take_the_server_runtime(tmp_path: Path) -> None:
    (tmp_path / "graphs.py").write_text(
        "from typing import TypedDict\nfrom langchain_core.runnables import RunnableConfig\n"
        "from langgraph.graph import StateGraph\nfrom langgraph_sdk.runtime import ServerRuntime\n"
        "class S(TypedDict, total=False):\n    a: list\n"
        "async def make(runtime: ServerRuntime, config: RunnableConfig):\n"
        "    found = runtime.execution_runtime\n"
        "    seen = [runtime.access_context, found and found.context, config['configurable']['user_id']]\n"
        "    def n(s): return {'a': seen}\n"
        "    return StateGraph(S).add_node(n).set_entry_point('n')\n"
    )
    with graph_host(tmp_path, {"g": "./graphs.py:make"}) as host:
        run = host.run("g", {}, context={"k": 1}, config={"configurable": {"user_id": "u"}})

    assert run.values == {"a": ["threads.create_run", {"k": 1}, "u"]}


FORMS = """
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypedDict
from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph_sdk.runtime import ServerRuntime
class S(TypedDict, total=False):
    a: str
def builder(config=None):
    word = "none" if config is None else type(config).__name__ + str("thread_id" in config["configurable"])
    def n(s): return {"a": word}
    return StateGraph(S).add_node(n).set_entry_point("n")
compiled, uncompiled = builder().compile(), builder()
def nothing(): return builder()
async def nothing_async(): return builder().compile()
def bare(anything): return builder(anything)
def as_config(c: RunnableConfig): return builder(c)
def as_dict(d: dict): return builder(d)
def as_any_dict(d: dict[str, Any]): return builder(d)
def optional(config=None): return builder(config)
def keyword(*, config: RunnableConfig): return builder(config)
def both(config: RunnableConfig, runtime: ServerRuntime): return builder(config)
def both_turned(*, runtime: ServerRuntime, config: RunnableConfig): return builder(config)
@contextmanager
def managed(config): yield builder(config)
@asynccontextmanager
async def managed_async(): yield builder()
class Callable:
    def __call__(self, config): return builder(config)
instance = Callable()
"""
WITHOUT = ("compiled", "uncompiled", "nothing", "nothing_async", "managed_async")
WITH = (
    "bare", "as_config", "as_dict", "as_any_dict", "optional", "keyword", "both", "both_turned", "managed",
    "instance",
)  # fmt: skip


def test_a_graph_may_be_given_in_many_forms(tmp_path: Path) -> None:
    (tmp_path / "forms.py").write_text(FORMS)
    graphs = {name: f"./forms.py:{name}" for name in (*WITHOUT, *WITH)}
    with graph_host(tmp_path, graphs) as host:
        seen = {name: host.run(name, {}).values["a"] for name in graphs}

    assert seen == {**dict.fromkeys(WITHOUT, "none"), **dict.fromkeys(WITH, "dictTrue")}


def test_a_langgraph_that_is_too_old_is_refused_by_name(tmp_path: Path) -> None:
    metadata = tmp_path / "langgraph-0.6.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: langgraph\nVersion: 0.6.1\n")

    with graph_host(tmp_path, {"g": "./g.py:g"}, from_scratch=True) as host:
        error = host.ready["error"]

    assert error["step"] == "environment"
    assert "1.0.10" in error["message"]
    assert "0.6.1" in error["message"]


# Import side effects


HEAD = """
import asyncio
import gc
import threading
import time
from typing import TypedDict
{before}
from langgraph.graph import END, START, StateGraph


class State(TypedDict, total=False):
    text: str


def of(node):
    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile()

"""
OWN_LOOP = """
time.sleep(0.5)
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
threading.Thread(target=loop.run_forever, daemon=True).start()
collects = gc.isenabled()


async def answer():
    return {"text": "b" if collects and gc.isenabled() else "garbage is not collected"}


graph = of(lambda state: asyncio.run_coroutine_threadsafe(answer(), loop).result())
"""
SLEEPS = """
time.sleep(0.5)


def node(state):
    time.sleep(0.01)
    return {"text": "b"}


graph = of(node)
"""


def ready_of(directory: Path, text: str, *, before: str = "") -> tuple[dict[str, Any], Run | None]:
    """Return a host's ready message for a project, and its run if the project could be loaded."""
    (directory / "project.py").write_text(HEAD.format(before=before) + text)
    with graph_host(directory, {"graph": "./project.py:graph"}, from_scratch=True) as host:
        ready = host.ready
        return ready, None if "error" in ready else host.run("graph", {"text": "a"})


@pytest.mark.parametrize(
    ("text", "before"),
    [
        pytest.param(OWN_LOOP, "", id="takes its time and has a loop of its own"),
        pytest.param(SLEEPS, "from gevent import monkey; monkey.patch_all(thread=False)", id="gevent"),
    ],
)
def test_a_project_may_do_much_when_it_is_imported(tmp_path: Path, text: str, before: str) -> None:
    _, run = ready_of(tmp_path, text, before=before)

    assert run is not None
    assert run.values == {"text": "b"}


def test_a_project_that_replaces_threads_is_refused_with_the_reason(tmp_path: Path) -> None:
    ready, _ = ready_of(tmp_path, SLEEPS, before="from gevent import monkey; monkey.patch_all()")

    assert ready["error"]["step"] == "load"
    assert "monkey.patch_all()" in ready["error"]["message"]


@pytest.mark.parametrize("module", ["langgraph.py", "langgraph/__init__.py"])
def test_a_project_with_a_langgraph_of_its_own_is_refused_with_the_reason(
    tmp_path: Path, module: str
) -> None:
    (tmp_path / module).parent.mkdir(exist_ok=True)
    (tmp_path / module).touch()
    ready, _ = ready_of(tmp_path, SLEEPS)

    assert ready["error"]["step"] == "environment"
    assert "module of the same name" in ready["error"]["message"]


PROVIDER = """
def init_embeddings(name):
    raise ValueError("1 validation error\\n  the api_key option must be set, by {name} or OPENAI_API_KEY")
"""
OWN = """
def client():
    {raises}

async def embed(texts):
    return [[0.0] for _ in texts]

client()
"""


@pytest.mark.parametrize("embed", ["openai:small", "./own.py:embed"])
def test_an_embedder_without_its_key_says_so_in_a_sentence(tmp_path: Path, embed: str) -> None:
    (tmp_path / "langchain").mkdir()
    (tmp_path / "langchain" / "embeddings.py").write_text(PROVIDER)
    (tmp_path / "own.py").write_text(
        OWN.format(raises="raise RuntimeError('set the environment variable X_API_KEY')")
    )

    error = refused_index(tmp_path, embed)

    assert error.startswith(f"store.index.embed: {embed} needs its key when the project is built")
    assert "API_KEY" in error
    assert "\n" not in error


def test_an_embedder_of_the_project_s_own_shows_where_it_fails(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN.format(raises="return 1 / 0"))

    error = refused_index(tmp_path, "./own.py:embed")

    assert error.startswith("store.index.embed: ./own.py:embed cannot be used\nTraceback")
    assert "in client" in error
    assert error.endswith("ZeroDivisionError: division by zero")


def refused_index(folder: Path, embed: str) -> str:
    with graph_host(folder, {}, store={"index": {"dims": 1, "embed": embed}}) as host:
        return host.ready["error"]["message"]
