"""The web app with heartbeats an hour apart, for gunicorn: `tests.support.quiet_web:app`."""

from __future__ import annotations

from web.wsgi import app  # isort: skip  it patches gevent before all else

from dataclasses import replace

app.config["SETTINGS"] = replace(app.config["SETTINGS"], heartbeat_seconds=3600.0)
