"""Run the public programs of tests/programs, and record the results.

    python tools/programs.py [NAME]...
    python tools/programs.py --rehearse batch,eks NAME...

The first command runs each program twice with the launcher: undisturbed, and with a node killed
after the first snapshot of a checkpoint. The second runs a whole rehearsal, which deploys, kills a
node of the program's job and destroys. Both record their results in tests/programs/results.json,
the source of the tables in docs/programs.md.

Needs `python tools/setup.py tests` and `programs`; other missing requirements are reported.
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


def main(arguments: list[str]) -> int:
    """Run the named programs, or all; return the number of failures."""
    options = parse_arguments(arguments)
    programs = public_programs()
    if unknown := [name for name in options.names if name not in programs]:
        sys.exit(f"programs: unknown program {unknown[0]}; choose from {', '.join(programs)}")
    # The emulated bucket's server would log every request.
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
                failed += record_rehearsal(program, options.rehearse, folder)
            else:
                record_trial(program, folder)
        # pytest.fail does not raise an Exception.
        except (Exception, pytest.fail.Exception) as error:
            failed += 1
            print(error, file=sys.stderr)
            print(f"{name} | {str(error).partition(chr(10))[0]}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    return failed


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--rehearse", type=orchestrators, metavar="batch,eks")
    return parser.parse_args(arguments)


def orchestrators(text: str) -> tuple[str, ...]:
    """Split comma-separated orchestrators."""
    names = tuple(text.split(","))
    if set(names) - set(ORCHESTRATORS):
        raise argparse.ArgumentTypeError(f"{text}: choose from {', '.join(ORCHESTRATORS)}")
    return names


def record_trial(program: PublicProgram, folder: Path) -> None:
    """Run a program on two local launchers; record the results."""
    trial = try_program(program, folder)
    recovery = "resumed" if trial.resumed else "started over"
    same = "the same" if program.agree(trial.undisturbed, trial.survived) else "NOT the same"
    print(
        f"{program.name} | {trial.undisturbed} | {trial.survived} | {same} | {recovery} | "
        f"{trial.seconds:.0f} s undisturbed",
        flush=True,
    )
    page.record(program.name, {"undisturbed": trial.undisturbed, "survived": trial.survived})


def record_rehearsal(program: PublicProgram, names: tuple[str, ...], folder: Path) -> int:
    """Rehearse a program and record the results; return the number of failed orchestrators."""
    failed = 0
    expected = page.results().get(program.name, {}).get("undisturbed", "")
    for name, run in rehearse(program, names, folder).items():
        problem = "; ".join(run.problems)
        if not problem and not (expected and program.agree(expected, run.result)):
            usual = expected or "no recorded result"
            problem = f"the result is {run.result}; undisturbed: {usual}"
        failed += bool(problem)
        print(f"{program.name} | {name} | {problem or run.result}", flush=True)
        if not problem:
            page.record(program.name, {name: run.result})
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
