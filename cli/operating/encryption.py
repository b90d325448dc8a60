"""`runyard encryption`: change the key that encrypts secrets, on the service's machine."""

from __future__ import annotations

from collections import Counter

import typer

from cli import KEPT_URL
from cli.commands import Yes, command, new_app, settings
from cli.errors import CommandFailed
from cli.machine import embedded
from cli.output import Output
from shared.settings import Settings

app = new_app("Create, list and rotate the keys that encrypt secrets.")


@app.command("new-key")
@command(needs_server=True)
def new_key() -> None:
    """Create an encryption key, first in secret.key; with RUNYARD_ENCRYPTION_KEYS it is printed."""
    from cli.machine import local  # imports the whole database layer, which few commands need
    from shared.infra import encryption  # imports cryptography, which only the extra `server` installs

    environment = settings()
    if environment.encryption_keys or not embedded.key_file(environment.data_dir).is_file():
        typer.echo(encryption.new_key())
        typer.echo(
            "Put it at the end of RUNYARD_ENCRYPTION_KEYS of every process and restart them; then at the"
            " beginning, and restart them again; then call `runyard encryption rotate`.",
            err=True,
        )
        return
    path = local.keep_keys(environment, [encryption.new_key(), *local.encryption_keys(environment)])
    typer.echo(f"Put a new key first in {path}. Restart `runyard up`, then call `runyard encryption rotate`.")


@app.command("list")
@command(needs_server=True)
def list_keys(out: Output) -> None:
    """List the fingerprints of the encryption keys, as backups name them. The first key encrypts."""
    from cli.backups.keys import fingerprint  # imports the whole database layer, which few commands need
    from cli.machine import local  # imports the whole database layer, which few commands need

    fingerprints = [fingerprint(key) for key in local.encryption_keys(settings())]
    out.done("\n".join(fingerprints), fingerprints)


@app.command("rotate")
@command(needs_server=True)
def rotate(out: Output, yes: Yes = False) -> None:
    """Encrypt every stored secret with the first key, so that the other keys can be removed.

    The service may run meanwhile. If the command is interrupted, call it again. Exit code 1: secrets with other keys are
    left.
    """
    from cli.machine import local  # imports the whole database layer, which few commands need

    environment = settings()
    _require_known(environment, yes=yes or out.as_json)

    def print_counts(column: str, counts: Counter[str]) -> None:
        if counts and not out.as_json:
            typer.echo(f"{column}: {_describe(counts)}")

    totals = local.rotate(environment, print_counts)
    second_pass = local.rotate(environment)  # values written with an older key during the first pass
    if out.as_json:
        out.json({name: totals[name] for name in ("rotated", "current", "unreadable")})
    if second_pass["rotated"] or second_pass["changed"]:
        raise CommandFailed(
            "While this ran, something was written with an older key: a process of the service does not have"
            " the new one first. Restart it, and call this again."
        )
    if totals["unreadable"]:
        raise CommandFailed(
            f"{totals['unreadable']} values cannot be read with any of the keys. Is a key missing?"
        )
    if not out.as_json:
        typer.echo(
            f"Done: {_describe(totals) or 'nothing is stored'}. The older keys are not needed any longer."
        )


def _describe(counts: Counter[str]) -> str:
    words = {
        "rotated": "encrypted anew",
        "current": "as it should be",
        "unreadable": "unreadable",
        "changed": "changed",
    }
    return ", ".join(f"{counts[name]} {word}" for name, word in words.items() if counts[name])


def _require_known(environment: Settings, *, yes: bool) -> None:
    """Check that every process has the new key. A process without it could not read rotated secrets.

    With RUNYARD_ENCRYPTION_KEYS, the user confirms it. With secret.key, raises CommandFailed if the service started
    before the file changed.
    """
    if environment.encryption_keys:
        if not yes:
            typer.confirm("Has every process been restarted with the new key first?", abort=True, err=True)
        return
    from cli.machine import local  # imports the whole database layer, which few commands need

    path = embedded.key_file(environment.data_dir)
    started = environment.data_dir / KEPT_URL  # written when the service has come up
    local.encryption_keys(environment)
    if started.exists() and started.stat().st_mtime < path.stat().st_mtime:
        raise CommandFailed(
            f"The service was started before the newest key came into {path}. Restart it first."
        )
