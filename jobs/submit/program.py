"""A user's own program as it is submitted: named, packed, with what its run was given before."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jobs.bucket.objects import Bucket
from jobs.bucket.training_run import read_run
from jobs.errors import Refusal
from jobs.job import JobRequest
from jobs.program.bundle import Bundle, pack
from jobs.program.changes import changes
from jobs.program.entry import (
    WORKLOAD_FILE,
    Entry,
    ProgramOptions,
    checked_workdir,
    is_path,
    module_entry,
    refuse_unknown_package,
    script_entry,
)
from jobs.program.files import select
from jobs.program.parameters import ENV
from jobs.program.record import Submitted, now, read_record
from jobs.program.requirements import Requirements, read_requirements
from jobs.program.secrets import check_arguments, check_variables
from jobs.program.snapshots import Choice, chosen_snapshot
from jobs.program.workload_file import WorkloadFile, plain_workload, read_workload_file
from trainium_catalogue import contract
from trainium_catalogue.parameters.command_line import ParameterValues
from trainium_catalogue.parameters.parameter import flag_value
from trainium_catalogue.variables import join_variables, split_variables
from trainium_catalogue.workloads import Value, Workload


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
            f"{WORKLOAD_FILE} (docs/workload-file.md)",
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
    program: Program, values: ParameterValues, own: ProgramOptions
) -> tuple[ProgramOrder, ParameterValues]:
    """Pack the program's folder, and add its variables to the parameters; needs no network."""
    values = _with_variables(values, own.env)
    entry, file = program.entry, program.file
    settings = {} if file is None else file.settings
    try:
        check_arguments(own.arguments or ())
    except ValueError as error:
        raise Refusal("program-arguments", str(error)) from None
    if values.given.get("checkpoint-dir") == "":
        raise Refusal(
            "checkpoint-dir",
            "--checkpoint-dir '' names no folder; name one below the program's, such as out, or "
            "leave the option out",
        )
    kept = kept_folder({**settings, **values.given})
    include, exclude, requirements = own.include, own.exclude, own.requirements
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
    order = ProgramOrder(
        program=program,
        bundle=pack(selection, include=include),
        arguments=None if own.arguments is None else tuple(own.arguments),
        requirements=None if requirements is None else read_requirements(requirements),
        from_snapshot=own.from_snapshot,
    )
    return order, values


def _with_variables(values: ParameterValues, variables: Sequence[str]) -> ParameterValues:
    """Add environment variables, each NAME=VALUE, to the parameters; refuses what cannot be one."""
    try:
        # Of --set env=..., too, which is quoted already.
        env = split_variables(str(values.given.get(ENV) or ""))
        env |= split_variables(shlex.join(variables))
        check_variables(env)
    except ValueError as error:
        raise Refusal("program-variable", str(error)) from None
    return replace(values, given={**values.given, ENV: join_variables(env)}) if env else values


def _refuse_code(kept: str, paths: Sequence[str]) -> None:
    """Refuse a folder for checkpoints that holds a part of the program."""
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    raise Refusal(
        "checkpoint-dir",
        f"--checkpoint-dir {kept} holds {paths[0]}{more}, which git tracks or is Python, and a "
        "folder for checkpoints does not go along; name another folder, or, if the program needs "
        f"nothing of it, add --exclude {kept}",
    )


def kept_folder(values: Mapping[str, Value]) -> str | None:
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
    order: ProgramOrder, values: ParameterValues, bucket: Bucket, run: str
) -> tuple[ProgramOrder, ParameterValues]:
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
        return order, values
    last = order.continued
    if last is None:
        return order, values
    workload = order.program.workload
    known = {item.name: item for item in (*workload.parameters, *workload.launch_parameters)}
    kept: dict[str, Value] = {}
    for name, value in last.parameters.items():
        if name in known and name not in values.given:
            try:
                kept[name] = known[name].parse(flag_value(value))
            except ValueError as error:
                raise Refusal(
                    "run-changed",
                    f"run {run} had --{error}; give --{name} another value, or another --name",
                ) from None
    if order.arguments is None and order.program.file is None:
        order = replace(order, arguments=last.argv)
    if order.requirements is None and last.requirements is not None:
        order = replace(order, requirements=Requirements(text=str(last.requirements["text"])))
    return order, replace(values, given={**kept, **values.given})


def program_request(
    request: JobRequest,
    order: ProgramOrder,
    values: ParameterValues,
    bucket: Bucket,
    *,
    wheels_key: str | None = None,
) -> tuple[JobRequest, Submitted, tuple[str, ...]]:
    """Turn the request for a program into one that nodes understand.

    Returns the record of the submission too, and what differs from the last one of the run.
    """
    file = order.program.file
    requirements: dict[str, str] | None = None
    parameters = order.job_parameters(values.given)
    if wheels_key is not None and order.requirements is not None:
        parameters["wheels"] = wheels_key
        requirements = {"key": wheels_key, "text": order.requirements.text}
    request = replace(
        request,
        workload=contract.PROGRAM,
        parameters=parameters,
        program_argv=order.argv(values.given),
    )
    record = Submitted(
        submitted_at=now(),
        code=order.bundle.sha256,
        script=order.entry.script,
        module=order.entry.module,
        argv=request.program_argv,
        parameters=values.given,
        requirements=requirements,
        num_nodes=request.num_nodes,
        workload=order.described_name,
        from_snapshot=order.from_snapshot,
    )
    if not order.ran:
        return request, record, ()
    own = frozenset() if file is None else file.own_names
    differ = changes(bucket, request.run, order.ran[-1], record, order.bundle, as_arguments=own)
    return request, record, tuple(differ)
