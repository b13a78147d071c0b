"""The worker of each rank, which runs the workload and reports progress and failures."""

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

from training.backends.neff_cache import ENV_NEFF_CACHE, NeffCache
from training.core.arguments import parse
from training.core.contract import DeviceKind, NodeContract
from training.core.failures import ExplainedError, classify, describe, shows_unfit_host
from training.core.job import Job, StopRequested, StopSwitch
from training.core.logs import set_up_logging
from training.core.lone_process import LoneProcess
from training.core.processes import die_with_parent
from training.core.progress import ENV_SCRATCH, WorkerProgress
from training.storage import StorageAccess
from training.storage.results import UPLOAD_RETRIES, ResultFiles
from training.workloads import IMPLEMENTATIONS, hide_sklearn
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.workloads import Hardware

if TYPE_CHECKING:
    from training.core.device import Device

_LOCAL_ROOT = Path("build")
_TIMEOUT_FACTOR = 1.5
_STOP_DELAY_S = 0.5
"""Time for every rank to receive the stop request before connections break."""


log = logging.getLogger("training.worker")


def main(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Run one worker to completion."""
    set_up_logging()
    scratch, rank = Path(env[ENV_SCRATCH]), int(env["RANK"])
    progress = WorkerProgress(scratch, local_rank=int(env["LOCAL_RANK"]), rank=rank)
    progress.report("starting")

    stop = StopSwitch()

    def exit_stopped() -> None:
        log.info("rank %d: stopped on request", rank)
        time.sleep(_STOP_DELAY_S)
        # A regular exit would wait for peers, which are exiting too.
        os._exit(ExitCode.STOPPED)

    def on_sigterm(number: int, frame: object) -> None:
        # Stop immediately on a second request.
        if stop.requested or not stop.deferred:
            exit_stopped()
        stop.requested = True

    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        kind = run(argv, env, scratch=scratch, progress=progress, stop=stop)
    except StopRequested:
        exit_stopped()
    except BaseException as error:
        # Report the error while every connection is still open: it is better evidence than the
        # broken connections that peers will report.
        progress.fail(classify(error), describe(error), unfit_host=shows_unfit_host(error))
        sys.stdout.flush()
        if isinstance(error, ExplainedError):
            log.info("rank %d: %s", rank, error)
        else:
            log.info("rank %d failed:\n%s", rank, traceback.format_exc().rstrip("\n"))
        os._exit(ExitCode.WORKLOAD)
    progress.finish()
    if kind is DeviceKind.TORCH_NEURON:
        # Skip destructors, because the process group is still open (see device.close).
        sys.stdout.flush()
        os._exit(ExitCode.OK)


def run(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    scratch: Path,
    progress: WorkerProgress,
    stop: StopSwitch,
) -> DeviceKind:
    """Open the device and run the workload on it; return the node's kind of device."""
    request = parse(argv)
    node = NodeContract.read(scratch)
    if request.workload.hardware is Hardware.TRAINIUM:
        hide_sklearn()
    workload = IMPLEMENTATIONS[request.workload.name].load()
    hang_limit_s = request.launch.hang_limit_s
    neff_cache = NeffCache.of(node, env.get(ENV_NEFF_CACHE)) if env["LOCAL_RANK"] == "0" else None
    if neff_cache is not None:
        # The node's other ranks wait for this one in the rendezvous.
        neff_cache.download(progress.report)
        neff_cache.start()
    device: Device
    if request.workload.hardware is Hardware.CPU and env["WORLD_SIZE"] == "1":
        device = LoneProcess()
    else:
        from training.core.device import open_device  # imports torch, which takes a second

        progress.report("joining the other ranks")
        # A fallback: normally the launcher detects a hang first, and explains it better.
        device = open_device(node.device, timeout_s=hang_limit_s * _TIMEOUT_FACTOR)
    # Imported modules stay alive, so exclude them from later collections.
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
            # Read after the imports, since torch_xla sets some of these variables on import.
            environment={
                name: value
                for name, value in env.items()
                if name.startswith(("NEURON", "TORCH_NEURONX", "XLA"))
            },
            variables=env,
        )
    )
    device.close()
    if neff_cache is not None:
        neff_cache.close()
    return node.device


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
    # Before anything slow: the parent may die at any time.
    die_with_parent(os.getppid())
    # Garbage collection finds nothing during imports, but takes a quarter of the 5 s of CPU time
    # that a Llama worker needs to start.
    gc.disable()
    # Unlike torchrun's stderr (launcher/node.py), a worker's belongs in the log.
    os.dup2(1, 2)
    main(sys.argv[1:], os.environ)
