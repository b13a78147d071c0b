"""Entry point of `python -m jobs`, and of `trainium`, which `make setup` installs."""

import gc
import os
import sys
from pathlib import Path


def main(prog_name: str = "python -m jobs") -> None:
    """Run the command line; print a single line if a package is not installed."""
    # While boto3 loads its service models, the garbage collector would free nothing, but use a
    # quarter of a submission's CPU time. Commands that follow a job enable it again.
    gc.disable()
    try:
        from jobs.cli import app
        from jobs.output.console import Output
    except ModuleNotFoundError as error:
        from jobs.errors import EXIT_REFUSED

        print(
            f"refused: module {error.name} is not installed for {sys.executable}; run `make setup` "
            "once, then `. .venv/bin/activate`",
            file=sys.stderr,
        )
        sys.exit(EXIT_REFUSED)
    # A standard stream that the shell closed (`<&-`) is None here. Unless it is replaced, the next
    # file to be opened gets its descriptor.
    nothing = Path(os.devnull)
    sys.stdin = sys.stdin or nothing.open()
    sys.stdout = Output.of(sys.stdout) if sys.stdout else nothing.open("w")
    sys.stderr = Output.of(sys.stderr) if sys.stderr else nothing.open("w")
    app(prog_name=prog_name)


if __name__ == "__main__":
    main()
