"""The parts of the gate that need neither a database nor a caller."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from flask import Flask

from shared.settings import Settings
from web.gate.addresses import AT_ROOT, client_network, locate
from web.gate.credentials import Credentials, is_platform_key, without_keys
from web.gate.routing import below_prefix

KEY = "ryd_12345678_" + "A" * 43
SETTINGS = replace(Settings.from_env({"RUNYARD_API_KEY": "an-operator-key"}), proxy_addresses=("10.0.0.0/8",))


def test_a_path_below_a_mount_prefix() -> None:
    rows: list[tuple[str, str, str | None]] = [
        ("", "/threads", "/threads"),
        ("/pre", "/pre/threads", "/threads"),
        ("/pre", "/pre", "/"),
        ("/pre", "/pre/", "/"),
        ("/pre", "/prefix", None),
        ("/pre", "/threads", None),
        ("/pre", "/ok", "/ok"),
        ("/pre", "/pre/ok", "/ok"),
    ]
    for prefix, path, expected in rows:
        assert below_prefix(prefix, path) == expected, (prefix, path)


def test_the_address_of_a_request() -> None:
    rows: list[tuple[str, dict[str, Any], tuple[str | None, str, str, bool, bool]]] = [
        ("/d/chat/threads/x", {}, ("chat", "/threads/x", "/d/chat", False, False)),
        ("/d/chat", {}, ("chat", "/", "/d/chat", False, False)),
        ("/d/chat/threads", {AT_ROOT: True}, ("chat", "/threads", "", False, True)),
        ("/d/chat/ws", {"HTTP_UPGRADE": "WebSocket"}, ("chat", "/ws", "/d/chat", True, False)),
        ("/d/chat/ws", {"HTTP_UPGRADE": "h2c"}, ("chat", "/ws", "/d/chat", False, False)),
        ("/d/chat/x", {"SCRIPT_NAME": "/proxy"}, ("chat", "/x", "/proxy/d/chat", False, False)),
        ("/v2/deployments", {}, (None, "/v2/deployments", "", False, False)),
    ]
    for path, environ, expected in rows:
        with Flask("test").test_request_context(path, environ_overrides=environ):
            address = locate()
        found = address.name, address.path, address.root_path, address.is_websocket, address.is_at_root
        assert found == expected, path


def test_a_client_behind_a_proxy_is_known_by_what_a_trusted_proxy_says() -> None:
    rows = [
        ("1.2.3.4", None, "1.2.3.4"),
        ("1.2.3.4", "5.6.7.8", "1.2.3.4"),
        ("10.0.0.1", "9.9.9.9, 5.6.7.8", "5.6.7.8"),
        ("10.0.0.1", "nonsense", "10.0.0.1"),
        ("2001:db8:1:2:3::4", None, "2001:db8:1:2::/64"),
        ("10.0.0.1", "2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
    ]
    for peer, forwarded, expected in rows:
        headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
        with Flask("test").test_request_context("/", headers=headers, environ_base={"REMOTE_ADDR": peer}):
            assert client_network(SETTINGS) == expected, (peer, forwarded)


def test_text_that_holds_a_platform_key() -> None:
    for text in (
        KEY,
        f"Bearer {KEY}",
        f"a=1; session={KEY}",
        KEY.replace("_", "%5F"),
        "an-operator-key",
        "ryd_",
    ):
        assert is_platform_key(text, SETTINGS), text
    for text in ("", "Bearer abc", "lsv2_pt_abc", "an-operator", "my-ryd_"):
        assert not is_platform_key(text, SETTINGS), text
    assert without_keys(f"a=1&key={KEY}&b=%20", SETTINGS) == "a=1&b=%20"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"X-Api-Key": " one "}, "one"),
        ({"Authorization": "bearer two"}, "two"),
        ({"X-Api-Key": "one", "Authorization": "Bearer two"}, "one"),
        ({"Authorization": "Basic two"}, None),
    ],
)
def test_the_credential_that_a_request_presents(headers: dict[str, str], expected: str | None) -> None:
    with Flask("test").test_request_context("/", headers=headers):
        assert Credentials(SETTINGS, is_for_deployment=True).presented_key == expected
