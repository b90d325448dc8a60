"""Routes for operators: health, metrics, the console, the docs page, static files."""
