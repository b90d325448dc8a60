"""Every environment variable the service knows, read once at process start.

`Settings.from_env(os.environ)` is the only reader; the result is frozen and handed down. A value that
cannot be used stops the start with a sentence that names the variable.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1024 * 1024
LOOPBACK = ("127.0.0.1", "::1", "localhost")
DOMAIN = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*(:[0-9]{1,5})?")


class BadSetting(ValueError):
    """An environment variable holds a value that cannot be used."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The service's configuration; durations are in seconds, sizes in bytes unless named otherwise."""

    # Where things are
    database_url: str | None = field(
        default=None, repr=False
    )  # None: `runyard up` starts the embedded PostgreSQL
    redis_url: str | None = field(default=None, repr=False)  # None: the embedded Valkey
    data_dir: Path = Path(".runyard")
    cache_dir: Path = Path(".runyard/cache")
    host: str = "127.0.0.1"
    port: int = 8123
    url: str = "http://127.0.0.1:8123"  # where clients reach the service
    app_domain: str | None = None  # deployments are also at https://<name>.<app_domain>
    dev_deployment: str | None = None  # served at the root as well, without a key for this machine's user

    # Who may do what
    api_key: str | None = field(default=None, repr=False)  # a bootstrap admin key, accepted as given
    encryption_keys: tuple[str, ...] = field(default=(), repr=False)  # first encrypts, all decrypt

    # Calls to servers that users name: token endpoints, discovery, sources
    allowed_addresses: tuple[str, ...] = ()  # networks, addresses and hosts that may be called though private
    allow_http: bool = False
    oauth_redirect_url: str | None = None  # None: our own callback; may hold {provider_id}

    # Logs
    log_level: str = "INFO"
    log_format: str = "text"  # text or json

    # Runs
    pool: str = "default"
    runner_slots: int = 2000
    lease_seconds: float = 30.0
    run_timeout_seconds: float = 3600.0
    max_attempts: int = 3
    drain_seconds: float = 25.0  # how long a runner that stops lets its runs go on
    event_retention_seconds: int = 900
    heartbeat_seconds: float = 5.0
    max_pending_per_thread: int = 1_000
    max_pending_per_deployment: int = 100_000
    max_body_bytes: int = 16 * MIB
    max_archive_bytes: int = 200 * MIB
    body_seconds: float = 30.0  # for a request's body to come, and a second more for every 8 KiB of it

    max_concurrent_runs_per_key: int = 0  # of keys that are made without a number of their own; 0: no bound

    # What one key, and all of them, may take of a web process; operators' keys have no bound of their own
    requests_per_second: float = 200.0
    requests_burst: int = 400
    streams_per_key: int = 500
    max_streams: int = 5_000
    connections_per_address: int = 1_000  # an IPv6 network of 64 bits is one address
    proxy_addresses: tuple[str, ...] = ("127.0.0.0/8", "::1")  # which may have as many as they like

    # Graph hosts
    hosts_per_revision: int = 2
    max_hosts: int = 16
    host_idle_seconds: float = 600.0
    host_start_seconds: float = 60.0
    host_stall_seconds: float = 60.0
    host_memory_mb: int = 1024
    host_processes: int = 256
    host_threads: int = 64
    isolation: str = "auto"  # auto, require, none
    bwrap: str | None = None  # the sandbox program; "": none, None: looked for
    sandbox_user: str = "nobody"  # whom user code runs as when the service is root and has no sandbox

    # Builds
    build_timeout_seconds: float = 900.0
    kept_revisions: int = 20  # of a deployment, beside those that serve or have runs to come
    kept_environments: int = 3  # of a deployment, on each machine, beside those in use
    log_retention_days: float = 14.0
    max_log_lines: int = 200_000  # of a deployment
    # what build steps and graph hosts take over from this environment: addresses, certificates, locale
    passed_on: Mapping[str, str] = field(default_factory=dict, repr=False)

    # Names this process in leases and logs
    worker: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}")

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """Settings from environment variables; raises BadSetting naming the variable."""
        values: dict[str, object] = {}
        for spec in dataclasses.fields(cls):
            name = VARIABLES.get(spec.name)
            raw = _read(env, name) if name else None
            if name and raw is not None:
                values[spec.name] = _parse(name, raw, spec.type)
        data_dir = Path(str(values.get("data_dir", cls.data_dir))).absolute()
        values["data_dir"] = data_dir
        values["passed_on"] = {name: env[name] for name in PASSED_ON if env.get(name)}
        values["cache_dir"] = Path(str(values.get("cache_dir", data_dir / "cache"))).absolute()
        settings = cls(**values)  # type: ignore[arg-type]
        if "url" not in values:
            settings = dataclasses.replace(settings, url=f"http://{settings.host}:{settings.port}")
        settings._check()
        return settings

    def _check(self) -> None:
        for name, allowed in {
            "isolation": ("auto", "require", "none"),
            "log_format": ("text", "json"),
            "log_level": ("DEBUG", "INFO", "WARNING", "ERROR"),
        }.items():
            if getattr(self, name) not in allowed:
                raise BadSetting(f"{VARIABLES[name]} must be one of {', '.join(allowed)}")
        if self.dev_deployment and self.host not in LOOPBACK:
            raise BadSetting(
                "RUNYARD_DEV_DEPLOYMENT opens a deployment without a key: RUNYARD_HOST must be 127.0.0.1 or ::1"
            )
        if self.app_domain and not DOMAIN.fullmatch(self.app_domain):
            raise BadSetting(
                "RUNYARD_APP_DOMAIN must be a domain, like apps.example.com or apps.localhost:8123"
            )
        if not 0 < self.port < 65536:
            raise BadSetting("RUNYARD_PORT must be between 1 and 65535")
        for name in ("kept_revisions", "kept_environments"):
            if getattr(self, name) < 1:
                raise BadSetting(f"{VARIABLES[name]} must be at least 1")
        for network in self.proxy_addresses:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                raise BadSetting(f"RUNYARD_PROXY_ADDRESSES must be addresses or networks: {error}") from error
        if self.lease_seconds < 2:
            raise BadSetting("RUNYARD_LEASE_SECONDS must be at least 2")


BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

# Variables of the service's own environment that user code and the package installer get to see.
PASSED_ON = (
    "PATH", "LANG", "LC_ALL", "TZ",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS", "UV_NATIVE_TLS",
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL",
)  # fmt: skip

# Field → environment variable. A setting is documented in the README under this name.
VARIABLES = {
    "database_url": "DATABASE_URL",
    "redis_url": "REDIS_URL",
    "data_dir": "RUNYARD_DATA_DIR",
    "cache_dir": "RUNYARD_CACHE_DIR",
    "host": "RUNYARD_HOST",
    "port": "RUNYARD_PORT",
    "url": "RUNYARD_URL",
    "app_domain": "RUNYARD_APP_DOMAIN",
    "dev_deployment": "RUNYARD_DEV_DEPLOYMENT",
    "api_key": "RUNYARD_API_KEY",
    "encryption_keys": "RUNYARD_ENCRYPTION_KEYS",
    "allowed_addresses": "RUNYARD_ALLOWED_ADDRESSES",
    "allow_http": "RUNYARD_ALLOW_HTTP",
    "oauth_redirect_url": "RUNYARD_OAUTH_REDIRECT_URL",
    "log_level": "RUNYARD_LOG_LEVEL",
    "log_format": "RUNYARD_LOG_FORMAT",
    "pool": "RUNYARD_POOL",
    "runner_slots": "RUNYARD_RUNNER_SLOTS",
    "lease_seconds": "RUNYARD_LEASE_SECONDS",
    "run_timeout_seconds": "RUNYARD_RUN_TIMEOUT_SECONDS",
    "max_attempts": "RUNYARD_MAX_ATTEMPTS",
    "drain_seconds": "RUNYARD_DRAIN_SECONDS",
    "event_retention_seconds": "RUNYARD_EVENT_RETENTION_SECONDS",
    "max_pending_per_thread": "RUNYARD_MAX_PENDING_PER_THREAD",
    "max_pending_per_deployment": "RUNYARD_MAX_PENDING_PER_DEPLOYMENT",
    "max_concurrent_runs_per_key": "RUNYARD_MAX_CONCURRENT_RUNS_PER_KEY",
    "max_body_bytes": "RUNYARD_MAX_BODY_BYTES",
    "max_archive_bytes": "RUNYARD_MAX_ARCHIVE_BYTES",
    "body_seconds": "RUNYARD_BODY_SECONDS",
    "requests_per_second": "RUNYARD_REQUESTS_PER_SECOND",
    "requests_burst": "RUNYARD_REQUESTS_BURST",
    "streams_per_key": "RUNYARD_STREAMS_PER_KEY",
    "max_streams": "RUNYARD_MAX_STREAMS",
    "connections_per_address": "RUNYARD_CONNECTIONS_PER_ADDRESS",
    "proxy_addresses": "RUNYARD_PROXY_ADDRESSES",
    "hosts_per_revision": "RUNYARD_HOSTS_PER_REVISION",
    "max_hosts": "RUNYARD_MAX_HOSTS",
    "host_idle_seconds": "RUNYARD_HOST_IDLE_SECONDS",
    "host_start_seconds": "RUNYARD_HOST_START_SECONDS",
    "host_stall_seconds": "RUNYARD_HOST_STALL_SECONDS",
    "host_memory_mb": "RUNYARD_HOST_MEMORY_MB",
    "host_processes": "RUNYARD_HOST_PROCESSES",
    "host_threads": "RUNYARD_HOST_THREADS",
    "isolation": "RUNYARD_ISOLATION",
    "bwrap": "RUNYARD_BWRAP",
    "sandbox_user": "RUNYARD_SANDBOX_USER",
    "build_timeout_seconds": "RUNYARD_BUILD_TIMEOUT_SECONDS",
    "kept_revisions": "RUNYARD_KEPT_REVISIONS",
    "kept_environments": "RUNYARD_KEPT_ENVIRONMENTS",
    "log_retention_days": "RUNYARD_LOG_RETENTION_DAYS",
    "max_log_lines": "RUNYARD_MAX_LOG_LINES",
}


MAY_BE_EMPTY = ("RUNYARD_BWRAP",)  # of all others an empty value is none


def _read(env: Mapping[str, str], name: str) -> str | None:
    """The variable's value, or the content of the file that NAME_FILE points to."""
    if env.get(name) or (name in env and name in MAY_BE_EMPTY):
        return env[name]
    path = env.get(f"{name}_FILE")
    if not path:
        return None
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise BadSetting(f"{name}_FILE: cannot read {path}: {error.strerror}") from error


def _parse(name: str, raw: str, kind: object) -> object:
    try:
        if kind == "int":
            return int(raw)
        if kind == "float":
            return float(raw)
    except ValueError as error:
        raise BadSetting(f"{name} must be a number, not {raw!r}") from error
    if kind == "bool":
        if raw.lower() not in BOOLEANS:
            raise BadSetting(f"{name} must be true or false, not {raw!r}")
        return BOOLEANS[raw.lower()]
    if kind == "Path":
        return Path(raw)
    if kind == "tuple[str, ...]":
        return tuple(part.strip() for part in raw.split(",") if part.strip())
    return raw
