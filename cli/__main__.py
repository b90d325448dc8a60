"""Entry point of `runyard` and of `python -m cli`."""

import sys


def main() -> None:
    """Run the command line."""
    # `health` and `up` import only what they need: probes call `health` every few seconds, and the supervisor of `up`
    # would keep the modules of all commands in memory.
    if sys.argv[1:2] == ["health"]:
        from cli.machine.health import quick
    elif sys.argv[1:2] == ["up"]:
        from cli.machine.up import quick
    else:
        quick = None
    if quick is not None and (code := quick(sys.argv[2:])) is not None:
        sys.exit(code)
    from cli.main import app

    app()


if __name__ == "__main__":
    main()
