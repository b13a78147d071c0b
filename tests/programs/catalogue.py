"""The public programs, as `programs.toml` lists them, and their folders on this machine."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainium_catalogue.contract import ENV_INSTANCE_TYPE, ENV_NEURON_RELEASE

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIST = HERE / "programs.toml"
PACKAGES = ROOT / "build" / "programs" / "site"
"""Folder of the packages of `requirements.txt`; `python tools/setup.py programs` fills it."""
FOR_NEURON = {ENV_INSTANCE_TYPE: "trn2.48xlarge", ENV_NEURON_RELEASE: "2.33.0"}
"""Deployment that a program for TorchNeuron's device needs."""
SOURCES = ROOT / "build" / "programs" / "sources"
"""Folder of public repositories by their names, each at the commit of the list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicProgram:
    """A third-party program, and how to start it on two small nodes."""

    name: str
    package: str = ""
    """Package and version, as a registry names it, that the program is in."""
    repository: str = ""
    """Owner and name on GitHub, if it is in no package."""
    commit: str = ""
    path: str = "."
    """Folder of the repository that is the program's own."""
    script: str = ""
    module: str = ""
    data: tuple[str, ...] = ()
    """Kinds of data of `data.py` that it reads."""
    prepare: str = ""
    """Command of its own that turns the data into its form, once."""
    requires: tuple[str, ...] = ()
    """Packages that the image lacks, by name; `requirements.txt` beside the list has versions."""
    nodes: int = 2
    processes: int = 1
    """Processes of each node."""
    on_cpu: str = ""
    """Arguments that put it on the CPU, if it runs on TorchNeuron's device, here an emulated one.

    Its uninterrupted run is on the CPU then.
    """
    has_cpu_version: bool = True
    """False if it runs on TorchNeuron's device, and on no CPU."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its user sets."""
    arguments: str
    resume: str = ""
    """Arguments of every attempt that let it go on from its checkpoint, if there is one."""
    resume_later: str = ""
    """Arguments of an attempt that finds a checkpoint, where the first must do without."""
    checkpoint_dir: str = ""
    """Folder that it writes; a program that saves nothing has none, and begins again."""
    checkpoint: str = ""
    """Files in that folder, with wildcards, that make a checkpoint."""
    snapshot_every_s: float = 1.0
    result: str
    """Regular expression of its result in the output; the last one counts."""
    resumed: str = ""
    """Regular expression of its line on resuming; without one, its results are counted."""
    band: float = 0.0
    """Relative difference of two uninterrupted runs; 0 if they are the same to the last digit."""
    needs: tuple[str, ...] = ()
    """Modules that the layer may lack on this machine."""
    quick: bool = False
    """Part of `make test-slow`."""

    @property
    def on_neuron(self) -> bool:
        """True if it runs on TorchNeuron's device."""
        return bool(self.on_cpu) or not self.has_cpu_version

    @property
    def argv(self) -> list[str]:
        """Arguments of every attempt."""
        return shlex.split(f"{self.arguments} {self.resume}")

    def cpu_version(self) -> PublicProgram:
        """Return the same program on the CPU."""
        return replace(self, arguments=f"{self.arguments} {self.on_cpu}", on_cpu="")

    @property
    def entry(self) -> list[str]:
        """Return the program's arguments for torchrun or `submit`."""
        return [self.script] if self.script else ["-m", self.module]

    @property
    def submission(self) -> str:
        """Return the command that runs it on a deployment, from its own folder."""
        words = ["python -m jobs submit", *([f"./{self.script}"] if self.script else self.entry)]
        words.append(f"--requirements requirements.txt --nodes {self.nodes}")
        if self.checkpoint_dir:
            words.append(f"--checkpoint-dir {self.checkpoint_dir}")
        if self.resume_later:
            words.append(f"--resume-arguments='{self.resume_later}'")
        words += [f"--env {name}={value}" for name, value in self.environment.items()]
        return " ".join([*words, "--", shlex.join(self.argv)] if self.argv else words)

    @property
    def source(self) -> Path | None:
        """Return the program's folder; None if it is in a package."""
        if not self.repository:
            return None
        return SOURCES / self.repository.rpartition("/")[2] / self.path

    def agree(self, first: str, second: str) -> bool:
        """Return whether two results match uninterrupted runs."""
        if self.band == 0:
            return first == second
        return abs(float(first) - float(second)) <= self.band * abs(float(first))

    def missing(self) -> str:
        """Return what this machine lacks; empty if nothing."""
        if not PACKAGES.is_dir():
            return "python tools/setup.py programs has not been run"
        if self.source is not None and not self.source.is_dir():
            folder = SOURCES.relative_to(ROOT) / self.repository.rpartition("/")[2]
            return (
                f"no {folder}: git clone https://github.com/{self.repository} {folder}, "
                f"then git -C {folder} checkout {self.commit}"
            )
        for module in self.needs:
            if not (PACKAGES / module).is_dir():
                return f"no CPU build of {module} could be installed here"
        return ""

    def lay_out(self, folder: Path) -> None:
        """Copy the program's files and data into a folder, as its user would have them."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.source is not None:
            skip = shutil.ignore_patterns(".git")
            shutil.copytree(self.source, folder, dirs_exist_ok=True, ignore=skip)
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PACKAGES)}
        if self.data:
            command = [sys.executable, str(HERE / "data.py"), str(folder), *self.data]
            subprocess.run(command, env=environment, check=True, capture_output=True)
        if self.prepare:
            command = [sys.executable, *shlex.split(self.prepare)]
            subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True)


def public_programs() -> dict[str, PublicProgram]:
    """Return the programs by name, in list order."""
    entries: list[dict[str, Any]] = tomllib.loads(LIST.read_text())["program"]
    for entry in entries:
        for name in ("data", "needs", "requires"):
            entry[name] = tuple(entry.get(name, ()))
    return {entry["name"]: PublicProgram(**entry) for entry in entries}
