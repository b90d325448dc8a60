"""Backup and restore of the service's database as a signed file.

    backup      the two commands
    archive     the file: rows of tables and a signed manifest, written whole or not at all
    manifest    fields of the manifest
    keys        encryption keys: which ones a backup needs, how it contains them, and its signature
    database    the service's database
    contents    tables that a backup may hold, their rows, encrypted values
    making      writes a database into a file
    restoring   loads a file into an empty database, in one transaction

Rule: a backup supplies rows, never a statement or a definition. Migrations create the tables of a restore.
Rule: no backup contains Redis. The service can lose all data in Redis (docs/concepts/architecture.md).
"""
