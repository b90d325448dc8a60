"""`runyard login`, `logout`, `contexts` and `--context`: the key's storage, and the address that receives it."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import Result

from cli.client import contexts
from cli.client.client import Client
from cli.deployments import target
from cli.operating import login
from tests.support import control_plane as fake
from tests.support.commands import invoke
from tests.support.control_plane import ControlPlane, Held, record
from tests.support.greened import constants

pytestmark = pytest.mark.usefixtures("nowhere")

KEY, OTHER_KEY = "ryd_abcdefgh_prod", "ryd_abcdefgh_stage"
ME = {
    "role": "deploy",
    "organization": {"id": "o", "name": "default"},
    "key": None,
    "version": "0.2.0",
    "dev": False,
}
LIST = "GET /v2/deployments"


@pytest.fixture
def prod(server: ControlPlane) -> ControlPlane:
    server.answers |= {"GET /v2/me": [(200, ME)], LIST: [(200, {"resources": [record()]})]}
    return server


@pytest.fixture
def stage() -> Iterator[ControlPlane]:
    with fake.serving() as server:
        server.answers |= {"GET /v2/me": [(200, ME)], LIST: [(200, {"resources": []})]}
        yield server


def call(*words: str, input: str | None = None, **variables: str) -> Result:
    return invoke(*words, input=input, env=variables)


def log_in(server: ControlPlane, name: str, key: str) -> None:
    ran = call("login", server.url, "--name", name, "--api-key", "-", input=f"{key}\n")
    assert ran.exit_code == 0, ran.output
    assert key not in ran.output
    assert f"role deploy in the organization default. {name} is the current context." in ran.stdout
    assert server.header("GET /v2/me", "X-Api-Key") == [key]
    server.asked.clear()
    server.headers.clear()


def keys_sent(server: ControlPlane) -> list[str | None]:
    """Return the keys that the server received since the last call of this function."""
    found = server.header(LIST, "X-Api-Key")
    server.asked.clear()
    server.headers.clear()
    return found


def file() -> Path:
    return Path(os.environ["XDG_CONFIG_HOME"], "runyard", "contexts.json")


def test_a_login_is_kept_for_its_owner_alone_and_used_until_another(
    prod: ControlPlane, stage: ControlPlane
) -> None:
    log_in(prod, "prod", KEY)
    log_in(stage, "stage", OTHER_KEY)
    assert stat.S_IMODE(file().stat().st_mode) == 0o600
    assert {path.name for path in file().parent.iterdir()} == {"contexts.json", "contexts.lock"}, "no draft"

    for words, variables, server, key in (
        (("list",), {}, stage, OTHER_KEY),
        (("--context", "prod", "list"), {}, prod, KEY),
        (("list",), {"RUNYARD_CONTEXT": "prod"}, prod, KEY),
        (("--context", "stage", "list"), {"RUNYARD_CONTEXT": "prod"}, stage, OTHER_KEY),
        (("list",), {"RUNYARD_URL": prod.url, "RUNYARD_API_KEY": "ryd_mine"}, prod, "ryd_mine"),
        (("list", "--url", prod.url, "--api-key", "ryd_given"), {"RUNYARD_URL": stage.url}, prod, "ryd_given"),
        (("list",), {"RUNYARD_API_KEY": "ryd_mine"}, stage, "ryd_mine"),
        (("--context", "prod", "list"), {"LANGGRAPH_HOST_URL": stage.url}, prod, KEY),
        (("list",), {"LANGGRAPH_HOST_URL": prod.url, "LANGGRAPH_HOST_API_KEY": "ryd_peer"}, prod, "ryd_peer"),
    ):  # fmt: skip
        ran = call(*words, **variables)
        assert ran.exit_code == 0, f"{words} {variables}: {ran.output}"
        assert (keys_sent(prod), keys_sent(stage)) == (([key], []) if server is prod else ([], [key])), words

    assert call("contexts", "--use", "prod").stdout == "prod is the current context.\n"
    rows = json.loads(call("contexts", "--json").stdout)
    assert rows == [
        {"name": "prod", "url": prod.url, "is_current": True},
        {"name": "stage", "url": stage.url, "is_current": False},
    ]
    assert KEY not in call("contexts").output

    assert call("logout", "stage").exit_code == 0
    assert call("logout").stdout == f"Deleted prod ({prod.url}).\n"
    assert json.loads(file().read_text()) == {"current": None, "contexts": {}}


def test_a_key_of_a_context_goes_to_its_address_only_and_is_named_when_refused(
    prod: ControlPlane, stage: ControlPlane
) -> None:
    log_in(prod, "prod", KEY)
    for words, variables in ((("list", "--url", stage.url), {}), (("list",), {"RUNYARD_URL": stage.url})):
        ran = call(*words, **variables)
        assert ran.exit_code == 1
        assert f"Not sent: the key of the context prod, since it belongs to {prod.url}." in ran.stderr
    ran = call("--context", "prod", "list", RUNYARD_URL=stage.url, RUNYARD_API_KEY=OTHER_KEY)
    assert ran.exit_code == 2
    assert f"--context prod is the service {prod.url}, but RUNYARD_URL is {stage.url}" in ran.stderr
    assert stage.asked == prod.asked == []

    prod.answers[LIST] = [(401, {"detail": "Unknown API key"})]
    assert "does not accept the API key from the context prod" in call("list").stderr
    assert KEY not in call("list").output


def test_the_service_of_this_directory_is_the_context_local(
    prod: ControlPlane, stage: ControlPlane, tmp_path: Path
) -> None:
    log_in(prod, "prod", KEY)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "url").write_text(stage.url)
    (tmp_path / "data" / "admin.key").write_text("ryd_kept")
    ran = call("list")
    assert (ran.exit_code, keys_sent(prod)) == (0, [KEY])
    assert (
        f"Using the context prod, {prod.url}. `runyard --context local` uses the service of this directory."
        in ran.stderr
    )
    assert call("--context", "local", "list").stderr == ""
    assert (keys_sent(prod), keys_sent(stage)) == ([], ["ryd_kept"])
    assert call("contexts", "--use", "local").stdout == "No context is current.\n"
    assert call("list").exit_code == 0
    assert (keys_sent(prod), keys_sent(stage)) == ([], ["ryd_kept"])


def test_a_login_that_fails_keeps_nothing(prod: ControlPlane) -> None:
    no_key = "This is not a key of a runyard service, which begins with ryd_. Nothing was sent or kept."
    for words, typed, code, says in (
        ([prod.url, "--api-key", "lsv2_pt_x"], None, 2, no_key),
        ([prod.url, "--api-key", "-"], "lsv2_pt_x\n", 2, no_key),
        ([prod.url], None, 2, "There is no terminal to ask for the key"),
        (["prod.example", "--api-key", KEY], None, 2, "must begin with http:// or https://"),
        (["http://prod:x", "--api-key", KEY], None, 2, "must begin with http:// or https://"),
        (["https://me:pw@prod", "--api-key", KEY], None, 2, "must not contain a user"),
        ([prod.url, "--name", "local", "--api-key", KEY], None, 2, "cannot be the name of a context"),
        (["https://é.invalid", "--api-key", KEY], None, 2, "--name gives another."),
    ):
        ran = call("login", *words, input=typed)
        assert (ran.exit_code, says in ran.stderr) == (code, True), f"{words}: {ran.output}"
    assert prod.asked == ["GET /v2/sign-in"]  # of the login without a key
    prod.answers["GET /v2/me"] = [(401, {"detail": "Unknown API key"})]
    ran = call("login", prod.url, "--api-key", "-", input=KEY)
    assert ran.exit_code == 1
    refused = f"The service at {prod.url} does not accept the API key from --api-key. Log in with a key of that service."
    assert refused in ran.stderr
    prod.answers["GET /v2/me"] = [(200, {"hello": "world"})]
    assert "does not answer as a runyard service" in call("login", prod.url, "--api-key", KEY).stderr
    assert not file().exists()

    for words, says in (
        (["--context", "nope", "list"], "There is no context 'nope'. `runyard contexts` lists them"),
        (["contexts", "--use", "nope"], "There is no context 'nope'"),
        (["logout"], "No context is selected."),
    ):
        ran = call(*words)
        assert (ran.exit_code, says in ran.stderr) == (2, True), ran.output


def entry(**more: object) -> dict[str, object]:
    return {"contexts": {"a": {"url": "https://a", "key": KEY, **more}}}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "it is not valid JSON."),
        ("[" * 200_000, "it is not valid JSON."),
        ("[]", "`contexts` must be an object."),
        ({"contexts": []}, "`contexts` must be an object."),
        ({"contexts": {}, "current": ["a"]}, "`current` must be the name of a context or null."),
        ({"contexts": {}, "current": {}}, "`current` must be the name of a context or null."),
        ({"contexts": {"a": 1}}, "the context 'a' must be an object."),
        (entry(url=""), "`url` of the context 'a' must begin with http:// or https:// and have a host."),
        (entry(url="http://[::1"), "`url` of the context 'a' must begin with http:// or https://"),
        (
            entry(key="lsv2_pt_x"),
            "`key` of the context 'a' must be a key of runyard, which begins with ryd_.",
        ),
    ],
)
def test_a_field_of_the_file_that_is_invalid_is_named_and_nothing_is_sent(content: object, says: str) -> None:
    file().parent.mkdir(parents=True)
    file().write_text(content if isinstance(content, str) else json.dumps(content))
    ran = call("--context", "a", "list")
    assert ran.exit_code == 1
    assert f"{file()} does not have the form that `runyard login` writes: {says}" in ran.stderr
    assert "lsv2" not in ran.output


def test_a_fifo_in_the_place_of_the_file_is_not_read() -> None:
    file().parent.mkdir(parents=True)
    os.mkfifo(file())
    assert call("list").stderr.endswith("is not a regular file.\n")


def test_an_address_counts_in_any_spelling(prod: ControlPlane) -> None:
    port = prod.server_port
    prod.url = f"http://localhost:{port}"
    for typed in (f"HTTP://LocalHost:{port}", f"http://localhost:{port}/?", f"http://localhost:{port}/#"):
        assert call("login", typed, "--api-key", KEY).exit_code == 0
        assert json.loads(call("contexts", "--json").stdout) == [
            {"name": f"localhost:{port}", "url": prod.url, "is_current": True}
        ]
    file().write_text(file().read_text().replace(prod.url, f"http://LOCALHOST:{port}/"))
    assert call("list").exit_code == 0
    assert call("list", "--url", f"http://LocalHost:{port}/").exit_code == 0
    assert keys_sent(prod) == [KEY, KEY]


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("http://[::1]:9501", "::1:9501"),
        ("https://runyard.example.com", "runyard.example.com"),
        ("https://example.com/staging/eu", "example.com-staging-eu"),
    ],
)
def test_the_default_name_of_a_context_is_valid(address: str, name: str) -> None:
    assert login.default_name(address) == name
    assert contexts.NAME.fullmatch(name)


def test_a_login_replaces_the_context_of_another_address_only_by_its_name(prod: ControlPlane) -> None:
    prod.answers["GET /a/b/v2/me"] = prod.answers["GET /a-b/v2/me"] = prod.answers["GET /v2/me"]
    name = f"127.0.0.1:{prod.server_port}-a-b"
    assert call("login", f"{prod.url}/a/b", "--api-key", KEY).exit_code == 0
    assert call("login", f"{prod.url}/a/b", "--api-key", OTHER_KEY).exit_code == 0, "the same service"
    ran = call("login", f"{prod.url}/a-b", "--api-key", KEY)
    assert ran.exit_code == 2
    assert f"The context {name} is the service {prod.url}/a/b. Nothing was kept." in ran.stderr
    assert contexts.load().get(name).key == OTHER_KEY
    assert call("login", f"{prod.url}/a-b", "--api-key", KEY, "--name", name).exit_code == 0
    assert contexts.load().get(name).url == f"{prod.url}/a-b"


def test_changes_by_several_processes_are_all_kept(
    prod: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another login ends while this one is checked, and none can begin to change the file while this one does."""
    other = contexts.Context("other", "https://other", OTHER_KEY)
    get, save, saved = Client.get, contexts.save, []

    def get_after_another_login(client: Client, path: str) -> object:
        save(contexts.load().with_context(other))
        return get(client, path)

    def save_under_lock(changed: contexts.Contexts) -> None:
        with open(file().with_name("contexts.lock")) as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        saved.append(changed)
        save(changed)

    monkeypatch.setattr(contexts, "save", save_under_lock)
    monkeypatch.setattr(Client, "get", get_after_another_login)
    file().parent.mkdir(parents=True)
    log_in(prod, "prod", KEY)
    assert set(contexts.load().by_name) == {"prod", "other"}
    assert call("contexts", "--use", "other").exit_code == 0
    assert call("logout").exit_code == 0
    assert set(contexts.load().by_name) == {"prod"}
    assert len(saved) == 3


def test_a_relative_configuration_folder_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("config", ""):
        monkeypatch.setenv("XDG_CONFIG_HOME", folder)
        assert contexts.path() == tmp_path / ".config" / "runyard" / "contexts.json"


def complete(words: str, **variables: str) -> list[str]:
    """Return the completions that bash offers for these words. Asserts that stderr is empty."""
    asked = {"_RUNYARD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    ran = invoke(env=asked | variables)
    assert ran.stderr == ""
    return ran.stdout.split()


def test_a_shell_completes_commands_options_deployments_and_contexts(
    prod: ControlPlane, tmp_path: Path
) -> None:
    prod.answers[LIST] = [
        (
            200,
            {
                "resources": [
                    record(name="app"),
                    record(name="apple"),
                    record(name="my-app"),
                    record(name="app$(x)"),
                ]
            },
        )
    ]
    log_in(prod, "prod", KEY)
    for words, expected in (
        ("runyard previ", ["previews"]),
        ("runyard status --wi", ["--wide"]),
        ("runyard status ap", ["app", "apple"]),
        ("runyard --context prod runs list m", ["my-app"]),
        ("runyard --context p", ["prod"]),
        ("runyard contexts --use ", ["prod"]),
    ):
        assert complete(words) == expected, words
    with constants(target, COMPLETION_SECONDS=0.2):
        prod.answers[LIST] = [(200, Held(b""))]
        assert complete("runyard status ap") == [], "the service does not answer in time"
    (tmp_path / ".env").write_text("not a variable")
    assert complete("runyard status ap", RUNYARD_URL="http://127.0.0.1:9") == []
    assert complete("runyard --context nope status ap") == []


def test_the_script_of_a_named_shell_is_printed_or_installed(tmp_path: Path) -> None:
    for shell, path in (
        ("bash", ".bash_completions/runyard.sh"),
        ("zsh", ".zfunc/_runyard"),
        ("fish", ".config/fish/completions/runyard.fish"),
    ):
        ran = invoke("completion", shell, env={"HOME": str(tmp_path)})
        assert f"_RUNYARD_COMPLETE=complete_{shell}" in ran.stdout
        assert not (tmp_path / path).exists()
        installed = invoke("completion", shell, "--install", env={"HOME": str(tmp_path)})
        assert f"Installed {tmp_path / path}." in installed.stdout
        assert (tmp_path / path).read_text().strip() == ran.stdout.strip()


SIGN_IN, DEVICE, TOKEN = "GET /v2/sign-in", "POST /v2/sign-in/device", "POST /v2/sign-in/device/token"
PENDING = {"status": "pending", "interval_seconds": 0, "key": None}


@pytest.fixture
def signing(prod: ControlPlane) -> ControlPlane:
    """A service with sign-in."""
    login = {
        "device_code": "secret-device-code",
        "user_code": "BCDF-GHJK",
        "verification_url": f"{prod.url}/#/device",
        "verification_url_complete": f"{prod.url}/#/device?code=BCDF-GHJK",
        "interval_seconds": 0,
        "expires_in_seconds": 600,
    }
    prod.answers |= {SIGN_IN: [(200, {"is_configured": True})], DEVICE: [(200, login)]}
    return prod


def test_a_login_by_the_browser_keeps_the_key_that_a_person_confirms(signing: ControlPlane) -> None:
    slow = {**PENDING, "status": "slow_down"}
    done = {"status": "completed", "interval_seconds": 0, "key": KEY}
    signing.answers[TOKEN] = [(200, PENDING), (200, slow), (200, done)]
    ran = call("login", signing.url, "--name", "prod")
    assert ran.exit_code == 0, ran.output
    assert f"Open {signing.url}/#/device?code=BCDF-GHJK" in ran.stderr
    assert "confirm the code BCDF-GHJK" in ran.stderr
    assert "with the role deploy in the organization default. prod is the current context." in ran.stdout
    assert signing.body(TOKEN) == {"device_code": "secret-device-code"}
    assert signing.body(DEVICE)["device"]
    assert json.loads(file().read_text())["contexts"]["prod"]["key"] == KEY
    assert KEY not in ran.output
    assert "secret-device-code" not in ran.output


def test_a_login_by_the_browser_that_is_refused_or_expires_keeps_nothing(signing: ControlPlane) -> None:
    for status, says in (("denied", "was refused in the browser"), ("expired", "was not confirmed in time")):
        signing.answers[TOKEN] = [(200, PENDING), (200, {**PENDING, "status": status})]
        ran = call("login", signing.url)
        assert (ran.exit_code, says in ran.stderr) == (1, True), ran.output
    signing.answers[TOKEN] = [(200, {**PENDING, "status": "completed", "key": "lsv2_not_ours"})]
    assert call("login", signing.url).exit_code == 1
    assert not file().exists()


def test_a_key_on_the_command_line_needs_no_browser(signing: ControlPlane) -> None:
    log_in(signing, "prod", KEY)
    assert DEVICE not in signing.asked
