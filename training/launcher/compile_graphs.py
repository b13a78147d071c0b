"""One node's part in compiling a run's graphs: torchrun under ``neuron_parallel_compile``.

    python -m training.launcher.compile_graphs <workload> [--parameter value]... -- <command>...

The tool runs the command with NEURON_EXTRACT_GRAPHS_ONLY, which computes nothing, then compiles
the graphs it has seen and prints how many failed, which its exit code does not tell (AWS Neuron
documentation, neuron_parallel_compile). On other devices the command is run as it is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.core.arguments import parse
from training.core.contract import DeviceKind, NodeContract
from training.core.processes import die_with_parent
from training.core.progress import ENV_SCRATCH, Progress, RunContext
from training.launcher import job_results
from training.launcher.compile_cache import CompileCache
from training.storage import StorageError
from trainium_catalogue.contract import ENV_JOB_ID
from trainium_catalogue.exit_codes import ExitCode

MODULE = "training.launcher.compile_graphs"
_BEAT_S = 1.0
_LOCAL_ROOT = Path("build")
_TOTAL = re.compile(r"Total (graphs|successful compilations|failed compilations): (\d+)")


def compile_command(
    node: NodeContract, command: Sequence[str], *, python: str, words: Sequence[str]
) -> list[str]:
    """``command``, as elements and never as one text, which the tool would take for a path."""
    tool = ["neuron_parallel_compile"] if node.device is DeviceKind.XLA else []
    return [python, "-m", MODULE, *words, "--", *tool, *command]


@dataclass(slots=True, kw_only=True)
class Summary:
    """What ``neuron_parallel_compile`` says at its end."""

    graphs: int | None = None
    failed: int = 0

    def read(self, line: str) -> None:
        """Take in one line of its output."""
        if (match := _TOTAL.search(line)) is None:
            return
        number = int(match[2])
        if match[1] == "graphs":
            self.graphs = max(self.graphs or 0, number)
        elif match[1].startswith("failed"):
            self.failed = max(self.failed, number)

    @property
    def problem(self) -> str | None:
        """Why the job fails, if it does."""
        if self.failed == 0:
            return None
        return (
            f"{self.failed} of {self.graphs or self.failed} graphs failed to compile; the "
            "compiler's words are in the log above. The cache remembers a failure: set "
            "NEURON_CC_FLAGS=--retry_failed_compilation, or another model or Neuron release"
        )


def main(words: Sequence[str], env: Mapping[str, str]) -> int:
    """Compile on this node, unless it has been done; returns the exit code."""
    split = list(words).index("--")
    request, command = parse(words[:split]), words[split + 1 :]
    scratch = Path(env[ENV_SCRATCH])
    context = RunContext.read(scratch)
    # One more worker than there are ranks, so that a long compilation is no silence.
    progress = Progress(scratch, local_rank=context.processes_per_node, rank=-1)
    progress.report("looking for compiled graphs")
    progress.begin()
    cache = CompileCache(context, request.values, local=_LOCAL_ROOT)
    if (compiled := cache.find()) is not None:
        _say(compiled.text)
        progress.finish()
        return ExitCode.OK
    _say(f"cache is cold: no job has compiled {cache.key[:12]}")
    summary = Summary()
    status = _run(command, summary, progress, _signs(context, env))
    if summary.problem is not None:
        progress.fail(ExitCode.WORKLOAD, summary.problem)
        return ExitCode.WORKLOAD
    if status == 0:
        _remember(cache, summary, env)
        progress.finish()
    return status


def _signs(context: RunContext, env: Mapping[str, str]) -> Callable[[], None]:
    """Leaves a sign of life for a Volcano job that waits for this one; else does nothing."""
    if ENV_JOB_ID not in env or context.bucket is None or context.node_index != 0:
        return lambda: None
    results = job_results.open_results(context)
    return lambda: job_results.leave_sign(results, context.job_id)


def _run(
    command: Sequence[str], summary: Summary, progress: Progress, sign: Callable[[], None]
) -> int:
    """Run it, pass its output on, say often that it goes on; returns its status."""
    parent = os.getpid()
    # No thread is running yet, so code between fork and exec is safe.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=lambda: die_with_parent(parent),
    )
    ended = threading.Event()

    def beat() -> None:
        signed_s = float("-inf")
        while not ended.wait(_BEAT_S):
            progress.report("compiling")
            if time.monotonic() - signed_s > job_results.SIGN_S:
                sign()
                signed_s = time.monotonic()

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        summary.read(line)
    status = process.wait()
    ended.set()
    # A sign of life must not come after the result.
    beating.join()
    return status


def _remember(cache: CompileCache, summary: Summary, env: Mapping[str, str]) -> None:
    counted = "" if summary.graphs is None else f" ({summary.graphs} graphs)"
    try:
        if (doubt := cache.doubt(summary.graphs, env)) is not None:
            _say(f"compiled{counted}, but not remembered: {doubt}")
            return
        cache.remember(summary.graphs)
    except (StorageError, OSError) as error:
        # The graphs are there all the same; only the next job will look at each again.
        _say(f"compiled{counted}, but the marker could not be written: {error}")
        return
    _say(f"compiled{counted}; the next job with key {cache.key[:12]} finds the cache warm")


def _say(text: str) -> None:
    print(f"compile: {text}", flush=True)


if __name__ == "__main__":
    die_with_parent(os.getppid())
    sys.exit(main(sys.argv[1:], os.environ))
