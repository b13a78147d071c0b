"""The plan of a program's submission: its processes, its data, and warnings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from jobs.bucket.objects import Bucket
from jobs.deployment import Deployment
from jobs.errors import Refusal, error_code
from jobs.output.console import duration, human, note
from jobs.output.documents import ProgramPlan, ProgramSummary
from jobs.port.findings import find
from jobs.port.report import remark
from jobs.program.bundle import Bundle
from jobs.program.grammar import check_grammar, python_of
from jobs.program.imports import missing_imports
from jobs.program.parameters import ENV
from jobs.program.processes import process_warnings
from jobs.program.record import Submitted
from jobs.program.remarks import local_paths
from jobs.program.secrets import secret_words
from jobs.program.snapshots import Snapshot, SnapshotChoice, newest_snapshot
from jobs.submit.choose import Submission, SubmissionPlan
from jobs.submit.inputs import hint
from jobs.submit.program import ProgramSpec, checkpoint_folder
from trainium_catalogue import contract
from trainium_catalogue.parameters.program import PROCESSES
from trainium_catalogue.variables import split_variables
from trainium_catalogue.wording import counted
from trainium_catalogue.workloads import Value

_SUBMIT_OPTIONS = frozenset(
    f"--{name}"
    for name in ("nodes", "name", "follow", "time-limit", "dry-run", "yes", "checkpoint-dir", "on")
)
"""Options of ``submit`` that cause a warning if they are passed after ``--``."""
_MAX_NAMED = 10
"""Number of a bundle's files that the plan lists."""


def check_syntax(spec: ProgramSpec, release: str) -> None:
    """Refuse code that the Python version of a Neuron release cannot parse."""
    entry = spec.entry
    if entry.file:
        check_grammar(
            entry.file,
            spec.bundle.sources(entry.file),
            root=entry.root,
            python=python_of(release),
            note=note,
        )


def program_plan(submission: Submission) -> SubmissionPlan:
    """Plan the submission of a program; refuse one that would fail on the nodes."""
    spec, request, bucket = submission.spec, submission.request, submission.bucket
    program, record = spec.program, submission.record
    assert program is not None and record is not None
    check_syntax(program, submission.target.neuron_release)
    snapshot, choice = None, program.choice
    if choice is not None:
        snapshot = choice.snapshot
    elif spec.options.name is not None:
        snapshot = newest_snapshot(bucket, request.run)
    bundle = program.bundle
    lines = (
        f"program: {shlex.join([program.entry.shown, *request.program_argv])}",
        *_bundle_lines(bundle),
        *_kept_lines(program, request.parameters),
        *_process_lines(submission),
        *_data_lines(bucket, submission.target, request.parameters),
        *(f"changed: {line}" for line in submission.changes),
        f"run {request.run}: {_resume_text(program.earlier, snapshot, choice)}",
    )
    if own := _misplaced_options(program.arguments or (), program.earlier):
        note(
            f"{', '.join(own)} after -- will be passed to the program; put options of submit "
            "before --"
        )
    for text in remarks(program, request.program_argv, request.parameters):
        note(text)
    document = ProgramPlan(
        program=ProgramSummary(
            script=record.script,
            module=record.module,
            argv=record.argv,
            code=record.code,
            bytes=len(bundle.data),
            files=len(bundle.files),
            left_out=bundle.left_out,
            run_exists=bool(program.earlier),
            changes=submission.changes,
            continues_from_snapshot=None if snapshot is None else snapshot.number,
        )
    )
    return SubmissionPlan(lines=lines, document=document)


def _process_lines(submission: Submission) -> Iterator[str]:
    """Describe the number of processes, if not one per NeuronCore."""
    request, cores = submission.request, submission.target.instance_type.processes_per_node
    on_node = int(request.parameters.get(PROCESSES) or 0)
    if not on_node:
        return
    line = f"processes: {on_node * request.num_nodes} in the job, {on_node} per node"
    if on_node < cores:
        line += f", on {on_node} of its {cores} NeuronCores"
    yield line
    if on_node < cores and request.num_nodes > 1:
        # Developer guide for training with PyTorch NeuronX, "multi-worker data parallel training".
        yield (
            "AWS's guide requires multi-node jobs to use all NeuronCores of each node; with fewer, "
            "communication between nodes may fail; use --nodes 1"
        )


def remarks(
    spec: ProgramSpec, argv: Sequence[str], parameters: Mapping[str, Value]
) -> Iterator[str]:
    """Yield warnings about possible failures on the nodes, and about credentials."""
    entry = spec.entry
    for word in dict.fromkeys(secret_words(argv)):
        yield (
            f"{word} looks like a credential: arguments are visible in the job's description, in "
            "program.json and in logs; make the program read it from elsewhere"
        )
    variables = split_variables(str(parameters.get(ENV) or ""))
    yield from local_paths(argv, variables, entry.folder)
    if entry.file:
        required = "" if spec.requirements is None else spec.requirements.text
        sources = spec.bundle.sources(entry.file)
        yield from missing_imports(entry, sources, required)
        on_node = int(parameters.get(PROCESSES) or 0)
        yield from process_warnings(sources, entry.file, on_node=on_node)
        yield from _port_warnings(spec, sources)


def _port_warnings(spec: ProgramSpec, sources: Mapping[str, bytes]) -> Iterator[str]:
    """Warn about GPU code to change for Trainium, as listed by ``jobs port``."""
    entry, file = spec.entry, spec.program.file
    if file is not None:
        named = [str(file.path.parent)]
    elif entry.module is None:
        named = [str(entry.folder / entry.file)]
    else:
        elsewhere = [] if entry.folder == Path() else ["--workdir", str(entry.folder)]
        named = ["-m", entry.module, *elsewhere]
    try:
        text = remark(find(entry, sources), shlex.join(["python", "-m", "jobs", "port", *named]))
    except Refusal:
        return  # `jobs port` gives the reason; syntax errors have already been refused
    if text is not None:
        yield text


def _misplaced_options(arguments: Sequence[str], earlier: Sequence[Submitted]) -> tuple[str, ...]:
    """Return options of submit among the program's new arguments."""
    known = set() if not earlier else set(earlier[-1].argv)
    words = (word.partition("=")[0] for word in arguments if word not in known)
    return tuple(dict.fromkeys(word for word in words if word in _SUBMIT_OPTIONS))


def _bundle_lines(bundle: Bundle) -> Iterator[str]:
    text = f"code: {counted(len(bundle.files), 'file')}, {human(len(bundle.data))} packed"
    if bundle.git is not None and bundle.git.commit is not None:
        text += f", commit {bundle.git.commit[:12]}"
        text += " with uncommitted changes" if bundle.git.dirty else ""
    yield text
    names = [file.path for file in bundle.files]
    more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    yield f"files: {', '.join(names[:_MAX_NAMED])}{more}"
    if bundle.left_out:
        yield f"not packed: {', '.join(bundle.left_out)}"
    if bundle.remark is not None:
        yield bundle.remark


def _kept_lines(spec: ProgramSpec, parameters: Mapping[str, Value]) -> Iterator[str]:
    """Describe the saved files: --checkpoint-dir, or a hint if the code may need that option."""
    if (folder := checkpoint_folder(parameters)) is not None:
        yield f"saved: {folder}/"
    elif not spec.bundle.mentions(contract.ENV_CHECKPOINT_DIR):
        yield (
            f"saved: only files in {contract.ENV_CHECKPOINT_DIR}; a program that writes to another "
            "folder needs --checkpoint-dir"
        )


def _resume_text(
    earlier: Sequence[Submitted], snapshot: Snapshot | None, choice: SnapshotChoice | None
) -> str:
    """Describe what the program resumes from, if anything."""
    skipped = "" if choice is None or not choice.skipped else f"; not from {choice.skipped_text}"
    if snapshot is not None and (snapshot.checkpoints or snapshot.chosen != 0):
        text = f"resumes from snapshot {snapshot.shown}, {snapshot.at}{_ago(snapshot.at)}"
        what = f"{counted(len(snapshot.checkpoints), 'file')}, {human(snapshot.bytes)}"
        return f"{text}: {what}{skipped}"
    return f"no snapshot{'' if skipped else ' yet'}, starts over{skipped}" if earlier else "new"


def _ago(at: str) -> str:
    try:
        then = datetime.fromisoformat(at)
    except ValueError:
        return ""
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return f" ({duration(max(0.0, (datetime.now(UTC) - then).total_seconds()))} ago)"


def _data_lines(bucket: Bucket, target: Deployment, values: Mapping[str, Value]) -> Iterator[str]:
    """Refuse parameters that the nodes would refuse; yield a line of the plan for each input."""
    _check_pattern(str(values.get("progress-pattern") or ""))
    _check_words(str(values.get("resume-arguments") or ""))
    if dataset := str(values.get("dataset") or ""):
        _check_dataset(bucket, dataset)
        yield f"dataset: {dataset}, in {contract.ENV_DATASET_DIR} on every node"
    if uri := str(values.get("input") or ""):
        _check_input(bucket, target, uri)
        yield f"input: {uri}, in {contract.ENV_INPUT_DIR} on every node"


def _check_pattern(pattern: str) -> None:
    """Refuse an invalid progress pattern."""
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        raise Refusal(
            "progress-pattern",
            f"--progress-pattern {pattern}: not a regular expression: {error}; test it with "
            "Python's re.search on a line of the program's output",
        ) from None
    if pattern and "step" not in groups:
        raise Refusal(
            "progress-pattern",
            f"--progress-pattern {pattern}: it has no group for the step; add (?P<step>...), and "
            "optionally (?P<loss>...) for the loss",
        )


def _check_words(text: str) -> None:
    """Refuse resume arguments that cannot be split."""
    try:
        shlex.split(text)
    except ValueError as error:
        raise Refusal(
            "resume-arguments",
            f"--resume-arguments {text}: {str(error).lower()}; close all quotes",
        ) from None


def _check_dataset(bucket: Bucket, name: str) -> None:
    prefix = f"{contract.DATASETS_PREFIX}{name}/"
    is_name = re.fullmatch(contract.DATASET_NAME_PATTERN, name) is not None
    if is_name and bucket.head(prefix + contract.DATASET_MANIFEST) is not None:
        return
    if is_name and bucket.has(prefix):
        raise Refusal(
            "dataset-incomplete",
            f"dataset {name!r} is incomplete: its {contract.DATASET_MANIFEST} is missing; wait for "
            "the job that creates it, or submit it again; for your own objects pass --input "
            f"s3://{bucket.name}/{prefix} instead",
        )
    names = bucket.names(contract.DATASETS_PREFIX)
    raise Refusal(
        "no-dataset",
        f"there is no dataset {name!r} ({hint('datasets', name, names)}); create one with `python "
        "-m jobs submit prepare` or `tokenize`, or pass your own objects with --input",
    )


def _check_input(bucket: Bucket, target: Deployment, uri: str) -> None:
    name, _, prefix = uri.removeprefix("s3://").partition("/")
    if name == bucket.name:
        if not prefix.startswith(contract.INPUT_PREFIXES):
            raise Refusal(
                "input",
                f"--input {uri}: in the deployment's bucket, programs may read only under "
                f"{', '.join(contract.INPUT_PREFIXES)}; upload the data there, for example with "
                "`python -m jobs upload`",
            )
        if not bucket.has(prefix):
            raise _no_input(uri)
        return
    _check_allowed(target, uri)
    try:
        exists = Bucket(client=bucket.client, name=name).has(prefix)
    except Exception as error:
        # The user may lack permissions that the nodes have.
        note(f"--input {uri} was not checked ({error_code(error) or type(error).__name__})")
        return
    if not exists:
        raise _no_input(uri)


def _check_allowed(target: Deployment, uri: str) -> None:
    """Refuse external storage that the nodes may not read, if the settings are known."""
    if target.settings is None:
        return
    allowed = target.data_uris
    if any(uri.startswith(known) for known in allowed):
        return
    again = target.redeploy(data_uris=",".join([*allowed, uri]))
    access = f"only to {', '.join(allowed)}" if allowed else "because it has no data_uris"
    raise Refusal(
        "input",
        f"--input {uri}: deployment {target.name!r} has no access to it, {access}; use an allowed "
        f"URI, or deploy again with {again}",
    )


def _no_input(uri: str) -> Refusal:
    return Refusal(
        "no-input",
        f"--input {uri}: there are no such objects; specify the prefix of existing objects, with a "
        "trailing slash",
    )
