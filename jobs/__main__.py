"""Entry point of `python -m jobs`, and of `trainium`, which `make setup` installs."""

import gc
import os
import sys
from pathlib import Path

_REFUSED = 2
"""Exit code of ``jobs.errors``, which is not imported on every start."""


def main(prog_name: str = "python -m jobs") -> None:
    """Run the command line; print a single line if a package is not installed."""
    # While boto3 reads its service models the collector would run dozens of times for nothing, a
    # quarter of a submission's processor time. Following a job takes long and turns it on again.
    gc.disable()
    try:
        from jobs.cli import app
        from jobs.output.console import Output
    except ModuleNotFoundError as error:
        print(
            f"refused: module {error.name} is not installed for {sys.executable}; run `make setup` "
            "once, then `. .venv/bin/activate`",
            file=sys.stderr,
        )
        sys.exit(_REFUSED)
    # A descriptor that was closed (`<&-`) would be given to the next file that is opened.
    nothing = Path(os.devnull)
    sys.stdin = sys.stdin or nothing.open()
    sys.stdout = Output.of(sys.stdout) if sys.stdout else nothing.open("w")
    sys.stderr = Output.of(sys.stderr) if sys.stderr else nothing.open("w")
    app(prog_name=prog_name)


if __name__ == "__main__":
    main()
