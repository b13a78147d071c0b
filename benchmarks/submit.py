"""`jobs submit` compared with `aws batch submit-job`: whole processes, same emulated account."""

import itertools
import json
import sys
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from benchmarks.pairs import Comparison
from benchmarks.processes import ROOT, seconds_of
from rehearsal.deployment.aws import EmulatedAccount
from rehearsal.deployment.state import DEPLOYMENT, RehearsalFolder, Settings
from rehearsal.receipt import Receipt
from rehearsal.report.progress import ProgressDisplay
from rehearsal.scenario import Rehearsal
from trainium_catalogue import contract

AWS_CLI = "awscli==1.46.2"
"""The AWS CLI, installed in its own environment because it pins a different botocore."""


def aws_cli(console: Console) -> Path:
    """Install the AWS CLI if needed; return its path."""
    folder = ROOT / "build" / "bench" / AWS_CLI
    program = folder / "bin" / "aws"
    if not program.exists():
        console.print(f"installing {AWS_CLI} for comparison (about 20 MB)")
        venv.create(folder, with_pip=True)
        python = str(folder / "bin" / "python")
        seconds_of([python, "-m", "pip", "install", "-qq", AWS_CLI], {"PATH": "/usr/bin:/bin"})
    return program


Deployed = tuple[EmulatedAccount, dict[str, str]]
"""Clients of the emulated account, and the environment for commands that use it."""


@contextmanager
def deployed(environment: Mapping[str, str]) -> Iterator[Deployed]:
    """Yield a rehearsed deployment with a blocked queue, so that no job disturbs the timing."""
    folder = RehearsalFolder(ROOT / "build" / "bench" / "rehearsal")
    folder.clear()
    settings = Settings(
        nodes=4, processes_per_node=1, processes_of={}, instance_type="trn1.32xlarge",
        workloads=("all-reduce",), faults=(), parameters=(), containers=False, addresses="127.0.9",
    )  # fmt: skip
    rehearsal = Rehearsal(
        settings=settings,
        folder=folder,
        base_environment=environment,
        progress=ProgressDisplay(Console(quiet=True)),
        receipt=Receipt(settings=settings),
    )
    try:
        rehearsal.start()
        rehearsal.deploy()
        exports = folder.environment.read_text().splitlines()
        pairs = (line.removeprefix("export ").split("=", 1) for line in exports)
        aws = EmulatedAccount(
            endpoint=str(rehearsal.receipt.endpoint), region=str(rehearsal.receipt.region)
        )
        aws.client("ssm").put_parameter(
            Name="/rehearsal/next-fault", Type="String", Value=json.dumps({"kind": "no-capacity"})
        )
        yield aws, {**environment, **{name: value for name, value in pairs}}
    finally:
        rehearsal.close()


def submit(aws: EmulatedAccount, environment: Mapping[str, str], program: Path) -> Comparison:
    """Compare sending the same request; `jobs submit` also reads the deployment and runs checks."""
    numbers = itertools.count()

    def parameter(name: str) -> str:
        full = contract.ssm_parameter(DEPLOYMENT, name)
        return str(aws.client("ssm").get_parameter(Name=full)["Parameter"]["Value"])

    queue = parameter(contract.SSM_JOB_QUEUE)
    definition = parameter(contract.ssm_job_definition("all-reduce"))

    def product() -> float:
        arguments = ["--nodes", "4", "--yes", "--name", f"ours-{next(numbers)}"]
        return seconds_of([sys.executable, "-m", "jobs", "submit", "all-reduce", *arguments],
                          environment)  # fmt: skip

    def baseline() -> float:
        arguments = ["--job-name", f"theirs-{next(numbers)}", "--job-queue", queue]
        arguments += ["--job-definition", definition, "--node-overrides", "numNodes=4"]
        return seconds_of([str(program), "batch", "submit-job", *arguments], environment)

    return Comparison(
        name="submit",
        product="python -m jobs submit, whole process",
        baseline=f"aws batch submit-job, whole process ({AWS_CLI})",
        target=1.0,
        measure_product=product,
        measure_baseline=baseline,
    )
