"""Entry point of `python -m rehearsal`."""

from rehearsal.cli.commands import app

if __name__ == "__main__":
    app(prog_name="python -m rehearsal")
