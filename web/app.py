"""The Flask application. `create_app` holds the one list of blueprints and request handlers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flask import Flask
from werkzeug.routing import BaseConverter, Map, Rule

from shared.settings import Settings
from web import control_plane, deployment_api
from web.deployment_api.user_app import proxy
from web.gate import gate
from web.gate.addresses import Addresses
from web.gate.session_cookie import Cookies
from web.http import errors, sse
from web.http.request_bodies import Bodies
from web.http.responses import Orjson
from web.ops import api_document, console, docs, guide, health

DEPLOYMENT_MOUNT = "/d/<deployment>"


# Words with a route of their own at a place where another route has an id.
WORDS_BESIDE_IDS = {
    "/assistants/<assistant_id>": ("count", "search"),
    "/crons/<cron_id>": ("count", "search"),
    "/inbox/<question_id>": ("answer",),
    "/runs/<run_id>": ("crons", "stream", "wait"),
    "/threads/<thread_id>": ("count", "prune", "search"),
    "/tokens/<token_id>": ("exists",),
}


class IdConverter(BaseConverter):
    """An id at the end of a path. Does not match the words that have a route of their own there."""

    part_isolating = True

    def __init__(self, map: Map, words: Sequence[str]) -> None:
        super().__init__(map)
        self.regex = rf"(?!(?:{'|'.join(words)})\Z)[^/]+"


class IdRule(Rule):
    """A route whose id does not match reserved words: `GET /threads/search` is a 405, not an invalid thread id."""

    def get_converter(
        self, variable_name: str, converter_name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> BaseConverter:
        for end, words in WORDS_BESIDE_IDS.items():
            if self.rule.endswith(end) and end.endswith(f"<{variable_name}>"):
                return IdConverter(self.map, words)
        return super().get_converter(variable_name, converter_name, args, kwargs)


class Application(Flask):
    """Flask application whose ids do not match reserved words."""

    url_rule_class = IdRule


def create_app(settings: Settings) -> Flask:
    """Create the web application. The process must connect the database and Redis before the first request."""
    app = Application("runyard", static_folder=None)
    app.config["SETTINGS"] = settings
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.config["MAX_FORM_MEMORY_SIZE"] = 64 * 1024
    app.json = Orjson(app)
    app.url_map.merge_slashes = False
    app.wsgi_app = Cookies(app.wsgi_app)  # type: ignore[method-assign]
    app.wsgi_app = Addresses(app.wsgi_app, settings)  # type: ignore[method-assign]
    app.wsgi_app = sse.StreamOwner(app.wsgi_app)  # type: ignore[method-assign]
    app.wsgi_app = Bodies(  # type: ignore[method-assign]
        app.wsgi_app,
        grace_seconds=settings.body_seconds,
        max_bytes=2 * max(settings.max_archive_bytes, settings.max_body_bytes),
    )

    gate.register(app, serve_app=proxy.serve)
    health.start(app)
    errors.register(app)

    for blueprint in (health.bp, api_document.bp, docs.bp):
        app.register_blueprint(blueprint)
        app.register_blueprint(blueprint, url_prefix=DEPLOYMENT_MOUNT, name=f"deployment_{blueprint.name}")
    app.register_blueprint(console.bp)
    app.register_blueprint(guide.bp)
    app.register_blueprint(control_plane.bp)
    app.register_blueprint(deployment_api.bp, url_prefix=DEPLOYMENT_MOUNT)
    return app
