"""Entry point of `runyard` and of `python -m cli`."""

import sys


def main() -> None:
    """Run the command line. `health` starts without the imports of other commands: probes call it every few seconds."""
    if sys.argv[1:2] == ["health"]:
        from cli.machine import health

        code = health.quick(sys.argv[2:])
        if code is not None:
            sys.exit(code)
    from cli.main import app

    app()


if __name__ == "__main__":
    main()
