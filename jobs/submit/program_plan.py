"""The plan of a program's submission: what it does, what deserves a remark, what is kept of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from jobs.errors import Refusal
from jobs.job import counted
from jobs.output.console import duration, human, note
from jobs.port.findings import find
from jobs.port.report import remark
from jobs.program.bundle import Bundle, upload
from jobs.program.changes import changes
from jobs.program.grammar import check_grammar, python_of
from jobs.program.imports import left_behind
from jobs.program.parameters import ENV
from jobs.program.processes import started_processes
from jobs.program.record import Submitted, add_record, now
from jobs.program.remarks import local_paths
from jobs.program.secrets import secret_words
from jobs.program.snapshots import Choice, Snapshot, go_back, newest_snapshot
from jobs.submit.program import ProgramOrder, kept_folder
from jobs.submit.program_data import check_data
from jobs.submit.resolve import ProgramPlan, ProgramSummary, Submission
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


def program_plan(submission: Submission) -> tuple[tuple[str, ...], ProgramPlan]:
    """Look at the program and its run; return lines for people, and the document."""
    order, request, bucket = submission.order, submission.request, submission.bucket
    assert order.program is not None
    check_syntax(order.program, submission.target.neuron_release)
    new = submitted(submission)
    ran = order.program.ran
    snapshot, choice = None, order.program.choice
    if choice is not None:
        snapshot = choice.snapshot
    elif order.is_named:
        snapshot = newest_snapshot(bucket, request.run)
    bundle, differ = order.program.bundle, program_changes(submission)
    lines = (
        f"program: {shlex.join([order.program.entry.shown, *request.program_argv])}",
        *_bundle_lines(bundle),
        *_kept_lines(order.program, request.parameters),
        *_process_lines(submission),
        *check_data(bucket, submission.target, request.parameters, note),
        *(f"changed: {line}" for line in differ),
        f"run {request.run}: {_standing(ran, snapshot, choice)}",
    )
    if own := _own_options(order.program.arguments or (), ran):
        note(
            f"{', '.join(own)} after -- goes to the program, as every word there; an option of "
            "submit stands before --"
        )
    for text in remarks(order.program, order.parameters):
        note(text)
    document = ProgramPlan(
        program=ProgramSummary(
            script=new.script,
            module=new.module,
            argv=new.argv,
            code=new.code,
            bytes=len(bundle.data),
            files=len(bundle.files),
            left_out=bundle.left_out,
            run_exists=bool(ran),
            changes=tuple(differ),
            continues_from_snapshot=None if snapshot is None else snapshot.number,
        )
    )
    return lines, document


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


def remarks(order: ProgramOrder, values: Mapping[str, Value]) -> Iterator[str]:
    """Say what will probably be otherwise on the nodes, or should not be sent."""
    entry, argv = order.entry, order.argv(values)
    for word in dict.fromkeys(secret_words(argv)):
        yield (
            f"{word} looks like a key: arguments can be read in the job's description, in "
            "program.json and in logs; let the program read it from elsewhere"
        )
    variables = split_variables(str(order.job_parameters(values).get(ENV) or ""))
    yield from local_paths(argv, variables, entry.folder)
    if entry.file:
        required = "" if order.requirements is None else order.requirements.text
        sources = order.bundle.sources(entry.file)
        yield from left_behind(entry, sources, required)
        on_node = int(order.job_parameters(values).get(PROCESSES) or 0)
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


def program_changes(submission: Submission) -> tuple[str, ...]:
    """Say what differs from the newest submission of the run; nothing if it is new."""
    order, run = submission.order.program, submission.request.run
    assert order is not None
    if not order.ran:
        return ()
    file = order.program.file
    own = frozenset() if file is None else file.own_names
    new, bucket = submitted(submission), submission.bucket
    return tuple(changes(bucket, run, order.ran[-1], new, order.bundle, as_arguments=own))


def submitted(submission: Submission) -> Submitted:
    """Make the record of this submission."""
    order, request = submission.order, submission.request
    assert order.program is not None
    entry = order.program.entry
    return Submitted(
        submitted_at=now(),
        code=order.program.bundle.sha256,
        script=entry.script,
        module=entry.module,
        argv=request.program_argv,
        parameters=order.parameters,
        requirements=None
        if (wheels := submission.wheels) is None
        else {"key": wheels.key, "text": wheels.requirements.text},
        num_nodes=request.num_nodes,
        workload=order.program.described_name,
        from_snapshot=order.program.from_snapshot,
    )


def send_code(submission: Submission) -> None:
    """Put the bundle into the bucket, which may take minutes."""
    assert submission.order.program is not None
    bundle = submission.order.program.bundle
    if upload(submission.bucket, submission.request.run, bundle, note):
        note(f"sent {counted(len(bundle.files), 'file')}, {human(len(bundle.data))}")


def keep(submission: Submission) -> None:
    """Put the choice of a snapshot and the record into the bucket, just before the job."""
    order, run = submission.order, submission.request.run
    assert order.program is not None
    if order.program.choice is not None:
        go_back(submission.bucket, run, order.program.choice)
    add_record(submission.bucket, run, submitted(submission))


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
