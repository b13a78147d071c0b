"""The steps of a user's own program: it is submitted, loses a node, and continues."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from shlex import join, quote
from typing import Any

from botocore.exceptions import ClientError

from rehearsal.deployment.aws import Aws
from rehearsal.deployment.state import DEPLOYMENT, EXAMPLE, Settings
from rehearsal.receipt import ProgramRun, ReceiptCheck, RunRecord
from rehearsal.steps.jobs import armed, ended_run, job_status, own_parameters
from rehearsal.steps.runner import Chain, Runner, Step, flags, step
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator

WORKLOAD = contract.PROGRAM
RUN = "own-program"
"""Name of the run; the orchestrator's is added."""
PROCESSES_PER_NODE = 2
EXAMPLES_NODES = 2
PARAMETERS = {"snapshot-every-s": "2", "peer-timeout-s": "10", "join-timeout-s": "120"}
"""Short: nothing is learnt here, and a snapshot of a small program takes no time."""

_RESTORED = re.compile(r"launch: (snapshot (\d+) of .*?), restored in")


def run_name(orchestrator: str, fault: str) -> str:
    """Name of the program's run."""
    return f"{RUN}-{orchestrator}-{fault}"


def parameters(settings: Settings) -> dict[str, str]:
    """Parameters of the job: the rehearsal's own, then the user's."""
    return {**PARAMETERS, **own_parameters(settings.parameters, WORKLOAD)}


def num_nodes(settings: Settings) -> int:
    """Number of nodes of the job."""
    most = EXAMPLES_NODES if settings.program == EXAMPLE else settings.nodes
    return min(most, settings.nodes)


def fault_kinds(settings: Settings) -> tuple[str, ...]:
    """The faults, one for each job: the chosen ones, or the loss of a node."""
    usual = "kill-child" if num_nodes(settings) > 1 else "kill-main"
    return settings.faults if settings.program != EXAMPLE and settings.faults else (usual,)


def submission(settings: Settings, orchestrator: str, fault: str) -> Step:
    """Return the command, as a user types it."""
    program = settings.program
    given = parameters(settings)
    if program.checkpoint_dir is not None:
        given["checkpoint-dir"] = program.checkpoint_dir
    if program.requirements is not None:
        given["requirements"] = program.requirements
    line = f"jobs submit {quote(program.file)} --nodes {num_nodes(settings)}"
    if orchestrator == Orchestrator.EKS:
        line += " --on eks --scale"
    elif "eks" in settings.orchestrators:
        line += " --on batch"
    line += f" --name {run_name(orchestrator, fault)} {flags(given)} --yes --follow"
    if program.argv:
        line += f" {contract.ARGV_MARK} {join(program.argv)}"
    return step(f"{WORKLOAD} {fault}", line)


def run(
    settings: Settings, orchestrator: str, fault: str, *, aws: Aws, runner: Runner
) -> ProgramRun:
    """Submit the program, hurt a node after its first snapshot, and report how it went."""
    name, wanted = run_name(orchestrator, fault), submission(settings, orchestrator, fault)
    snapshots = f"{contract.run_prefix(name, 'snapshots')}[0-9]*.json"
    with armed(aws, run=name, kind=fault, after_key=snapshots):
        runner.run([Chain(name=wanted.name, steps=(wanted,))])
    record = runner.step(wanted.name)
    steps = [record] if record is not None else []
    result = ProgramRun(orchestrator=orchestrator, steps=steps, run=None, checks=[], unproven=[])
    if record is None or record.exit_code not in (0, 1):
        return result  # refused: there is no job
    attempts = len(job_status(name, runner.environment)["attempts"])
    was_hit = attempts > 1
    result.run = ended_run(
        runner,
        wanted.name,
        run=name,
        fault=fault if was_hit else None,
        on_cluster=orchestrator == Orchestrator.EKS,
    )
    said = runner.log(wanted.name).read_text(encoding="utf-8")
    result.checks = list(_checks(settings, result.run, _Bucket(aws), said, was_hit=was_hit))
    if not was_hit and result.run.status == "SUCCEEDED":
        result.unproven.append(_too_short(settings, orchestrator))
    return result


def _too_short(settings: Settings, orchestrator: str) -> str:
    """Say why no node was killed, and how to see one killed."""
    every_s = parameters(settings)["snapshot-every-s"]
    return (
        f"that your program survives the loss of a node on {orchestrator}: it was over before a "
        f"first snapshot was complete, one every {every_s} s, or saved nothing in the folder that "
        "is kept (TRAINIUM_CHECKPOINT_DIR, or --checkpoint-dir); give it more to do, or a smaller "
        "--set snapshot-every-s=..."
    )


class _Bucket:
    """What the run left in the deployment's bucket."""

    def __init__(self, aws: Aws) -> None:
        name = contract.ssm_parameter(DEPLOYMENT, contract.SSM_BUCKET)
        self._name = aws.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
        self._client = aws.client("s3")

    def document(self, key: str) -> dict[str, Any] | None:
        """Read a JSON document; None if there is none."""
        try:
            body = self._client.get_object(Bucket=self._name, Key=key)["Body"].read()
        except ClientError:
            return None
        found: dict[str, Any] = json.loads(body)
        return found


def _checks(
    settings: Settings, run: RunRecord, bucket: _Bucket, said: str, *, was_hit: bool
) -> Iterator[ReceiptCheck]:
    codes = ", ".join("?" if code is None else str(code) for code in run.attempts)
    yield ReceiptCheck(
        name="the program ended with 0",
        ok=run.status == "SUCCEEDED",
        detail=f"{run.status}; exit codes of the main node: {codes}",
    )
    yield _unchanged(settings, run.run, bucket)
    if was_hit:
        found = _RESTORED.findall(said)
        yield ReceiptCheck(
            name="the second attempt got back what the program had saved",
            ok=bool(found),
            detail=found[-1][0] if found else "no snapshot was restored",
        )
    status = bucket.document(contract.run_key(run.run, contract.RUN_STATUS)) or {}
    if status.get("loss") is not None:
        yield ReceiptCheck(
            name="the last loss that it printed",
            ok=True,
            detail=f"{status['loss']:g}, step {status.get('step')}",
        )


def _unchanged(settings: Settings, run: str, bucket: _Bucket) -> ReceiptCheck:
    """Compare the file with the one that the nodes unpacked."""
    file = Path(settings.program.file)
    record = bucket.document(contract.run_key(run, contract.RUN_PROGRAM)) or {}
    code = str(record.get("submissions", [{}])[-1].get("code"))
    key = f"{contract.run_prefix(run, 'code')}{code}.json"
    files = (bucket.document(key) or {}).get("files", ())
    digests = {entry["sha256"] for entry in files}
    same = not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() in digests
    return ReceiptCheck(
        name="the nodes ran your files, unchanged",
        ok=bool(digests) and same,
        detail=f"{len(files)} files, bundle {code[:12]}",
    )
