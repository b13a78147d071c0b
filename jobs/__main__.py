"""Entry point of `python -m jobs`, and of `trainium`, which `make setup` puts beside it."""

import gc
import sys

_REFUSED = 2
"""The code of ``jobs.errors``, which is not imported for every start."""


def main(prog_name: str = "python -m jobs") -> None:
    """Run the command line; one line where what it needs is not installed."""
    # The collector runs dozens of times while boto3 reads its service models, for nothing: a
    # quarter of the processor time of a submission. Following, which lasts, turns it on again.
    gc.disable()
    try:
        from jobs.cli import app
    except ModuleNotFoundError as error:
        print(
            f"refused: module {error.name} is not installed for {sys.executable}; run `make setup` "
            "once, then `. .venv/bin/activate`",
            file=sys.stderr,
        )
        sys.exit(_REFUSED)
    app(prog_name=prog_name)


if __name__ == "__main__":
    main()
