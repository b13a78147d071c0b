"""The steps of a user's own program, which is submitted, loses a node and resumes."""

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
from rehearsal.steps.jobs import armed, job_status, judge, own_parameters
from rehearsal.steps.runner import Runner, Step, flags, step
from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.wording import counted

WORKLOAD = contract.PROGRAM
RUN = "own-program"
"""Prefix of the run's name, followed by the orchestrator and the fault."""
PROCESSES_PER_NODE = 2
EXAMPLE_NUM_NODES = 2
PARAMETERS = {"snapshot-every-s": "2", "peer-timeout-s": "10", "join-timeout-s": "120"}
"""Parameters with short intervals, because snapshots of a small program are fast."""

_REFUSED = "refused: "
_SNAPSHOT = re.compile(r"\d{8}\.json")
_RESTORED = re.compile(r"launch: (snapshot (\d+) of .*?), restored in")
_OUTPUT = re.compile(r"^node \d+(?:, attempt (\d+))? \| (?!launch: )(.*)", re.MULTILINE)
_READS = re.compile(r"launch: program: reads a restored file: (.*)")
_READS_NOTHING = re.compile(r"launch: program: (read none of the restored files .*)")


def run_name(orchestrator: str, fault: str) -> str:
    """Return the name of the program's run."""
    return f"{RUN}-{orchestrator}-{fault}"


def parameters(settings: Settings) -> dict[str, str]:
    """Return the job's parameters: the rehearsal's, overridden by the user's."""
    return {**PARAMETERS, **own_parameters(settings.parameters, WORKLOAD)}


def num_nodes(settings: Settings) -> int:
    """Return the number of nodes of the job."""
    return min(EXAMPLE_NUM_NODES, settings.nodes) if settings.program == EXAMPLE else settings.nodes


def fault_kinds(settings: Settings) -> tuple[str, ...]:
    """Return the faults, one per job: the chosen ones, or the loss of a node."""
    default = "kill-child" if num_nodes(settings) > 1 else "kill-main"
    return settings.faults if settings.program != EXAMPLE and settings.faults else (default,)


def submission(
    settings: Settings, orchestrator: str, fault: str, *, final_options: str = "--yes --follow"
) -> Step:
    """Return the command as a user types it."""
    program = settings.program
    options = parameters(settings)
    if program.checkpoint_dir is not None:
        options["checkpoint-dir"] = program.checkpoint_dir
    if program.requirements is not None:
        options["requirements"] = program.requirements
    entry = f"-m {program.module}" if program.module else quote(program.file)
    line = f"jobs submit {entry} --nodes {num_nodes(settings)}"
    if orchestrator == Orchestrator.EKS:
        line += " --on eks --scale"
    elif "eks" in settings.orchestrators:
        line += " --on batch"
    line += f" --name {run_name(orchestrator, fault)} {flags(options)}"
    if program.workdir is not None:
        line += f" --workdir {quote(program.workdir)}"
    repeated = {"--include": program.include, "--exclude": program.exclude, "--env": program.env}
    for option, values in repeated.items():
        line += "".join(f" {option} {quote(value)}" for value in values)
    line += f" {final_options}"
    if program.argv:
        line += f" {contract.ARGV_MARK} {join(program.argv)}"
    return step(f"{WORKLOAD} {fault}", line)


def refused(settings: Settings, note: Callable[[str], None] | None = None) -> str | None:
    """Run submit's checks that need no deployment; return the refusal, if any.

    Warnings are passed to ``note``, because nodes on this machine may find files that AWS's nodes
    would not.
    """
    (fault, *_), (orchestrator, *_) = fault_kinds(settings), settings.orchestrators
    check = submission(settings, orchestrator, fault, final_options="--check-only")
    done = subprocess.run(check.command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        return _refusal(done.stderr) or done.stderr.strip()
    if note is not None and done.stderr.strip():
        note(done.stderr.strip())
    return None


def _refusal(output: str) -> str | None:
    """Find submit's refusal at the end of its output."""
    before, separator, why = output.rpartition(_REFUSED)
    return why.strip() if separator and (not before or before.endswith("\n")) else None


def run(
    settings: Settings, orchestrator: str, fault: str, *, aws: EmulatedAccount, runner: Runner
) -> ProgramRun:
    """Submit the program, inject a fault once a snapshot has a file, and report the result."""
    submitted = submission(settings, orchestrator, fault)
    result = ProgramRun(orchestrator=orchestrator, steps=[], run=None, checks=[], unproven=[])
    # The phase includes the checks, because a job may succeed and prove nothing.
    with suppress(_PhaseFailed), runner.phase(f"{orchestrator}: {submitted.name}"):
        _run(settings, fault, submitted, result, aws=aws, runner=runner)
        if result.problems:
            raise _PhaseFailed
    return result


class _PhaseFailed(Exception):
    """Raised to mark a phase as failed; the result contains the reasons."""


def _run(
    settings: Settings,
    fault: str,
    submitted: Step,
    result: ProgramRun,
    *,
    aws: EmulatedAccount,
    runner: Runner,
) -> None:
    """Submit, wait for the job to end, and fill in the result."""
    name = run_name(result.orchestrator, fault)
    snapshots = f"{contract.run_prefix(name, 'snapshots')}[0-9]*.json"
    pattern = settings.program.fault_after
    with armed(aws, run=name, kind=fault, after_key=snapshots, after_path=pattern):
        record = runner.run_one(submitted)
    result.steps.append(record)
    output = runner.log(submitted.name).read_text(encoding="utf-8")
    if record.exit_code not in (0, 1):  # refused: there is no job
        if (why := _refusal(output)) is not None:
            result.checks.append(ReceiptCheck(name="accepted by submit", ok=False, detail=why))
        return
    status = job_status(name, runner.environment)
    was_hit = len(status["attempts"]) > 1
    result.run = judge(
        run=name,
        fault=fault if was_hit else None,
        status=status,
        jobs_exit_code=record.exit_code,
        sizes=None,
        seconds=record.seconds,
        on_cluster=result.orchestrator == Orchestrator.EKS,
    )
    bucket = DeploymentBucket(aws)
    result.checks = list(_checks(settings, result.run, bucket, output, was_hit=was_hit))
    if not was_hit and result.run.status == "SUCCEEDED":
        result.checks.append(_not_hit(settings, result.run, kept=_kept_files(bucket, name)))


def _not_hit(settings: Settings, run: RunRecord, *, kept: Sequence[str]) -> ReceiptCheck:
    """Explain why the fault was not injected, with the remedy.

    Args:
        kept: Paths of the program's files in the newest snapshot.
    """
    took_s = max((end.seconds for end in run.nodes if end.seconds is not None), default=run.seconds)
    every_s = parameters(settings)["snapshot-every-s"]
    pattern = settings.program.fault_after
    if kept and not any(fnmatch.fnmatchcase(path, pattern) for path in kept):
        why = (
            f"no snapshot had a file that matches --fault-after {pattern}; the last one contains "
            f"{', '.join(kept[:3])}{', ...' if len(kept) > 3 else ''}"
        )
    elif kept:
        why = (
            f"it finished before the fault was injected: it took {took_s:.0f} s, with a snapshot "
            f"every {every_s} s; make it run longer, or take snapshots more often with --set "
            "snapshot-every-s=..."
        )
    else:
        folder = settings.program.checkpoint_dir
        where = "its checkpoint folder" if folder is None else f"its checkpoint folder {folder}"
        why = (
            f"it ran for {took_s:.0f} s and wrote nothing to {where}: set --checkpoint-dir to "
            "the folder that it saves to, or save to TRAINIUM_CHECKPOINT_DIR"
        )
    return ReceiptCheck(name="the program lost a node and resumed", ok=False, detail=why)


def _kept_files(bucket: DeploymentBucket, run: str) -> list[str]:
    """List the paths of the program's files in the run's newest snapshot."""
    prefix = contract.run_prefix(run, "snapshots")
    snapshots = sorted(name for name in bucket.sizes(prefix) if _SNAPSHOT.fullmatch(name))
    files = bucket.document(prefix + snapshots[-1]).get("files", ()) if snapshots else ()
    return [file["path"] for file in files if file["root"] == "checkpoints"]


def _checks(
    settings: Settings, run: RunRecord, bucket: DeploymentBucket, output: str, *, was_hit: bool
) -> Iterator[ReceiptCheck]:
    codes = ", ".join("?" if code is None else str(code) for code in run.attempts)
    yield ReceiptCheck(
        name="the program exited with 0",
        ok=run.status == "SUCCEEDED",
        detail=f"{run.status}; exit codes of the main node: {codes}",
    )
    yield _check_code(settings, run.run, bucket)
    if was_hit:
        restored = _RESTORED.findall(output)
        yield ReceiptCheck(
            name="the second attempt received what the program had saved",
            ok=bool(restored),
            detail=restored[-1][0] if restored else "no snapshot was restored",
        )
        if restored:
            yield _check_use(output, parameters(settings).get("progress-pattern", ""))
    status = bucket.document(contract.run_key(run.run, contract.RUN_STATUS))
    if status.get("loss") is not None:
        yield ReceiptCheck(
            name="the last printed loss",
            ok=True,
            detail=f"{status['loss']:g}, step {status.get('step')}",
        )


def _check_use(output: str, pattern: str) -> ReceiptCheck:
    """Check that the program used the restored files; one that starts over also exits with 0.

    The evidence is its steps if ``pattern`` is set, otherwise the files that it reads.
    """
    if pattern:
        shown, why = _compare_steps(output, pattern)
    elif reads := _READS.findall(output):
        shown, why = f"it read {reads[-1].strip()}", ""
    elif remarks := _READS_NOTHING.findall(output):
        shown, why = "", f"it {remarks[-1].strip()}"
    else:
        shown, why = (
            "",
            "every restored file is empty, or this machine's kernel does not report reads "
            "(inotify); check its steps instead, with --set progress-pattern=...",
        )
    name = "the second attempt used the restored files"
    return ReceiptCheck(name=name, ok=bool(shown), detail=shown or f"not shown: {why}")


def _compare_steps(output: str, pattern: str) -> tuple[str, str]:
    """Compare the attempts' first steps; return evidence of resumption, or why there is none."""
    first: dict[int, int] = {}
    for attempt, line in _OUTPUT.findall(output):
        if (match := re.search(pattern, line)) and (step := match.groupdict().get("step")):
            first.setdefault(int(attempt or 1), int(step))
    last = max(first, default=1)
    if last == 1:
        return "", f"no line of the second attempt matches --progress-pattern {pattern}"
    steps = f"step {first[last]}, and the first attempt at step {first.get(1, '?')}"
    if first[last] > first.get(1, first[last]):
        return f"it started at {steps}", ""
    return "", (
        f"it started over, at {steps}; make it load its newest checkpoint at startup, or pass its "
        "resume argument with --resume-arguments"
    )


def _check_code(settings: Settings, run: str, bucket: DeploymentBucket) -> ReceiptCheck:
    """Check that the nodes unpacked the program's file, unchanged."""
    file = Path(settings.program.file)
    record = bucket.document(contract.run_key(run, contract.RUN_PROGRAM))
    code = str(record.get("submissions", [{}])[-1].get("code"))
    unpacked = bucket.document(f"{contract.run_prefix(run, 'code')}{code}.json")
    files = unpacked.get("files", ())
    digests = {entry["sha256"] for entry in files}
    same = not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() in digests
    return ReceiptCheck(
        name="the nodes ran your files, unchanged",
        # A module in the image may have no file.
        ok=bool(unpacked) and same,
        detail=f"{counted(len(files), 'file')}, bundle {code[:12]}",
    )
