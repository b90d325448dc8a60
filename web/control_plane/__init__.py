"""The control plane, under `/v2` and `/v1/projects`: what manages deployments, revisions and their logs."""

from __future__ import annotations

from flask import Blueprint

bp = Blueprint("control_plane", __name__)
