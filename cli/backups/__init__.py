"""Backup and restore: the file of a backup, and the way of the database into it and back.

    backup      the two commands
    archive     the file: PostgreSQL's dump and a manifest, written whole or not at all
    keys        which encryption keys a backup needs, and how they travel with it
    database    the service's database, with PostgreSQL's own programs
    contents    what a dump holds: counts, encrypted values, the script that makes it again
    making      a database into a file
    restoring   a file into an empty database, in one transaction

Rule: Redis is in no backup. Whatever it holds can be lost (docs/architecture.md); rows are all there is to keep.
"""
