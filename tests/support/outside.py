"""Real servers outside the platform, on loopback ports."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from werkzeug.serving import WSGIRequestHandler, make_server


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def serving(app: Any, *, ssl: Any = None, host: str = "127.0.0.1") -> Iterator[int]:
    """Serve a WSGI app while the block runs, with a thread per request. Yields the port."""
    server = make_server(host, 0, app, threaded=True, request_handler=_Quiet, ssl_context=ssl)
    server.daemon_threads = True  # type: ignore[attr-defined]  a slow answer must not hold up the end
    server.block_on_close = False  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def certified(folder: Path, name: str = "localhost") -> tuple[str, tuple[str, str]]:
    """Create a private authority and a server certificate. Returns the paths `authority, (certificate, key)`."""
    now = datetime.now(UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a private authority")])
    paths = [folder / "authority.pem", folder / "server.pem", folder / "key.pem"]
    for path, key, subject in zip(paths, keys, (issuer, x509.Name([])), strict=False):
        is_authority = subject is issuer
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=not is_authority)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .sign(keys[0], hashes.SHA256())
        )
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[2].write_bytes(
        keys[1].private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return str(paths[0]), (str(paths[1]), str(paths[2]))
