"""One rehearsal from start to proof: server, synth, bootstrap, deploy, jobs, destroy, proof."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from rehearsal import cdk, cluster_leftovers, containers, eks_story, leftovers, story
from rehearsal.aws import Aws, desk_environment, endpoint_environment
from rehearsal.binaries import kubectl
from rehearsal.faults import NO_CAPACITY, RUNNABLE_CLOCK
from rehearsal.progress import Progress
from rehearsal.receipt import Phase, Receipt, Stack, recorded_image
from rehearsal.receipt_stories import Chart
from rehearsal.server_process import ServerProcess, server_command, start_server
from rehearsal.state import Folder, Settings, State
from rehearsal.submission import submit
from trainium_catalogue.contract import ENV_PROCESSES_PER_NODE
from trainium_emulators import docker_cli as docker_stand_in


@dataclass(slots=True, kw_only=True)
class Rehearsal:
    """One server and one deployment; ``receipt`` grows with every phase."""

    settings: Settings
    folder: Folder
    base_environment: Mapping[str, str]
    progress: Progress
    receipt: Receipt
    nodes: containers.ContainerNodes | None = None
    """Image that the nodes run in; without one they are processes."""
    _server: ServerProcess | None = None
    _aws: Aws | None = None
    _before: frozenset[leftovers.Item] = frozenset()
    _environment: dict[str, str] = field(default_factory=dict)
    _bin: Path = field(default_factory=lambda: Path(sys.executable).parent)

    def deploy(self) -> None:
        """Start the server, and deploy what goes to AWS."""
        executable = cdk.executable(self._bin)
        self._environment = self._desk(aws=None)
        if self.settings.containers:
            with self._phase("image (the first one takes minutes)"):
                # pip keeps the user's settings: it may need a mirror.
                self.nodes = containers.build(self.folder, self._environment, self.progress.detail)
        with self._phase("server and synth"):
            self._server = self._start_server()
            cdk.write_docker_stand_in(self.folder.docker, record=self.folder.docker_record)
            command = cdk.synth_command(
                executable, assembly=self.folder.assembly, context=cdk.context(self.settings)
            )
            self._cdk(command, "synth")
            assembly = cdk.read_assembly(self.folder.assembly)
            endpoint = self._server.wait_ready(self.folder)
            self._aws = Aws(endpoint=endpoint, region=assembly.region)
            self._environment = self._desk(aws=self._aws)
            State.here(endpoint).save(self.folder)
            self.receipt.endpoint, self.receipt.region = endpoint, assembly.region
            self.receipt.versions = _versions()
            self._before = leftovers.take_inventory(self._aws)
        with self._phase("bootstrap"):
            command = cdk.bootstrap_command(
                executable, assembly=self.folder.assembly, region=assembly.region
            )
            self._cdk(command, "bootstrap")
        with self._phase("deploy"):
            self._cdk(cdk.deploy_command(executable, assembly=self.folder.assembly), "deploy")
            self.receipt.stacks = [
                Stack(name=name, resources=leftovers.count_resources(self._aws, name))
                for name in assembly.stacks
            ]
            self.receipt.image = recorded_image(
                docker_stand_in.read_record(self.folder.docker_record),
                built=self.nodes is not None,
            )
        self.write_environment()

    def run(self, number: int, fault: str | None) -> None:
        """Submit one job and record how it ended."""
        assert self._aws is not None
        name = f"rehearsal-{number}" if fault is None else f"rehearsal-{number}-{fault}"
        with self._phase("job" if fault is None else f"job, {fault}"):
            record = submit(
                self.settings,
                run=name,
                fault=fault,
                aws=self._aws,
                folder=self.folder,
                environment=self._environment,
                on_line=self.progress.detail,
            )
            self.receipt.runs.append(record)
            if record.differences:
                self.progress.note(f"{name}: " + "; ".join(record.differences))

    def train(self) -> None:
        """Tell the training story and record how it went."""
        assert self._aws is not None
        training = story.tell(
            self.settings,
            aws=self._aws,
            folder=self.folder,
            environment=self._environment,
            on_line=self.progress.detail,
            phase=self._phase,
        )
        self.receipt.training = training
        for problem in training.problems:
            self.progress.note(problem)

    def train_on_cluster(self) -> None:
        """Tell the cluster's story and record how it went."""
        assert self._aws is not None
        told = eks_story.tell(
            self.settings,
            aws=self._aws,
            folder=self.folder,
            environment=self._environment,
            on_line=self.progress.detail,
            phase=self._phase,
        )
        self.receipt.cluster = told
        for problem in told.problems:
            self.progress.note(problem)

    def destroy(self) -> None:
        """Destroy all stacks and look at what is left."""
        assert self._aws is not None and self._server is not None
        with self._phase("destroy"):
            executable = cdk.executable(self._bin)
            self._cdk(cdk.destroy_command(executable, assembly=self.folder.assembly), "destroy")
        with self._phase("proof"):
            self.receipt.expected_left, self.receipt.leftovers = leftovers.compare(
                before=self._before,
                after=leftovers.take_inventory(self._aws)
                | cluster_leftovers.take_inventory(self._server.kubernetes),
                toolkit=leftovers.toolkit_resources(self._aws),
            )
            self.receipt.proven_empty = True
            self.receipt.charts = [_chart(event) for event in self._server.charts.values()]

    @property
    def server_alive(self) -> bool:
        return self._server is not None and self._server.alive

    def close(self) -> None:
        """End the server and its nodes; what the account held was in its memory."""
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
        """A file to source in another terminal, to be the user of this account."""
        assert self._aws is not None
        names = (*endpoint_environment(self._aws), "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        lines = [f"export {name}={self._environment[name]}\n" for name in names]
        # The helper's plan of a training run counts ranks.
        processes = self.settings.processes_of.get(story.WORKLOAD, self.settings.processes_per_node)
        lines.append(f"export {ENV_PROCESSES_PER_NODE}={processes}\n")
        if "eks" in self.settings.orchestrators:
            lines.append(f"export KUBECONFIG={quote(str(self.folder.kubeconfig.resolve()))}\n")
            lines.append(f'export PATH={quote(str(kubectl().parent))}:"$PATH"\n')
        lines.append(cdk.shell_functions(self.settings))
        self.folder.environment.write_text("".join(lines), encoding="utf-8")

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        phase = Phase(name=name, seconds=0.0, outcome="failed")
        self.receipt.phases.append(phase)
        with self.progress.phase(phase):
            try:
                yield
                phase.outcome = "ok"
            finally:
                phase.seconds = round(time.monotonic() - begin, 2)

    def _desk(self, *, aws: Aws | None) -> dict[str, str]:
        return desk_environment(
            self.base_environment, aws=aws, docker=self.folder.docker, bin_folder=self._bin
        )

    def _start_server(self) -> ServerProcess:
        command = server_command(
            processes_per_node=self.settings.processes_per_node,
            processes_of=self.settings.processes_of,
            addresses=self.settings.addresses,
            runnable_clock=RUNNABLE_CLOCK if NO_CAPACITY in self.settings.faults else 1.0,
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


def _chart(event: Mapping[str, str]) -> Chart:
    return Chart(
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
