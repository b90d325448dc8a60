"""TLS to PostgreSQL and Redis: every client applies the certificate settings of the URLs."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError
from sqlalchemy import Engine, make_url

from shared.errors import Unavailable
from shared.infra import broker, postgres, redis_connections
from shared.infra import redis as shared_redis
from tests.support.backups import Service, text_of
from tests.support.machines import certificates
from tests.support.machines.network import HOST, Network, PostgresTlsEnd, TlsEnd
from workers import celery_app


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.close()


@pytest.fixture(scope="module")
def presented(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """The authority's certificate file, and the TLS context of the servers."""
    return certificates.make(tmp_path_factory.mktemp("trusted"), HOST)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificate file of an authority that signed no server here."""
    return certificates.make(tmp_path_factory.mktemp("stranger"), HOST)[0]


@pytest.fixture(scope="module")
def redis_at(network: Network, presented: tuple[Path, ssl.SSLContext], redis_url: str) -> str:
    server = urlsplit(redis_url)
    end = TlsEnd(network, Path(server.path), presented[1])
    return f"rediss://:{server.password}@{HOST}:{end.port}/0?ssl_cert_reqs=required&ssl_ca_certs="


@pytest.fixture(scope="module")
def database_at(network: Network, presented: tuple[Path, ssl.SSLContext], database: str) -> str:
    url = make_url(database)
    folder = Path(str(url.query["host"]))
    end = PostgresTlsEnd(network, folder / ".s.PGSQL.5432", presented[1])
    return f"postgresql://{url.username}@{HOST}:{end.port}/{url.database}?sslmode=verify-full&sslrootcert="


def use_client(address: str) -> None:
    with shared_redis.make_client(address) as client:
        assert client.ping()


def subscribe(address: str) -> None:
    with shared_redis.make_client(address) as client:
        connection = redis_connections._connect(client)
        connection.send_command("SUBSCRIBE", "channel")
        assert connection.read_response()[0] == b"subscribe"
        connection.disconnect()


def notify(address: str) -> None:
    app = celery_app.configure(address, app=Celery("producer"))
    with app.connection_for_write() as connection:
        app.send_task(broker.SWEEP, queue="tried", connection=connection)
        assert connection.default_channel.client.delete("tried") == 1


@pytest.mark.parametrize("client", [use_client, subscribe, notify])
def test_clients_of_redis_trust_the_authority_they_were_given(
    redis_at: str, presented: tuple[Path, ssl.SSLContext], stranger: Path, client: object
) -> None:
    assert callable(client)
    client(redis_at + quote(str(presented[0])))

    with pytest.raises((RedisError, OperationalError)):
        client(redis_at + quote(str(stranger)))


def test_clients_of_postgresql_trust_the_authority_they_were_given(
    database_at: str, presented: tuple[Path, ssl.SSLContext], stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_engine", None)
    monkeypatch.setattr(postgres, "_quick", None)

    postgres.connect(database_at + quote(str(presented[0])))
    with postgres.connection() as conn, postgres.driver() as own:
        assert own.pgconn.ssl_in_use
        assert conn.exec_driver_sql("SELECT 1").scalar() == 1
    dispose()

    postgres.connect(database_at + quote(str(stranger)))
    with pytest.raises(Unavailable), postgres.connection():
        pass
    dispose()


def test_a_backup_is_made_over_tls_without_a_program_of_postgresql(
    db: Engine, database_at: str, presented: tuple[Path, ssl.SSLContext], stranger: Path, tmp_path: Path
) -> None:
    file = tmp_path / "one.backup"

    made = Service(database_at + quote(str(presented[0])), tmp_path).runyard("backup", file, env={"PATH": ""})

    assert made.exit_code == 0, text_of(made)
    assert Service("", tmp_path).runyard("backup", "--check", file).exit_code == 0

    refused = Service(database_at + quote(str(stranger)), tmp_path).runyard(
        "backup", tmp_path / "other.backup"
    )

    assert refused.exit_code == 1
    assert "certificate verify failed" in text_of(refused)
    assert list(tmp_path.glob("*other*")) == []


def dispose() -> None:
    for engine in (postgres._engine, postgres._quick):
        assert engine is not None
        engine.dispose()
