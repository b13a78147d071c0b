"""What every node of a job runs: ``python -m training.launch <workload> [--parameter value]...``.

Reads the environment once, then joins the other nodes, starts torchrun, and ends with the code
that all nodes end with (docs/interfaces.md lists them).
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from training.core.arguments import DRY_RUN_FULL, ArgumentError, Request, help_text, parse
from training.core.contract import NodeContract, read_contract
from training.core.contract_values import ContractError
from training.core.failures import describe
from training.core.processes import forbid_new_privileges
from training.core.progress import RunContext
from training.launcher import job_results, settings
from training.launcher.addresses import HostNotFound, find_address, find_host, interface_of
from training.launcher.compile_graphs import compile_command
from training.launcher.guardian import Guardian
from training.launcher.host import Host, raise_file_limit
from training.launcher.node import LocalNode
from training.launcher.peers import Hub, Spoke
from training.launcher.ports import reserve_port
from training.launcher.preflight import preflight, problem, report_lines
from training.launcher.supervisor import ChildRole, MainRole, StopRequest, Tools
from training.launcher.torchrun import torchrun_command
from training.launcher.verdict import Verdict
from training.workloads import refuse_unfit
from trainium_catalogue.contract import (
    CACHE_PREFIX,
    ENV_AFTER_JOB,
    ENV_JOB_ID,
    ENV_NODE_ADDRESS,
    RENDEZVOUS,
)
from trainium_catalogue.exit_codes import EXIT_CODES, ExitCode

_PORT_WAIT_S = 10.0
_TICK_S = 0.1


def say(message: str) -> None:
    """One line into the log, at once."""
    print(f"launch: {message}", flush=True)


def main(words: Sequence[str], env: Mapping[str, str]) -> int:
    """Run one node; returns its exit code."""
    if any(word in ("-h", "--help") for word in words):
        print(help_text(words))
        return ExitCode.OK
    if DRY_RUN_FULL in words:
        # Imports torch, which the launcher does without.
        from training.models.llama import dry_run

        return dry_run.main(words)
    try:
        request = parse(words)
        patient = partial(find_host, within_s=request.launch.join_timeout_s)
        node = read_contract(env, find_address, patient)
        refuse_unfit(request, node)
    except (ArgumentError, ContractError) as error:
        print(f"launch: {error}", file=sys.stderr, flush=True)
        return ExitCode.CONFIGURATION
    except HostNotFound as error:
        say(str(error))
        return ExitCode.PREFLIGHT
    except OSError as error:
        say(f"the node's own address cannot be found: {error}")
        return ExitCode.HOST
    stop = StopRequest()

    def count_request(number: int, frame: object) -> None:
        stop.count += 1

    if os.geteuid() != 0:
        # Hosts of CPU jobs answer root alone about their own role.
        forbid_new_privileges()
    signal.signal(signal.SIGTERM, count_request)
    signal.signal(signal.SIGINT, count_request)
    raise_file_limit()
    scratch = Path(tempfile.mkdtemp(prefix="trainium-"))
    guardian = Guardian(scratch=scratch, silence_s=request.launch.peer_timeout_s)
    try:
        decision = run_node(request, node, env, scratch=scratch, guardian=guardian, stop=stop)
        leave_word(request, node, env, decision)
    except Exception as error:
        # A host on which not even the launcher works, or a mistake in the launcher: in no case the
        # workload's, so another attempt is worth its few seconds.
        traceback.print_exc()
        decision = Verdict(code=ExitCode.HOST, reason=f"the launcher failed: {describe(error)}")
    finally:
        guardian.release()
        shutil.rmtree(scratch, ignore_errors=True)
        # The code is decided. Batch stops children once the main node has ended, and a handler
        # would be undone while Python shuts down: the node would end with 143 instead.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ending = EXIT_CODES[decision.code]
    say(f"exit {decision.code.value} ({ending.meaning}): {decision.reason}")
    return decision.code


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
    say(
        f"node {node.node_index} of {node.num_nodes}{' (main)' if node.is_main else ''} at "
        f"{node.address}: {request.workload.name}, run {node.run}, attempt {node.attempt}, "
        f"{node.processes_per_node} processes on {node.device}"
    )
    if (first := env.get(ENV_AFTER_JOB)) and node.bucket:
        decision = job_results.wait_for(
            job_results.open_results(node),
            first,
            beat=guardian.beat,
            stopped=lambda: stop.count > 0,
            say=say,
        )
        if decision is not None:
            return decision
    outcomes = preflight(node, Host(disk=scratch, beat=guardian.beat))
    for line in report_lines(outcomes):
        say(line)
    found = problem(node, outcomes)
    local = LocalNode(
        label=f"node {node.node_index}",
        scratch=scratch,
        num_workers=node.processes_per_node,
        hang_limit_s=request.launch.hang_limit_s,
    )

    def start_workers(rendezvous_port: int) -> None:
        system = settings.System(
            kernel=platform.release(),
            interface=interface_of(node.address),
            has_cache=CACHE_PREFIX in request.workload.writes,
            dataset_kind=request.workload.dataset_kind,
        )
        worker_env, remarks = settings.worker_environment(env, node, system)
        for remark in remarks:
            say(remark)
        run_context(request, node).write(scratch)
        command = torchrun_command(
            node,
            python=sys.executable,
            rendezvous_port=rendezvous_port,
            log_folder=scratch,
            words=request.words,
        )
        if request.values.get("compile-only"):
            command = compile_command(node, command, python=sys.executable, words=request.words)
        say(f"start: {' '.join(command)}")
        local.start(command, worker_env)

    timeout_s = request.launch.peer_timeout_s
    tools = Tools(
        node=node,
        parameters=request.launch,
        local=local,
        guardian=guardian,
        stop=stop,
        start_workers=start_workers,
    )
    try:
        if not node.is_main:
            return ChildRole(tools).run(Spoke(node, timeout_s=timeout_s), found)
        hub = open_hub(node, timeout_s=timeout_s, beat=guardian.beat)
        if isinstance(hub, Verdict):
            return hub
        with reserve_port(RENDEZVOUS) as port:
            if port != RENDEZVOUS:
                say(f"port {RENDEZVOUS} is taken on this machine; rendezvous is on {port}")
            return MainRole(tools).run(hub, found, port)
    finally:
        local.kill(guardian.beat)


def leave_word(
    request: Request, node: NodeContract, env: Mapping[str, str], decision: Verdict
) -> None:
    """Tell the bucket how the job has ended; that it cannot be told changes nothing of it."""
    if not node.bucket:
        return
    try:
        if node.is_main and _compiles_for_another(request, env):
            job_results.leave_result(job_results.open_results(node), node, decision, say)
        if decision.code is not ExitCode.OK and ENV_JOB_ID in env:
            job_results.leave_ending(node, decision, say)
    except Exception as error:
        # A mistake in here is worth a line. Taken for the host's it would cost another attempt.
        say(f"the bucket could not be told how this attempt ended: {describe(error)}")


def _compiles_for_another(request: Request, env: Mapping[str, str]) -> bool:
    """Whether a Volcano job waits for this one's result; Batch looks after that by itself."""
    return bool(request.values.get("compile-only")) and ENV_JOB_ID in env


def open_hub(node: NodeContract, *, timeout_s: float, beat: Callable[[], None]) -> Hub | Verdict:
    """Listen for the children; a verdict when the port cannot be had."""
    deadline = time.monotonic() + _PORT_WAIT_S
    while True:
        beat()
        try:
            return Hub(node, timeout_s=timeout_s)
        except OSError as error:
            assert error.errno is not None
            # An earlier attempt on the same host may still be ending.
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


def run_context(request: Request, node: NodeContract) -> RunContext:
    """What the workers of this node are told."""
    return RunContext(
        run=node.run,
        deployment=node.deployment,
        job_id=node.job_id,
        attempt=node.attempt,
        node_index=node.node_index,
        num_nodes=node.num_nodes,
        processes_per_node=node.processes_per_node,
        device=node.device.value,
        instance_type=node.instance_type.name if node.instance_type else None,
        neuron_release=node.release.name if node.release else None,
        bucket=node.bucket,
        region=node.region,
        endpoint_url=node.endpoint_url,
        lustre=node.lustre,
        array_index=node.array_index,
        array_size=node.array_size,
        hang_limit_s=request.launch.hang_limit_s,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
