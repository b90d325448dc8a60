"""docker-compose.yml agrees with the Procfile and the settings. The file is only read: the suite cannot run compose."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.fernet import Fernet

from cli.machine.procfile import RELEASE, WITHHELD, read
from shared.settings import VARIABLES, Settings

PROJECT = Path(__file__).parents[2]
SERVERS = {"postgres", "redis"}
USER_CODE = {"runner", "builder"}
PROCESSES = [line.name for line in read(PROJECT / "Procfile")]
VARIABLE = re.compile(r"\$\{(\w+)(?::(?P<rule>[-?])(?P<text>[^}]*))?\}")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((PROJECT / "docker-compose.yml").read_text())


def interpolated(value: str, env: dict[str, str]) -> str:
    """Interpolate a value like compose. Raises KeyError for a missing required variable."""

    def found(match: re.Match[str]) -> str:
        return env.get(match[1]) or (match["text"] if match["rule"] == "-" else env[match[1]])

    return VARIABLE.sub(found, value)


def test_it_has_the_processes_of_the_procfile_and_the_two_servers(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == set(PROCESSES) | SERVERS
    assert compose["services"][RELEASE]["restart"] == "no"
    assert set(compose["services"][RELEASE]["depends_on"]) == {"postgres"}


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_is_a_line_of_the_procfile_in_the_image_with_its_settings_and_writes_into_its_data_alone(
    compose: dict[str, Any], process: str
) -> None:
    service = compose["services"][process]

    assert service["command"] == f"runyard process {process}"
    assert service["env_file"] == [{"path": ".env", "required": False}]
    unset = {"RUNYARD_DEV_DEPLOYMENT", "RUNYARD_DEV_ORIGIN", "POSTGRES_PASSWORD", "REDIS_PASSWORD"}
    assert set(service["environment"]) <= set(VARIABLES.values()) | unset
    assert {service["environment"][name] for name in unset} == {""}
    assert all(not service["environment"][name] for name in WITHHELD.get(process, ()))
    assert (PROJECT / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert service["read_only"] is True
    [volume] = service["volumes"]
    assert volume.partition(":")[2] == service["environment"]["RUNYARD_DATA_DIR"]
    assert volume.partition(":")[0] in compose["volumes"]


@pytest.mark.parametrize("process", PROCESSES)
def test_only_processes_with_user_code_are_root_and_none_gains_a_right(
    compose: dict[str, Any], process: str
) -> None:
    service = compose["services"][process]

    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert (service.get("user"), "cap_add" in service) == (
        ("0:0", True) if process in USER_CODE else (None, False)
    )


def test_level_2_allows_the_calls_of_bubblewrap_to_processes_with_user_code_that_are_no_root() -> None:
    text = (PROJECT / "deploy" / "sandbox.yml").read_text()
    services = yaml.safe_load(text.replace("!reset", ""))["services"]
    profile = json.loads((PROJECT / "deploy" / "seccomp.json").read_text())
    [rule] = profile["syscalls"]

    assert set(services) == USER_CODE
    for service in services.values():
        assert (service["user"], service["cap_add"]) == ("10001:10001", [])
        assert "seccomp=deploy/seccomp.json" in service["security_opt"]
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    assert not {"clone", "clone3", "unshare", "mount", "umount2", "pivot_root"} & set(rule["names"])
    assert {"bpf", "keyctl", "io_uring_setup", "kexec_load", "perf_event_open"} <= set(rule["names"])


@pytest.mark.parametrize("process", sorted(set(PROCESSES) - {RELEASE}))
def test_a_process_starts_after_the_migrations_and_again_when_it_dies_and_is_asked_for_its_health(
    compose: dict[str, Any], process: str
) -> None:
    service = compose["services"][process]

    assert service["depends_on"][RELEASE] == {"condition": "service_completed_successfully"}
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"] == ["CMD", "runyard", "health", process]
    assert compose["services"][RELEASE]["healthcheck"] == {"disable": True}


def test_the_service_accepts_what_it_is_given(compose: dict[str, Any]) -> None:
    operator = {
        "POSTGRES_PASSWORD": "one",
        "REDIS_PASSWORD": "two",
        "RUNYARD_API_KEY": "three",
        "RUNYARD_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
    }
    given = compose["services"]["web"]["environment"]

    settings = Settings.from_env({name: interpolated(v, operator) for name, v in given.items() if v})

    assert settings.database_url == "postgresql://runyard:one@postgres:5432/runyard"
    assert settings.redis_url == "redis://:two@redis:6379/0"
    assert (settings.api_key, settings.pool) == ("three", "default")
    assert settings.encryption_keys == (operator["RUNYARD_ENCRYPTION_KEYS"],)
    assert f"{settings.listen_host}:{settings.port}" == "0.0.0.0:8123"
    assert settings.internal_url == "http://web:8123"
    for name in operator:
        assert name in (PROJECT / "docker-compose.yml").read_text().partition("\nname:")[0]


@pytest.mark.parametrize("server", sorted(SERVERS))
def test_a_server_has_a_password_keeps_its_data_and_is_not_reachable_from_outside(
    compose: dict[str, Any], server: str
) -> None:
    service = compose["services"][server]
    volume = service["volumes"][0].partition(":")[0]

    assert "_PASSWORD" in str(service["environment"])
    assert volume in compose["volumes"]
    assert "ports" not in service


def test_redis_keeps_what_it_has_and_evicts_nothing(compose: dict[str, Any]) -> None:
    command = compose["services"]["redis"]["command"]

    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command
    assert "--requirepass" in command


def test_a_process_that_drains_is_given_the_time_to(compose: dict[str, Any]) -> None:
    grace = compose["services"]["runner"]["stop_grace_period"]

    assert int(grace.removesuffix("s")) > Settings().drain_seconds
