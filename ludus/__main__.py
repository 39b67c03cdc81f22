"""`ludus`, and `python -m ludus`: the command, which Ctrl-C ends without a traceback while it is still imported."""

import signal


def main() -> None:
    """Import and run the command line; the console script's entry point."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else a shell has it ignored
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ludus.cli import main as run  # noqa: PLC0415  # it takes a quarter of a second

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
