"""The page that `View status` links of deploy commands lead to: a deployment as somebody with a key sees it.

Why the page is open to everyone: a browser sends no key. What is served here is the same for every address;
the page's script asks for a key once and calls the API with it, so that nothing is shown without one.
"""

from __future__ import annotations

from flask import Blueprint, Response

from web.docs import send_page
from web.operations import operation

bp = Blueprint("console", __name__)

# No script, style or address from elsewhere, and no text that a script could turn into markup.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)


@bp.get("/o/<tenant>/host/deployments/<deployment_id>")
@operation("The console's page of a deployment", role="open")
def get_deployment_page(tenant: str, deployment_id: str) -> Response:
    return send_page("console.html", policy=POLICY)
