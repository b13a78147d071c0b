"""The steps of a user's own program: it is submitted, loses a node, and continues."""

from __future__ import annotations

import fnmatch
import hashlib
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import join, quote

from rehearsal.deployment.aws import DeploymentBucket, EmulatedAccount
from rehearsal.deployment.state import EXAMPLE, ROOT, Settings
from rehearsal.receipt import ProgramRun, ReceiptCheck, RunRecord
from rehearsal.steps.jobs import armed, ended_run, job_status, own_parameters
from rehearsal.steps.runner import Runner, Step, flags, step
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator

WORKLOAD = contract.PROGRAM
RUN = "own-program"
"""Name of the run; the orchestrator's is added."""
PROCESSES_PER_NODE = 2
EXAMPLES_NODES = 2
PARAMETERS = {"snapshot-every-s": "2", "peer-timeout-s": "10", "join-timeout-s": "120"}
"""Short: nothing is learnt here, and a snapshot of a small program takes no time."""

_REFUSED = "refused: "
_SNAPSHOT = re.compile(r"\d{8}\.json")
_RESTORED = re.compile(r"launch: (snapshot (\d+) of .*?), restored in")
_OUTPUT = re.compile(r"^node \d+(?:, attempt (\d+))? \| (?!launch: )(.*)", re.MULTILINE)
_READS = re.compile(r"launch: program: reads what was restored: (.*)")
_READS_NOTHING = re.compile(r"launch: program: (has read none of the \d+ files .*)")


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


def submission(
    settings: Settings, orchestrator: str, fault: str, *, ending: str = "--yes --follow"
) -> Step:
    """Return the command, as a user types it."""
    program = settings.program
    given = parameters(settings)
    if program.checkpoint_dir is not None:
        given["checkpoint-dir"] = program.checkpoint_dir
    if program.requirements is not None:
        given["requirements"] = program.requirements
    entry = f"-m {program.module}" if program.module else quote(program.file)
    line = f"jobs submit {entry} --nodes {num_nodes(settings)}"
    if orchestrator == Orchestrator.EKS:
        line += " --on eks --scale"
    elif "eks" in settings.orchestrators:
        line += " --on batch"
    line += f" --name {run_name(orchestrator, fault)} {flags(given)}"
    if program.workdir is not None:
        line += f" --workdir {quote(program.workdir)}"
    repeated = {"--include": program.include, "--exclude": program.exclude, "--env": program.env}
    for option, values in repeated.items():
        line += "".join(f" {option} {quote(value)}" for value in values)
    line += f" {ending}"
    if program.argv:
        line += f" {contract.ARGV_MARK} {join(program.argv)}"
    return step(f"{WORKLOAD} {fault}", line)


def refused(settings: Settings, note: Callable[[str], None] | None = None) -> str | None:
    """Let submit check what needs no deployment; return why it refuses, if it does.

    What it only remarks is passed on: nodes on this machine find what AWS's would not.
    """
    (fault, *_), (orchestrator, *_) = fault_kinds(settings), settings.orchestrators
    wanted = submission(settings, orchestrator, fault, ending="--check-only")
    done = subprocess.run(wanted.command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        return _refusal(done.stderr) or done.stderr.strip()
    if note is not None and done.stderr.strip():
        note(done.stderr.strip())
    return None


def _refusal(said: str) -> str | None:
    """Find submit's refusal in its output; it is the last that submit says."""
    before, mark, why = said.rpartition(_REFUSED)
    return why.strip() if mark and (not before or before.endswith("\n")) else None


def run(
    settings: Settings, orchestrator: str, fault: str, *, aws: EmulatedAccount, runner: Runner
) -> ProgramRun:
    """Submit the program, hurt a node once a snapshot has a file, and report how it went."""
    wanted = submission(settings, orchestrator, fault)
    result = ProgramRun(orchestrator=orchestrator, steps=[], run=None, checks=[], unproven=[])
    # The phase includes the judgement: a job may end well and prove nothing.
    with suppress(_NotAsExpected), runner.phase(f"{orchestrator}: {wanted.name}"):
        _run(settings, fault, wanted, result, aws=aws, runner=runner)
        if result.problems:
            raise _NotAsExpected
    return result


class _NotAsExpected(Exception):
    """Ends a phase as failed; the result has the reasons."""


def _run(
    settings: Settings,
    fault: str,
    wanted: Step,
    result: ProgramRun,
    *,
    aws: EmulatedAccount,
    runner: Runner,
) -> None:
    """Submit, wait for the end, and fill in the result."""
    name = run_name(result.orchestrator, fault)
    snapshots = f"{contract.run_prefix(name, 'snapshots')}[0-9]*.json"
    within = settings.program.fault_after
    with armed(aws, run=name, kind=fault, after_key=snapshots, after_path=within):
        record = runner.run_one(wanted)
    result.steps.append(record)
    said = runner.log(wanted.name).read_text(encoding="utf-8")
    if record.exit_code not in (0, 1):  # refused: there is no job
        if (why := _refusal(said)) is not None:
            result.checks.append(ReceiptCheck(name="submit takes it", ok=False, detail=why))
        return
    attempts = len(job_status(name, runner.environment)["attempts"])
    was_hit = attempts > 1
    result.run = ended_run(
        runner,
        wanted.name,
        run=name,
        fault=fault if was_hit else None,
        on_cluster=result.orchestrator == Orchestrator.EKS,
    )
    bucket = DeploymentBucket(aws)
    result.checks = list(_checks(settings, result.run, bucket, said, was_hit=was_hit))
    if not was_hit and result.run.status == "SUCCEEDED":
        result.checks.append(_not_hit(settings, result.run, kept=_kept_files(bucket, name)))


def _not_hit(settings: Settings, run: RunRecord, *, kept: Sequence[str]) -> ReceiptCheck:
    """Say why no node was killed, and what would let the rehearsal kill one.

    Args:
        kept: Paths of the program's files in the newest snapshot.
    """
    took_s = max((end.seconds for end in run.nodes if end.seconds is not None), default=run.seconds)
    every_s = parameters(settings)["snapshot-every-s"]
    pattern = settings.program.fault_after
    if kept and not any(fnmatch.fnmatchcase(path, pattern) for path in kept):
        why = (
            f"no snapshot had a file that matches --fault-after {pattern}; the last one has "
            f"{', '.join(kept[:3])}{', ...' if len(kept) > 3 else ''}"
        )
    elif kept:
        why = (
            f"it was over before a snapshot had a file: it took {took_s:.0f} s, with a snapshot "
            f"every {every_s} s; make it longer, or --set snapshot-every-s=..."
        )
    else:
        folder = settings.program.checkpoint_dir
        where = "the folder that is kept" if folder is None else f"{folder}, which is kept"
        why = (
            f"it ran {took_s:.0f} s and wrote nothing to {where}: name the folder that it saves to "
            "with --checkpoint-dir, or save in TRAINIUM_CHECKPOINT_DIR"
        )
    return ReceiptCheck(name="the program lost a node and continued", ok=False, detail=why)


def _kept_files(bucket: DeploymentBucket, run: str) -> list[str]:
    """List the paths of the program's files in the run's newest snapshot."""
    prefix = contract.run_prefix(run, "snapshots")
    snapshots = sorted(name for name in bucket.sizes(prefix) if _SNAPSHOT.fullmatch(name))
    files = bucket.document(prefix + snapshots[-1]).get("files", ()) if snapshots else ()
    return [file["path"] for file in files if file["root"] == "checkpoints"]


def _checks(
    settings: Settings, run: RunRecord, bucket: DeploymentBucket, said: str, *, was_hit: bool
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
        if found:
            yield _used(said, parameters(settings).get("progress-pattern", ""))
    status = bucket.document(contract.run_key(run.run, contract.RUN_STATUS))
    if status.get("loss") is not None:
        yield ReceiptCheck(
            name="the last loss that it printed",
            ok=True,
            detail=f"{status['loss']:g}, step {status.get('step')}",
        )


def _used(said: str, pattern: str) -> ReceiptCheck:
    """Check that the program used what it got back: one that begins again ends with 0 as well.

    By its steps, if a ``pattern`` finds them in its output, or else by what it reads.
    """
    if pattern:
        shown, why = _continued(said, pattern)
    elif reads := _READS.findall(said):
        shown, why = f"it read {reads[-1].strip()}", ""
    elif nothing := _READS_NOTHING.findall(said):
        shown, why = "", f"it {nothing[-1].strip()}"
    else:
        shown, why = (
            "",
            "no file that was restored has a content, or this machine's kernel does not tell "
            "which are read (inotify); have its steps judged, with --set progress-pattern=...",
        )
    name = "the second attempt used what it got back"
    return ReceiptCheck(name=name, ok=bool(shown), detail=shown or f"not shown: {why}")


def _continued(said: str, pattern: str) -> tuple[str, str]:
    """Compare the first steps of the attempts; returns what shows that it continued, or why not."""
    first: dict[int, int] = {}
    for attempt, line in _OUTPUT.findall(said):
        if (match := re.search(pattern, line)) and (step := match.groupdict().get("step")):
            first.setdefault(int(attempt or 1), int(step))
    last = max(first, default=1)
    if last == 1:
        return "", f"no line of the second attempt has a step for --progress-pattern {pattern}"
    steps = f"step {first[last]}, and the first attempt at step {first.get(1, '?')}"
    if first[last] > first.get(1, first[last]):
        return f"it began at {steps}", ""
    return "", (
        f"it has started over, at {steps}; let it load its newest checkpoint when it starts, or "
        "name the argument that makes it with --resume-arguments"
    )


def _unchanged(settings: Settings, run: str, bucket: DeploymentBucket) -> ReceiptCheck:
    """Compare the file with the one that the nodes unpacked."""
    file = Path(settings.program.file)
    record = bucket.document(contract.run_key(run, contract.RUN_PROGRAM))
    code = str(record.get("submissions", [{}])[-1].get("code"))
    unpacked = bucket.document(f"{contract.run_prefix(run, 'code')}{code}.json")
    files = unpacked.get("files", ())
    digests = {entry["sha256"] for entry in files}
    same = not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() in digests
    return ReceiptCheck(
        name="the nodes ran your files, unchanged",
        # A module of the image may need no file.
        ok=bool(unpacked) and same,
        detail=f"{len(files)} files, bundle {code[:12]}",
    )
