"""Outgoing calls to servers whose URLs users supply: token endpoints, discovery, sources, webhooks.

A host name is resolved once. If any of its addresses belongs to this machine, a private network or a cloud's metadata
service, the call is refused. The connection goes to a checked address while TLS and the Host header keep the name, so a
second DNS answer changes nothing. There are no redirects and no proxies. The whole call has a deadline and the response
a maximum size. Callers of the platform never see the response's text.

Operators allow further addresses (an intranet) in RUNYARD_ALLOWED_ADDRESSES, and plain http with RUNYARD_ALLOW_HTTP.
The module uses httpcore2, the engine of httpx2, because it accepts a custom network backend.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

import httpcore2
import httpx2
import orjson

from shared.errors import AddressRefused, OutsideFailed
from shared.setting_values import BadSetting

TIMEOUT_SECONDS = 10.0
MAX_ANSWER_BYTES = 1024 * 1024
MAX_URL_LENGTH = 2048
PORTS = frozenset({80, 443})
FIRST_UNPRIVILEGED_PORT = 1024
HIDDEN = "…"  # in place of a hidden part of a URL
DEFAULT_PORTS = {"http": 80, "https": 443}

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# All special-purpose networks of IANA, and public addresses that clouds reserve for their guests.
REFUSED_NETWORKS: tuple[Network, ...] = tuple(
    map(
        ip_network,
        """
        0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
        192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24
        224.0.0.0/4 240.0.0.0/4 168.63.129.16/32 2001::/23 2001:db8::/32 3fff::/20
        """.split(),
    )
)
GLOBAL_UNICAST = IPv6Network("2000::/3")  # all public addresses of IPv6 are in it
# IPv6 networks that embed an IPv4 address (mapped, translated, NAT64, 6to4), and the number of bits after that address.
EMBEDDING = (
    (IPv6Network("::ffff:0:0/96"), 0),
    (IPv6Network("::ffff:0:0:0/96"), 0),
    (IPv6Network("64:ff9b::/96"), 0),
    (IPv6Network("2002::/16"), 80),
)


@dataclass(frozen=True)
class Policy:
    """The operator's exceptions to the rule "https to public addresses only"."""

    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = frozenset()
    allow_http: bool = False

    def allows(self, host: str, address: Address) -> bool:
        return host in self.hosts or any(address in network for network in self.networks)


_policy = Policy()


def configure(allowed: Sequence[str] = (), *, allow_http: bool = False) -> None:
    """Set the operator's exceptions: networks, addresses and host names. Raises BadSetting."""
    global _policy
    networks, hosts = [], set()
    for text in allowed:
        try:
            networks.append(ip_network(text, strict=False))
        except ValueError as error:
            if "/" in text or not text.isascii():
                raise BadSetting(
                    f"RUNYARD_ALLOWED_ADDRESSES must hold networks, addresses and host names, not {text!r}"
                ) from error
            hosts.add(_plain(text))
    _policy = Policy(tuple(networks), frozenset(hosts), allow_http)


def allows_http() -> bool:
    """Whether URLs may use http://."""
    return _policy.allow_http


def allows_loopback() -> bool:
    """Whether the operator allows calls to this machine."""
    return any(_policy.allows("localhost", ip_address(loopback)) for loopback in ("127.0.0.1", "::1"))


@dataclass(frozen=True)
class OutsideResponse:
    """The response of a server."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """Return the body parsed as JSON, or None if it is not JSON."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None


def check_url(text: str) -> None:
    """Raise AddressRefused for a URL that can be rejected without DNS."""
    _check_name(_parse(text).host)


def check_browser_url(text: str) -> None:
    """Raise AddressRefused for an invalid URL that only the user's browser opens. Any host is allowed."""
    _parse(text)


def shown_url(url: str) -> str:
    """Return the URL without its possibly secret parts: the user info and the values of the query."""
    parts = urlsplit(url)
    query = "&".join(f"{quote(name)}={HIDDEN}" for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, ""))


def check_host(host: str, port: int) -> list[str]:
    """Return the addresses of a host if all of them may be called. Raises AddressRefused, OutsideFailed."""
    _check_port(port)
    return [str(address) for address in _resolve(_plain(host), port, time.monotonic() + TIMEOUT_SECONDS)]


def request(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | str = b"",
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> OutsideResponse:
    """Call a server. Any status is a response, including a redirect, which is not followed.

    Raises AddressRefused. Raises OutsideFailed if the server is unreachable, too slow, or sends too much.
    """
    target = _parse(url)
    _check_name(target.host)
    content = (body.encode() if isinstance(body, str) else body) or None
    sent = {
        "Host": target.netloc.decode("ascii"),
        "User-Agent": "runyard",
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Connection": "close",
        **(headers or {}),
    }
    deadline = time.monotonic() + timeout_seconds
    pool = httpcore2.ConnectionPool(
        ssl_context=_tls(), max_connections=1, retries=0, network_backend=_Guard(deadline)
    )
    request_url = httpcore2.URL(
        scheme=target.raw_scheme, host=target.raw_host, port=target.port, target=target.raw_path
    )
    try:
        with pool, pool.stream(method, request_url, headers=list(sent.items()), content=content) as response:
            return OutsideResponse(
                response.status,
                {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers},
                _bounded(response.iter_stream(), target.host),
            )
    except (httpcore2.TimeoutException, TimeoutError) as error:
        raise OutsideFailed(f"{target.host} did not answer within {timeout_seconds:g} s") from error
    except httpcore2.ConnectError as error:
        raise OutsideFailed(f"{target.host} cannot be reached") from error
    except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
        raise OutsideFailed(f"{target.host} did not answer with HTTP") from error


def _bounded(chunks: Iterable[bytes], host: str) -> bytes:
    body = bytearray()
    for chunk in chunks:
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise OutsideFailed(f"{host} answered with more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


@cache
def _tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context()


class _Guard(httpcore2.NetworkBackend):
    """Connects only to checked addresses, and applies the call's deadline to all operations."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._backend = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore2.NetworkStream:
        addresses = _resolve(_plain(host), port, self._deadline)
        for position, address in enumerate(addresses, start=1):
            try:
                stream = self._backend.connect_tcp(
                    str(address), port, timeout=_seconds_left(self._deadline), socket_options=socket_options
                )
            except httpcore2.ConnectError:
                if position == len(addresses):
                    raise
            else:
                return _Stream(stream, self._deadline)
        raise httpcore2.ConnectError("no address")

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Any = None
    ) -> httpcore2.NetworkStream:
        raise AddressRefused()


class _Stream(httpcore2.NetworkStream):
    """A connection whose operations all share the call's deadline."""

    def __init__(self, stream: httpcore2.NetworkStream, deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _seconds_left(self._deadline))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _seconds_left(self._deadline))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        secured = self._stream.start_tls(ssl_context, server_hostname, _seconds_left(self._deadline))
        return _Stream(secured, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _seconds_left(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _parse(text: str) -> httpx2.URL:
    """Parse a URL that may be called. Raises AddressRefused."""
    try:
        url = httpx2.URL(text)
        host = url.raw_host.decode("ascii")
    except (httpx2.InvalidURL, UnicodeError) as error:
        raise AddressRefused("must be a valid URL") from error
    if len(text) > MAX_URL_LENGTH or any(char <= " " or char == "\\" for char in text):
        raise AddressRefused("must be a valid URL")
    if url.scheme != "https" and not (url.scheme == "http" and _policy.allow_http):
        schemes = "http:// or https://" if _policy.allow_http else "https://"
        raise AddressRefused(f"must be a URL that begins with {schemes}")
    if not _plain(host):
        raise AddressRefused("must be a URL with a host")
    if url.userinfo or url.fragment:
        raise AddressRefused("must be a URL without user name, password and fragment")
    _check_port(DEFAULT_PORTS[url.scheme] if url.port is None else url.port)
    return url


def _check_port(port: int) -> None:
    if port not in PORTS and not FIRST_UNPRIVILEGED_PORT <= port <= 65535:
        raise AddressRefused(f"{port} is not a port this service may call: 80, 443 or from 1024 on")


def _plain(host: str) -> str:
    """Normalize a host name for comparison."""
    return host.strip("[]").rstrip(".").lower()


def literal_address(host: str) -> Address | None:
    """Return the address if the host is one, in any form that resolvers accept (`0x7f.1`, `2130706433`), else None."""
    plain = _plain(host)
    try:
        return ip_address(plain)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(plain))
    except (OSError, UnicodeError):
        return None


def is_localhost(host: str) -> bool:
    """Whether the host is a name of this machine."""
    return f".{_plain(host)}".endswith(".localhost")


def _check_name(host: str) -> None:
    """Refuse a host name that is a forbidden address in any form, or a name of this machine."""
    address = literal_address(host)
    if address is None and is_localhost(host):
        address = IPv4Address("127.0.0.1")
    if address is not None:
        _check_address(host, address)


def _resolve(host: str, port: int, deadline: float) -> list[Address]:
    """Return a host's addresses if all of them may be called. Raises AddressRefused, OutsideFailed."""
    addresses = list(dict.fromkeys(_look_up(host, port, deadline)))
    if not addresses:
        raise OutsideFailed(f"{host} has no address")
    for address in addresses:
        _check_address(host, address)
    return addresses


def _look_up(host: str, port: int, deadline: float) -> list[Address]:
    """Resolve a host on a separate thread, because the resolver has no deadline. Raises OutsideFailed, TimeoutError."""
    addresses: list[Address] = []
    failure: list[OSError | UnicodeError] = []

    def look_up() -> None:
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses.extend(ip_address(answer[4][0]) for answer in answers)
        except (OSError, UnicodeError) as error:
            failure.append(error)

    thread = threading.Thread(target=look_up, name="resolve", daemon=True)
    thread.start()
    thread.join(_seconds_left(deadline))
    if failure:
        raise OutsideFailed(f"{host} has no address") from failure[0]
    if thread.is_alive():
        raise TimeoutError
    return addresses


def _check_address(host: str, address: Address) -> None:
    if _policy.allows(_plain(host), address):
        return
    if is_refused(address):
        # the error omits the address: an internal DNS answer may be confidential
        raise AddressRefused(f"{host} is not an address this service may call")


def is_refused(address: Address) -> bool:
    """Whether only an exception of the operator allows calls to this address."""
    if isinstance(address, IPv6Address):
        for network, shift in EMBEDDING:
            if address in network:
                return is_refused(IPv4Address((int(address) >> shift) & 0xFFFFFFFF))
        if address not in GLOBAL_UNICAST:
            return True
    return any(address in network for network in REFUSED_NETWORKS)
