"""The worker of each rank: runs the workload, reports, explains failures."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from training.core.arguments import parse
from training.core.contract import NodeContract
from training.core.failures import Explained, classify, describe
from training.core.job import Job, Stopped, StopSwitch
from training.core.logs import set_up_logging
from training.core.lone_process import LoneProcess
from training.core.processes import die_with_parent
from training.core.progress import ENV_SCRATCH, WorkerProgress
from training.storage import StorageAccess
from training.storage.results import UPLOAD_RETRIES, ResultFiles
from training.workloads import IMPLEMENTATIONS, leave_out_sklearn
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.workloads import Hardware

if TYPE_CHECKING:
    from training.core.device import Device

_LOCAL_ROOT = Path("build")
_TIMEOUT_FACTOR = 1.5
_LEAVE_TOGETHER_S = 0.5
"""Time for every rank to receive the request before a connection breaks and looks like a fault."""


log = logging.getLogger("training.worker")


def main(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Run one worker to its end."""
    set_up_logging()
    scratch, rank = Path(env[ENV_SCRATCH]), int(env["RANK"])
    progress = WorkerProgress(scratch, local_rank=int(env["LOCAL_RANK"]), rank=rank)
    progress.report("starting")

    stop = StopSwitch()

    def leave() -> None:
        log.info("rank %d: stopped on request", rank)
        time.sleep(_LEAVE_TOGETHER_S)
        # An orderly exit would wait for peers that are leaving as well.
        os._exit(ExitCode.STOPPED)

    def on_sigterm(number: int, frame: object) -> None:
        # A second request means to stop at once.
        if stop.requested or not stop.deferred:
            leave()
        stop.requested = True

    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        run(argv, env, scratch=scratch, progress=progress, stop=stop)
    except Stopped:
        leave()
    except BaseException as error:
        # First of all, while every connection is still open: peers whose connections break will
        # report that, and this is better evidence.
        progress.fail(classify(error), describe(error))
        sys.stdout.flush()
        if isinstance(error, Explained):
            log.info("rank %d: %s", rank, error)
        else:
            log.info("rank %d failed:\n%s", rank, traceback.format_exc().rstrip("\n"))
        os._exit(ExitCode.WORKLOAD)
    progress.finish()


def run(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    scratch: Path,
    progress: WorkerProgress,
    stop: StopSwitch,
) -> None:
    """Open the device and run the workload on it."""
    request = parse(argv)
    node = NodeContract.read(scratch)
    if request.workload.hardware is Hardware.TRAINIUM:
        leave_out_sklearn()
    workload = IMPLEMENTATIONS[request.workload.name].load()
    hang_limit_s = request.launch.hang_limit_s
    device: Device
    if request.workload.hardware is Hardware.CPU and env["WORLD_SIZE"] == "1":
        device = LoneProcess()
    else:
        from training.core.device import open_device  # imports torch, which takes a second

        progress.report("joining the other ranks")
        # The launcher notices a hang first and explains it better; this covers its absence.
        device = open_device(node.device, timeout_s=hang_limit_s * _TIMEOUT_FACTOR)
    # Imported modules stay: later collections need not look at them.
    gc.freeze()
    gc.enable()
    progress.begin()
    workload(
        Job(
            context=node,
            values=request.values,
            given=request.given,
            device=device,
            progress=progress,
            store=_store(request.workload.name, node, scratch),
            stop=stop,
            hang_limit_s=hang_limit_s,
            # Some are set by torch_xla when it is imported.
            environment={
                name: value for name, value in env.items() if name.startswith(("NEURON", "XLA"))
            },
            variables=env,
        )
    )
    device.close()


def _store(workload: str, node: NodeContract, scratch: Path) -> ResultFiles:
    bucket = None
    if node.bucket is not None:
        bucket = StorageAccess.of(node).open_root(retry_policy=UPLOAD_RETRIES)
    return ResultFiles(
        root=_LOCAL_ROOT if bucket is None else scratch,
        run=node.run,
        workload=workload,
        attempt=node.attempt,
        bucket=bucket,
    )


if __name__ == "__main__":
    # Before anything slow, because the parent may die at any time.
    die_with_parent(os.getppid())
    # Collections find nothing while modules are imported, and would take a quarter of the 5 s of
    # processor time that a Llama worker needs to start.
    gc.disable()
    # torchrun's standard error stays out of the log (launcher/node.py); a worker's belongs in it.
    os.dup2(1, 2)
    main(sys.argv[1:], os.environ)
