"""The scenario of a rehearsal: a first result within a minute, then both halves.

The first part deploys only the stacks for Batch, runs an all-reduce and destroys them. The second
deploys all stacks, trains on Batch and on the cluster concurrently, and destroys them. Each part
proves that nothing is left.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shlex import quote

from rehearsal.deployment import cdk, containers
from rehearsal.deployment.aws import (
    EmulatedAccount,
    allow_submitter,
    client_environment,
    create_submitter,
    endpoint_environment,
)
from rehearsal.deployment.binaries import kubectl
from rehearsal.deployment.server import ServerProcess, server_command, start_server
from rehearsal.deployment.state import EXAMPLE, RehearsalFolder, RehearsalState, Settings
from rehearsal.proofs import leftovers
from rehearsal.proofs.endings import NO_CAPACITY, RUNNABLE_SPEEDUP
from rehearsal.receipt import (
    FirstResult,
    HelmRelease,
    PhaseRecord,
    Receipt,
    ReceiptStack,
    read_image,
)
from rehearsal.report.progress import ProgressDisplay
from rehearsal.steps import batch, cluster, program
from rehearsal.steps.jobs import ALL_REDUCE, submit
from rehearsal.steps.notifications import subscribed
from rehearsal.steps.runner import RehearsalInterrupted, Runner
from trainium_catalogue.contract import ENV_PROCESSES_PER_NODE, Orchestrator
from trainium_emulators import docker_cli


@dataclass(slots=True, kw_only=True)
class Rehearsal:
    """A rehearsal on one server with one deployment; every phase adds to ``receipt``."""

    settings: Settings
    folder: RehearsalFolder
    base_environment: Mapping[str, str]
    progress: ProgressDisplay
    receipt: Receipt
    nodes: containers.ContainerNodes | None = None
    """Image of the nodes; None if nodes are processes."""
    _server: ServerProcess | None = None
    _aws: EmulatedAccount | None = None
    _assembly: cdk.CloudAssembly | None = None
    _is_up: bool = False
    _begin: float = field(default_factory=time.monotonic)
    _before: frozenset[leftovers.AccountResource] = frozenset()
    _turns: cluster.NodeTurns = field(default_factory=cluster.NodeTurns)
    _environment: dict[str, str] = field(default_factory=dict)
    """Environment of the user who deploys."""
    _submitter: dict[str, str] = field(default_factory=dict)
    """Environment of the user who submits, limited by the published policy."""
    _bin: Path = field(default_factory=lambda: Path(sys.executable).parent)

    def run(self, *, jobs: bool, stay: Callable[[], None] | None) -> None:
        """Run the whole scenario; without jobs, only deploy and destroy.

        Args:
            jobs: True to run the workloads of the settings.
            stay: Called once everything is deployed; destroy follows when it returns.
        """
        self.start()
        workloads = set(self.settings.workloads) if jobs else set()
        rest = workloads - {ALL_REDUCE}
        if ALL_REDUCE in workloads:
            # Deploy only some stacks, but with all settings, so that the next deployment only adds
            # stacks.
            only = self._stacks_without_cluster() if rest else None
            with self._destroy_on_exit(only):
                self.deploy(only)
                self._all_reduce()
                if stay is not None and not rest:
                    stay()
            if self.receipt.errors:
                return
            self._report_first(only)
            if not rest:
                return
        with self._destroy_on_exit(None):
            self.deploy(None)
            self._both_halves(rest)
            if stay is not None:
                stay()

    def start(self) -> None:
        """Start the server, and prepare the deployment."""
        executable = cdk.executable(self._bin)
        self._environment = self._client_environment(aws=None)
        if self.settings.containers:
            with self._phase("image (the first build takes minutes)"):
                # With the user's pip settings, because the build may need a mirror of PyPI.
                self.nodes = containers.build(self.folder, self._environment, self.progress.detail)
        with self._phase("server and synth"):
            self._server = self._start_server()
            cdk.write_docker_emulator(self.folder.docker, record=self.folder.docker_record)
            command = cdk.synth_command(
                executable, assembly=self.folder.assembly, context=cdk.context(self.settings)
            )
            self._cdk(command, "synth")
            self._assembly = cdk.read_assembly(self.folder.assembly)
            endpoint = self._server.wait_ready(self.folder)
            self._aws = EmulatedAccount(endpoint=endpoint, region=self._assembly.region)
            self._environment = self._client_environment(aws=self._aws)
            self._submitter = {**self._environment, **create_submitter(self._aws)}
            RehearsalState.here(endpoint).save(self.folder)
            self.receipt.endpoint, self.receipt.region = endpoint, self._assembly.region
            self.receipt.versions = _versions()
            self._before = leftovers.take_inventory(self._aws)
        with self._phase("bootstrap"):
            command = cdk.bootstrap_command(
                executable, assembly=self.folder.assembly, region=self._assembly.region
            )
            self._cdk(command, "bootstrap")

    def deploy(self, only: tuple[str, ...] | None = None) -> None:
        """Deploy all stacks, or some of them."""
        assert self._aws is not None and self._assembly is not None
        self._is_up = self.receipt.proven_empty = False
        with self._phase("deploy" if only is None else "deploy the Batch stacks"):
            command = cdk.deploy_command(
                cdk.executable(self._bin), assembly=self.folder.assembly, only=only
            )
            self._cdk(command, "deploy" if only is None else "deploy-first")
            self.receipt.stacks = [
                ReceiptStack(name=name, resources=leftovers.count_resources(self._aws, name))
                for name in (only or self._assembly.stacks)
            ]
            self.receipt.image = read_image(
                docker_cli.read_record(self.folder.docker_record),
                built=self.nodes is not None,
            )
        allow_submitter(self._aws)
        self._is_up = True
        self.write_environment()

    def _stacks_without_cluster(self) -> tuple[str, ...]:
        """Return all stacks except the cluster's, which takes longest."""
        assert self._assembly is not None
        return tuple(name for name in self._assembly.stacks if not name.endswith("-eks"))

    def _all_reduce(self) -> None:
        """Submit an all-reduce without a fault and one for each fault; record the results."""
        assert self._aws is not None
        runner = self._runner("jobs", self._submitter)
        with subscribed(self._aws) as queue:
            for number, fault in enumerate((None, *self.settings.faults), start=1):
                name = f"rehearsal-{number}" if fault is None else f"rehearsal-{number}-{fault}"
                with self._phase("job" if fault is None else f"job, {fault}"):
                    record = submit(
                        self.settings, run=name, fault=fault, aws=self._aws, runner=runner
                    )
                    queue.check(record)
                    self.receipt.runs.append(record)
                    if record.differences:
                        self.progress.note(f"{name}: " + "; ".join(record.differences))

    def _report_first(self, only: tuple[str, ...] | None) -> None:
        """Report the first result before the rest starts."""
        assert self._assembly is not None
        self.receipt.first_result = first = FirstResult(
            seconds=round(time.monotonic() - self._begin, 2),
            stacks=len(only or self._assembly.stacks),
            leftovers=list(self.receipt.leftovers),
        )
        self.progress.note(f"\nfirst result: {first.line(self.receipt.runs)}\n")

    def _both_halves(self, workloads: set[str]) -> None:
        """Run both halves and the programs concurrently; record the results."""
        if not workloads & set(cluster.WORKLOADS):
            self._turns.inspected.set()
        programs = self._program_orchestrators() if program.WORKLOAD in workloads else ()
        for name, ended in self._turns.program_ended.items():
            if name not in programs:
                ended.set()
        tasks: list[Callable[[], None]] = []
        runners: list[Runner] = []
        if batch.WORKLOAD in workloads:
            runners.append(self._runner("batch", self._submitter))
            tasks.append(partial(self._train_on_batch, runners[-1]))
        if workloads & set(cluster.WORKLOADS):
            kubeconfig = {"KUBECONFIG": str(self.folder.kubeconfig)}
            runners.append(self._runner("eks", {**self._submitter, **kubeconfig}))
            tasks.append(partial(self._train_on_cluster, runners[-1]))
        for name in programs:
            runners.append(self._runner(name, self._submitter))
            tasks.append(partial(self._run_program, name, runners[-1]))
        with ThreadPoolExecutor(max_workers=max(1, len(tasks))) as pool:
            running = [pool.submit(task) for task in tasks]
            try:
                wait(running)
            except BaseException:
                for runner in runners:
                    runner.stop()
                raise
        for future in running:
            future.result()

    def _train_on_batch(self, runner: Runner) -> None:
        assert self._aws is not None
        training = batch.run(
            self.settings,
            aws=self._aws,
            folder=self.folder,
            runner=runner,
            program_ended=self._turns.program_ended[Orchestrator.BATCH],
        )
        self.receipt.training = training
        for problem in training.problems:
            self.progress.note(problem)

    def _train_on_cluster(self, runner: Runner) -> None:
        assert self._aws is not None
        try:
            result = cluster.run(
                self.settings, aws=self._aws, folder=self.folder, runner=runner, turns=self._turns
            )
        finally:
            self._turns.inspected.set()
        self.receipt.cluster = result
        for problem in result.problems:
            self.progress.note(problem)

    def _program_orchestrators(self) -> tuple[str, ...]:
        """Return the program's orchestrators: all for a user's program, one for the example."""
        chosen = self.settings.orchestrators
        return chosen if self.settings.program != EXAMPLE else chosen[:1]

    def _run_program(self, orchestrator: str, runner: Runner) -> None:
        assert self._aws is not None
        if orchestrator == Orchestrator.EKS:
            self._turns.inspected.wait()
        try:
            for fault in program.fault_kinds(self.settings):
                result = program.run(
                    self.settings, orchestrator, fault, aws=self._aws, runner=runner
                )
                self.receipt.programs.append(result)
                for problem in (*result.problems, *result.unproven):
                    self.progress.note(problem)
        finally:
            self._turns.program_ended[orchestrator].set()

    def _runner(self, half: str, environment: Mapping[str, str]) -> Runner:
        return Runner(
            half,
            folder=self.folder,
            environment=environment,
            on_line=self.progress.detail,
            phase=self._phase,
            note=self.progress.note,
        )

    @contextmanager
    def _destroy_on_exit(self, only: tuple[str, ...] | None) -> Iterator[None]:
        """Destroy the stacks when the block exits, even after a failed job."""
        try:
            yield
        except cdk.StepFailed as failure:
            if not self._is_up:
                raise
            # Test destroy even if a job could not be followed.
            self.receipt.errors.append(str(failure))
        self.destroy(only)

    def destroy(self, only: tuple[str, ...] | None = None) -> None:
        """Destroy all stacks, or some of them, and look for leftovers."""
        assert self._aws is not None and self._server is not None
        with self._phase("destroy"):
            # A user's jobs may still be running, and their nodes would access a deleted bucket.
            left_on_machine = self._server.end_jobs() if self._server.alive else []
            command = cdk.destroy_command(
                cdk.executable(self._bin), assembly=self.folder.assembly, only=only
            )
            self._cdk(command, "destroy" if only is None else "destroy-first")
        with self._phase("proof"):
            self.receipt.expected_left, self.receipt.leftovers = leftovers.compare(
                before=self._before,
                after=leftovers.take_inventory(self._aws)
                | leftovers.take_cluster_inventory(self._server.kubernetes),
                toolkit=leftovers.toolkit_resources(self._aws),
            )
            self.receipt.leftovers += [
                leftovers.AccountResource("machine", "node", text) for text in left_on_machine
            ]
            self.receipt.proven_empty = True
            self.receipt.charts = [_chart(event) for event in self._server.charts.values()]

    @property
    def server_alive(self) -> bool:
        return self._server is not None and self._server.alive

    def close(self) -> None:
        """Stop the server and its nodes; the account is lost with the server's memory."""
        if self._server is not None:
            self._server.stop()
            self.receipt.seeded = [
                {"name": event["name"], "value": str(event["value"])}
                for event in self._server.seeded
            ]
            self.receipt.environment_extras = self._server.environment_extras
        for path in (self.folder.state, self.folder.environment, self.folder.kubeconfig):
            path.unlink(missing_ok=True)

    def write_environment(self) -> None:
        """Write a file to source in another terminal in order to use this account there."""
        assert self._aws is not None
        names = (*endpoint_environment(self._aws), "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        lines = [f"export {name}={self._environment[name]}\n" for name in names]
        # A training run's plan depends on the number of ranks.
        processes = self.settings.processes_of.get(batch.WORKLOAD, self.settings.processes_per_node)
        lines.append(f"export {ENV_PROCESSES_PER_NODE}={processes}\n")
        if "eks" in self.settings.orchestrators:
            lines.append(f"export KUBECONFIG={quote(str(self.folder.kubeconfig.resolve()))}\n")
            lines.append(f'export PATH={quote(str(kubectl().parent))}:"$PATH"\n')
        lines.append(cdk.shell_functions(self.settings))
        self.folder.environment.write_text("".join(lines), encoding="utf-8")

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        phase = PhaseRecord(name=name, seconds=0.0, outcome="failed")
        self.receipt.phases.append(phase)
        with self.progress.phase(phase):
            try:
                yield
                phase.outcome = "ok"
            except (RehearsalInterrupted, KeyboardInterrupt):
                phase.outcome = "interrupted"
                raise
            finally:
                phase.seconds = round(time.monotonic() - begin, 2)

    def _client_environment(self, *, aws: EmulatedAccount | None) -> dict[str, str]:
        return client_environment(
            self.base_environment, aws=aws, docker=self.folder.docker, bin_folder=self._bin
        )

    def _start_server(self) -> ServerProcess:
        command = server_command(
            processes_per_node=self.settings.processes_per_node,
            processes_of=self.settings.processes_of,
            addresses=self.settings.addresses,
            runnable_clock=RUNNABLE_SPEEDUP if NO_CAPACITY in self.settings.faults else 1.0,
            containers=self.nodes,
        )
        return start_server(
            command,
            folder=self.folder,
            environment=self._environment,
            on_event=self.progress.event,
        )

    def _cdk(self, command: cdk.Command, name: str) -> None:
        cdk.run(
            command,
            log=self.folder.log(f"cdk-{name}"),
            environment=self._environment,
            on_line=self.progress.detail,
        )


def _chart(event: Mapping[str, str]) -> HelmRelease:
    return HelmRelease(
        release=event["release"],
        chart=event["chart"],
        repository=event["repository"],
        version=event["version"],
        namespace=event["namespace"],
        uninstalled=event["action"] == "uninstalled",
    )


def _versions() -> dict[str, str]:
    libraries = ("aws-cdk-lib", "moto", "torch")
    return {
        "python": platform.python_version(),
        "cdk": cdk.version(),
        **{name: importlib.metadata.version(name) for name in libraries},
    }
