"""A submission of a user's own program: its entry point, bundle, and settings of the run."""

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
    check_workdir,
    is_path,
    module_entry,
    script_entry,
    unknown_package,
)
from jobs.program.files import select
from jobs.program.parameters import ENV
from jobs.program.record import Submitted, now, read_record
from jobs.program.requirements import Requirements, read_requirements
from jobs.program.secrets import check_arguments, check_variables
from jobs.program.snapshots import SnapshotChoice, choose_snapshot
from jobs.program.workload_file import WorkloadFile, plain_workload, read_workload_file
from trainium_catalogue import contract
from trainium_catalogue.parameters.command_line import ParameterValues
from trainium_catalogue.parameters.parameter import flag_value
from trainium_catalogue.variables import join_variables, split_variables
from trainium_catalogue.workloads import Value, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program named on the command line."""

    entry: Entry
    workload: Workload
    """Its parameters and defaults, in the form of a catalogue workload."""
    file: WorkloadFile | None = None
    """Its workload.toml, if named by its folder."""

    @property
    def name(self) -> str:
        """A short name, for run names."""
        return self.entry.name if self.file is None else self.workload.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSpec:
    """A program with its bundle, arguments and requirements."""

    program: Program
    bundle: Bundle
    arguments: tuple[str, ...] | None
    """Arguments after ``--``; None without ``--``."""
    earlier: tuple[Submitted, ...] = ()
    """Earlier submissions of the run."""
    requirements: Requirements | None = None
    """Its requirements; None if it has none."""
    from_snapshot: str | None = None
    """Value of --from-snapshot."""
    choice: SnapshotChoice | None = None
    """The chosen snapshot, once found in the bucket."""

    @property
    def entry(self) -> Entry:
        """The file or module to run."""
        return self.program.entry

    @property
    def described_name(self) -> str | None:
        """The name in its workload.toml, if any."""
        return None if self.program.file is None else self.program.workload.name

    @property
    def continued(self) -> Submitted | None:
        """The newest submission of the run, if it ran the same script, module or folder."""
        last, entry = (self.earlier[-1] if self.earlier else None), self.entry
        which = (entry.script, entry.module, self.described_name)
        same = last is not None and (last.script, last.module, last.workload) == which
        return last if same else None

    def argv(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the arguments of every worker: from the workload.toml, then those after ``--``."""
        file = self.program.file
        return (*(() if file is None else file.argv(values)), *(self.arguments or ()))

    def job_parameters(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the parameters passed to the nodes."""
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


def find_program(
    word: str | None, module: str | None, workdir: Path | None, *, reserved: Collection[str]
) -> Program | None:
    """Return the program named on a command line; None for a catalogue workload.

    ``reserved`` are the options of `submit` itself.
    """
    if module is None and (word is None or not is_path(word)):
        return None
    folder = check_workdir(workdir)
    if module is not None:
        if word is not None:
            raise Refusal(
                "two-programs",
                f"{word} and -m {module} are two programs; keep one of them, and put arguments of "
                "the program after --",
            )
        return Program(entry=module_entry(module, folder), workload=plain_workload())
    assert word is not None
    if Path(word).is_dir():
        return _folder_program(word, folder, reserved)
    return Program(entry=script_entry(word, folder), workload=plain_workload())


def _folder_program(word: str, workdir: Path | None, reserved: Collection[str]) -> Program:
    """Read the workload.toml of a folder."""
    folder = Path(word)
    path = folder / WORKLOAD_FILE
    if not path.is_file():
        raise Refusal(
            "no-workload-file",
            f"{word} is a folder without a {WORKLOAD_FILE}, so its script is unknown; specify a "
            f"file in it, such as {word.rstrip('/')}/train.py, or add a {WORKLOAD_FILE} "
            "(docs/workload-file.md)",
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
) -> tuple[ProgramSpec, ParameterValues]:
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
            "--checkpoint-dir '' is not a folder name; specify a folder below the program's, such "
            "as out, or omit the option",
        )
    kept = checkpoint_folder({**settings, **values.given})
    include, exclude, requirements = own.include, own.exclude, own.requirements
    if file is not None:
        include, exclude = (*file.include, *include), (*file.exclude, *exclude)
    selection = select(
        entry.folder, include=include, exclude=exclude, ignores=(kept + "/",) if kept else ()
    )
    if kept and (code := selection.ignored_code):
        more = f" and {len(code) - 1:,} more" if len(code) > 1 else ""
        raise Refusal(
            "checkpoint-dir",
            f"--checkpoint-dir {kept} contains {code[0]}{more} (Python code, or tracked by git), "
            "but the checkpoint folder is not packed; specify another folder, or, if the program "
            f"does not need these files, add --exclude {kept}",
        )
    if requirements is None and file is not None and file.requirements is not None:
        requirements = file.path.parent / file.requirements
    if not entry.file and requirements is None:
        raise unknown_package(entry)
    if entry.file and entry.file not in selection.paths:
        raise Refusal(
            "not-in-the-bundle",
            f"{entry.file} is not packed: git ignores it, or --exclude or --checkpoint-dir names "
            f"it; pack it with --include {entry.file}",
        )
    spec = ProgramSpec(
        program=program,
        bundle=pack(selection, include=include),
        arguments=None if own.arguments is None else tuple(own.arguments),
        requirements=None if requirements is None else read_requirements(requirements),
        from_snapshot=own.from_snapshot,
    )
    return spec, values


def _with_variables(values: ParameterValues, variables: Sequence[str]) -> ParameterValues:
    """Add environment variables, each NAME=VALUE, to the parameters; refuse invalid ones."""
    try:
        # --set env=... also sets variables, which are already quoted.
        env = split_variables(str(values.given.get(ENV) or ""))
        env |= split_variables(shlex.join(variables))
        check_variables(env)
    except ValueError as error:
        raise Refusal("program-variable", str(error)) from None
    return replace(values, given={**values.given, ENV: join_variables(env)}) if env else values


def checkpoint_folder(values: Mapping[str, Value]) -> str | None:
    """Return the checkpoint folder, relative to the program's; it is not bundled."""
    given = str(values.get("checkpoint-dir") or "")
    if not given:
        return None
    plain = posixpath.normpath(given)
    if plain == ".":
        raise Refusal(
            "checkpoint-dir",
            f"--checkpoint-dir {given} is the program's own folder, so its code would be saved as "
            "a checkpoint; specify a folder below it, such as --checkpoint-dir out",
        )
    return plain


def with_stored_settings(
    spec: ProgramSpec, values: ParameterValues, bucket: Bucket, run: str
) -> tuple[ProgramSpec, ParameterValues]:
    """Fill in settings that this submission omits, from an earlier submission of the run."""
    earlier = read_record(bucket, run)
    spec = replace(spec, earlier=earlier)
    if (word := spec.from_snapshot) is not None:
        spec = replace(spec, choice=choose_snapshot(bucket, run, word))
    if not earlier:
        stored = read_run(bucket, run)
        if stored is not None:
            raise Refusal(
                "run-changed",
                f"run {run} is a run of {stored.workload}, whose checkpoints a program cannot use; "
                "use another --name",
            )
        return spec, values
    last = spec.continued
    if last is None:
        return spec, values
    workload = spec.program.workload
    known = {item.name: item for item in (*workload.parameters, *workload.launch_parameters)}
    kept: dict[str, Value] = {}
    for name, value in last.parameters.items():
        if name in known and name not in values.given:
            try:
                kept[name] = known[name].parse(flag_value(value))
            except ValueError as error:
                raise Refusal(
                    "run-changed",
                    f"run {run} has an invalid parameter: --{error}; pass another --{name}, or use "
                    "another --name",
                ) from None
    if spec.arguments is None and spec.program.file is None:
        spec = replace(spec, arguments=last.argv)
    if spec.requirements is None and last.requirements is not None:
        spec = replace(spec, requirements=Requirements(text=str(last.requirements["text"])))
    return spec, replace(values, given={**kept, **values.given})


def program_request(
    request: JobRequest,
    spec: ProgramSpec,
    values: ParameterValues,
    bucket: Bucket,
    *,
    wheels_key: str | None,
) -> tuple[JobRequest, Submitted, tuple[str, ...]]:
    """Turn a request for a program into a request for the nodes.

    Also return the record of the submission, and its differences from the run's last one.
    """
    file = spec.program.file
    requirements: dict[str, str] | None = None
    parameters = spec.job_parameters(values.given)
    if wheels_key is not None and spec.requirements is not None:
        parameters["wheels"] = wheels_key
        requirements = {"key": wheels_key, "text": spec.requirements.text}
    request = replace(
        request,
        workload=contract.PROGRAM,
        parameters=parameters,
        program_argv=spec.argv(values.given),
    )
    record = Submitted(
        submitted_at=now(),
        code=spec.bundle.sha256,
        script=spec.entry.script,
        module=spec.entry.module,
        argv=request.program_argv,
        parameters=values.given,
        requirements=requirements,
        num_nodes=request.num_nodes,
        workload=spec.described_name,
        from_snapshot=spec.from_snapshot,
    )
    if not spec.earlier:
        return request, record, ()
    own = frozenset() if file is None else file.own_names
    differ = changes(bucket, request.run, spec.earlier[-1], record, spec.bundle, as_arguments=own)
    return request, record, tuple(differ)
