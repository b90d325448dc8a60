"""`runyard traffic`, `promote`, `abort`, `previews`: split new runs over revisions, end a split, manage previews."""

from __future__ import annotations

import re
from typing import Any

from rich.text import Text
from typer import Argument, Option

from cli.client.client import Client
from cli.client.names import revision_style, version
from cli.commands import command
from cli.deployments.deployments import traffic_text
from cli.deployments.project import name_here
from cli.deployments.revisions import Revision, find_revision, resolve_revision
from cli.deployments.target import Name, find_by_name, find_preview, resolve_deployment
from cli.errors import BadUsage, CommandFailed
from cli.output import Column, Output, when

WHOLE = 100
SHARE = re.compile(r"(?P<revision>[^=]+)=(?P<percent>\d{1,3})%?")


@command
def traffic(
    client: Client,
    out: Output,
    name: Name = None,
    shares: list[str] | None = Argument(
        None,
        help="Revisions and their percentages, v4=10. The active revision gets the rest.",
        metavar="REVISION=PERCENT…",
    ),
    require_replay: bool = Option(
        False, "--require-replay", help="Refuse unless the newest judged replay of each new revision passed."
    ),
) -> None:
    """Show how new runs are split over revisions, or change the split: `runyard traffic chat v4=10`.

    A thread keeps its revision as long as the percentages allow it. `promote`, `abort` and the next deploy end a split.
    """
    if name is not None and "=" in name:
        name, shares = None, [name, *(shares or [])]
    deployment = resolve_deployment(client, name)
    if require_replay and not shares:
        raise BadUsage("--require-replay belongs to a change of the split.")
    if shares:
        required = {"traffic_requires_replay": True} if require_replay else {}
        split = _parse(client, deployment, shares)
        deployment = client.change(deployment["id"], {"traffic": split, **required})
    _show(deployment, out)


def _parse(client: Client, deployment: dict[str, Any], shares: list[str]) -> list[dict[str, Any]]:
    percents: dict[str, int] = {}
    for share in shares:
        match = SHARE.fullmatch(share)
        if match is None:
            raise BadUsage(f"{share!r} is not a revision and its percentage, as v4=10 is.")
        revision_id = find_revision(client, deployment, match["revision"])["id"]
        if revision_id in percents:
            raise BadUsage(f"{match['revision']} is named twice.")
        percents[revision_id] = int(match["percent"])
    rest, active_id = WHOLE - sum(percents.values()), deployment.get("active_revision_id")
    if rest > 0 and active_id and active_id not in percents:
        percents[active_id] = rest
    return [{"revision_id": id, "percent": percent} for id, percent in percents.items()]


@command
def promote(
    client: Client,
    out: Output,
    name: Name = None,
    revision: Revision = None,
    preview: str | None = Option(None, help="Promote the revision of this preview.", metavar="NAME"),
    require_replay: bool = Option(
        False, "--require-replay", help="Refuse unless the newest judged replay of the revision passed."
    ),
) -> None:
    """Send all new runs to one deployed revision. Default: the other revision of a split between two.

    Nothing is built. A runner starts a process of the revision before it gets runs, so no run waits for a start.
    """
    deployment, revision = resolve_revision(client, name, revision)
    if revision and preview:
        raise BadUsage("A revision and --preview name two things to promote: give one.")
    revision_id = _revision_to_promote(client, deployment, revision, preview)
    path = f"/v2/deployments/{deployment['id']}/traffic/promote"
    body = {"revision_id": revision_id, **({"require_replay": True} if require_replay else {})}
    _show(client.send("POST", path, body, repeat=True), out)


def _revision_to_promote(
    client: Client, deployment: dict[str, Any], revision: str | None, preview: str | None
) -> str:
    if revision:
        return str(find_revision(client, deployment, revision)["id"])
    if preview:
        revision_id = find_preview(client, deployment, preview)["revision_id"]
        if not revision_id:
            raise CommandFailed(f"The preview {preview!r} shows no revision yet.")
        return str(revision_id)
    active_id = deployment.get("active_revision_id")
    others = [share for share in deployment.get("traffic") or [] if share["revision_id"] != active_id]
    if len(others) != 1:
        raise BadUsage("Name the revision to promote: the traffic is not split between two.")
    return str(others[0]["revision_id"])


@command
def abort(client: Client, out: Output, name: Name = None) -> None:
    """End a split: the active revision gets all new runs again."""
    deployment = resolve_deployment(client, name)
    _show(client.send("POST", f"/v2/deployments/{deployment['id']}/traffic/abort", repeat=True), out)


@command
def previews(
    client: Client,
    out: Output,
    name: Name = None,
    delete: str | None = Option(None, help="Delete this preview and its address.", metavar="PREVIEW"),
    if_exists: bool = Option(
        False, "--if-exists", help="With --delete: succeed if the preview or the deployment does not exist."
    ),
) -> None:
    """List the previews of a deployment, or delete one. `runyard deploy --preview` creates them."""
    if if_exists and delete is None:
        raise BadUsage("--if-exists belongs to --delete.")
    if delete is not None:
        deleted = _delete_preview(client, name, delete, if_exists=if_exists)
        sentence = f"Deleted {delete}." if deleted else f"There is no preview {delete}."
        out.done(sentence, {"preview": delete, "deleted": deleted})
        return
    deployment = resolve_deployment(client, name)
    empty = f"{deployment['name']} has no previews. `runyard deploy --preview NAME` makes one."
    out.rows(client.previews(deployment["id"]), PREVIEWS, empty=empty)


PREVIEWS = (
    Column("Preview", lambda row: row["name"]),
    Column("Revision", lambda row: version(row["revision_number"])),
    Column("Newest", lambda row: _status(row.get("latest_revision_status") or "-")),
    Column("Changed", lambda row: when(row["updated_at"])),
    Column("Address", lambda row: row["url"], folds=True),
)


def _status(status: str) -> Text:
    return Text(status, revision_style(status))


def _delete_preview(client: Client, name: str | None, preview: str, *, if_exists: bool) -> bool:
    """Delete a preview. With `if_exists`, return False if the preview or the deployment does not exist."""
    if not if_exists:
        deployment = resolve_deployment(client, name)
        find_preview(client, deployment, preview)
    else:
        deployment = find_by_name(client, name or name_here())
        if deployment is None or all(row["name"] != preview for row in client.previews(deployment["id"])):
            return False
    client.send("DELETE", f"/v2/deployments/{deployment['id']}/previews/{preview}", repeat=True)
    return True


def _show(deployment: dict[str, Any], out: Output) -> None:
    names = ("id", "name", "active_revision_id", "active_revision_number", "traffic")
    sentence = f"{deployment['name']}: {traffic_text(deployment) or 'no revision serves yet'}"
    out.done(sentence, {name: deployment.get(name) for name in names})
