"""Response headers that user code may not set, since its responses share an origin or a proxy with the service's.

User code sets headers in responses of an app and in refusals of an `auth`. Both are checked against these sets.
"""

from __future__ import annotations

# Headers that apply to the whole origin, not to the one response: they would affect the console.
OF_ORIGIN = frozenset(
    {
        "accept-ch", "alt-svc", "clear-site-data", "critical-ch", "nel", "origin-agent-cluster", "public-key-pins",
        "public-key-pins-report-only", "report-to", "reporting-endpoints", "sec-session-challenge",
        "sec-session-registration", "secure-session-challenge", "secure-session-registration",
        "service-worker-allowed", "set-login", "strict-transport-security", "use-as-dictionary",
    }
)  # fmt: skip
# Headers that a proxy in front of the service obeys: it would send a file or page of its own instead.
FOR_PROXIES = frozenset(
    {
        "x-accel-charset", "x-accel-expires", "x-accel-limit-rate", "x-accel-redirect", "x-lighttpd-send-file",
        "x-reproxy-url", "x-sendfile",
    }
)  # fmt: skip
