"""`python -m cli` is `runyard`."""

from cli.main import app

app()
