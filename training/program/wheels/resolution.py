"""Runs pip in this image: what do requirements need that is not there, and why can it not be?"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from training.core.failures import Explained
from training.core.heartbeat import heartbeat
from training.program.wheels.packages import Constraint
from trainium_catalogue.contract import CONSTRAINT_MARK

_NOISE = ("Requirement already satisfied", "Looking in ", "[notice]", "To fix this", "1. ", "2. ")
_REMEDY = "loosen the requirements, or deploy an image of your own (image_uri)"
_CAUSE = "The conflict is caused by:"
_BY_CONSTRAINT = "The user requested (constraint) "
_BY_USER = "The user requested "
_UNREACHABLE = re.compile(
    # Of pip's retries; of its vendored urllib3 when they have ended.
    r"after connection broken by|Max retries exceeded|Network is unreachable"
    # Of git, for a requirement from a repository.
    r"|Could not resolve host|unable to access '[^']*': Failed to connect"
)
_FOUND = ("Package '", "THESE PACKAGES DO NOT MATCH")
"""Starts of errors about packages that an index had."""
_CROSS = "\N{MULTIPLICATION SIGN}"
"""Start of the line that says what failed in a process of pip's."""
_VERSIONS = re.compile(r"\(from versions: (?P<all>[^)]*)\)")
_SHOWN_VERSIONS = 4
_AT_MOST_S = 3600.0

log = logging.getLogger(__name__)


class RequirementsRefused(Explained):
    """Requirements that cannot be had in this image; the message is for the user."""


class IndexUnreachable(Explained, ConnectionError):
    """No package index answers; another attempt may reach it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pip:
    """pip of this Python, with a folder for its files."""

    folder: Path
    environment: Mapping[str, str]
    report: Callable[[str], None]

    def run(self, *arguments: str) -> tuple[int, list[str]]:
        """Run pip and pass its output on; returns the exit code and all lines."""
        command = [
            *(sys.executable, "-m", "pip", *arguments, "--no-input"),
            *("--disable-pip-version-check", "--progress-bar=off"),
            f"--cache-dir={self.folder / 'cache'}",
        ]
        lines: list[str] = []
        with (
            # A package that is built is silent for long.
            heartbeat(self.report, "pip works", at_most_s=_AT_MOST_S),
            subprocess.Popen(
                command,
                cwd=self.folder,
                # Without UTF-8 pip prints other marks.
                env={**self.environment, "PYTHONUTF8": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line.rstrip())
                if line.strip() and not line.strip().startswith(_NOISE):
                    log.info("pip: %s", line.rstrip())
        return process.returncode, lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A package that has to be added to the image."""

    name: NormalizedName
    version: str
    pin: str
    """The requirement that gives exactly this package."""


def resolve(pip: Pip, text: str, constraints: Sequence[Constraint]) -> list[Resolved]:
    """Find what is missing; ``RequirementsRefused`` says why that cannot be."""
    requirements = pip.folder / "requirements.txt"
    requirements.write_text(text)
    lines = pip.folder / "constraints.txt"
    own = [
        line.removeprefix(CONSTRAINT_MARK)
        for line in text.splitlines()
        if line.startswith(CONSTRAINT_MARK)
    ]
    lines.write_text("".join(f"{line}\n" for line in [*(c.line for c in constraints), *own]))
    report = pip.folder / "report.json"
    code, output = pip.run(
        *("install", "--dry-run", "--prefer-binary", f"--report={report}"),
        # Not PIP_CONSTRAINT, which would also bind what builds a package.
        *(f"--constraint={lines.name}", f"--requirement={requirements.name}"),
    )
    if code != 0:
        raise failure(output, constraints)
    return [_resolved(item) for item in json.loads(report.read_text())["install"]]


def build(
    pip: Pip, text: str, resolved: Sequence[Resolved], folder: Path
) -> list[tuple[Resolved, Path]]:
    """Download the wheels, and build those that exist as source only; pairs them."""
    pins = pip.folder / "pins.txt"
    # Options of the requirements, such as a package index, hold for their pins too.
    options = [line for line in text.splitlines() if line.startswith("-")]
    pins.write_text("".join(f"{line}\n" for line in [*options, *(r.pin for r in resolved)]))
    code, output = pip.run(
        *("wheel", "--no-deps", "--prefer-binary", f"--wheel-dir={folder}"),
        f"--requirement={pins.name}",
    )
    if code != 0:
        raise failure(output, ())
    by_name = {canonicalize_name(path.name.partition("-")[0]): path for path in folder.iterdir()}
    return [(item, by_name[item.name]) for item in resolved]


def _resolved(item: Mapping[str, Any]) -> Resolved:
    """Read an entry of pip's installation report (pip.pypa.io, reference, installation report)."""
    metadata, origin = item["metadata"], item["download_info"]
    name, version = canonicalize_name(metadata["name"]), str(metadata["version"])
    pin = f"{name}=={version}"
    if item["is_direct"]:
        url, fragments = str(origin["url"]), []
        if vcs := origin.get("vcs_info"):
            url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
        if subdirectory := origin.get("subdirectory"):
            fragments.append(f"subdirectory={subdirectory}")
        pin = f"{name} @ {url}{'#' if fragments else ''}{'&'.join(fragments)}"
    return Resolved(name=name, version=version, pin=pin)


def failure(output: Sequence[str], constraints: Sequence[Constraint]) -> Exception:
    """Explain what pip has printed before it failed."""
    if _CAUSE in output:
        start = output.index(_CAUSE) + 1
        # Newer versions of pip add a list of what they found no distribution of.
        block = [line.strip() for line in takewhile(_is_indented, output[start:])]
        return RequirementsRefused(f"{_conflict(block, constraints)}; {_REMEDY}")
    errors = [
        line.removeprefix("ERROR: ").strip()
        for line in output
        # Errors of what builds a package are indented; the line that names the package is not.
        if line.startswith("ERROR: ") or line.startswith(_CROSS)
    ]
    first = errors[0] if errors else f"pip has failed: {' '.join(output[-1:])}"
    # pip goes on without an index that does not answer, and then finds no version of anything.
    if not first.startswith(_FOUND) and any(_UNREACHABLE.search(line) for line in output):
        return IndexUnreachable(
            "a package index does not answer; CPU instances need a way to the internet (a NAT "
            "gateway), or to a mirror that the requirements or the image's pip.conf name"
        )
    if first.startswith(_CROSS):
        return RequirementsRefused(f"{_being_built(output)} cannot be built: {first[1:].strip()}")
    return RequirementsRefused(f"{_shortened(first)}; correct the requirements")


def _is_indented(line: str) -> bool:
    return line.startswith("    ")


def _conflict(block: Sequence[str], constraints: Sequence[Constraint]) -> str:
    """Put pip's causes of a conflict into one sentence."""
    wanted, held = [], []
    for line in block:
        if line.startswith(_BY_CONSTRAINT):
            held.append(_reason(line.removeprefix(_BY_CONSTRAINT), constraints))
        elif line.startswith(_BY_USER):
            wanted.append(f"the requirements name {line.removeprefix(_BY_USER)}")
        else:
            wanted.append(line.replace(" depends on ", " needs ", 1))
    if not held:
        return f"{' and '.join(wanted[:3])}, which do not go together"
    more = f" (and {len(wanted) - 1} more, see above)" if len(wanted) > 1 else ""
    return f"{wanted[0] if wanted else 'a requirement is refused'}{more}, but {held[0]}"


def _reason(constraint: str, constraints: Sequence[Constraint]) -> str:
    """Say why there is a constraint, which pip may spell in another order."""
    wanted = Requirement(constraint)
    found = (
        item.reason
        for item in constraints
        if item.name == canonicalize_name(wanted.name)
        and Requirement(item.line).specifier == wanted.specifier
    )
    return next(found, f"a constraint of the requirements is {constraint}")


def _being_built(output: Sequence[str]) -> str:
    """Find the package whose code was running."""
    names = [
        match[1]
        for line in output
        if (match := re.match(r"\s*(?:Collecting|Building wheels? for|Processing) (\S+)", line))
    ]
    return names[-1] if names else "a package"


def _shortened(line: str) -> str:
    """Show only the newest of hundreds of versions."""
    match = _VERSIONS.search(line)
    versions = match["all"].split(", ") if match else []
    if match is None or len(versions) <= _SHOWN_VERSIONS:
        return line
    newest = ", ".join(versions[-_SHOWN_VERSIONS:])
    return f"{line[: match.start()]}(there are ..., {newest}){line[match.end() :]}"
