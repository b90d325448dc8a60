"""Each example project has a valid configuration, and its graph runs in-process."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel, ParrotFakeChatModel
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command
from langgraph_sdk import Auth
from starlette.testclient import TestClient

EXAMPLES = Path(__file__).parents[2] / "examples"
PYTHON = (
    "approval",
    "chat",
    "copilotkit",
    "digest",
    "members",
    "react",
    "research",
    "retrieval",
    "supervisor",
    "tools",
)
JAVASCRIPT = ("typescript",)
NAMES = (*PYTHON, *JAVASCRIPT)
WITH_MODEL = ("digest", "retrieval", "supervisor", "tools")  # share one model.py, each with a copy


@pytest.fixture(autouse=True)
def own_modules() -> Iterator[None]:
    """Remove the modules that an example imported, and its folder in `sys.path`, after each test."""
    modules, path = dict(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - set(modules):
        if str(EXAMPLES) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)


def described(name: str) -> dict[str, Any]:
    return json.loads((EXAMPLES / name / "langgraph.json").read_text())


def module(name: str, entry: str | None = None) -> ModuleType:
    """Load the module of the example's only graph, or of `entry`, from its file like a graph host."""
    path = EXAMPLES / name / (entry or described(name)["graphs"][name]["path"]).partition(":")[0]
    sys.path.insert(0, str(EXAMPLES / name))
    spec = importlib.util.spec_from_file_location(f"example_{name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def graph(name: str) -> CompiledStateGraph[Any, Any, Any, Any]:
    attribute = described(name)["graphs"][name]["path"].partition(":")[2]
    return getattr(module(name), attribute)


def streamed(graph: CompiledStateGraph[Any, Any, Any, Any], input: Any, **how: Any) -> list[Any]:
    async def collect() -> list[Any]:
        return [part async for part in graph.astream(input, **how)]

    return asyncio.run(collect())


def test_every_example_is_known_here() -> None:
    assert sorted(path.parent.name for path in EXAMPLES.glob("*/langgraph.json")) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_described_and_says_how_to_use_it(name: str) -> None:
    project = described(name)

    assert list(project["graphs"]) == [name]
    path, _, attribute = project["graphs"][name]["path"].partition(":")
    assert (EXAMPLES / name / path).is_file()
    assert attribute
    assert project["graphs"][name]["description"]
    readme = (EXAMPLES / name / "README.md").read_text()
    for command in ("dev", "deploy"):
        assert f"runyard {command} examples/{name}" in readme
    assert "ryd_…" not in readme or "runyard keys create" in readme, "a key has a source"


@pytest.mark.parametrize("name", PYTHON)
def test_a_python_example_is_an_ordinary_project_without_imports_of_the_platform(name: str) -> None:
    project = described(name)

    assert set(project) <= {"dependencies", "graphs", "env", "python_version", "auth", "http", "store"}
    assert project["dependencies"] == ["."]
    brought = [EXAMPLES / name / file for file in ("requirements.txt", "pyproject.toml")]
    assert [path for path in brought if path.is_file()], "an example says what it needs"
    for path in (EXAMPLES / name).rglob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
        assert not set(imported) & {"shared", "web", "workers", "cli"}, path

    loaded = graph(name)

    assert loaded.get_input_jsonschema()["properties"]
    assert loaded.get_output_jsonschema()["properties"]
    assert loaded.get_graph(xray=True).nodes


@pytest.mark.parametrize("name", JAVASCRIPT)
def test_a_javascript_example_brings_its_packages(name: str) -> None:
    assert set(described(name)) <= {"graphs", "env", "node_version", "auth", "http", "store"}
    files = {path.name for path in (EXAMPLES / name).iterdir()}
    assert {"package.json", "package-lock.json"} <= files
    assert not files & {"requirements.txt", "pyproject.toml", "uv.lock"}


@pytest.mark.parametrize("name", WITH_MODEL)
def test_copies_of_the_model_are_equal(name: str) -> None:
    assert (EXAMPLES / name / "model.py").read_text() == (EXAMPLES / "tools" / "model.py").read_text()


def test_a_provider_with_a_key_replaces_the_fake_model(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = module("tools", "model.py")

    assert model.chat_model(lambda messages, tools: None)._llm_type == "fake"
    assert "A fake model answers. Set OPENAI_API_KEY or ANTHROPIC_API_KEY for a real one." in caplog.text

    model.PROVIDERS = {
        "OPENAI_API_KEY": ("langchain_core.language_models", "ParrotFakeChatModel", "NAME", "")
    }
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    monkeypatch.setattr(ParrotFakeChatModel, "__init__", lambda self, model: BaseChatModel.__init__(self))
    assert isinstance(model.chat_model(lambda messages, tools: None), ParrotFakeChatModel)


def test_chat_streams_an_answer_from_a_fake_model_word_by_word_and_remembers_its_thread() -> None:
    asked = {"messages": [{"role": "user", "content": "good morning"}]}

    parts = streamed(graph("chat"), asked, stream_mode="messages")

    words = [message.content for message, _ in parts]
    assert len(words) > 10
    assert 'You said: "good morning"' in "".join(words)

    chat = graph("chat")
    chat.checkpointer = InMemorySaver()
    config = {"configurable": {"thread_id": "1"}}

    for text in ("one", "two"):
        last = asyncio.run(chat.ainvoke({"messages": [{"role": "user", "content": text}]}, config))

    assert "message 2 of this thread" in last["messages"][-1].content


def test_chat_stays_with_the_fake_model_when_the_provider_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent = module("chat")
    agent.PROVIDERS = {"OPENAI_API_KEY": ("no_such_package", "ChatModel", "OPENAI_MODEL", "any")}
    monkeypatch.setenv("OPENAI_API_KEY", "a key")

    model = agent.model_for([HumanMessage("hi")])

    assert isinstance(model, agent.FakeModel)
    assert "no_such_package is not installed" in caplog.text


def test_chat_uses_a_provider_whose_key_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "provider_of_this_test.py").write_text(
        "from langchain_core.language_models import ParrotFakeChatModel\n"
        "class ChatModel(ParrotFakeChatModel):\n    model: str\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    agent = module("chat")
    agent.PROVIDERS = {
        "OPENAI_API_KEY": ("provider_of_this_test", "ChatModel", "OPENAI_MODEL", "its default")
    }
    monkeypatch.setenv("OPENAI_API_KEY", "a key")

    assert agent.model_for([HumanMessage("hi")]).model == "its default"
    monkeypatch.setenv("OPENAI_MODEL", "another")
    assert agent.model_for([HumanMessage("hi")]).model == "another"


@pytest.mark.parametrize(
    ("answer", "outcome", "letter"),
    [
        ({"approve": True}, "paid 120.00 to Ada", "Dear Ada, we refund you 120.00."),
        ({"approve": True, "letter": "Here."}, "paid 120.00 to Ada", "Here."),
        ({"approve": False}, "declined the refund to Ada", "Dear Ada, we refund you 120.00."),
        ("yes", "declined the refund to Ada", "Dear Ada, we refund you 120.00."),
    ],
)
def test_approval_stops_for_a_person_and_goes_on(answer: Any, outcome: str, letter: str) -> None:
    approval = graph("approval")
    approval.checkpointer = InMemorySaver()
    config = {"configurable": {"thread_id": "1"}}

    asked = approval.invoke({"customer": "Ada", "amount": 120.0}, config)
    done = approval.invoke(Command(resume=answer), config)

    assert asked["__interrupt__"][0].value["amount"] == 120.0
    assert "outcome" not in asked
    assert (done["outcome"], done["letter"]) == (outcome, letter)


@pytest.mark.parametrize(
    ("input", "message"),
    [
        ({"messages": "hi"}, "the input lacks customer and amount: "),
        ({"customer": "Ada"}, "the input lacks amount: "),
    ],
)
def test_approval_names_the_input_that_is_missing(input: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        graph("approval").invoke(input)


def test_approval_pays_small_amounts_without_asking() -> None:
    done = graph("approval").invoke({"customer": "Ada", "amount": 5.0})

    assert done["outcome"] == "paid 5.00 to Ada"


@pytest.mark.parametrize(
    ("decision", "reply"),
    [({"approve": True}, "Done, I have sent it."), ({"approve": False}, "All right, I have sent nothing.")],
)
def test_react_asks_before_it_sends(decision: Any, reply: str) -> None:
    react = graph("react")
    react.checkpointer = InMemorySaver()
    config: Any = {"configurable": {"thread_id": "1"}}

    stopped = asyncio.run(react.ainvoke({"messages": [HumanMessage("Send a letter to Ada")]}, config))
    assert stopped["__interrupt__"][0].value == {"question": "May I do this: Send a letter to Ada"}

    done = asyncio.run(react.ainvoke(Command(resume=decision), config))
    assert done["messages"][-1].text == reply


def test_research_streams_its_subgraphs_while_they_search() -> None:
    parts = streamed(
        graph("research"),
        {"topic": "tea"},
        context={"search_seconds": 0.0, "sources": 2},
        stream_mode=["custom", "values"],
        subgraphs=True,
    )

    told = [(namespace, data) for namespace, mode, data in parts if mode == "custom"]
    assert len(told[0][1]["plan"]) == 3
    assert [namespace for namespace, data in told if "plan" in data] == [()]
    searched = {namespace for namespace, data in told if "found" in data}
    assert len(searched) == 3
    assert all(namespace[0].startswith("investigate:") for namespace in searched)
    report = parts[-1][2]["report"]
    assert report.startswith("# tea")
    assert report.count("\n- ") == 3


@pytest.fixture
def members() -> TestClient:
    """A client of the routes of the example `members`, which has its own users."""
    return TestClient(module("members", described("members")["http"]["app"]).app)


@pytest.fixture
def members_auth() -> Auth:
    return module("members", described("members")["auth"]["path"]).auth


def signed_in(members: TestClient, name: str, password: str) -> str:
    return members.post("/login", json={"name": name, "password": password}).json()["token"]


def test_members_gives_a_token_for_a_password_and_no_other(members: TestClient, members_auth: Auth) -> None:
    authenticate: Any = members_auth._authenticate_handler
    token = signed_in(members, "ada", "engine")

    assert asyncio.run(authenticate(authorization=f"Bearer {token}"))["identity"] == "ada"
    for name, password in (("ada", "compiler"), ("eve", ""), ("", "")):
        assert members.post("/login", json={"name": name, "password": password}).status_code == 401
    for wrong in (
        None,
        token,
        f"Bearer {token}x",
        f"Bearer {token.replace('ada', 'grace')}",
        "Bearer ada.9.x",
    ):
        with pytest.raises(Auth.exceptions.HTTPException) as refused:
            asyncio.run(authenticate(authorization=wrong))
        assert refused.value.status_code == 401

    sys.modules["users"].TOKEN_SECONDS = -1
    with pytest.raises(Auth.exceptions.HTTPException):
        asyncio.run(authenticate(authorization=f"Bearer {signed_in(members, 'ada', 'engine')}"))


def test_members_gives_threads_an_owner_and_the_rest_to_its_managers(members_auth: Auth) -> None:
    handlers: Any = {key: found[0] for key, found in members_auth._handlers.items()}
    rest: Any = members_auth._global_handlers[0]

    def asked(handler: Any, user: Any, value: dict[str, Any]) -> Any:
        context = Auth.types.AuthContext(permissions=[], user=user, resource="threads", action="create")
        return asyncio.run(handler(ctx=context, value=value))

    ada: Any = SimpleNamespace(identity="ada")
    manager = Auth.types.StudioUser("langgraph-studio-user")
    value: dict[str, Any] = {"metadata": {"title": "Hello", "owner": "grace"}}
    assert asked(handlers["threads", "*"], ada, value) == {"owner": "ada"}
    assert value == {"metadata": {"title": "Hello", "owner": "ada"}}
    assert asked(handlers["threads", "*"], manager, {}) is None
    assert (asked(rest, ada, {}), asked(rest, manager, {})) == (False, True)
    assert asked(handlers["assistants", "search"], ada, {}) is None


def test_members_serves_a_page_that_needs_nothing_from_elsewhere(members: TestClient) -> None:
    page = members.get("/")

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    linked = re.findall(r'(?:href|src)="([^"]+)"', page.text)
    assert sorted(linked) == ["data:,", "page.css", "page.js"]
    assert {members.get(f"/{name}").status_code for name in ("page.css", "page.js")} == {200}
    assert members.get("/users.py").status_code == 404

    asked = {"messages": [{"role": "user", "content": "good morning"}]}
    config = {"configurable": {"langgraph_auth_user": SimpleNamespace(display_name="Ada")}}

    parts = streamed(graph("members"), asked, config=config, stream_mode="messages")

    words = [message.content for message, _ in parts]
    assert len(words) > 10
    assert "".join(words).startswith('Hello Ada! You said: "good morning".')
