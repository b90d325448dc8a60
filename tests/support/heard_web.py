"""The web app with short heartbeats and low limits, for gunicorn: `tests.support.heard_web:app`."""

from __future__ import annotations

from web.wsgi import app  # isort: skip  it patches gevent before all else

from dataclasses import replace

from web.gate import limits

app.config["SETTINGS"] = replace(
    app.config["SETTINGS"],
    heartbeat_seconds=0.5,  # a client may leave 12 pings unanswered
    max_body_bytes=200_000,
    streams_per_key=4,
    requests_per_second=1.0,
    requests_burst=50,
)
limits.start(app)
