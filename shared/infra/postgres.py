"""The connection to PostgreSQL: one engine a process, and `connection()`.

PostgreSQL is the truth of the service. Errors that mean "no database" leave here as `Unavailable`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import orjson
import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.array import ListBinaryDumper
from sqlalchemy import Connection, Engine, RowMapping, create_engine, event, exc

from shared.errors import OutcomeUnknown, Unavailable
from shared.infra import arrays
from shared.infra.hardening import let_others_run

# A connection that was used this recently is taken without asking the server whether it lives.
TRUSTED_SECONDS = 1.0
LARGE = 1_000_000  # characters or bytes: a step over so many is felt by whoever else is served
LOCK_TIMEOUT_SECONDS = 5.0
# Connections a pool of one process holds at most; each process has a pool for transactions and one for statements.
WEB_POOL, WORKER_POOL, POOLS = 8, 4, 2
MOST_CONNECTIONS = {"web": WEB_POOL * POOLS, "runner": WORKER_POOL * POOLS, "builder": WORKER_POOL * POOLS}

CHECK_SECONDS = 1.0  # for a pooled connection to answer that it lives: another one is opened then
RETRY_SECONDS = 1.0  # after a server did not answer a connection: until then no other is tried

T = TypeVar("T")

# How long a server may send nothing while the current statement waits; None: as long as it takes.
_longest_silence: ContextVar[float | None] = ContextVar("longest_silence")
_default_silence: float | None = None
_engine: Engine | None = None
_quick: Engine | None = None


def dumps(value: Any) -> str:
    """JSON text for a json column."""
    made = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    if len(made) > LARGE:
        let_others_run()
    return made


def loads(text: str | bytes) -> Any:
    """The value of a json column."""
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
    """Make the process's engines. `url` is a `postgresql://` address.

    `silence_seconds`: a statement fails when the server sends nothing for so long, unless within `patience`. It holds
    in processes that gevent has patched.

    `waits_for_disk=False`: single statements on the driver return before they are on disk, unless they
    say otherwise; a crash of PostgreSQL may then forget the last ones, never a part of one.
    `pooler="transaction"`: the address is a pooler's that lends a server connection for one transaction. Then nothing
    is kept in a session: limits and time zone are the role's (`session_defaults`), and everything waits for the disk.
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
    """See that no statement that waits for its answer stops every greenlet of the process."""
    patches = sys.modules.get("gevent.monkey")
    if patches is None or not patches.is_module_patched("select"):
        return
    from shared.infra import greenlet_wait  # here: the processes without greenlets have no gevent either

    greenlet_wait.install(lambda: _longest_silence.get(_default_silence))


@contextmanager
def patience(seconds: float | None) -> Iterator[None]:
    """Let the statements of this block wait so long for a silent server; None: as long as it takes."""
    token = _longest_silence.set(seconds)
    try:
        yield
    finally:
        _longest_silence.reset(token)


def set_patience(seconds: float) -> None:
    """Let the statements of this greenlet wait so long for a silent server, until it is set again."""
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
    """An engine as this service uses them; `arguments` are SQLAlchemy's."""
    made = create_engine(
        driver_url(url),
        max_overflow=0,
        pool_timeout=30,  # a burst waits for connections; a server that is away is noticed by connecting
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
    _look_after(made)
    return made


def session_defaults(
    statement_timeout_seconds: int, lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS
) -> dict[str, str]:
    """What each of our sessions has set: by itself, or where sessions are a pooler's, by its role."""
    return {
        "statement_timeout": f"{statement_timeout_seconds * 1000}",
        "lock_timeout": f"{lock_timeout_seconds * 1000:.0f}",
        "idle_in_transaction_session_timeout": "15000",
        "timezone": "UTC",
    }


def _session(pooler: str, values: dict[str, str], *, waits_for_disk: bool) -> dict[str, Any]:
    """The driver's arguments for what is kept in a session: nothing, where the next transaction has another one."""
    if pooler == "transaction":
        return {"prepare_threshold": None}
    if not waits_for_disk:
        values["synchronous_commit"] = "off"
    options = " ".join(f"-c {name}={value}" for name, value in values.items())
    return {"prepare_threshold": 2, "options": options}


def driver_url(url: str) -> str:
    """The address with the driver this project uses."""
    for prefix in ("postgresql://", "postgres://"):
        if url.startswith(prefix):
            return "postgresql+psycopg://" + url.removeprefix(prefix)
    return url


def engine() -> Engine:
    """The process's engine; `connect()` must have been called."""
    if _engine is None:
        raise RuntimeError("shared.infra.postgres.connect() has not been called")
    return _engine


def _look_after(engine: Engine) -> None:
    """Have lists sent in binary form, and check a pooled connection before use, unless it worked a moment ago.

    The text form of a list costs a regular expression an item, and its bytes twice their size. SQLAlchemy's own
    `pool_pre_ping` asks at every checkout: one more round-trip for each transaction.

    A connection that was just made is not checked: of a second one that is lost, SQLAlchemy would say that it was
    used in the wrong way. Its first statement tells what has happened to it.

    A server that hangs accepts connections and answers none. Whoever waits for one of the pool would try again and wait
    in turn, so after one attempt that was not answered the next ones fail at once, for a second.
    """
    hung_until = 0.0

    @event.listens_for(engine, "do_connect")
    def on_do_connect(dialect: Any, record: Any, arguments: Any, parameters: Any) -> Any:
        nonlocal hung_until
        if time.monotonic() < hung_until:
            raise psycopg.errors.ConnectionTimeout("the database did not answer a moment ago")
        try:
            return dialect.connect(*arguments, **parameters)
        except psycopg.errors.ConnectionTimeout:
            hung_until = time.monotonic() + RETRY_SECONDS
            raise

    @event.listens_for(engine, "connect")
    def on_connect(dbapi_connection: Any, record: Any) -> None:
        dbapi_connection.adapters.register_dumper(list, ListBinaryDumper)
        arrays.register(dbapi_connection)
        record.info["is_new"] = True

    @event.listens_for(engine, "checkout")
    def on_checkout(dbapi_connection: Any, record: Any, proxy: Any) -> None:
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
        record.info["used_at"] = time.monotonic()


@contextmanager
def connection() -> Iterator[Connection]:
    """A connection in a transaction, which is committed at the end of the block, or rolled back when it raises.

    Raises OutcomeUnknown when it is lost on the way.
    """
    conn = _taken(engine().connect)
    with translated(OutcomeUnknown), conn, conn.begin():
        yield conn


def _taken(take: Callable[[], T]) -> T:
    """A connection of a pool; where one more is refused, the process gives up its idle ones.

    Where all processes together may have fewer than they would like, each would otherwise keep idle ones of one
    engine, wait for one of the other, and so hold up everybody for good.
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
Row = RowMapping | Mapping[str, Any]  # SQLAlchemy's, or the driver's


@contextmanager
def driver() -> Iterator[Driver]:
    """The driver's own connection: every statement is a transaction, unless in its `transaction()`.

    For the run path, where what a toolkit does around a statement costs several times the statement.
    Raises OutcomeUnknown when it is lost on the way.
    """
    if _quick is None:
        raise RuntimeError("shared.infra.postgres.connect() has not been called")
    pooled = _taken(_quick.raw_connection)
    with translated(OutcomeUnknown):
        connection: Any = pooled.driver_connection
        try:
            yield connection
        finally:
            if connection.info.transaction_status != TransactionStatus.IDLE:
                pooled.invalidate()  # left in the middle of something
            pooled.close()


def query(conn: Connection | Driver, statement: str, parameters: dict[str, Any]) -> Rows:
    """Run a statement on the driver itself, in whatever transaction `conn` is.

    The statement names its parameters `%(name)s` and is prepared after its second use; rows are dicts.
    """
    own: Any = conn.connection.driver_connection if isinstance(conn, Connection) else conn
    return own.cursor(row_factory=dict_row).execute(statement, parameters)


@contextmanager
def translated(lost: type[Unavailable] = Unavailable) -> Iterator[None]:
    """Turn "not now" into Unavailable: the database is not there, or the whole transaction is to be tried again.

    `lost`: what to raise when it may have been there a moment ago.
    """
    try:
        yield
    except DATABASE_TROUBLE as error:
        reason = _why_not_now(error)
        if reason is not None:
            raise (lost if reason == GONE else Unavailable)(reason) from error
        raise


DATABASE_TROUBLE = (
    exc.OperationalError,
    exc.InterfaceError,
    exc.InternalError,
    exc.TimeoutError,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.InternalError,
)
GONE = "The database is unavailable."
READ_ONLY = "25006"  # an internal error to the driver
IDLE = "25P03"  # this process was frozen in the middle of a transaction
CANCELED = "57014"  # a statement that took longer than it may
IN_THE_WAY = ("40001", "40P01", "55P03")  # serialization, deadlock, a lock not got in time


def _why_not_now(error: Exception) -> str | None:
    """What is to be said of trouble that passes; None of what would come again."""
    if isinstance(error, exc.TimeoutError):
        return GONE
    state = getattr(getattr(error, "orig", error), "sqlstate", None)
    if state in IN_THE_WAY:
        return "Another transaction was in the way."
    if state == CANCELED:
        return "The database took too long."
    # None: never reached the server. 08: connection, 53: resources, 57P: shutdown
    is_gone = state is None or state[:2] in ("08", "53") or state[:3] == "57P" or state in (READ_ONLY, IDLE)
    return GONE if is_gone else None
