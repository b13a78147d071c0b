"""The plan of a program's submission: what it does, the data it gets, what deserves a remark."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from jobs.bucket.objects import Bucket
from jobs.deployment import Deployment
from jobs.errors import Refusal, error_code
from jobs.job import counted
from jobs.output.console import duration, human, note
from jobs.output.documents import ProgramPlan, ProgramSummary
from jobs.port.findings import find
from jobs.port.report import remark
from jobs.program.bundle import Bundle
from jobs.program.grammar import check_grammar, python_of
from jobs.program.imports import left_behind
from jobs.program.parameters import ENV
from jobs.program.processes import started_processes
from jobs.program.record import Submitted
from jobs.program.remarks import local_paths
from jobs.program.secrets import secret_words
from jobs.program.snapshots import Choice, Snapshot, newest_snapshot
from jobs.submit.choose import Submission, SubmissionPlan
from jobs.submit.inputs import hint
from jobs.submit.program import ProgramOrder, kept_folder
from trainium_catalogue import contract
from trainium_catalogue.parameters.program import PROCESSES
from trainium_catalogue.variables import split_variables
from trainium_catalogue.workloads import Value

_MEANT_FOR_SUBMIT = frozenset(
    f"--{name}"
    for name in ("nodes", "name", "follow", "time-limit", "dry-run", "yes", "checkpoint-dir", "on")
)
"""Options of submit that are remarked among a program's arguments."""
_MAX_NAMED = 10
"""Files of a bundle that the plan names."""


def check_syntax(order: ProgramOrder, release: str) -> None:
    """Refuse syntax errors, in the grammar of the Python that a Neuron release has."""
    entry = order.entry
    if entry.file:
        check_grammar(
            entry.file,
            order.bundle.sources(entry.file),
            # As Python does: the folder of a script, the working folder of a module.
            root="" if entry.module else entry.file.rpartition("/")[0],
            python=python_of(release),
            note=note,
        )


def program_plan(submission: Submission) -> SubmissionPlan:
    """Look at the program and its run; refuse what would fail on the nodes."""
    order, request, bucket = submission.order, submission.request, submission.bucket
    program, record = order.program, submission.record
    assert program is not None and record is not None
    check_syntax(program, submission.target.neuron_release)
    snapshot, choice = None, program.choice
    if choice is not None:
        snapshot = choice.snapshot
    elif order.options.name is not None:
        snapshot = newest_snapshot(bucket, request.run)
    bundle = program.bundle
    lines = (
        f"program: {shlex.join([program.entry.shown, *request.program_argv])}",
        *_bundle_lines(bundle),
        *_kept_lines(program, request.parameters),
        *_process_lines(submission),
        *_data_lines(bucket, submission.target, request.parameters),
        *(f"changed: {line}" for line in submission.changes),
        f"run {request.run}: {_standing(program.ran, snapshot, choice)}",
    )
    if own := _own_options(program.arguments or (), program.ran):
        note(
            f"{', '.join(own)} after -- goes to the program, as every word there; an option of "
            "submit stands before --"
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
            run_exists=bool(program.ran),
            changes=submission.changes,
            continues_from_snapshot=None if snapshot is None else snapshot.number,
        )
    )
    return SubmissionPlan(lines=lines, document=document)


def _process_lines(submission: Submission) -> Iterator[str]:
    """Describe processes that were asked for, instead of one per NeuronCore."""
    request, cores = submission.request, submission.target.instance_type.processes_per_node
    on_node = int(request.parameters.get(PROCESSES) or 0)
    if not on_node:
        return
    line = f"processes: {on_node * request.num_nodes} in the job, {on_node} on each node"
    if on_node < cores:
        line += f", on {on_node} of its {cores} NeuronCores"
    yield line
    if on_node < cores and request.num_nodes > 1:
        # Developer guide for training with PyTorch NeuronX, "multi-worker data parallel training".
        yield (
            "AWS's guide asks for all NeuronCores of each node where a job has several nodes: "
            "processes that exchange data between nodes may not work with fewer; give --nodes 1"
        )


def remarks(
    order: ProgramOrder, argv: Sequence[str], parameters: Mapping[str, Value]
) -> Iterator[str]:
    """Say what will probably be otherwise on the nodes, or should not be sent."""
    entry = order.entry
    for word in dict.fromkeys(secret_words(argv)):
        yield (
            f"{word} looks like a key: arguments can be read in the job's description, in "
            "program.json and in logs; let the program read it from elsewhere"
        )
    variables = split_variables(str(parameters.get(ENV) or ""))
    yield from local_paths(argv, variables, entry.folder)
    if entry.file:
        required = "" if order.requirements is None else order.requirements.text
        sources = order.bundle.sources(entry.file)
        yield from left_behind(entry, sources, required)
        on_node = int(parameters.get(PROCESSES) or 0)
        yield from started_processes(sources, entry.file, on_node=on_node)
        yield from _to_port(order, sources)


def _to_port(order: ProgramOrder, sources: Mapping[str, bytes]) -> Iterator[str]:
    """Remark what of a GPU program does not run on Trainium; ``jobs port`` lists it."""
    entry, file = order.entry, order.program.file
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
        return  # `jobs port` gives the reason; a syntax error has been refused already
    if text is not None:
        yield text


def _own_options(arguments: Sequence[str], ran: Sequence[Submitted]) -> tuple[str, ...]:
    """Return options of submit among new arguments of the program."""
    known = set() if not ran else set(ran[-1].argv)
    words = (word.partition("=")[0] for word in arguments if word not in known)
    return tuple(dict.fromkeys(word for word in words if word in _MEANT_FOR_SUBMIT))


def _bundle_lines(bundle: Bundle) -> Iterator[str]:
    text = f"code: {counted(len(bundle.files), 'file')}, {human(len(bundle.data))} packed"
    if bundle.git is not None and bundle.git.commit is not None:
        text += f", commit {bundle.git.commit[:12]}"
        text += " with changes that are not committed" if bundle.git.dirty else ""
    yield text
    names = [file.path for file in bundle.files]
    more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    yield f"files: {', '.join(names[:_MAX_NAMED])}{more}"
    if bundle.left_out:
        yield f"left out of it: {', '.join(bundle.left_out)}"
    if bundle.remark is not None:
        yield bundle.remark


def _kept_lines(order: ProgramOrder, parameters: Mapping[str, Value]) -> Iterator[str]:
    """Say what is kept while the program runs, unless its own text names the folder for that."""
    if (folder := kept_folder(parameters)) is not None:
        yield f"kept: {folder}/"
    elif not order.bundle.mentions(contract.ENV_CHECKPOINT_DIR):
        yield (
            f"kept: only what it writes to {contract.ENV_CHECKPOINT_DIR}; a program with a folder "
            "of its own needs --checkpoint-dir"
        )


def _standing(ran: Sequence[Submitted], snapshot: Snapshot | None, choice: Choice | None) -> str:
    passed = "" if choice is None or not choice.passed else f"; not from {choice.passed_shown}"
    if snapshot is not None and (snapshot.checkpoints or snapshot.chosen != 0):
        text = f"continues from snapshot {snapshot.shown}, {snapshot.at}{_ago(snapshot.at)}"
        what = f"{counted(len(snapshot.checkpoints), 'file')}, {human(snapshot.bytes)}"
        return f"{text}: {what}{passed}"
    return f"no snapshot{'' if passed else ' yet'}, begins anew{passed}" if ran else "new"


def _ago(at: str) -> str:
    try:
        then = datetime.fromisoformat(at)
    except ValueError:
        return ""
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return f" ({duration(max(0.0, (datetime.now(UTC) - then).total_seconds()))} ago)"


def _data_lines(bucket: Bucket, target: Deployment, values: Mapping[str, Value]) -> Iterator[str]:
    """Check what the nodes would refuse; yield a line of the plan for each place of data."""
    _check_pattern(str(values.get("progress-pattern") or ""))
    _check_words(str(values.get("resume-arguments") or ""))
    if dataset := str(values.get("dataset") or ""):
        _check_dataset(bucket, dataset)
        yield f"dataset: {dataset}, in {contract.ENV_DATASET_DIR} on every node"
    if uri := str(values.get("input") or ""):
        _check_input(bucket, target, uri)
        yield f"input: {uri}, in {contract.ENV_INPUT_DIR} on every node"


def _check_pattern(pattern: str) -> None:
    """Refuse a pattern that a node would refuse."""
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
            f"--progress-pattern {pattern}: has no group for the step; mark it with (?P<step>...), "
            "and the loss, if you like, with (?P<loss>...)",
        )


def _check_words(text: str) -> None:
    """Refuse arguments to resume with that a node could not split."""
    try:
        shlex.split(text)
    except ValueError as error:
        raise Refusal(
            "resume-arguments",
            f"--resume-arguments {text}: {str(error).lower()}; close every quote in it",
        ) from None


def _check_dataset(bucket: Bucket, name: str) -> None:
    prefix = f"{contract.DATASETS_PREFIX}{name}/"
    is_name = re.fullmatch(contract.DATASET_NAME_PATTERN, name) is not None
    if is_name and bucket.head(prefix + contract.DATASET_MANIFEST) is not None:
        return
    if is_name and bucket.has(prefix):
        raise Refusal(
            "dataset-incomplete",
            f"dataset {name!r} is not complete: its {contract.DATASET_MANIFEST} is missing; wait "
            "for the job that makes it, or submit that again; for objects of your own give "
            f"--input s3://{bucket.name}/{prefix} instead",
        )
    there = bucket.names(contract.DATASETS_PREFIX)
    raise Refusal(
        "no-dataset",
        f"there is no dataset {name!r}: {hint('datasets', name, there)}; make one with `python -m "
        "jobs submit prepare` or `tokenize`, or name objects of your own with --input",
    )


def _check_input(bucket: Bucket, target: Deployment, uri: str) -> None:
    name, _, prefix = uri.removeprefix("s3://").partition("/")
    if name == bucket.name:
        if not prefix.startswith(contract.INPUT_PREFIXES):
            raise Refusal(
                "input",
                f"--input {uri}: in the deployment's bucket a program may read below "
                f"{', '.join(contract.INPUT_PREFIXES)} only; put the data there, for example with "
                "`python -m jobs upload`",
            )
        if not bucket.has(prefix):
            raise _nothing_there(uri)
        return
    _check_allowed(target, uri)
    try:
        is_there = Bucket(client=bucket.client, name=name).has(prefix)
    except Exception as error:
        # A user who submits may lack the rights that the nodes have.
        note(f"--input {uri} was not looked at ({error_code(error) or type(error).__name__})")
        return
    if not is_there:
        raise _nothing_there(uri)


def _check_allowed(target: Deployment, uri: str) -> None:
    """Refuse storage outside the deployment that its nodes may not read, if that is known."""
    if target.settings is None:
        return
    allowed = target.data_uris
    if any(uri.startswith(known) for known in allowed):
        return
    again = target.redeploy(data_uris=",".join([*allowed, uri]))
    there = f"it may read {', '.join(allowed)}" if allowed else "it has no data_uris"
    raise Refusal(
        "input",
        f"--input {uri}: deployment {target.name!r} may not read there, {there}; name one of "
        f"those, or deploy again with {again}",
    )


def _nothing_there(uri: str) -> Refusal:
    return Refusal(
        "no-input",
        f"--input {uri}: nothing is there; name the prefix of objects that exist, with its final "
        "slash",
    )
