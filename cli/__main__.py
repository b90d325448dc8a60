"""`python -m cli` is `runyard`."""

import sys


def main() -> None:
    """A probe comes every few seconds: `health` goes its way without the imports of all other commands."""
    if sys.argv[1:2] == ["health"]:
        from cli.machine import health

        code = health.quick(sys.argv[2:])
        if code is not None:
            sys.exit(code)
    from cli.main import app

    app()


if __name__ == "__main__":
    main()
