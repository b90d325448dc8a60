"""Settings: defaults, rejected values, values in files, and hidden secrets."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from shared.setting_values import BadSetting
from shared.settings import PASSED_ON, VARIABLES, Settings, check_public, unknown_variables

PROJECT = Path(__file__).parents[2]
TEXTS = {".py", ".md", ".yml", ".yaml", ".sh", ".json", ".service", ".env", ".example", ".toml"}
INTERNAL = {"worker", "heartbeat_seconds", "passed_on"}


def test_without_any_variable_the_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_env({})
    assert settings.port == 8123
    assert settings.data_dir == tmp_path / ".runyard"
    assert settings.cache_dir == tmp_path / ".runyard" / "cache"
    assert settings.url == "http://127.0.0.1:8123"
    assert settings.database_url is None
    assert settings.redis_url is None

    assert Settings.from_env({"RUNYARD_PORT": "9000"}).url == "http://127.0.0.1:9000"
    for host, local in (
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("[::]", "[::1]"),
        ("[fd00::2]", "[fd00::2]"),
    ):
        assert Settings.from_env({"RUNYARD_LISTEN_HOST": host}).url == f"http://{local}:8123"
    for host, bind in (("0.0.0.0", "0.0.0.0:8123"), ("::", "[::]:8123"), ("[::1]", "[::1]:8123")):
        assert Settings.from_env({"RUNYARD_LISTEN_HOST": host}).bind == bind, (
            "gunicorn reads an IPv6 address in brackets"
        )
    given = Settings.from_env({"RUNYARD_PORT": "9000", "RUNYARD_URL": "https://agents.example"})
    assert (given.url, given.internal_url) == ("https://agents.example", "https://agents.example")
    inside = {"RUNYARD_URL": "https://agents.example", "RUNYARD_INTERNAL_URL": "http://web:8123"}
    assert Settings.from_env(inside).internal_url == "http://web:8123"


def test_a_variable_that_was_renamed_is_read_by_both_names_the_new_one_first() -> None:
    assert Settings.from_env({"RUNYARD_HOST": "10.0.0.1"}).listen_host == "10.0.0.1"
    both = {"RUNYARD_HOST": "10.0.0.1", "RUNYARD_LISTEN_HOST": "0.0.0.0"}
    assert Settings.from_env(both).listen_host == "0.0.0.0"


def test_a_variable_that_nothing_reads_is_reported_with_the_most_similar_one() -> None:
    unknown = {"RUNYARD_PROT": "1", "RUNYARD_ENCRYPTION_KEY_FILE": "k", "RUNYARD_ZZZ": "", "RUNYARDER": ""}

    assert unknown_variables(unknown) == [
        "RUNYARD_ENCRYPTION_KEY_FILE is not a setting and has no effect. Did you mean RUNYARD_ENCRYPTION_KEYS_FILE?",
        "RUNYARD_PROT is not a setting and has no effect. Did you mean RUNYARD_PORT?",
        "RUNYARD_ZZZ is not a setting and has no effect.",
    ]


def test_every_variable_that_the_repository_names_is_known() -> None:
    """A variable that only another program reads belongs in READ_ELSEWHERE."""
    places = [PROJECT / name for name in ("cli", "deploy", "docs", "shared", "web", "workers")]
    files = [path for place in places for path in place.rglob("*") if path.suffix in TEXTS]
    files += [PROJECT / name for name in ("Makefile", "Procfile", "README.md", "docker-compose.yml")]
    named = {name for path in files for name in re.findall(r"\bRUNYARD_[A-Z_]*[A-Z]\b", path.read_text())}

    assert "RUNYARD_PACKAGE" in named
    assert unknown_variables(dict.fromkeys(named, "")) == []


def test_what_lets_requests_in_without_a_key_is_refused_in_the_environment_of_a_service() -> None:
    check_public({"RUNYARD_DEV_DEPLOYMENT": "", "RUNYARD_API_KEY": "k"})
    for name in ("RUNYARD_DEV_DEPLOYMENT", "RUNYARD_DEV_ORIGIN", "RUNYARD_DEV_DEBUG_PORT"):
        with pytest.raises(BadSetting, match=name):
            check_public({name: "9229"})
    dev = {"RUNYARD_DEV_DEPLOYMENT": "chat", "DATABASE_URL": "postgresql://runyard@/postgres?host=/run"}
    assert Settings.from_env(dev).dev_deployment == "chat"
    with pytest.raises(BadSetting, match="RUNYARD_DEV_DEPLOYMENT"):
        Settings.from_env({**dev, "DATABASE_URL": "postgresql://runyard:pw@db.internal/runyard"})


def test_every_field_has_a_variable_of_its_own_and_builds_are_passed_on_nothing_else() -> None:
    assert {spec.name for spec in fields(Settings)} - INTERNAL == set(VARIABLES)
    assert len(set(VARIABLES.values())) == len(VARIABLES)
    settings = Settings.from_env(dict.fromkeys(PASSED_ON, "x") | {"AWS_SECRET_ACCESS_KEY": "hush"})
    assert settings.passed_on == dict.fromkeys(PASSED_ON, "x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RUNYARD_PORT", "many"),
        ("RUNYARD_PORT", "0"),
        ("RUNYARD_PORT", "70000"),
        ("RUNYARD_LEASE_SECONDS", "1"),
        ("RUNYARD_LEASE_SECONDS", "long"),
        ("RUNYARD_ISOLATION", "some"),
        ("RUNYARD_LOG_FORMAT", "xml"),
        ("RUNYARD_LOG_LEVEL", "LOUD"),
        ("RUNYARD_ALLOW_HTTP", "maybe"),
        ("RUNYARD_APP_DOMAIN", "https://apps.example.com/"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(BadSetting, match=name):
        Settings.from_env({name: value})


@pytest.mark.parametrize(("raw", "value"), [("true", True), ("1", True), ("False", False), ("0", False)])
def test_yes_and_no_have_two_words_each(raw: str, value: bool) -> None:
    assert Settings.from_env({"RUNYARD_ALLOW_HTTP": raw}).allow_http is value


def test_an_empty_value_counts_as_none_and_keys_and_prices_are_split() -> None:
    assert Settings.from_env({"DATABASE_URL": "", "RUNYARD_PORT": ""}).database_url is None
    assert Settings.from_env({"RUNYARD_ENCRYPTION_KEYS": "new, old"}).encryption_keys == ("new", "old")
    env = {"RUNYARD_MODEL_PRICES": '{"gpt-5*": [1.25, 10]}'}
    assert Settings.from_env(env).model_prices == (("gpt-5*", 1.25, 10.0),)


def test_a_secret_can_come_from_a_file_and_one_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("from-a-file\n")
    assert Settings.from_env({"RUNYARD_API_KEY_FILE": str(path)}).api_key == "from-a-file"
    with pytest.raises(BadSetting, match="RUNYARD_API_KEY_FILE"):
        Settings.from_env({"RUNYARD_API_KEY_FILE": str(tmp_path / "none")})


def test_secrets_are_not_in_its_repr() -> None:
    secret = Settings.from_env(
        {
            "RUNYARD_API_KEY": "hush-a",
            "RUNYARD_ENCRYPTION_KEYS": "hush-b",
            "REDIS_URL": "redis://:hush-c@host/0",
            "DATABASE_URL": "postgresql://user:hush-d@host/db",
        }
    )
    assert "hush" not in repr(secret)


@pytest.mark.parametrize(
    "raw", ["1", "{", '{"m": 1}', '{"m": [1]}', '{"m": [1, -1]}', '{"m": [1, "2"]}', '{"m": [1, NaN]}']
)
def test_prices_that_are_none_stop_the_start(raw: str) -> None:
    with pytest.raises(BadSetting, match="RUNYARD_MODEL_PRICES"):
        Settings.from_env({"RUNYARD_MODEL_PRICES": raw})


@pytest.mark.parametrize(
    "raw", ["web", "web=", "web=x", "web=0", "web=65", "web=-1", "web=1,web=2", "beat=2", "=2", "runner=1.5"]
)
def test_a_number_of_processes_that_is_none_stops_the_start(raw: str) -> None:
    with pytest.raises(BadSetting, match="RUNYARD_PROCESSES"):
        Settings.from_env({"RUNYARD_PROCESSES": raw})


SIGN_IN = {
    "RUNYARD_URL": "https://agents.example",
    "RUNYARD_OIDC_ISSUER": "https://login.example/realms/acme",
    "RUNYARD_OIDC_CLIENT_ID": "runyard",
    "RUNYARD_OIDC_ROLES": "staff=run, cn=admins=admin,",
}


def test_sign_in_is_configured_by_variables_and_its_secret_is_hidden(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    settings = Settings.from_env({**SIGN_IN, "RUNYARD_OIDC_CLIENT_SECRET_FILE": str(secret)})
    assert settings.oidc_client_secret == "hunter2"
    assert "hunter2" not in repr(settings)
    assert settings.oidc_roles == (("staff", "run"), ("cn=admins", "admin"))
    assert settings.origin == "https://agents.example"
    for url, origin in (
        ("http://127.0.0.1:8123/", "http://127.0.0.1:8123"),
        ("http://[::1]:8123", "http://[::1]:8123"),
        ("https://Agents.Example:443/prefix", "https://agents.example"),
        ("https://agents.example:8443", "https://agents.example:8443"),
    ):
        assert Settings.from_env({**SIGN_IN, "RUNYARD_URL": url}).origin == origin


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RUNYARD_OIDC_ISSUER": "login.example"}, "RUNYARD_OIDC_ISSUER must be a URL"),
        ({"RUNYARD_OIDC_ISSUER": "https://x/?a=1"}, "RUNYARD_OIDC_ISSUER must be a URL"),
        ({"RUNYARD_OIDC_CLIENT_ID": ""}, "RUNYARD_OIDC_ISSUER needs RUNYARD_OIDC_CLIENT_ID"),
        ({"RUNYARD_OIDC_ROLES": ""}, "needs RUNYARD_OIDC_ROLES or RUNYARD_OIDC_DEFAULT_ROLE"),
        ({"RUNYARD_OIDC_ROLES": "staff=boss"}, "RUNYARD_OIDC_ROLES must be like"),
        ({"RUNYARD_OIDC_ROLES": "staff"}, "RUNYARD_OIDC_ROLES must be like"),
        ({"RUNYARD_OIDC_ROLES": "a=run,a=admin"}, "RUNYARD_OIDC_ROLES has two roles for 'a'"),
        ({"RUNYARD_OIDC_DEFAULT_ROLE": "boss"}, "RUNYARD_OIDC_DEFAULT_ROLE must be one of"),
        ({"RUNYARD_OIDC_SCOPES": "profile"}, "RUNYARD_OIDC_SCOPES must contain openid"),
        ({"RUNYARD_OIDC_KEY_DAYS": "0"}, "RUNYARD_OIDC_KEY_DAYS must be between"),
        ({"RUNYARD_SESSION_SECONDS": "5"}, "RUNYARD_SESSION_SECONDS must be between"),
        ({"RUNYARD_SESSION_IDLE_SECONDS": "0"}, "RUNYARD_SESSION_IDLE_SECONDS must be between"),
        ({"RUNYARD_OIDC_ISSUER": ""}, "RUNYARD_OIDC_CLIENT_ID has no effect without RUNYARD_OIDC_ISSUER"),
        (
            {"RUNYARD_URL": "http://agents.example"},
            "RUNYARD_OIDC_ISSUER needs a RUNYARD_URL that begins with https://",
        ),
        ({"RUNYARD_DEV_DEPLOYMENT": "chat"}, "RUNYARD_OIDC_ISSUER cannot be used with `runyard dev`"),
        ({"RUNYARD_APP_DOMAIN": "example"}, "needs a RUNYARD_URL outside RUNYARD_APP_DOMAIN"),
    ],
)
def test_sign_in_that_cannot_be_used_or_would_not_be_safe_stops_the_start(
    change: dict[str, str], message: str
) -> None:
    with pytest.raises(BadSetting, match=re.escape(message)):
        Settings.from_env({**SIGN_IN, **change})
