"""A certificate authority for tests, and a server certificate that it signs."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID = timedelta(days=30)  # before and after now, because machines' clocks differ


def make(folder: Path, address: str) -> tuple[Path, ssl.SSLContext]:
    """Create an authority and a server certificate. Returns the authority's file and the server's TLS context."""
    key = ec.generate_private_key(ec.SECP256R1())
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _signed(
        "the test's authority", authority_key, "the test's authority", authority_key, is_authority=True
    )
    server = _signed(address, key, "the test's authority", authority_key, address=address)
    trusted, chain = folder / "ca.pem", folder / "server.pem"
    trusted.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    chain.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + server.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain)
    return trusted, context


def _signed(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    address: str | None = None,
    is_authority: bool = False,
) -> x509.Certificate:
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
    )
    if is_authority:
        made = made.add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
    if address is not None:
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
        made = made.add_extension(names, critical=False)
    return made.sign(issuer_key, hashes.SHA256())


def _usage(**allowed: bool) -> x509.KeyUsage:
    uses = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{use: allowed.get(use, False) for use in uses})


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
