"""Rehearse a public program: deploy, submit, kill a node, resume, destroy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.programs.catalogue import FOR_NEURON, HERE, ROOT, PublicProgram
from trainium_catalogue.contract import ENV_INSTANCE_TYPE, ENV_NEURON_RELEASE

_ADDRESSES = "127.0.49"
_RESTORED = re.compile(r"launch: snapshot \d+ of \S+, [1-9][\d,]* files?, ")
_FIRST, _LATER = re.compile(r"^node 0 \| "), re.compile(r"^node 0, attempt \d+ \| ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """Result of a program on one rehearsed orchestrator."""

    orchestrator: str
    problems: tuple[str, ...]
    """Problems in the receipt or the output; empty on success."""
    result: str
    """The last one in its output; empty without one."""
    after: int
    """Results of the attempts after the one that lost a node."""


def rehearse(
    program: PublicProgram, orchestrators: Iterable[str], folder: Path
) -> dict[str, Rehearsed]:
    """Rehearse a program with the loss of a node on each orchestrator."""
    program.lay_out(folder / "files")
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in pinned(program)))
    done = subprocess.run(
        command(program, orchestrators, folder),
        cwd=folder / "files",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(_paths())},
        stdout=subprocess.PIPE,
        text=True,
    )
    if not done.stdout:
        raise AssertionError(f"{program.name} was refused: exit {done.returncode}")
    receipt = json.loads(done.stdout)
    runs = {run["orchestrator"]: run for run in receipt["programs"]}
    found = {}
    for name in orchestrators:
        first, later = results_in(program, folder / "rehearsal", name)
        checks = runs[name]["checks"] if name in runs else []
        failed = tuple(f"{each['name']}: {each['detail']}" for each in checks if not each["ok"])
        if name not in runs or not runs[name]["run"]:
            failed += tuple(receipt["problems"]) or ("it did not run",)
        elif not later and not failed:
            failed = ("nothing was left to do when the node was killed",)
        elif program.checkpoint_dir and not failed and not resumed(folder / "rehearsal", name):
            failed = ("the node was killed before a checkpoint was in a snapshot; it began again",)
        result = (later or first or [""])[-1]
        found[name] = Rehearsed(orchestrator=name, problems=failed, result=result, after=len(later))
    return found


def command(program: PublicProgram, orchestrators: Iterable[str], folder: Path) -> list[str]:
    """Return the rehearsal's command."""
    files = folder / "files"
    entry = ["--program", str(files / program.script)] if program.script else program.entry
    options = {
        "--workdir": str(files),
        "--nodes": str(program.nodes),
        "--processes-per-node": str(program.processes),
        "--orchestrators": ",".join(orchestrators),
        "--folder": str(folder / "rehearsal"),
        "--addresses": _ADDRESSES,
    }
    if program.on_neuron:
        options["--instance-type"] = FOR_NEURON[ENV_INSTANCE_TYPE]
        options["--neuron-release"] = FOR_NEURON[ENV_NEURON_RELEASE]
    if program.checkpoint_dir:
        options["--checkpoint-dir"] = program.checkpoint_dir
    if program.checkpoint:
        options["--fault-after"] = program.checkpoint
    if program.requires:
        options["--requirements"] = str(folder / "requirements.txt")
    words = [word for pair in options.items() for word in pair]
    for name, value in {"HF_HUB_OFFLINE": "1", **program.environment}.items():
        words += ["--env", f"{name}={value}"]
    words += ["--set", f"snapshot-every-s={program.snapshot_every_s:g}"]
    if program.resume_later:
        words += ["--set", f"resume-arguments={program.resume_later}"]
    start = [sys.executable, "-m", "rehearsal", "run", *entry, *words, "--json"]
    return [*start, "--", *program.argv] if program.argv else start


def pinned(program: PublicProgram) -> list[str]:
    """Return its requirements, in the versions of the tests."""
    lines = (HERE / "requirements.txt").read_text().splitlines()
    versions = {line.partition("==")[0]: line for line in lines if not line.startswith("#")}
    return [versions[name] for name in program.requires]


def _paths() -> list[str]:
    return [str(ROOT), str(ROOT / "constructs"), str(ROOT / "emulators")]


def resumed(folder: Path, name: str) -> bool:
    """Return whether files of a snapshot were restored in a later attempt of the main node."""
    lines = _output(folder, name)
    return any(_LATER.match(line) and _RESTORED.search(line) for line in lines)


def results_in(program: PublicProgram, folder: Path, name: str) -> tuple[list[str], list[str]]:
    """Find the results in the main node's output: of the first attempt, and of later ones."""
    lines = _output(folder, name)
    first = "\n".join(_FIRST.sub("", line) for line in lines if _FIRST.match(line))
    later = "\n".join(_LATER.sub("", line) for line in lines if _LATER.match(line))
    pattern = re.compile(program.result)
    return (
        [match[1] if pattern.groups else match[0] for match in pattern.finditer(first)],
        [match[1] if pattern.groups else match[0] for match in pattern.finditer(later)],
    )


def _output(folder: Path, name: str) -> list[str]:
    logs = folder.glob(f"{name}-program-*.log")
    return [line for log in logs for line in log.read_text().split("\n")]
