"""Run the public programs of tests/programs, and record what came of them.

    python tools/programs.py [NAME]...
    python tools/programs.py --rehearse batch,eks NAME...

The first runs each twice through the launcher: undisturbed, and with a node that is killed after
the first snapshot of a checkpoint. The second takes it through a whole rehearsal, which deploys,
kills a node of its job and destroys. Both keep what they find in tests/programs/results.json, of
which the tables of docs/programs.md are made.

Needs `python tools/setup.py tests` and `programs`; what else is missing here is said.
"""

import argparse
import logging
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "constructs"), str(ROOT / "emulators")]

import pytest  # noqa: E402

from tests.programs import page  # noqa: E402
from tests.programs.catalogue import PublicProgram, public_programs  # noqa: E402
from tests.programs.rehearsed import rehearse  # noqa: E402
from tests.programs.trial import try_program  # noqa: E402

ORCHESTRATORS = ("batch", "eks")


def main(words: list[str]) -> int:
    """Run the programs that are named, or all; returns how many failed."""
    options = arguments(words)
    programs = public_programs()
    if unknown := [name for name in options.names if name not in programs]:
        sys.exit(f"programs: there is no program {unknown[0]}; give some of {', '.join(programs)}")
    # The server of the emulated bucket would say every request.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    failed = 0
    for name in options.names or programs:
        program = programs[name]
        if missing := program.missing():
            print(f"{name} | {missing}", flush=True)
            continue
        folder = Path(tempfile.mkdtemp(prefix="programs-"))
        try:
            if options.rehearse:
                failed += rehearsed(program, options.rehearse, folder)
            else:
                tried(program, folder)
        # What pytest.fail raises is no Exception.
        except (Exception, pytest.fail.Exception) as error:
            failed += 1
            print(error, file=sys.stderr)
            print(f"{name} | {str(error).partition(chr(10))[0]}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    return failed


def arguments(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--rehearse", type=orchestrators, metavar="batch,eks")
    return parser.parse_args(words)


def orchestrators(text: str) -> tuple[str, ...]:
    """Split the names of orchestrators."""
    names = tuple(text.split(","))
    if set(names) - set(ORCHESTRATORS):
        raise argparse.ArgumentTypeError(f"{text}: give some of {', '.join(ORCHESTRATORS)}")
    return names


def tried(program: PublicProgram, folder: Path) -> None:
    """Run a program on two local launchers, and record the results."""
    trial = try_program(program, folder)
    on = "went on" if trial.went_on else "began again"
    same = "the same" if program.agree(trial.undisturbed, trial.survived) else "NOT the same"
    print(
        f"{program.name} | {trial.undisturbed} | {trial.survived} | {same} | {on} | "
        f"{trial.seconds:.0f} s undisturbed",
        flush=True,
    )
    found = {"undisturbed": trial.undisturbed, "survived": trial.survived}
    page.record(program.name, found)


def rehearsed(program: PublicProgram, names: tuple[str, ...], folder: Path) -> int:
    """Rehearse a program, and record the results; returns how many orchestrators failed."""
    failed = 0
    expected = page.results().get(program.name, {}).get("undisturbed", "")
    for name, run in rehearse(program, names, folder).items():
        why = "; ".join(run.problems)
        if not why and not (expected and program.agree(expected, run.result)):
            why = f"it ended with {run.result}, undisturbed with {expected or 'nothing recorded'}"
        failed += bool(why)
        print(f"{program.name} | {name} | {why or run.result}", flush=True)
        if not why:
            page.record(program.name, {name: run.result})
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
