"""Connections to PostgreSQL, the source of truth of the service.

Each process has two pools: transactions use `connection()`, single statements on the driver use `driver()`. Errors
that mean "no database" are raised as `Unavailable`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TypeVar

import orjson
import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.array import ListBinaryDumper
from sqlalchemy import Connection, Engine, RowMapping, create_engine, event, exc
from sqlalchemy.pool import ConnectionPoolEntry

from shared.errors import OutcomeUnknown, Unavailable
from shared.infra import arrays
from shared.infra.system import let_others_run

# A pooled connection that was used this recently is reused without a liveness check.
TRUSTED_SECONDS = 1.0
# A connection that was unused for this long is closed, except the last one of its pool.
IDLE_SECONDS = 15.0
LARGE = 1_000_000  # characters or bytes: converting more in one step delays the other greenlets noticeably
LOCK_TIMEOUT_SECONDS = 5.0
# Maximum connections per pool; each process has a pool for transactions and one for single statements.
WEB_POOL, WORKER_POOL, POOLS = 8, 4, 2
MOST_CONNECTIONS = {"web": WEB_POOL * POOLS, "runner": WORKER_POOL * POOLS, "builder": WORKER_POOL * POOLS}

CHECK_SECONDS = 1.0  # timeout of the liveness check of a pooled connection; after it a new one is opened
HUNG_SECONDS = 1.0  # after a connection attempt that timed out, further attempts fail at once for this long
CLOCK_SECONDS = 60.0  # then the database's time is read again: its clock may have been set

T = TypeVar("T")

# Seconds that the server may send nothing while the current statement waits; None: no limit.
_longest_silence: ContextVar[float | None] = ContextVar("longest_silence")
_default_silence: float | None = None
_engine: Engine | None = None
_quick: Engine | None = None


def dumps(value: Any) -> str:
    """Return the JSON text of a value for a json column. Yields to other greenlets after a large one."""
    document = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    if len(document) > LARGE:
        let_others_run()
    return document


def loads(text: str | bytes) -> Any:
    """Parse the text of a json column. Yields to other greenlets around a large one."""
    if len(text) <= LARGE:
        return orjson.loads(text)
    let_others_run()
    value = orjson.loads(text)
    let_others_run()
    return value


def connect(
    url: str,
    *,
    pool_size: int = WEB_POOL,
    statement_timeout_seconds: int = 30,
    application: str = "runyard",
    waits_for_disk: bool = True,
    pooler: str = "none",
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    silence_seconds: float | None = None,
) -> Engine:
    """Create the process's two engines and return the one for transactions. `url` is a `postgresql://` address.

    `silence_seconds`: a statement fails if the server sends nothing for this long. `patience` and `set_patience`
    override the limit. It only has effect in processes that gevent has patched.

    `waits_for_disk=False`: single statements on the driver return before they are on disk, unless the statement
    sets `synchronous_commit` itself. A crash of PostgreSQL may then lose the last statements, but never part of one.

    `pooler="transaction"`: the address is that of a pooler that assigns a server connection per transaction. No
    session state is used then: timeouts and time zone are set on the role (`session_defaults`), and every statement
    waits for the disk.
    """
    global _engine, _quick, _default_silence
    _default_silence = silence_seconds
    _wait_in_greenlets()
    shared: dict[str, Any] = {
        "pool_size": pool_size,
        "statement_timeout_seconds": statement_timeout_seconds,
        "application": application,
        "pooler": pooler,
        "lock_timeout_seconds": lock_timeout_seconds,
    }
    _engine = make_engine(url, isolation_level="READ COMMITTED", **shared)
    _quick = make_engine(
        url, isolation_level="AUTOCOMMIT", pool_reset_on_return=None, waits_for_disk=waits_for_disk, **shared
    )
    return _engine


def _wait_in_greenlets() -> None:
    """Make psycopg wait in gevent's loop, in a process that gevent has patched.

    A waiting statement would otherwise block every greenlet of the process.
    """
    patches = sys.modules.get("gevent.monkey")
    if patches is None or not patches.is_module_patched("select"):
        return
    from shared.infra import greenlet_wait  # imported here: processes without greenlets do not have gevent

    greenlet_wait.install(lambda: _longest_silence.get(_default_silence))


@contextmanager
def patience(seconds: float | None) -> Iterator[None]:
    """Override, within the block, how many seconds statements wait for a silent server. None: no limit."""
    token = _longest_silence.set(seconds)
    try:
        yield
    finally:
        _longest_silence.reset(token)


def set_patience(seconds: float) -> None:
    """Override, for the rest of this greenlet, how many seconds statements wait for a silent server."""
    _longest_silence.set(seconds)


def make_engine(
    url: str,
    *,
    statement_timeout_seconds: int,
    application: str,
    pooler: str,
    waits_for_disk: bool = True,
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    **arguments: Any,
) -> Engine:
    """Create an engine with the service's pool, session and JSON settings; `arguments` go to `create_engine`."""
    engine = create_engine(
        driver_url(url),
        max_overflow=0,
        pool_timeout=30,  # a burst waits for connections; an unreachable server fails at `connect_timeout`
        pool_recycle=1800,
        pool_use_lifo=True,  # the connection used last has its statements prepared and its caches warm
        json_serializer=dumps,
        json_deserializer=loads,
        connect_args={
            "connect_timeout": 3,
            "application_name": application,
            "keepalives_idle": 30,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 20_000,
            **_session(
                pooler,
                session_defaults(statement_timeout_seconds, lock_timeout_seconds),
                waits_for_disk=waits_for_disk,
            ),
        },
        **arguments,
    )
    _install_listeners(engine)
    return engine


def session_defaults(
    statement_timeout_seconds: int, lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS
) -> dict[str, str]:
    """Return the session parameters of every connection. Behind a transaction pooler they are set on the role."""
    return {
        "statement_timeout": f"{statement_timeout_seconds * 1000}",
        "lock_timeout": f"{lock_timeout_seconds * 1000:.0f}",
        "idle_in_transaction_session_timeout": "15000",
        "timezone": "UTC",
    }


def _session(pooler: str, values: dict[str, str], *, waits_for_disk: bool) -> dict[str, Any]:
    """Return the driver's arguments for session state: parameters and prepared statements.

    Behind a transaction pooler there are neither, because the next transaction may run in another session.
    """
    if pooler == "transaction":
        return {"prepare_threshold": None}
    if not waits_for_disk:
        values["synchronous_commit"] = "off"
    options = " ".join(f"-c {name}={value}" for name, value in values.items())
    return {"prepare_threshold": 2, "options": options}


def driver_url(url: str) -> str:
    """Return the URL with the scheme that makes SQLAlchemy use psycopg."""
    for prefix in ("postgresql://", "postgres://"):
        if url.startswith(prefix):
            return "postgresql+psycopg://" + url.removeprefix(prefix)
    return url


def engine() -> Engine:
    """Return the process's engine for transactions. Raises RuntimeError before `connect()`."""
    if _engine is None:
        raise RuntimeError("shared.infra.postgres.connect() has not been called")
    return _engine


def _install_listeners(engine: Engine) -> None:
    """Install the pool's event listeners: binary lists, liveness checks, and fast failure while the server hangs.

    Lists are sent in binary form. The text form costs a regular expression per item, and bytes double in size.

    A pooled connection is checked before use unless it was used within the last second. SQLAlchemy's own
    `pool_pre_ping` checks at every checkout, which costs each transaction a round trip.

    A new connection is not checked. If the replacement of a lost connection were lost as well, SQLAlchemy would report
    a misuse of the connection; without the check the first statement raises the real error.

    Connections that stay unused are closed (`_IdleConnections`).

    A server that hangs accepts connections and never answers. Callers waiting for the pool would try one after the
    other, each for the full timeout. After one attempt has timed out, further attempts therefore fail at once for
    `HUNG_SECONDS`.
    """
    hung_until = 0.0
    idle = _IdleConnections()

    @event.listens_for(engine, "do_connect")
    def on_do_connect(dialect: Any, record: Any, arguments: Any, parameters: Any) -> Any:
        nonlocal hung_until
        if time.monotonic() < hung_until:
            raise psycopg.errors.ConnectionTimeout(
                "the database did not answer the previous connection attempt, a moment ago"
            )
        try:
            return dialect.connect(*arguments, **parameters)
        except psycopg.errors.ConnectionTimeout:
            hung_until = time.monotonic() + HUNG_SECONDS
            raise

    @event.listens_for(engine, "connect")
    def on_connect(dbapi_connection: Any, record: Any) -> None:
        dbapi_connection.adapters.register_dumper(list, ListBinaryDumper)
        arrays.register(dbapi_connection)
        record.info["is_new"] = True

    @event.listens_for(engine, "checkout")
    def on_checkout(dbapi_connection: Any, record: Any, proxy: Any) -> None:
        idle.remove(record)
        if record.info.pop("is_new", False):
            return
        if dbapi_connection.closed:
            raise exc.DisconnectionError()
        if time.monotonic() - record.info.get("used_at", 0.0) < TRUSTED_SECONDS:
            return
        autocommit = dbapi_connection.autocommit
        try:
            dbapi_connection.autocommit = True
            with patience(None if _default_silence is None else CHECK_SECONDS):
                dbapi_connection.execute("")
            dbapi_connection.autocommit = autocommit
        except psycopg.Error as error:
            raise exc.DisconnectionError() from error

    @event.listens_for(engine, "checkin")
    def on_checkin(dbapi_connection: Any, record: Any) -> None:
        if dbapi_connection is not None:
            record.info["used_at"] = time.monotonic()
            idle.add(record)


class _IdleConnections:
    """The idle connections of a pool. Closes those unused for IDLE_SECONDS, except the one used last.

    PostgreSQL's process behind a connection takes several MB, and a burst opens as many as the pool allows. The pool
    opens a closed connection again when it needs one. A timer exists only while more than one connection is idle.
    """

    def __init__(self) -> None:
        # In order of use, because the pool is last in, first out.
        self._used_at: dict[ConnectionPoolEntry, float] = {}
        self._timer: threading.Timer | None = None

    def add(self, entry: ConnectionPoolEntry) -> None:
        self._used_at[entry] = time.monotonic()
        self._start_timer()

    def remove(self, entry: ConnectionPoolEntry) -> None:
        self._used_at.pop(entry, None)

    def _start_timer(self) -> None:
        if self._timer is None and len(self._used_at) > 1:
            now = time.monotonic()
            due_at = min(self._used_at.values(), default=now) + IDLE_SECONDS
            self._timer = threading.Timer(max(due_at - now, 0.0), self._close_unused)
            self._timer.daemon = True
            self._timer.start()

    def _close_unused(self) -> None:
        self._timer = None
        before = time.monotonic() - IDLE_SECONDS
        for entry, used_at in tuple(self._used_at.items())[:-1]:
            if used_at <= before and not entry.in_use:
                self.remove(entry)
                entry.close()
        self._start_timer()


@contextmanager
def connection() -> Iterator[Connection]:
    """Open a transaction on a pooled connection. Commits at the end of the block; rolls back if the block raises.

    Raises OutcomeUnknown if the connection is lost within the block: the commit may or may not have happened.
    """
    conn = _check_out(engine().connect)
    with translated(OutcomeUnknown), conn, conn.begin():
        yield conn


def _check_out(take: Callable[[], T]) -> T:
    """Take a connection from a pool. If the server refuses one more, close the process's idle connections and raise.

    PostgreSQL may allow fewer connections than all processes together would open. Each process would otherwise keep
    idle connections of one engine while it waits for one of the other engine, and none could ever proceed.
    """
    with translated():
        try:
            return take()
        except (exc.OperationalError, psycopg.OperationalError):
            for one in (_engine, _quick):
                if one is not None:
                    one.dispose()
            raise


Driver = psycopg.Connection[Any]
Rows = psycopg.Cursor[dict[str, Any]]
Row = RowMapping | Mapping[str, Any]  # a row of SQLAlchemy or of the driver


def in_transaction(conn: Connection | Driver) -> Connection:
    """Return the connection for statements that need a transaction. Raises TypeError for the driver's connection."""
    if not isinstance(conn, Connection):
        raise TypeError("these statements need a transaction")
    return conn


@contextmanager
def driver() -> Iterator[Driver]:
    """Take a psycopg connection in autocommit mode: every statement is a transaction, except within `transaction()`.

    The run path uses it because SQLAlchemy's overhead is several times the cost of the statement.
    Raises OutcomeUnknown if the connection is lost within the block.
    """
    if _quick is None:
        raise RuntimeError("shared.infra.postgres.connect() has not been called")
    pooled = _check_out(_quick.raw_connection)
    with translated(OutcomeUnknown):
        connection: Any = pooled.driver_connection
        try:
            yield connection
        finally:
            if connection.info.transaction_status != TransactionStatus.IDLE:
                pooled.invalidate()  # the block ended inside a transaction or a statement
            pooled.close()


@contextmanager
def long_connection(url: str) -> Iterator[Driver]:
    """Open a psycopg connection in autocommit mode outside of the pools, for statements that take minutes."""
    options = "-c statement_timeout=0 -c lock_timeout=0"
    name = "runyard maintenance"
    with translated(), psycopg.connect(url, autocommit=True, options=options, application_name=name) as conn:
        yield conn


def query(conn: Connection | Driver, statement: str, parameters: dict[str, Any]) -> Rows:
    """Run a statement directly on the driver, in the current transaction of `conn`.

    Parameters are written `%(name)s`. psycopg prepares a statement on its third use. Rows are dicts.
    """
    driver: Any = conn.connection.driver_connection if isinstance(conn, Connection) else conn
    return driver.cursor(row_factory=dict_row).execute(statement, parameters)


@contextmanager
def translated(lost: type[Unavailable] = Unavailable) -> Iterator[None]:
    """Raise Unavailable for temporary database errors: an unreachable server, or a transaction worth repeating.

    `lost` is the class raised if the database is unreachable. Pass OutcomeUnknown around a block that may have
    committed before the connection broke.
    """
    try:
        yield
    except DATABASE_ERRORS as error:
        reason = _temporary_reason(error)
        if reason is not None:
            raise (lost if reason == UNREACHABLE else Unavailable)(reason) from error
        raise


DATABASE_ERRORS = (
    exc.OperationalError,
    exc.InterfaceError,
    exc.InternalError,
    exc.TimeoutError,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.InternalError,
)
STATEMENT_ERRORS = (exc.DBAPIError, psycopg.Error)  # any error of a statement, also one that would recur
UNREACHABLE = "The database is unavailable."
# SQLSTATE codes.
READ_ONLY = "25006"  # read-only transaction, after a failover; psycopg raises InternalError
IDLE = "25P03"  # idle-in-transaction timeout: this process was frozen within a transaction
CANCELED = "57014"  # statement timeout
BLOCKED = ("40001", "40P01", "55P03")  # serialization failure, deadlock, lock timeout


def _temporary_reason(error: Exception) -> str | None:
    """Return the message for a temporary error, None for one that would recur."""
    if isinstance(error, exc.TimeoutError):
        return UNREACHABLE
    state = sqlstate(error)
    if state in BLOCKED:
        return "Another transaction blocked this one. Try again."
    if state == CANCELED:
        return "A database query took too long. Try again."
    # None: the server was never reached. 08: connection lost, 53: out of resources, 57P: shutting down.
    is_gone = state is None or state[:2] in ("08", "53") or state[:3] == "57P" or state in (READ_ONLY, IDLE)
    return UNREACHABLE if is_gone else None


def sqlstate(error: BaseException | None) -> str | None:
    """Return PostgreSQL's code of an error of psycopg or SQLAlchemy. None: the server reported none."""
    return getattr(getattr(error, "orig", error), "sqlstate", None)


_clock: tuple[float, float] | None = None  # the database's time, and the monotonic time of the query
_is_reading_clock = False


def database_time() -> datetime:
    """Return the database's time. Raises Unavailable if the database has never answered.

    Clocks of machines differ. Times that one process writes and another compares are therefore the database's. A
    statement uses its own `now()`; this function is for tokens, webhook headers and time windows.
    """
    return datetime.fromtimestamp(database_seconds(), UTC)


def database_seconds() -> float:
    """Return the database's time in seconds since 1970. Raises Unavailable as `database_time` does.

    One caller at a time reads the clock again; the others use the last reading meanwhile. Callers that hold all connections
    of the pool would otherwise wait for each other's.
    """
    global _clock, _is_reading_clock
    read_at = time.monotonic()
    if _clock is None or (read_at - _clock[1] > CLOCK_SECONDS and not _is_reading_clock):
        _is_reading_clock = True
        try:
            _clock = _read_clock(), read_at
        except Unavailable:
            if _clock is None:
                raise
        finally:
            _is_reading_clock = False
    seconds, read_at = _clock
    return seconds + time.monotonic() - read_at


def _read_clock() -> float:
    with driver() as conn:
        [row] = query(conn, "SELECT extract(epoch FROM clock_timestamp())::float8 AS seconds", {}).fetchall()
    return row["seconds"]
