"""What torchrun starts for each rank: run the workload, report progress, explain failures."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from training.core.arguments import parse
from training.core.contract import DeviceKind
from training.core.failures import classify, describe
from training.core.processes import die_with_parent
from training.core.progress import ENV_SCRATCH, Progress, RunContext
from training.core.stopping import Stopped, StopSwitch
from training.storage.results import Bucket, ResultFiles
from training.workloads import IMPLEMENTATIONS, Job
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.workloads import Hardware

_LOCAL_ROOT = Path("build")
_TIMEOUT_FACTOR = 1.5
_LEAVE_TOGETHER_S = 0.5
"""So that the request is everywhere before the first connection breaks and looks like a fault."""


def main(words: Sequence[str], env: Mapping[str, str]) -> None:
    """Run one worker to its end."""
    scratch, rank = Path(env[ENV_SCRATCH]), int(env["RANK"])
    progress = Progress(scratch, local_rank=int(env["LOCAL_RANK"]), rank=rank)
    progress.report("starting")

    stop = StopSwitch()

    def leave(number: int, frame: object) -> None:
        # A second request means: at once.
        if stop.deferred and not stop.requested:
            stop.requested = True
            return
        print(f"rank {rank}: stopped on request", flush=True)
        time.sleep(_LEAVE_TOGETHER_S)
        # Ending in order would wait for peers that are leaving as well.
        os._exit(ExitCode.STOPPED)

    signal.signal(signal.SIGTERM, leave)
    try:
        run(words, env, scratch=scratch, progress=progress, stop=stop)
    except Stopped:
        print(f"rank {rank}: stopped on request", flush=True)
        time.sleep(_LEAVE_TOGETHER_S)
        os._exit(ExitCode.STOPPED)
    except BaseException as error:
        # First of all, while every connection is still open: peers whose connections break report
        # that, and this is the better evidence.
        progress.fail(classify(error), describe(error))
        sys.stdout.flush()
        # One write, so that the lines of several ranks do not mix.
        print(f"rank {rank} failed:\n{traceback.format_exc()}", end="", flush=True)
        os._exit(ExitCode.WORKLOAD)
    progress.finish()


def run(
    words: Sequence[str],
    env: Mapping[str, str],
    *,
    scratch: Path,
    progress: Progress,
    stop: StopSwitch,
) -> None:
    """Open the device and run the workload on it."""
    request = parse(words)
    context = RunContext.read(scratch)
    if request.workload.hardware is Hardware.TRAINIUM:
        # "Not installed": transformers imports it for no use of ours, and with it scipy and pandas,
        # for another fifth of a start.
        sys.modules["sklearn"] = None  # type: ignore[assignment]
    workload = IMPLEMENTATIONS[request.workload.name].load()
    from training.core.device import open_device  # imports torch, which takes a second

    progress.report("joining the other ranks")
    device = open_device(
        DeviceKind(context.device),
        # The launcher notices a hang first and knows better why; this is for its own absence.
        timeout_s=context.hang_limit_s * _TIMEOUT_FACTOR,
    )
    # What is imported stays: no later collection needs to look at it.
    gc.freeze()
    gc.enable()
    progress.begin()
    workload(
        Job(
            context=context,
            values=request.values,
            given=request.given,
            device=device,
            progress=progress,
            store=_store(request.workload.name, context, scratch),
            stop=stop,
            # Some are torch_xla's own doing, when it is imported.
            environment={
                name: value for name, value in env.items() if name.startswith(("NEURON", "XLA"))
            },
            variables=env,
        )
    )
    device.close()


def _store(workload: str, context: RunContext, scratch: Path) -> ResultFiles:
    bucket = None
    if context.bucket is not None:
        bucket = Bucket(
            name=context.bucket,
            region=context.region,
            endpoint_url=context.endpoint_url,
        )
    return ResultFiles(
        root=_LOCAL_ROOT if bucket is None else scratch,
        run=context.run,
        workload=workload,
        attempt=context.attempt,
        bucket=bucket,
    )


if __name__ == "__main__":
    # Before anything slow: the parent may die at any time.
    die_with_parent(os.getppid())
    # Collections find nothing while modules are imported: a quarter of the 5 s of processor time
    # that the worker of a Llama takes to start.
    gc.disable()
    # torchrun's standard error stays out of the log (launcher/node.py); a worker's belongs there.
    os.dup2(1, 2)
    main(sys.argv[1:], os.environ)
