"""Prepare a node for a program: ``python -m training.program.preparation <argv>``.

This is a separate process, because the launcher must keep responding to other nodes during
downloads. It runs while torchrun starts; the workers wait until every node is ready. On the main
node it then holds the run's lock until SIGTERM.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from training.core.contract import DeviceKind
from training.core.failures import describe
from training.core.logs import set_up_logging
from training.core.processes import die_with_parent
from training.core.progress import ENV_SCRATCH
from training.program import downloads
from training.program.reports import PROGRAM_FILE, READY, Preparation
from training.program.settings import (
    NotPrepared,
    Workspace,
    is_full,
    no_space,
)
from training.program.snapshots import graphs, restore
from training.program.snapshots.process import open_snapshots
from training.storage import StorageRefused, StorageUnavailable
from training.storage.run_lock import RunLock
from trainium_catalogue.exit_codes import ExitCode

_REPORT_INTERVAL_S = 0.5
_CHECK_INTERVAL_S = 1.0
_NUMBER = re.compile(r"(\d+)")

log = logging.getLogger("training.program.preparation")


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Prepare this node; return 0, or the exit code in its report."""
    set_up_logging()
    scratch = Path(env[ENV_SCRATCH])
    report = Reporter(scratch)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    lock: RunLock | None = None
    try:
        workspace = Workspace.of_launch(argv, scratch, report)
        lock = run_lock(workspace)
        if lock is not None:
            lock.acquire()
        prepare(workspace, env)
        Preparation(step=READY, done=True).write(scratch)
        if lock is not None:
            while True:
                time.sleep(_CHECK_INTERVAL_S)
                lock.check()
    except Exception as error:
        failure = judged(error, scratch)
        try:
            Preparation(step=report.step, code=int(failure.code), reason=failure.reason).write(
                scratch
            )
        except OSError:
            # The disk is full; the exit code and the log still report the failure.
            log.error("program: %s", failure.reason)
        return failure.code
    finally:
        if lock is not None:
            lock.release()
    return ExitCode.OK


class Reporter:
    """Writes the current step, at most twice a second."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._written_s = float("-inf")
        self.step = "starting"

    def __call__(self, step: str) -> None:
        """Report the current step."""
        self.step = step
        now = time.monotonic()
        if now - self._written_s >= _REPORT_INTERVAL_S:
            self._written_s = now
            Preparation(step=step).write(self._scratch)


def run_lock(workspace: Workspace) -> RunLock | None:
    """Create the lock on the run's name, which the main node holds for the job.

    It is stored with the snapshots that it guards, where a program's role has write access.
    """
    node = workspace.node
    if not node.is_main:
        return None
    return RunLock(
        open_snapshots(workspace.bucket, node.run),
        node.job_id,
        node.attempt,
        run=node.run,
        node=f"node {node.node_index}",
        say=lambda text: log.info("program: %s", text),
        report=workspace.report,
    )


def prepare(workspace: Workspace, env: Mapping[str, str]) -> None:
    """Run all steps in order; raise ``NotPrepared`` or a storage error if one fails."""
    node, settings, folders = workspace.node, workspace.settings, workspace.folders
    scratch = folders.scratch
    downloads.unpack_bundle(workspace)
    for folder in (folders.checkpoints, folders.output, folders.cache):
        folder.mkdir(parents=True, exist_ok=True)
    if settings.wheels:
        from training.program.wheels import install  # expensive and rarely needed

        install.install(workspace, env)
    downloads.stage_inputs(workspace)
    if restore.restore_for_program(workspace):
        words = resume_arguments(settings.resume_argv, folders.code, folders.checkpoints)
        if words:
            log.info("launch: program: resumes with the added arguments %s", shlex.join(words))
            with (scratch / PROGRAM_FILE).open("ab") as file:
                file.write(b"".join(b"\0" + os.fsencode(word) for word in words))
    graphs.unlock(folders.cache)
    if node.device is DeviceKind.TORCH_NEURON:
        folders.neff_cache.mkdir(exist_ok=True)


def resume_arguments(
    words: Sequence[str], working_folder: Path, checkpoints: Path
) -> tuple[str, ...]:
    """Return the arguments to add once the checkpoint folder is restored.

    Many programs take the path of a checkpoint and fail if it does not exist, so the first attempt
    must omit an argument that all later ones need.

    If a path in the checkpoint folder, alone or after ``=``, does not exist, nothing is added,
    because the snapshot may predate the first checkpoint. Wildcards are replaced by the match with
    the highest number, such as ``out/checkpoint-*`` by ``out/checkpoint-20``.
    """
    result = []
    for word in words:
        name, separator, path = word.rpartition("=")
        if not _is_checkpoint_path(path, working_folder, checkpoints):
            result.append(word)
            continue
        matches = [str(match.relative_to(working_folder)) for match in working_folder.glob(path)]
        if not matches:
            return ()
        result.append(f"{name}{separator}{max(matches, key=_natural_key)}")
    return tuple(result)


def _is_checkpoint_path(path: str, working_folder: Path, checkpoints: Path) -> bool:
    # If the whole folder is persisted, only wildcards identify a word as a path.
    if not path or Path(path).is_absolute():
        return False
    below = checkpoints != working_folder and (working_folder / path).is_relative_to(checkpoints)
    return below or any(character in path for character in "*?[")


def _natural_key(path: str) -> list[tuple[int, str]]:
    """Return a sort key that orders the numbers in a path by value."""
    parts = _NUMBER.split(path)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def judged(error: Exception, scratch: Path) -> NotPrepared:
    """Convert an error during preparation to an exit code and a reason."""
    match error:
        case NotPrepared():
            return error
        case StorageUnavailable():
            return NotPrepared(ExitCode.HOST, str(error))
        case StorageRefused():
            return NotPrepared(ExitCode.CONFIGURATION, str(error))
        case OSError() if is_full(error):
            return no_space(scratch, "the program's job")
        case OSError():
            return NotPrepared(ExitCode.HOST, f"the preparation failed: {describe(error)}")
        case ValueError():
            return NotPrepared(ExitCode.CONFIGURATION, str(error))
    log.info("program: %s", traceback.format_exc().rstrip())
    return NotPrepared(ExitCode.HOST, f"the preparation failed: {describe(error)}")


if __name__ == "__main__":
    die_with_parent(os.getppid())
    sys.exit(main(sys.argv[1:], os.environ))
