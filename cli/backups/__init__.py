"""Backup and restore: the file of a backup, and the way of the database into it and back.

    backup      the two commands
    archive     the file: rows of tables and a signed manifest, written whole or not at all
    manifest    fields of the manifest
    keys        encryption keys: which ones a backup needs, how it contains them, and its signature
    database    the service's database
    contents    tables that a backup may hold, their rows, encrypted values
    making      a database into a file
    restoring   a file into an empty database, in one transaction

Rule: a backup supplies rows, never a statement or a definition. Migrations create the tables of a restore.
Rule: Redis is in no backup. Whatever it holds can be lost (docs/architecture.md); rows are all there is to keep.
"""
