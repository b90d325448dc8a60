"""Which addresses a webhook may name: the operator's and the project's rules."""

from __future__ import annotations

from typing import Any

import pytest

from shared.errors import Invalid
from shared.runs import webhooks


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "Invalid webhook hostname ''"),
        ("/relative", "Invalid webhook hostname ''"),
        ("https://", "Invalid webhook hostname ''"),
        ("https:///path", "Invalid webhook hostname ''"),
        ("mailto:a@example.com", "Invalid webhook hostname ''"),
        ("https://exa\0mple.com/", "Invalid webhook URL"),
        ("https://[::1", "Invalid webhook URL"),
        ("http://example.com/", "Webhook must use https"),
        ("ftp://example.com/", "Webhook must use https"),
        ("https://localhost/", "Webhook host blocked: localhost address"),
        ("https://a.LOCALHOST./", "Webhook host blocked: localhost address"),
        ("https://127.0.0.1/", "Webhook host blocked: loopback IP range"),
        ("https://2130706433/", "Webhook host blocked: loopback IP range"),
        ("https://[::1]:8443/", "Webhook host blocked: loopback IP range"),
        ("https://[::ffff:127.0.0.1]/", "Webhook host blocked: loopback IP range"),
        ("https://10.0.0.1/", "Webhook host blocked: private or reserved IP range"),
        ("https://169.254.169.254/", "Webhook host blocked: private or reserved IP range"),
        ("https://nowhere.invalid/", "Webhook host blocked: DNS resolution failed"),
        ("https://me:secret@example.com/", "Webhook must be a URL without user name, password and fragment"),
        ("https://example.com:22/", "Webhook host blocked: 22 is not a port this service may call"),
        ("https://example.com/" + "a" * 3000, "Webhook must be a valid URL"),
    ],
)
def test_an_address_that_may_not_be_called_is_refused(url: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        webhooks.check(url, {})
    assert caught.value.message.startswith(message)
    assert "secret" not in caught.value.message


def own(path: str) -> str:
    return webhooks.own_url("http://127.0.0.1:8080/", "chat", path)


LOOPS = {"disable_loopback": False}


def test_a_path_is_the_deployments_own_where_project_and_operator_allow_it(lenient: None) -> None:
    assert own("/hook?x=1") == "http://127.0.0.1:8080/d/chat/hook?x=1"
    webhooks.check("/hook?x=1", LOOPS, own=own)
    webhooks.check("/hook", {**LOOPS, "allowed_domains": ["a.example"], "allowed_ports": [443]}, own=own)
    for rules in ({}, {"disable_loopback": True}):
        with pytest.raises(Invalid, match="Invalid webhook hostname ''"):
            webhooks.check("/hook", rules, own=own)


def test_a_path_is_not_called_where_only_the_project_allows_it() -> None:
    with pytest.raises(Invalid, match="Webhook must use https"):
        webhooks.check("/hook", LOOPS, own=own)


STEPS = ["/..", "/../../v2/keys", "/a/%2e%2E/b", "/.%2e/x", "/a%2f..%2fb", "/a\\..\\b", "/./x"]


@pytest.mark.parametrize("path", STEPS)
def test_a_path_stays_in_its_deployment(lenient: None, path: str) -> None:
    with pytest.raises(Invalid, match="Webhook path must not"):
        webhooks.check(path, LOOPS, own=own)


def test_what_the_operator_allows_may_be_named(lenient: None) -> None:
    webhooks.check("http://127.0.0.1:8080/hook", {})
    with pytest.raises(Invalid, match="private or reserved"):
        webhooks.check("http://10.0.0.1/hook", {})


@pytest.mark.parametrize(
    ("rules", "url", "message"),
    [
        ({"require_https": True}, "http://127.0.0.1:8080/", "must use https"),
        ({"allowed_ports": [80]}, "http://127.0.0.1:8080/", "port 8080 is not allowed"),
        ({"allowed_ports": [8080]}, "http://127.0.0.1/", "port 80 is not allowed"),
        ({"max_url_length": 20}, "http://127.0.0.1:8080/", "longer than 20 characters"),
        ({"allowed_domains": ["a.example"]}, "http://127.0.0.1:8080/", "host '127.0.0.1' is not allowed"),
        ({"allowed_domains": ["*.a.example"]}, "http://a.example/", "host 'a.example' is not allowed"),
        ({"allowed_domains": ["*.a.example"]}, "http://evil-a.example/", "is not allowed"),
        ({"allowed_domains": ["*.a.example"]}, "http://x.a.example/", "DNS resolution failed"),
        ({"allowed_domains": ["b", "127.0.0.1"], "allowed_ports": [8080]}, "http://127.0.0.1:8080/", None),
    ],
)
def test_a_project_has_rules_of_its_own(lenient: None, rules: Any, url: str, message: str | None) -> None:
    if message is None:
        webhooks.check(url, rules)
        return
    with pytest.raises(Invalid, match=message):
        webhooks.check(url, rules)
