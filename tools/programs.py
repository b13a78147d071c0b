"""Run the public programs of tests/programs on local nodes, and print what came of them.

    python tools/programs.py [NAME]...

Each is run twice through the launcher: undisturbed, and with a node that is killed after the first
complete snapshot. Needs `python tools/setup.py tests` and `programs`; what else is missing on this
machine is said in the table.
"""

import json
import logging
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "constructs"), str(ROOT / "emulators")]

import pytest  # noqa: E402

from tests.programs.catalogue import public_programs  # noqa: E402
from tests.programs.trial import judgement, try_program  # noqa: E402

RESULTS = ROOT / "build" / "programs" / "results.json"


def main(names: list[str]) -> int:
    """Run the programs that are named, or all."""
    programs = public_programs()
    if unknown := [name for name in names if name not in programs]:
        sys.exit(f"programs: there is no program {unknown[0]}; give some of {', '.join(programs)}")
    failed = 0
    # The server of the emulated bucket would say every request.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    for name in names or programs:
        program = programs[name]
        row: dict[str, str] = {"program": name}
        if missing := program.missing():
            row["missing"] = missing
        else:
            folder = Path(tempfile.mkdtemp(prefix="programs-"))
            try:
                row |= judgement(program, try_program(program, folder))
            # What pytest.fail raises is no Exception.
            except (Exception, pytest.fail.Exception) as error:
                failed += 1
                row["failed"] = str(error)
                print(str(error), file=sys.stderr)
            shutil.rmtree(folder, ignore_errors=True)
        print(" | ".join(text.partition("\n")[0] for text in row.values()), flush=True)
        rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        rows[name] = row
        RESULTS.write_text(json.dumps(rows, indent=1))
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
