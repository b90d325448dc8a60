"""`runyard backup` and `runyard restore`: save and restore the service's database, from a machine that can connect.

Functions import the modules of the database layer, which other commands of the same program do without.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.commands import Yes, command, settings
from cli.errors import CommandFailed
from cli.output import Output

PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        help="File with a passphrase that seals the encryption keys into the backup.",
        metavar="FILE",
        show_default=False,
    ),
]


@command(needs_server=True)
def backup(
    out: Output,
    target: Annotated[
        Path,
        typer.Argument(help="File to write, or directory for a file named after the time.", metavar="FILE"),
    ] = Path(),
    passphrase_file: PassphraseFile = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Read this backup and check that it can be restored; write nothing."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a backup of the service's database, as of one moment, while the service runs.

    The backup holds deployments with their archives, threads, runs, stores, crons, API keys, OAuth clients and secrets.
    Secrets stay encrypted: keep the keys elsewhere, or seal them into the backup with --passphrase-file.
    """
    if check:
        _check(target, passphrase_file, out)
    else:
        _make(target, passphrase_file, out, force=force)


def _make(target: Path, passphrase_file: Path | None, out: Output, *, force: bool) -> None:
    from cli.backups import contents, database, keys, making
    from cli.machine import local  # imports the whole database layer, which few commands need

    service = settings()
    encryption_keys = local.encryption_keys(service)
    passphrase = keys.passphrase(passphrase_file)
    with database.service_url(service) as url:
        path, manifest = making.make(url, target, encryption_keys, passphrase=passphrase, replace=force)
    if out.as_json:
        out.json({"path": str(path), **_shown(manifest)})
        return
    typer.echo(f"{path}: {contents.describe(contents.counts(manifest['tables']))} ({_size(path)}).")
    if manifest["unreadable"]:
        typer.echo(
            f"{manifest['unreadable']} encrypted values cannot be read with the keys there are: is one missing?",
            err=True,
        )
    if passphrase is None:
        typer.echo(
            f"Encryption keys are not in it. It is restored with {', '.join(manifest['keys'])} (fingerprints):"
            " keep them elsewhere, or use --passphrase-file."
        )


def _check(path: Path, passphrase_file: Path | None, out: Output) -> None:
    from cli.backups import contents, restoring

    backup, _ = restoring.open_backup(path, settings(), passphrase_file)
    encrypted = restoring.check(backup)
    manifest = backup.manifest
    if out.as_json:
        out.json({"path": str(path), **_shown(manifest), **encrypted})
        return
    typer.echo(
        f"{path} is authentic and whole: made {manifest['made_at']} by runyard {manifest['version']}, signed with the"
        f" encryption key {manifest['keys'][0]}."
    )
    typer.echo(f"It holds {contents.describe(contents.counts(backup.tables))}.")
    typer.echo(
        f"The keys read {encrypted['encrypted'] - encrypted['unreadable']} of {encrypted['encrypted']} encrypted values."
    )


@command(needs_server=True)
def restore(
    out: Output,
    file: Annotated[Path, typer.Argument(help="Backup.", metavar="FILE")],
    passphrase_file: PassphraseFile = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Delete the content of the database first, after a confirmation."),
    ] = False,
    yes: Yes = False,
    paused: Annotated[
        bool,
        typer.Option(
            "--paused",
            help="Disable crons, end unfinished runs and send no webhooks: for a copy beside the original.",
        ),
    ] = False,
) -> None:
    """Restore a backup into the empty database of a stopped service: of DATABASE_URL, else of the data directory.

    The restore is one transaction: if it fails or is interrupted, nothing has changed. Runs that had not ended when the
    backup was made continue when the service starts.
    """
    from cli.backups import contents, database, restoring
    from cli.machine import local  # imports SQLAlchemy
    from shared import migrations

    service = settings()
    backup, encryption_keys = restoring.open_backup(file, service, passphrase_file)
    encrypted = restoring.check(backup)
    with database.service_url(service, is_stopped=True) as url:
        with database.connected(url) as conn:
            target = restoring.inspect_target(conn)
        restoring.require_usable(target, replace=replace)
        if not target.is_empty:
            _confirm(contents.describe(target.counts), yes=yes, as_json=out.as_json)
        key_file: Path | None = None
        warnings: list[str] = []

        def before_commit() -> None:
            nonlocal key_file
            warnings.extend(restoring.empty_redis(service.redis_url, service.data_dir))
            # Before the commit: after a crash, unused keys are harmless, but rows without their keys are unreadable.
            key_file = None if service.encryption_keys else local.keep_keys(service, encryption_keys)

        restoring.restore(
            url, backup, replace=not target.is_empty, paused=paused, before_commit=before_commit
        )
        migrations.upgrade(url)
        ended = 0
        if paused:
            with local.connected(dataclasses.replace(service, database_url=url)):
                ended = restoring.end_live_runs()
    if out.as_json:
        out.json({"path": str(file), **_shown(backup.manifest), **encrypted, "ended_runs": ended})
    else:
        restored = contents.describe(contents.counts(backup.tables))
        typer.echo(f"Restored {restored}, as of {backup.manifest['made_at']}.")
        if key_file is not None:
            typer.echo(f"The keys are in {key_file}.")
    for warning in warnings:
        typer.echo(warning, err=True)


def _confirm(label: str, *, yes: bool, as_json: bool) -> None:
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise CommandFailed(f"Nobody can be asked here: --yes removes {label} without a question.")
    if not typer.confirm(f"Remove {label} for good, and put the backup in their place?"):
        raise CommandFailed("Nothing was changed.")


def _shown(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest's fields for `--json`, without the sealed keys, the tables and the identity columns."""
    from cli.backups import contents

    tables = manifest["tables"]
    shown = {name: value for name, value in manifest.items() if name not in ("tables", "identities")}
    return {**shown, "counts": contents.counts(tables), "sealed_keys": manifest["sealed_keys"] is not None}


def _size(path: Path) -> str:
    size = path.stat().st_size
    return f"{size / 1_000_000:.1f} MB" if size >= 1_000_000 else f"{size / 1000:.0f} kB"
