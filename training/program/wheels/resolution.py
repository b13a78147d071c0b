"""Run pip in this image to resolve requirements, and explain its failures."""

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

from training.core.failures import ExplainedError
from training.core.heartbeat import heartbeat
from training.program.wheels.packages import Constraint
from trainium_catalogue.contract import CONSTRAINT_MARK

_NOISE = ("Requirement already satisfied", "Looking in ", "[notice]", "To fix this", "1. ", "2. ")
_REMEDY = "loosen the requirements, or deploy an image of your own (image_uri)"
_CAUSE = "The conflict is caused by:"
_BY_CONSTRAINT = "The user requested (constraint) "
_BY_USER = "The user requested "
_UNREACHABLE = re.compile(
    # From pip's retries, and from its vendored urllib3 after the last one.
    r"after connection broken by|Max retries exceeded|Network is unreachable"
    # From git, for a requirement from a repository.
    r"|Could not resolve host|unable to access '[^']*': Failed to connect"
)
_INDEX_REACHED = ("Package '", "THESE PACKAGES DO NOT MATCH")
"""Prefixes of errors that show that an index was reached."""
_CROSS = "\N{MULTIPLICATION SIGN}"
"""Prefix of the line that names a failure in a subprocess of pip."""
_VERSIONS = re.compile(r"\(from versions: (?P<all>[^)]*)\)")
_SHOWN_VERSIONS = 4
_MAX_S = 3600.0

log = logging.getLogger(__name__)


class RequirementsRefused(ExplainedError):
    """The requirements cannot be met in this image; the message is for the user."""


class IndexUnreachable(ExplainedError, ConnectionError):
    """A package index is unreachable; a retry may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pip:
    """This Python's pip, with a folder for its files."""

    folder: Path
    environment: Mapping[str, str]
    report: Callable[[str], None]

    def run(self, *arguments: str) -> tuple[int, list[str]]:
        """Run pip and log its output; return the exit code and all lines."""
        command = [
            *(sys.executable, "-m", "pip", *arguments, "--no-input"),
            *("--disable-pip-version-check", "--progress-bar=off"),
            f"--cache-dir={self.folder / 'cache'}",
        ]
        lines: list[str] = []
        with (
            # Builds may be silent for a long time.
            heartbeat(self.report, "running pip", at_most_s=_MAX_S),
            subprocess.Popen(
                command,
                cwd=self.folder,
                # Without UTF-8 pip prints different markers.
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
class ResolvedPackage:
    """A package to install on top of the image."""

    name: NormalizedName
    version: str
    pin: str
    """The requirement that selects exactly this package."""


def resolve(pip: Pip, text: str, constraints: Sequence[Constraint]) -> list[ResolvedPackage]:
    """Return missing packages; raise ``RequirementsRefused`` or ``IndexUnreachable`` on failure."""
    requirements_file = pip.folder / "requirements.txt"
    requirements_file.write_text(text)
    constraints_file = pip.folder / "constraints.txt"
    own = [
        line.removeprefix(CONSTRAINT_MARK)
        for line in text.splitlines()
        if line.startswith(CONSTRAINT_MARK)
    ]
    all_lines = [*(constraint.line for constraint in constraints), *own]
    constraints_file.write_text("".join(f"{line}\n" for line in all_lines))
    report = pip.folder / "report.json"
    code, output = pip.run(
        *("install", "--dry-run", "--prefer-binary", f"--report={report}"),
        # Not PIP_CONSTRAINT, which would also constrain build dependencies.
        *(f"--constraint={constraints_file.name}", f"--requirement={requirements_file.name}"),
    )
    if code != 0:
        raise failure(output, constraints)
    return [_read_entry(item) for item in json.loads(report.read_text())["install"]]


def build(
    pip: Pip, text: str, resolved: Sequence[ResolvedPackage], folder: Path
) -> list[tuple[ResolvedPackage, Path]]:
    """Download wheels, or build them if only available as source; return each package's wheel.

    Raises the same errors as ``resolve``.
    """
    pins = pip.folder / "pins.txt"
    # Options in the requirements, such as a package index, also apply to the pins.
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


def _read_entry(item: Mapping[str, Any]) -> ResolvedPackage:
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
    return ResolvedPackage(name=name, version=version, pin=pin)


def failure(output: Sequence[str], constraints: Sequence[Constraint]) -> Exception:
    """Explain pip's failure from its output."""
    if _CAUSE in output:
        start = output.index(_CAUSE) + 1
        # Newer versions of pip add a list of packages without a matching distribution.
        block = [line.strip() for line in takewhile(_is_indented, output[start:])]
        return RequirementsRefused(f"{_conflict(block, constraints)}; {_REMEDY}")
    errors = [
        line.removeprefix("ERROR: ").strip()
        for line in output
        # A build's own errors are indented, unlike the line that names the package.
        if line.startswith("ERROR: ") or line.startswith(_CROSS)
    ]
    first = errors[0] if errors else f"pip failed: {' '.join(output[-1:])}"
    # pip continues without an unreachable index, and then finds no version of any package.
    if not first.startswith(_INDEX_REACHED) and any(_UNREACHABLE.search(line) for line in output):
        return IndexUnreachable(
            "a package index is unreachable; CPU instances need access to the internet (a NAT "
            "gateway), or to a mirror named in the requirements or the image's pip.conf"
        )
    if first.startswith(_CROSS):
        return RequirementsRefused(f"{_find_package(output)} cannot be built: {first[1:].strip()}")
    return RequirementsRefused(f"{_shorten_versions(first)}; correct the requirements")


def _is_indented(line: str) -> bool:
    return line.startswith("    ")


def _conflict(block: Sequence[str], constraints: Sequence[Constraint]) -> str:
    """Summarize pip's causes of a conflict in one sentence."""
    wanted, reasons = [], []
    for line in block:
        if line.startswith(_BY_CONSTRAINT):
            reasons.append(_reason(line.removeprefix(_BY_CONSTRAINT), constraints))
        elif line.startswith(_BY_USER):
            wanted.append(f"the requirements name {line.removeprefix(_BY_USER)}")
        else:
            wanted.append(line.replace(" depends on ", " needs ", 1))
    if not reasons:
        return f"{' and '.join(wanted[:3])}, which conflict"
    more = f" (and {len(wanted) - 1} more, see above)" if len(wanted) > 1 else ""
    return f"{wanted[0] if wanted else 'a requirement is refused'}{more}, but {reasons[0]}"


def _reason(constraint: str, constraints: Sequence[Constraint]) -> str:
    """Explain a constraint, whose specifiers pip may print in a different order."""
    wanted = Requirement(constraint)
    reasons = (
        item.reason
        for item in constraints
        if item.name == canonicalize_name(wanted.name)
        and Requirement(item.line).specifier == wanted.specifier
    )
    return next(reasons, f"a constraint in the requirements is {constraint}")


def _find_package(output: Sequence[str]) -> str:
    """Return the name of the package that was being built."""
    names = [
        match[1]
        for line in output
        if (match := re.match(r"\s*(?:Collecting|Building wheels? for|Processing) (\S+)", line))
    ]
    return names[-1] if names else "a package"


def _shorten_versions(line: str) -> str:
    """Shorten a list of hundreds of versions to the newest."""
    match = _VERSIONS.search(line)
    versions = match["all"].split(", ") if match else []
    if match is None or len(versions) <= _SHOWN_VERSIONS:
        return line
    newest = ", ".join(versions[-_SHOWN_VERSIONS:])
    return f"{line[: match.start()]}(newest versions: {newest}){line[match.end() :]}"
