"""Upload a program's output folder to its run's results: ``python -m training.program.results``.

The main node's files keep their paths. Files of other nodes go below ``node-<index>/``, since a
program usually writes the same names on every node.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from training.core.failures import describe
from training.core.files import write_whole
from training.core.logs import set_up_logging
from training.core.processes import die_with_parent
from training.core.progress import ENV_SCRATCH
from training.core.threads import in_threads
from training.program.reports import RESULTS, RESULTS_FAILURE_FILE, RESULTS_MOVED_FILE
from training.program.settings import Workspace, files_below
from training.storage import StorageError
from trainium_catalogue.contract import run_prefix
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.wording import counted

_AT_ONCE = 8

log = logging.getLogger(RESULTS)


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Upload this node's output; return the exit code. Writes failures to ``results-failure``."""
    set_up_logging()
    scratch = Path(env[ENV_SCRATCH])
    workspace = Workspace.of_launch(argv, scratch)
    node, folder = workspace.node, workspace.folders.output
    own = "" if node.is_main else f"node-{node.node_index}/"
    target = workspace.bucket.at(f"{run_prefix(node.run, 'results')}output/{own}")

    def put(path: Path) -> None:
        key = path.relative_to(folder).as_posix()
        target.put_file(key, path, on_bytes=lambda _: (scratch / RESULTS_MOVED_FILE).touch())

    try:
        files = files_below(folder)
        count = sum(1 for _ in in_threads(put, files, at_once=_AT_ONCE, name="results"))
    except (StorageError, OSError) as error:
        reason = f"the program's output could not be uploaded to {target.uri}: {describe(error)}"
        write_whole(scratch / RESULTS_FAILURE_FILE, reason.encode())
        return ExitCode.HOST
    log.info("program: uploaded %s to %s", counted(count, "output file"), target.uri)
    return ExitCode.OK


if __name__ == "__main__":
    die_with_parent(os.getppid())
    sys.exit(main(sys.argv[1:], os.environ))
