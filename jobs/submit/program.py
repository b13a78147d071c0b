"""A user's own program on its way to a job: read, packed, planned, kept."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.bucket.objects import Bucket
from jobs.bucket.training_run import read_run
from jobs.errors import Refusal
from jobs.job import JobRequest, counted, flag_value
from jobs.output.console import duration, human, note
from jobs.program.bundle import Bundle, pack, upload
from jobs.program.changes import changes
from jobs.program.entry import (
    WORKLOAD_FILE,
    Entry,
    checked_workdir,
    is_path,
    module_entry,
    refuse_unknown_package,
    script_entry,
)
from jobs.program.files import select
from jobs.program.grammar import check_grammar, python_of
from jobs.program.imports import left_behind
from jobs.program.parameters import ENV
from jobs.program.record import Submitted, add_record, now, read_record
from jobs.program.remarks import local_paths
from jobs.program.requirements import Requirements, read_requirements
from jobs.program.secrets import check_arguments, check_variables, secret_words
from jobs.program.snapshots import Choice, Snapshot, chosen_snapshot, go_back, newest_snapshot
from jobs.program.workload_file import WorkloadFile, plain_workload, read_workload_file
from jobs.submit.program_data import check_data
from jobs.submit.wheels import keep_requirements
from trainium_catalogue import contract
from trainium_catalogue.variables import join_variables, split_variables
from trainium_catalogue.workloads import Value, Workload

if TYPE_CHECKING:
    from jobs.submit.resolve import Submission

_MEANT_FOR_SUBMIT = frozenset(
    f"--{name}"
    for name in ("nodes", "name", "follow", "time-limit", "dry-run", "yes", "checkpoint-dir", "on")
)
"""Options of submit that are remarked among a program's arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program as it is named on the command line."""

    entry: Entry
    workload: Workload
    """Its parameters and defaults, as for a workload of the catalogue."""
    file: WorkloadFile | None = None
    """Its workload.toml, if it was named by its folder."""

    @property
    def name(self) -> str:
        """A short name, of which run names are made."""
        return self.entry.name if self.file is None else self.workload.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOrder:
    """A program with what it is to be given."""

    program: Program
    bundle: Bundle
    arguments: tuple[str, ...] | None
    """Words after ``--``; None if there was no ``--``."""
    ran: tuple[Submitted, ...] = ()
    """Earlier submissions of the run."""
    requirements: Requirements | None = None
    """What it requires; None if nobody said."""
    from_snapshot: str | None = None
    """The snapshot to go back to, as it was given."""
    choice: Choice | None = None
    """That snapshot, once it is found in the bucket."""

    @property
    def entry(self) -> Entry:
        """The file or module that is run."""
        return self.program.entry

    @property
    def described_name(self) -> str | None:
        """The name in its workload.toml, if it has one."""
        return None if self.program.file is None else self.program.workload.name

    @property
    def continued(self) -> Submitted | None:
        """The newest submission of the run, if it ran the same script, module or folder."""
        last, entry = (self.ran[-1] if self.ran else None), self.entry
        which = (entry.script, entry.module, self.described_name)
        same = last is not None and (last.script, last.module, last.workload) == which
        return last if same else None

    def argv(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """Arguments that every worker gets: of the workload.toml, then those after ``--``."""
        file = self.program.file
        return (*(() if file is None else file.argv(values)), *(self.arguments or ()))

    def job_parameters(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the parameters that the nodes are given."""
        file, entry = self.program.file, self.entry
        which: dict[str, Value] = {"script": entry.script or ""}
        if entry.module is not None:
            which = {"module": entry.module}
        own = frozenset() if file is None else file.own_names
        settings = {} if file is None else file.settings
        given = {name: value for name, value in values.items() if name not in own}
        both = [split_variables(str(of.get(ENV) or "")) for of in (settings, given)]
        env = {ENV: join_variables({**both[0], **both[1]})} if any(both) else {}
        return {"code": self.bundle.sha256, **which, **settings, **given, **env}


def with_variables(values: Mapping[str, Value], variables: Sequence[str]) -> dict[str, Value]:
    """Add environment variables, each NAME=VALUE, to the parameters; refuses what cannot be one."""
    given = dict(values)
    try:
        # Of --set env=..., too, which is quoted already.
        env = split_variables(str(given.get(ENV) or "")) | split_variables(shlex.join(variables))
        check_variables(env)
    except ValueError as error:
        raise Refusal("program-variable", str(error)) from None
    if env:
        given[ENV] = join_variables(env)
    return given


def named_program(
    word: str | None, module: str | None, workdir: Path | None, *, reserved: Collection[str]
) -> Program | None:
    """Find the program that a command line names; None for a workload of the catalogue."""
    if module is None and (word is None or not is_path(word)):
        return None
    folder = checked_workdir(workdir)
    if module is not None:
        if word is not None:
            raise Refusal(
                "two-programs",
                f"{word} and -m {module} name two programs; keep one of them, and put arguments "
                "of the program after --",
            )
        return Program(entry=module_entry(module, folder), workload=plain_workload())
    assert word is not None
    if Path(word).is_dir():
        return _described(word, folder, reserved)
    return Program(entry=script_entry(word, folder), workload=plain_workload())


def _described(word: str, workdir: Path | None, reserved: Collection[str]) -> Program:
    """Read the workload.toml of a folder."""
    folder = Path(word)
    path = folder / WORKLOAD_FILE
    if not path.is_file():
        raise Refusal(
            "no-workload-file",
            f"{word} is a folder without a {WORKLOAD_FILE}, so it does not say what to run; "
            f"name a file of it, such as {word.rstrip('/')}/train.py, or describe it in a "
            f"{WORKLOAD_FILE} (docs/own-program.md)",
        )
    file = read_workload_file(path, reserved=reserved)
    where = folder if workdir is None else workdir
    entry = (
        script_entry(str(folder / file.script), where)
        if file.script is not None
        else module_entry(str(file.module), where)
    )
    return Program(entry=entry, workload=file.workload, file=file)


def packed(
    program: Program,
    values: Mapping[str, Value],
    *,
    arguments: Sequence[str] | None,
    include: Sequence[str],
    exclude: Sequence[str],
    requirements: Path | None = None,
    from_snapshot: str | None = None,
) -> ProgramOrder:
    """Pack the program's folder; needs no network."""
    entry, file = program.entry, program.file
    settings = {} if file is None else file.settings
    try:
        check_arguments(arguments or ())
    except ValueError as error:
        raise Refusal("program-arguments", str(error)) from None
    kept = _kept_folder({**settings, **values})
    if file is not None:
        include, exclude = (*file.include, *include), (*file.exclude, *exclude)
    selection = select(
        entry.folder, include=include, exclude=exclude, ignores=(kept + "/",) if kept else ()
    )
    if kept and selection.ignored_code:
        _refuse_code(kept, selection.ignored_code)
    if requirements is None and file is not None and file.requirements is not None:
        requirements = file.path.parent / file.requirements
    if not entry.file and requirements is None:
        refuse_unknown_package(entry)
    if entry.file and entry.file not in selection.paths:
        raise Refusal(
            "not-in-the-bundle",
            f"{entry.file} is not among the files that go along: git ignores it, or --exclude or "
            f"--checkpoint-dir names it; take it along with --include {entry.file}",
        )
    bundle = pack(selection, include=include)
    words = None if arguments is None else tuple(arguments)
    return ProgramOrder(
        program=program,
        bundle=bundle,
        arguments=words,
        requirements=None if requirements is None else read_requirements(requirements),
        from_snapshot=from_snapshot,
    )


def _refuse_code(kept: str, paths: Sequence[str]) -> None:
    """Refuse a folder for checkpoints that holds a part of the program."""
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    raise Refusal(
        "checkpoint-dir",
        f"--checkpoint-dir {kept} holds {paths[0]}{more}, which git tracks or is Python, and a "
        "folder for checkpoints does not go along; name another folder, or, if the program needs "
        f"nothing of it, add --exclude {kept}",
    )


def _kept_folder(values: Mapping[str, Value]) -> str | None:
    """Return the folder for checkpoints, below the program's; the bundle leaves it out."""
    given = str(values.get("checkpoint-dir") or "")
    if not given:
        return None
    plain = posixpath.normpath(given)
    if plain == ".":
        raise Refusal(
            "checkpoint-dir",
            f"--checkpoint-dir {given} is the folder of the program itself, whose code would be "
            "kept as a checkpoint; name a folder below it, such as --checkpoint-dir out",
        )
    return plain


def remembered(
    order: ProgramOrder, given: Mapping[str, Value], bucket: Bucket, run: str
) -> tuple[ProgramOrder, dict[str, Value]]:
    """Add what an earlier submission of the run said, where this one says nothing."""
    ran = read_record(bucket, run)
    order = replace(order, ran=ran)
    if (word := order.from_snapshot) is not None:
        order = replace(order, choice=chosen_snapshot(bucket, run, word))
    if not ran:
        stored = read_run(bucket, run)
        if stored is not None:
            raise Refusal(
                "run-changed",
                f"run {run} is one of {stored.workload}, and its checkpoints are no program's; "
                "give another --name",
            )
        return order, dict(given)
    last = order.continued
    if last is None:
        return order, dict(given)
    workload = order.program.workload
    known = {item.name: item for item in (*workload.parameters, *workload.launch_parameters)}
    values: dict[str, Value] = {}
    for name, value in last.parameters.items():
        if name in known and name not in given:
            try:
                values[name] = known[name].parse(flag_value(value))
            except ValueError as error:
                raise Refusal(
                    "run-changed",
                    f"run {run} had --{error}; give --{name} another value, or another --name",
                ) from None
    if order.arguments is None and order.program.file is None:
        order = replace(order, arguments=last.argv)
    if order.requirements is None and last.requirements is not None:
        order = replace(order, requirements=Requirements(text=str(last.requirements["text"])))
    return order, {**values, **given}


def node_request(
    request: JobRequest, order: ProgramOrder, values: Mapping[str, Value]
) -> JobRequest:
    """Turn the request for a program into one that nodes understand."""
    return replace(
        request,
        workload=contract.PROGRAM,
        parameters=order.job_parameters(values),
        program_argv=order.argv(values),
    )


def check_syntax(order: ProgramOrder, release: str) -> None:
    """Refuse syntax errors, in the grammar of the Python that a Neuron release has."""
    entry = order.entry
    if entry.file:
        check_grammar(
            entry.file,
            order.bundle.contents(),
            # As Python does: the folder of a script, the working folder of a module.
            root="" if entry.module else entry.file.rpartition("/")[0],
            python=python_of(release),
            note=note,
        )


def program_plan(submission: Submission) -> tuple[tuple[str, ...], dict[str, Any]]:
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
        *check_data(bucket, submission.target, request.parameters, note),
        *(f"changed: {line}" for line in differ),
        f"run {request.run}: {_standing(ran, snapshot, choice)}",
    )
    if own := _own_options(order.program.arguments or (), ran):
        note(
            f"{', '.join(own)} after -- goes to the program, as every word there; an option of "
            "submit stands before --"
        )
    for remark in _remarks(order.program, submission):
        note(remark)
    document = {
        "program": {
            "script": new.script,
            "module": new.module,
            "argv": list(new.argv),
            "code": new.code,
            "bytes": len(bundle.data),
            "files": len(bundle.files),
            "left_out": list(bundle.left_out),
            "run_exists": bool(ran),
            "changes": list(differ),
            "continues_from_snapshot": None if snapshot is None else snapshot.number,
        }
    }
    return lines, document


def _remarks(order: ProgramOrder, submission: Submission) -> Iterator[str]:
    """Say what will probably be otherwise on the nodes, or should not be sent."""
    request, entry = submission.request, order.entry
    for word in dict.fromkeys(secret_words(request.program_argv)):
        yield (
            f"{word} looks like a key: arguments can be read in the job's description, in "
            "program.json and in logs; let the program read it from elsewhere"
        )
    variables = split_variables(str(request.parameters.get(ENV) or ""))
    yield from local_paths(request.program_argv, variables, entry.folder)
    if entry.file:
        required = "" if order.requirements is None else order.requirements.text
        yield from left_behind(entry, order.bundle.contents(), required)


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


def keep(submission: Submission) -> None:
    """Put the bundle and the record into the bucket, just before the job is submitted."""
    order, run = submission.order, submission.request.run
    assert order.program is not None
    bundle = order.program.bundle
    if upload(submission.bucket, run, bundle, note):
        note(f"sent {counted(len(bundle.files), 'file')}, {human(len(bundle.data))}")
    if submission.wheels is not None:
        keep_requirements(submission.bucket, run, submission.wheels)
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
    if bundle.left_out:
        yield f"left out of it: {', '.join(bundle.left_out)}"
    if bundle.remark is not None:
        yield bundle.remark


def _kept_lines(order: ProgramOrder, parameters: Mapping[str, Value]) -> Iterator[str]:
    """Say what is kept while the program runs, unless its own text names the folder for that."""
    if (folder := _kept_folder(parameters)) is not None:
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
