"""The launcher that every node of a job runs.

    python -m training.launch <workload> [--parameter value]...

Reads the environment once, then joins the other nodes, starts torchrun or the only process of a
data job, and exits with the code that all nodes exit with (listed in docs/interfaces.md).
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
from training.launcher import signs
from training.launcher.addresses import find_address, find_host, reserve_port
from training.launcher.guardian import Guardian
from training.launcher.home import home_of
from training.launcher.node import LocalNode, LoneWorkerNode, WorkerNode
from training.launcher.peers import Hub, Spoke
from training.launcher.preflight import preflight, problem, report_lines
from training.launcher.supervisor import ChildRole, LauncherContext, MainRole, StopRequest
from training.launcher.verdict import Verdict, launcher_failed, verdict_of
from training.workloads import refuse_unfit
from trainium_catalogue.contract import (
    ENV_AFTER_JOB,
    ENV_JOB_ID,
    ENV_NODE_ADDRESS,
    RENDEZVOUS,
)
from trainium_catalogue.exit_codes import EXIT_CODES, ExitCode
from trainium_catalogue.parameters.program import PROCESSES, check_processes
from trainium_catalogue.workloads import Hardware

_PORT_WAIT_S = 10.0
_TICK_S = 0.1

log = logging.getLogger("training.launch")


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run one node; returns its exit code."""
    set_up_logging()
    own, _ = split_argv(argv)
    if any(word in ("-h", "--help") for word in own):
        print(help_text(argv))
        return ExitCode.OK
    if DRY_RUN_FULL in own:
        # Imports torch, which the launcher otherwise does without.
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
        # On hosts of CPU jobs only root can obtain the host's own role.
        forbid_new_privileges()
    signal.signal(signal.SIGTERM, count_request)
    signal.signal(signal.SIGINT, count_request)
    raise_file_limit()
    scratch = Path(tempfile.mkdtemp(prefix="trainium-"))
    guardian = Guardian.open(scratch=scratch, silence_s=request.launch.peer_timeout_s)
    try:
        decision = run_node(request, node, env, scratch=scratch, guardian=guardian, stop=stop)
        leave_last_sign(request, node, env, decision)
    except Exception as error:
        # A host on which not even the launcher works, or a mistake in the launcher: in no case the
        # workload's, so another attempt is worth its few seconds.
        log.error("%s", traceback.format_exc().rstrip())
        decision = launcher_failed(error)
    finally:
        home = home_of(scratch)  # asked first: the guardian removes the scratch folder as well
        guardian.release()
        if home is not None:
            shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)
        # The code is decided. Batch stops children once the main node has ended, and Python removes
        # handlers while it shuts down: the node would end with 143 instead.
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
) -> Verdict:
    """Check this node, join the others, and stay until the job is decided."""
    if is_alone := has_lone_worker(request, node):
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
    if (first := env.get(ENV_AFTER_JOB)) and node.bucket:
        decision = signs.wait_for_result(
            signs.open_folder(node, signs.RESULTS_PREFIX),
            first,
            heartbeat=guardian.heartbeat,
            stopped=lambda: stop.count > 0,
        )
        if decision is not None:
            return decision
    outcomes = preflight(node, Host(disk=scratch, heartbeat=guardian.heartbeat))
    for line in report_lines(outcomes):
        log.info("launch: %s", line)
    found = problem(node, outcomes)
    node.write(scratch)
    local = local_node(request, node, env, scratch, heartbeat=guardian.heartbeat)
    if found is None:
        local.prepare()
    timeout_s = request.launch.peer_timeout_s
    context = LauncherContext(
        node=node, parameters=request.launch, local=local, guardian=guardian, stop=stop
    )
    try:
        if not node.is_main:
            return ChildRole(context).run(Spoke(node, timeout_s=timeout_s), found)
        hub = open_hub(node, timeout_s=timeout_s, heartbeat=guardian.heartbeat)
        if isinstance(hub, Verdict):
            return hub
        with reserve_port(RENDEZVOUS) as port:
            if port != RENDEZVOUS and not is_alone:
                log.info(
                    "launch: port %d is taken on this machine; rendezvous is on %d",
                    *(RENDEZVOUS, port),
                )
            return MainRole(context).run(hub, found, port)
    finally:
        local.kill(guardian.heartbeat)


def has_lone_worker(request: Request, node: NodeContract) -> bool:
    """Tell if the job is a data job of one process."""
    return request.workload.hardware is Hardware.CPU and node.num_nodes == 1


def local_node(
    request: Request,
    node: NodeContract,
    env: Mapping[str, str],
    scratch: Path,
    *,
    heartbeat: Callable[[], None],
) -> LocalNode:
    """Choose what runs on this node."""
    if request.workload.runs_program:
        from training.launcher.program import ProgramNode  # other workloads start without it

        return ProgramNode(request, node, env, scratch, heartbeat=heartbeat)
    kind = LoneWorkerNode if has_lone_worker(request, node) else WorkerNode
    return kind(request, node, env, scratch)


def leave_last_sign(
    request: Request, node: NodeContract, env: Mapping[str, str], decision: Verdict
) -> None:
    """Record in the bucket how the job ended; a failure to do so changes nothing."""
    if not node.bucket:
        return
    try:
        # A Volcano job waits for this one's result; Batch handles dependencies itself.
        if node.is_main and request.values.get("compile-only") and ENV_JOB_ID in env:
            signs.leave_result(signs.open_folder(node, signs.RESULTS_PREFIX), node, decision)
        if decision.code is not ExitCode.OK and ENV_JOB_ID in env:
            signs.leave_ending(node, decision)
    except Exception as error:
        # A mistake here is worth a line; taken for the host's fault it would cost another attempt.
        log.info("launch: the bucket could not be told how this attempt ended: %s", describe(error))


def open_hub(
    node: NodeContract, *, timeout_s: float, heartbeat: Callable[[], None]
) -> Hub | Verdict:
    """Listen for the children; returns a verdict if the port is unavailable."""
    deadline = time.monotonic() + _PORT_WAIT_S
    while True:
        heartbeat()
        try:
            return Hub.open(node, timeout_s=timeout_s)
        except OSError as error:
            assert error.errno is not None
            # An earlier attempt on the same host may still be shutting down.
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                return Verdict(
                    code=ExitCode.PREFLIGHT,
                    reason=(
                        f"node {node.node_index} cannot listen on {node.address}: "
                        f"{os.strerror(error.errno)}; end the other launcher on this machine, or "
                        f"correct {ENV_NODE_ADDRESS} if it is not an address of this machine"
                    ),
                )
            time.sleep(_TICK_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
