"""The launcher, which runs on every node of a job.

    python -m training.launch <workload> [--parameter value]...

Reads the environment once, joins the other nodes, starts torchrun (or the single process of a data
job), and exits with the code that all nodes share (listed in docs/interfaces.md).
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from training.core.arguments import (
    DRY_RUN_FULL,
    ArgumentError,
    Request,
    help_text,
    parse,
    split_argv,
)
from training.core.contract import DeviceKind, NodeContract, read_contract
from training.core.failures import describe
from training.core.host import Host, raise_file_limit
from training.core.logs import set_up_logging
from training.core.orchestrators import ContractError
from training.core.processes import forbid_new_privileges
from training.launcher import bucket_records
from training.launcher.addresses import find_address, find_host, reserve_port
from training.launcher.attempts import AttemptRecorder
from training.launcher.guardian import Guardian
from training.launcher.home import home_of
from training.launcher.node import LoneWorkerNode, StopRequest, WorkerNode
from training.launcher.peers import Hub, Spoke
from training.launcher.preflight import preflight, problem, report_lines
from training.launcher.supervisor import ChildRole, LauncherContext, MainRole
from training.launcher.verdict import Verdict, launcher_failed, own_verdict, verdict_of
from training.workloads import refuse_unfit
from trainium_catalogue.contract import ENV_AFTER_JOB, ENV_JOB_ID, ENV_NODE_ADDRESS, RENDEZVOUS
from trainium_catalogue.exit_codes import EXIT_CODES, ExitCode
from trainium_catalogue.kubernetes import UNFIT_HOST_DELAY_S
from trainium_catalogue.parameters.program import PROCESSES, check_processes
from trainium_catalogue.workloads import Hardware

_PORT_WAIT_S = 10.0
_TICK_S = 0.1

log = logging.getLogger("training.launch")


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run one node; return its exit code."""
    set_up_logging()
    own, _ = split_argv(argv)
    if any(word in ("-h", "--help") for word in own):
        print(help_text(argv))
        return ExitCode.OK
    if DRY_RUN_FULL in own:
        # Imports torch, which the launcher does not need otherwise.
        from training.models.llama import dry_run

        return dry_run.main(argv)
    try:
        request = parse(argv)
        wait_for_host = partial(find_host, within_s=request.launch.join_timeout_s)
        node = read_contract(env, find_address, wait_for_host)
        refuse_unfit(request, node)
    except (ArgumentError, ContractError, OSError) as error:
        refusal = verdict_of(error)
        is_users = refusal.code is ExitCode.CONFIGURATION
        log.log(logging.ERROR if is_users else logging.INFO, "launch: %s", refusal.reason)
        return refusal.code
    stop = StopRequest()

    def count_request(number: int, frame: object) -> None:
        stop.count += 1

    if os.geteuid() != 0:
        # On a CPU host, a worker that became root could use the host's IAM role.
        forbid_new_privileges()
    signal.signal(signal.SIGTERM, count_request)
    signal.signal(signal.SIGINT, count_request)
    raise_file_limit()
    recorder = AttemptRecorder(node, request.workload.name)
    scratch = Path(tempfile.mkdtemp(prefix="trainium-"))
    guardian = Guardian(scratch=scratch, silence_s=request.launch.peer_timeout_s)
    try:
        recorder.start()
        decision = run_node(
            request, node, env, scratch=scratch, guardian=guardian, stop=stop, recorder=recorder
        )
        record_ending(request, node, env, decision)
        recorder.end(decision, guardian.heartbeat)
        if node.on_cluster and decision.unfit_host:
            hold_pod(guardian, stop)
    except Exception as error:
        # A broken host or a bug in the launcher, not a workload error, so worth a retry.
        log.error("%s", traceback.format_exc().rstrip())
        decision = launcher_failed(error)
        recorder.end(decision, guardian.heartbeat)
    finally:
        home = home_of(scratch)  # before the guardian removes the scratch folder
        guardian.release()
        if home is not None:
            shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)
        # The exit code is decided, but Batch stops children once the main node has exited, and
        # Python removes handlers during shutdown, so the node would exit with 143 instead.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = decision.code
    log.info("launch: exit %d (%s): %s", code.value, EXIT_CODES[code].meaning, decision.reason)
    return code


def run_node(
    request: Request,
    node: NodeContract,
    env: Mapping[str, str],
    *,
    scratch: Path,
    guardian: Guardian,
    stop: StopRequest,
    recorder: AttemptRecorder,
) -> Verdict:
    """Check this node, join the others, and run until the job has a verdict."""
    if is_alone := is_single_process(request, node):
        node = replace(node, processes_per_node=1)
    elif wanted := int(request.values.get(PROCESSES) or 0):
        if node.device is not DeviceKind.CPU:
            try:
                check_processes(wanted, node.processes_per_node)
            except ValueError as error:
                return Verdict(code=ExitCode.CONFIGURATION, reason=str(error))
        node = replace(node, processes_per_node=wanted)
    log.info(
        "launch: node %d of %d%s at %s: %s, run %s, attempt %d, %d processes on %s",
        *(node.node_index, node.num_nodes, " (main)" if node.is_main else "", node.address),
        *(request.workload.name, node.run, node.attempt, node.processes_per_node, node.device),
    )
    if (compile_job := env.get(ENV_AFTER_JOB)) and node.bucket:
        decision = bucket_records.wait_for_result(
            bucket_records.open_folder(node, bucket_records.RESULTS_PREFIX),
            compile_job,
            heartbeat=guardian.heartbeat,
            stopped=lambda: stop.count > 0,
        )
        if decision is not None:
            return decision
    outcomes = preflight(node, Host(disk=scratch, heartbeat=guardian.heartbeat))
    for line in report_lines(outcomes):
        log.info("launch: %s", line)
    failed_preflight = problem(node, outcomes)
    node.write(scratch)
    local = local_node(request, node, env, scratch, heartbeat=guardian.heartbeat)
    if failed_preflight is None:
        local.prepare()
    timeout_s = request.launch.peer_timeout_s
    context = LauncherContext(
        node=node,
        parameters=request.launch,
        local=local,
        guardian=guardian,
        stop=stop,
        recorder=recorder,
    )
    try:
        if not node.is_main:
            spoke = Spoke(node, timeout_s=timeout_s)
            decision = ChildRole(context).run(spoke, failed_preflight)
            return own_verdict(node, failed_preflight or local.verdict, decision)
        hub = open_hub(node, timeout_s=timeout_s, heartbeat=guardian.heartbeat)
        if isinstance(hub, Verdict):
            return hub
        with reserve_port(RENDEZVOUS) as port:
            if port != RENDEZVOUS and not is_alone:
                log.info(
                    "launch: port %d is in use on this machine; the rendezvous uses port %d",
                    *(RENDEZVOUS, port),
                )
            decision = MainRole(context).run(hub, failed_preflight, port)
            return own_verdict(node, failed_preflight or local.verdict, decision)
    finally:
        local.kill(guardian.heartbeat)


def is_single_process(request: Request, node: NodeContract) -> bool:
    """Return whether this is a single-process data job."""
    return request.workload.hardware is Hardware.CPU and node.num_nodes == 1


def local_node(
    request: Request,
    node: NodeContract,
    env: Mapping[str, str],
    scratch: Path,
    *,
    heartbeat: Callable[[], None],
) -> WorkerNode:
    """Create this node's ``WorkerNode``, of the class that the workload requires."""
    if request.workload.runs_program:
        from training.launcher.program import ProgramNode  # other workloads start without it

        return ProgramNode(request, node, env, scratch, heartbeat=heartbeat)
    kind = LoneWorkerNode if is_single_process(request, node) else WorkerNode
    return kind(request, node, env, scratch)


def record_ending(
    request: Request, node: NodeContract, env: Mapping[str, str], decision: Verdict
) -> None:
    """Record in the bucket how the job ended (best effort)."""
    if not node.bucket:
        return
    try:
        # On EKS the training job waits for this result; Batch has job dependencies.
        if node.is_main and request.values.get("compile-only") and ENV_JOB_ID in env:
            bucket_records.write_result(
                bucket_records.open_folder(node, bucket_records.RESULTS_PREFIX), node, decision
            )
        if decision.code is not ExitCode.OK and ENV_JOB_ID in env:
            bucket_records.record_ending(node, decision)
    except Exception as error:
        # Only log it: a launcher failure would cost another attempt.
        log.info(
            "launch: the end of this attempt could not be recorded in the bucket: %s",
            describe(error),
        )


def hold_pod(guardian: Guardian, stop: StopRequest) -> None:
    """Keep this pod until Volcano restarts the job.

    Gives the node scaler time to cordon the unfit host: Volcano restarts the job seconds after that
    host's pod has failed, but ends it immediately once all pods have exited.
    """
    log.info("launch: waiting until the node with the unfit host is cordoned")
    ends_s = time.monotonic() + 2 * UNFIT_HOST_DELAY_S
    while not stop.count and time.monotonic() < ends_s:
        guardian.heartbeat()
        time.sleep(_TICK_S)


def open_hub(
    node: NodeContract, *, timeout_s: float, heartbeat: Callable[[], None]
) -> Hub | Verdict:
    """Listen for the children; return a verdict if the port is unavailable."""
    deadline = time.monotonic() + _PORT_WAIT_S
    while True:
        heartbeat()
        try:
            return Hub(node, timeout_s=timeout_s)
        except OSError as error:
            assert error.errno is not None
            # An earlier attempt on the same host may still be shutting down.
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                return Verdict(
                    code=ExitCode.PREFLIGHT,
                    reason=(
                        f"node {node.node_index} cannot listen on {node.address}: "
                        f"{os.strerror(error.errno)}; stop the other launcher on this machine, or "
                        f"correct {ENV_NODE_ADDRESS} if it is not an address of this machine"
                    ),
                )
            time.sleep(_TICK_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
