"""Settings of the service, read from environment variables once at process start.

`Settings.from_env(os.environ)` is the only reader; its result is frozen and passed down. An invalid value stops the
start with an error that names the variable.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from shared.errors import suggestion
from shared.setting_values import Audience, BadSetting, Formation, Prices, parse, read, setting
from shared.sign_in_settings import SignInSettings

MIB = 1024 * 1024
DOMAIN = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*(:[0-9]{1,5})?")


# Where clients on this machine reach a process that listens on every address.
ON_THIS_MACHINE = {"0.0.0.0": "127.0.0.1", "::": "::1"}

expert = partial(setting, audience=Audience.EXPERT)
dev = partial(setting, audience=Audience.DEV)


@dataclass(frozen=True, kw_only=True)
class Settings(SignInSettings):
    """The service's configuration. Durations are in seconds and sizes in bytes unless the name gives another unit."""

    # Addresses and folders
    database_url: str | None = setting(
        "DATABASE_URL",
        None,
        "`postgresql://…`; not set: `runyard up` starts its own PostgreSQL in the data directory",
        is_secret=True,
    )
    database_direct_url: str | None = setting(
        "DATABASE_DIRECT_URL",
        None,
        "`postgresql://…` of PostgreSQL itself, for migrations, backups, restores and vector indexes, if DATABASE_URL leads to PgBouncer",
        is_secret=True,
        shown="`DATABASE_URL`",
    )
    redis_url: str | None = setting(
        "REDIS_URL",
        None,
        "`redis://…`, `rediss://…` (TLS) or `unix://…`, Redis or Valkey; not set: `runyard up` starts its own Valkey",
        is_secret=True,
    )
    database_pooler: str = setting(
        "RUNYARD_DATABASE_POOLER",
        "none",
        "`transaction`: DATABASE_URL and DATABASE_READ_URL lead to PgBouncer with `pool_mode = transaction`: see [PgBouncer](../operating/servers.md#pgbouncer)",
    )
    database_read_url: str | None = setting(
        "DATABASE_READ_URL",
        None,
        "`postgresql://…` of a read replica, for searches and lists: see [Read replicas](../operating/servers.md#read-replicas)",
        is_secret=True,
    )
    redis_broker_url: str | None = setting(
        "REDIS_BROKER_URL",
        None,
        "another Redis for Celery's messages and notifications of workers; must be the same in all processes: see [Redis by role](../operating/servers.md#redis-by-role)",
        is_secret=True,
        shown="`REDIS_URL`",
    )
    redis_events_urls: tuple[str, ...] = setting(
        "REDIS_EVENTS_URL",
        (),
        "another Redis for event logs, or several, separated by commas, which share the logs by run; must be the same in all processes",
        is_secret=True,
        shown="`REDIS_URL`",
    )
    data_dir: Path = setting(
        "RUNYARD_DATA_DIR",
        Path(".runyard"),
        "the folder for environments and sources of revisions, the embedded servers, and generated keys",
    )
    cache_dir: Path = setting(
        "RUNYARD_CACHE_DIR",
        Path(".runyard/cache"),
        "the folder for downloaded wheels and the packages installed from them, shared by all builds: see [Builds](langgraph-json.md#builds)",
        shown="`cache` in the data directory",
    )
    cache_mb: int = setting(
        "RUNYARD_CACHE_MB",
        20_480,
        "size limit of the cache folder on a machine: a builder that finds more removes packages that no environment uses, the oldest first, and then downloads. `0`: no limit",
    )
    runtime_dir: Path = setting(
        "RUNYARD_RUNTIME_DIR",
        Path(".runyard/run"),
        "the folder for the sockets on which the processes of this machine answer `runyard health`; other users cannot reach them. Each container needs its own",
        shown="`run` in the data directory",
    )
    listen_host: str = setting(
        "RUNYARD_LISTEN_HOST", "127.0.0.1", "the address `web` listens on", old_name="RUNYARD_HOST"
    )
    port: int = setting(
        "RUNYARD_PORT", 8123, "the port `web` listens on; if it is in use, `web` stops with an error"
    )
    processes: Formation = setting(
        "RUNYARD_PROCESSES",
        (),
        "the number of processes of each kind: `web=2,runner=3,builder=1`. `runyard up` starts that many; a `web` that is started alone has that many processes behind its socket",
        shown="one; with `runyard up` a `web` and a `runner` for every four processors, at most 3 of each",
    )
    url: str = setting(
        "RUNYARD_URL",
        "http://127.0.0.1:8123",
        "the URL of the service for clients and the command line; the addresses of deployments begin with it",
        shown="`http://HOST:PORT`",
    )
    internal_url: str = setting(
        "RUNYARD_INTERNAL_URL",
        "http://127.0.0.1:8123",
        "the URL of `web` for runners, used by `get_client()` without an address in graphs. Set it if `RUNYARD_URL` does not lead to `web` from a runner, as between containers",
        shown="`RUNYARD_URL`",
    )
    app_domain: str | None = setting(
        "RUNYARD_APP_DOMAIN",
        None,
        "`apps.example.com`: deployments are also at `https://NAME.apps.example.com` (with the scheme of `RUNYARD_URL`). The DNS names of the domain must lead to `web`. It may end with a port",
    )

    # Authentication and encryption
    api_key: str | None = setting(
        "RUNYARD_API_KEY",
        None,
        "the operator's key, in any form; if it is not set, `runyard up` generates one (`admin.key`)",
        is_secret=True,
    )
    encryption_keys: tuple[str, ...] = setting(
        "RUNYARD_ENCRYPTION_KEYS",
        (),
        "Fernet keys, separated by commas, for secrets at rest: the first encrypts, all decrypt. Every process except `beat` needs one to start; `runyard up` generates one (`secret.key`)",
        is_secret=True,
    )

    # Calls to servers that users name: token endpoints, discovery, sources
    allowed_addresses: tuple[str, ...] = setting(
        "RUNYARD_ALLOWED_ADDRESSES",
        (),
        "private networks, addresses and host names, separated by commas, that the service may call: OAuth providers, sources of deployments, receivers of webhooks",
    )
    allow_http: bool = setting(
        "RUNYARD_ALLOW_HTTP",
        False,
        "`true`: the service may also call OAuth providers, sources of deployments and receivers of webhooks by `http://`",
    )
    oauth_redirect_url: str | None = setting(
        "RUNYARD_OAUTH_REDIRECT_URL",
        None,
        "the redirect URL for providers, with `{provider_id}` in it, if your own front end receives code and state and forwards them; otherwise `RUNYARD_URL/v2/auth/callback/{provider_id}`",
    )

    # Logs
    log_level: str = setting("RUNYARD_LOG_LEVEL", "INFO", "`DEBUG`, `INFO`, `WARNING` or `ERROR`")
    log_format: str = setting(
        "RUNYARD_LOG_FORMAT",
        "text",
        "`text`, or `json`: one object per line, with request, run and revision ids. Lines that the reader of stderr does not read in time are dropped and counted",
    )

    # Runs
    pool: str = setting("RUNYARD_POOL", "default", "the pool whose runs a runner executes")
    runner_slots: int = setting(
        "RUNYARD_RUNNER_SLOTS",
        2000,
        "runs that a runner executes at a time, and as many nested runs at each depth",
    )
    lease_seconds: float = setting(
        "RUNYARD_LEASE_SECONDS",
        30.0,
        "time until a run or build is taken from an owner that stopped renewing its lease; at least 2, and the same in all processes",
    )
    run_timeout_seconds: float = setting(
        "RUNYARD_RUN_TIMEOUT_SECONDS",
        3600.0,
        "a run whose attempts together take longer ends as `timeout`",
    )
    drain_seconds: float = setting(
        "RUNYARD_DRAIN_SECONDS",
        25.0,
        "time that a runner that shuts down gives its runs before it hands them over",
    )
    event_retention_seconds: int = setting(
        "RUNYARD_EVENT_RETENTION_SECONDS", 900, "time for which the events of an ended run can be read again"
    )
    heartbeat_seconds: float = 5.0
    max_pending_per_thread: int = setting(
        "RUNYARD_MAX_PENDING_PER_THREAD", 1_000, "pending runs of one thread; more are refused with 429"
    )
    max_pending_per_deployment: int = setting(
        "RUNYARD_MAX_PENDING_PER_DEPLOYMENT",
        100_000,
        "pending runs of one deployment; more are refused with 429",
    )
    min_cron_seconds: float = setting(
        "RUNYARD_MIN_CRON_SECONDS",
        10.0,
        "a schedule that is due twice within less than this time is refused; `0`: no limit",
    )
    max_body_bytes: int = setting(
        "RUNYARD_MAX_BODY_BYTES", 16 * MIB, "larger request bodies are refused with 413"
    )
    max_archive_bytes: int = setting(
        "RUNYARD_MAX_ARCHIVE_BYTES", 200 * MIB, "larger source archives are refused with 413"
    )

    max_concurrent_runs_per_key: int = setting(
        "RUNYARD_MAX_CONCURRENT_RUNS_PER_KEY",
        0,
        "concurrent runs of an API key that was created without its own limit; `0`: no limit",
    )

    model_prices: Prices = setting(
        "RUNYARD_MODEL_PRICES",
        (),
        'prices of models in US dollars as JSON, by a model\'s name or a prefix and `*`: the prices of a million input tokens and of a million output tokens, as in `{"gpt-5*": [1.25, 10]}`',
    )

    # Rate and connection limits of a web process, per key and in total; operators' keys have no limit of their own
    requests_per_second: float = setting(
        "RUNYARD_REQUESTS_PER_SECOND",
        200.0,
        "requests per second of one API key that one `web` process answers on average; more are refused with 429; `0`: no limit",
    )
    streams_per_key: int = setting(
        "RUNYARD_STREAMS_PER_KEY",
        500,
        "streams, waits and long polls that one key may have open in one `web` process; more are refused with 429",
    )
    connections_per_address: int = setting(
        "RUNYARD_CONNECTIONS_PER_ADDRESS",
        1_000,
        "connections that one IPv4 address or one IPv6 /64 network may have open to one `web` process; more are refused with 429",
    )
    proxy_addresses: tuple[str, ...] = setting(
        "RUNYARD_PROXY_ADDRESSES",
        ("127.0.0.0/8", "::1"),
        "addresses and networks of reverse proxies: `X-Forwarded-For` of their requests is the client's address, and `RUNYARD_CONNECTIONS_PER_ADDRESS` does not limit them",
    )

    # Monitoring and remote control
    otlp_endpoint: str | None = setting(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        None,
        "the OTLP endpoint over HTTP to which spans of requests, runs, nodes, model calls and tool calls are exported (`http://collector:4318`). Needs the extra `otel`, which also reads the other variables of OpenTelemetry. Not set: no spans are exported",
    )
    celery_control: bool = setting(
        "RUNYARD_CELERY_CONTROL",
        False,
        "`true`: workers accept Celery's remote control and send its events, for `celery inspect` and Flower. Every client that can reach Redis can then control them",
    )

    # Graph hosts
    hosts_per_revision: int = setting(
        "RUNYARD_HOSTS_PER_REVISION",
        2,
        "most graph hosts that a runner keeps for one revision",
    )
    max_hosts: int = setting(
        "RUNYARD_MAX_HOSTS",
        16,
        "most graph hosts that a runner keeps for all revisions, not counting half as many for runs whose host died and one for each depth of nested runs. To start another host, the runner stops the one that has been idle longest; if none is idle, runs wait",
    )
    host_idle_seconds: float = setting(
        "RUNYARD_HOST_IDLE_SECONDS",
        600.0,
        "a host without runs stops after this time, or after a minute if its revision has another; `0`: hosts of serving revisions never stop",
    )
    host_memory_mb: int = setting("RUNYARD_HOST_MEMORY_MB", 1024, "a host that uses more is killed")
    host_home_mb: int = setting(
        "RUNYARD_HOST_HOME_MB",
        1024,
        "size limit of a revision's home folder on a machine: a host that exceeds it is killed, and the folder is emptied. Also the size limit of each file that a host writes",
    )
    isolation: str = setting(
        "RUNYARD_ISOLATION",
        "auto",
        "`auto`: the best available level; `require`: refuse to run user code without a sandbox; `none`",
    )
    bwrap: str | None = setting(
        "RUNYARD_BWRAP",
        None,
        "the sandbox program; not set: the system's `bwrap` if it works, else the one that comes with the installation; empty: none",
    )
    sandbox_user: str = setting(
        "RUNYARD_SANDBOX_USER",
        "nobody",
        "the user that user code runs as when the service runs as root and there is no sandbox",
    )

    # Builds
    build_timeout_seconds: float = setting(
        "RUNYARD_BUILD_TIMEOUT_SECONDS", 900.0, "a build that takes longer fails"
    )
    kept_revisions: int = setting(
        "RUNYARD_KEPT_REVISIONS",
        20,
        "number of a deployment's newest revisions that are kept, for redeployment. Revisions that serve or have live runs are kept in addition",
    )
    log_retention_days: float = setting(
        "RUNYARD_LOG_RETENTION_DAYS",
        14.0,
        "older lines of deployment logs and entries of the audit log are removed; a build log is kept as long as its revision",
    )
    max_log_lines: int = setting(
        "RUNYARD_MAX_LOG_LINES",
        200_000,
        "lines of a deployment's log that are kept: the oldest are removed first",
    )
    run_retention_days: float = setting(
        "RUNYARD_RUN_RETENTION_DAYS",
        90.0,
        "runs that ended longer ago are removed; their threads keep values and checkpoints. `0`: a run is kept as long as its thread",
    )

    # Expert settings: the defaults suit every known installation
    max_attempts: int = expert(
        "RUNYARD_MAX_ATTEMPTS",
        3,
        "the run ends as `error` when its runner, or a host that executed only this run, has died this many times",
    )
    body_seconds: float = expert(
        "RUNYARD_BODY_SECONDS",
        30.0,
        "time to receive a request's body, plus a second for every 8 KiB of it; slower requests are refused with 408",
    )
    requests_burst: int = expert(
        "RUNYARD_REQUESTS_BURST",
        400,
        "size of a burst: requests of one API key that one `web` process answers at once before `RUNYARD_REQUESTS_PER_SECOND` applies",
    )
    max_streams: int = expert(
        "RUNYARD_MAX_STREAMS",
        5_000,
        "streams, waits and long polls that all keys together may have open in one `web` process; more are refused with 503. One key, also an operator's, may have eight times as many as are left; more are refused with 429",
    )
    host_start_seconds: float = expert(
        "RUNYARD_HOST_START_SECONDS", 60.0, "time limit for a host to start and load its graphs"
    )
    host_stall_seconds: float = expert(
        "RUNYARD_HOST_STALL_SECONDS", 60.0, "a host whose event loop is blocked for this long is killed"
    )
    host_processes: int = expert(
        "RUNYARD_HOST_PROCESSES",
        256,
        "a host with more processes is killed; processes and threads together are limited to four times this number",
    )
    host_threads: int = expert(
        "RUNYARD_HOST_THREADS",
        64,
        "synchronous nodes that a host executes at a time, and as many of nested runs at each depth",
    )
    kept_environments: int = expert(
        "RUNYARD_KEPT_ENVIRONMENTS",
        3,
        "number of a deployment's newest environments that each machine keeps on disk, in addition to those in use; others are built again when needed",
    )

    node_directories: tuple[str, ...] = expert(
        "RUNYARD_NODE_DIRECTORIES",
        (),
        "directories of Node on this machine, separated by commas, each with `bin/node` and npm, as nodejs.org ships it. JavaScript projects run on the one of their major version; without one, builds install Node from the Python index",
    )

    # Set by `runyard dev` for the processes that it starts; `check_public` rejects them elsewhere
    dev_deployment: str | None = dev(
        "RUNYARD_DEV_DEPLOYMENT",
        None,
        "this deployment is also served at the root path, and needs no key for requests of this machine's user",
    )
    dev_origin: str | None = dev(
        "RUNYARD_DEV_ORIGIN",
        None,
        "browser pages of this origin on this machine need no key for that deployment either",
    )
    dev_debug_port: int = dev(
        "RUNYARD_DEV_DEBUG_PORT",
        0,
        "port of this machine at which a debugger attaches to a JavaScript graph host",
    )
    dev_debug_waits: bool = dev(
        "RUNYARD_DEV_DEBUG_WAITS", False, "that host waits for a debugger before it loads its graphs"
    )

    # Variables that build steps and graph hosts inherit from this environment: proxies, certificates, locale
    passed_on: Mapping[str, str] = field(default_factory=dict, repr=False)

    # Identifies this process in leases and logs
    worker: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}")

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """Read the settings from environment variables. Raises BadSetting, which names the variable."""
        values: dict[str, object] = {}
        for spec in dataclasses.fields(cls):
            for name in names_of(spec.name):
                raw = read(env, name)
                if raw is not None:
                    values[spec.name] = parse(name, raw, spec.type)
                    break
        data_dir = Path(str(values.get("data_dir", cls.data_dir))).absolute()
        values["data_dir"] = data_dir
        values["passed_on"] = {name: env[name] for name in PASSED_ON if env.get(name)}
        values["cache_dir"] = Path(str(values.get("cache_dir", data_dir / "cache"))).absolute()
        values["runtime_dir"] = Path(str(values.get("runtime_dir", data_dir / "run"))).absolute()
        settings = cls(**values)  # type: ignore[arg-type]
        settings = dataclasses.replace(settings, listen_host=settings.listen_host.strip("[]"))
        if "url" not in values:
            settings = dataclasses.replace(settings, url=settings.local_url)
        if "internal_url" not in values:
            settings = dataclasses.replace(settings, internal_url=settings.url)
        settings._check()
        return settings

    @property
    def listens_everywhere(self) -> bool:
        """Whether `web` listens on every address of this machine."""
        return self.listen_host in ON_THIS_MACHINE

    @property
    def local_host(self) -> str:
        """The address of `web` for clients on this machine."""
        return ON_THIS_MACHINE.get(self.listen_host, self.listen_host)

    @property
    def local_url(self) -> str:
        """The URL of `web` for clients on this machine."""
        return f"http://{_with_port(self.local_host, self.port)}"

    @property
    def origin(self) -> str:
        """The origin of the console's pages: scheme, host and port of `url`, as browsers send it in `Origin`."""
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else str(parts.hostname)
        is_default = parts.port in (None, {"http": 80, "https": 443}.get(parts.scheme))
        return f"{parts.scheme}://{host}" if is_default else f"{parts.scheme}://{host}:{parts.port}"

    @property
    def bind(self) -> str:
        """The address and port that `web` listens on."""
        return _with_port(self.listen_host, self.port)

    def _check(self) -> None:
        for name, allowed in {
            "database_pooler": ("none", "transaction"),
            "isolation": ("auto", "require", "none"),
            "log_format": ("text", "json"),
            "log_level": ("DEBUG", "INFO", "WARNING", "ERROR"),
        }.items():
            if getattr(self, name) not in allowed:
                raise BadSetting(f"{VARIABLES[name]} must be one of {', '.join(allowed)}")
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
        if self.dev_deployment is not None and self.database_url and "@/" not in self.database_url:
            # `runyard dev` uses its own embedded database, so this address belongs to another service.
            raise BadSetting(NOT_PUBLIC.format(name=VARIABLES["dev_deployment"]))
        if self.lease_seconds < 2:
            raise BadSetting("RUNYARD_LEASE_SECONDS must be at least 2")
        self.check_sign_in(url=self.url, app_domain=self.app_domain, is_dev=self.dev_deployment is not None)


# Variables that name a file or folder of CA certificates.
CERTIFICATES = (
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS",
)  # fmt: skip
# Variables of the service's environment that are passed on to user code and the package installer.
PASSED_ON = (
    "PATH", "LANG", "LC_ALL", "TZ",
    *CERTIFICATES,
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS", "UV_NATIVE_TLS",
    "UV_SYSTEM_CERTS",
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "NPM_CONFIG_REGISTRY",
)  # fmt: skip

DECLARED = {spec.name: spec.metadata for spec in dataclasses.fields(Settings) if "variable" in spec.metadata}
# Field → environment variable.
VARIABLES: dict[str, str] = {name: declared["variable"] for name, declared in DECLARED.items()}
NOT_PUBLIC = (
    "{name} is set by `runyard dev` for its own processes: elsewhere it would let requests of this machine, and of a"
    " proxy on it, in without a key. Remove it from the environment."
)
PREFIX = "RUNYARD_"
# Variables that other programs read: the `runyard` command line, the CI jobs in deploy/, docker-compose.yml.
READ_ELSEWHERE = frozenset(
    f"{PREFIX}{name}"
    for name in "ORG CONTEXT ADDRESS DIRECTORY ENV_FILE NAME PACKAGE PUBLISH TIMEOUT REPLAY FAIL_ON PROMOTE GITLAB_TOKEN STARTED_BY".split()
)
OF_TESTS = f"{PREFIX}TEST_"


def _with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def names_of(field_name: str) -> tuple[str, ...]:
    """Return the variables of a field: the current name, then the former one. Empty for a field without a variable."""
    declared = DECLARED.get(field_name, {})
    return tuple(name for key in ("variable", "old_name") if (name := declared.get(key)))


def check_public(env: Mapping[str, str]) -> None:
    """Raise BadSetting if the environment of a service holds a variable of `runyard dev`."""
    for field_name, declared in DECLARED.items():
        for name in names_of(field_name):
            if declared["audience"] is Audience.DEV and read(env, name) is not None:
                raise BadSetting(NOT_PUBLIC.format(name=name))


def unknown_variables(env: Mapping[str, str]) -> list[str]:
    """Return a warning for each RUNYARD_ variable that nothing reads, with the most similar known name."""
    declared = {name for field_name in DECLARED for name in names_of(field_name)}
    known = READ_ELSEWHERE | declared | {f"{name}_FILE" for name in declared}
    similar = [name.removeprefix(PREFIX) for name in known if name.startswith(PREFIX)]
    return [
        f"{name} is not a setting and has no effect.{suggestion(name.removeprefix(PREFIX), similar, PREFIX)}"
        for name in sorted(env)
        if name.startswith(PREFIX) and name not in known and not name.startswith(OF_TESTS)
    ]
