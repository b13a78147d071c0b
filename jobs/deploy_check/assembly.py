"""A cloud assembly: the output of `cdk synth`, which `cdk deploy` reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.errors import Refusal

Template = Mapping[str, Any]

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = ("app.py", "cdk.json", "stacks", "constructs", "trainium_catalogue", "docker", "training")
"""Sources of the templates, including the image's build context."""
_STACK = "aws:cloudformation:stack"


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesizedStacks:
    """The stacks of one deployment by name, in manifest order."""

    folder: Path
    templates: Mapping[str, Template]
    dependencies: Mapping[str, frozenset[str]]
    """Dependencies of each stack, which `cdk deploy` updates first."""
    newer: str | None
    """A source file that changed after the assembly was synthesized; None if there is none."""

    @property
    def synth_command(self) -> str:
        """Command that regenerates the assembly."""
        output = "" if self.folder.name == "cdk.out" else f" --output {self.folder}"
        return f"cdk synth --quiet{output}"


def stack_pattern(deployment: str) -> re.Pattern[str]:
    """Return a pattern that matches only the names of this deployment's stacks.

    The suffix is a single word, so ``trainium-a-b-network`` does not belong to deployment ``a``.
    """
    return re.compile(rf"trainium-{re.escape(deployment)}-[a-z]+")


def read_assembly(folder: Path, *, deployment: str, region: str | None) -> SynthesizedStacks:
    """Read the stacks; refuse an invalid assembly, or one for another deployment or region."""
    manifest = folder / "manifest.json"
    if not manifest.exists():
        raise Refusal(
            "no-assembly",
            f"{folder} is not a cloud assembly: there is no {manifest}; create one with `cdk synth "
            "--quiet` and the -c settings to deploy with, or specify its folder with --assembly",
        )
    templates: dict[str, Template] = {}
    stacks: dict[str, str] = {}
    regions: set[str] = set()
    try:
        artifacts = json.loads(manifest.read_text(encoding="utf-8"))["artifacts"]
        for name, artifact in artifacts.items():
            if artifact.get("type") != _STACK:
                continue
            properties = artifact["properties"]
            text = (folder / properties["templateFile"]).read_text(encoding="utf-8")
            stacks[name] = properties.get("stackName", name)
            templates[stacks[name]] = json.loads(text)
            regions.add(str(artifact["environment"]).rpartition("/")[2])
    except (OSError, ValueError, LookupError) as error:
        raise Refusal(
            "invalid-assembly",
            f"the assembly in {folder} cannot be read ({type(error).__name__}: {error}); recreate "
            "it with `cdk synth --quiet`",
        ) from None
    _check_deployment(folder, templates, deployment)
    _check_region(folder, regions - {"unknown-region"}, region)
    dependencies = {
        stack: frozenset(stacks[other] for other in _dependencies(artifacts, name) & set(stacks))
        for name, stack in stacks.items()
    }
    return SynthesizedStacks(
        folder=folder,
        templates=templates,
        dependencies=dependencies,
        newer=newer_source(manifest),
    )


def _dependencies(artifacts: Mapping[str, Any], name: str) -> set[str]:
    """Return an artifact's direct and indirect dependencies."""
    found: set[str] = set()
    pending = [name]
    while pending:
        for other in artifacts.get(pending.pop(), {}).get("dependencies", ()):
            if other not in found:
                found.add(other)
                pending.append(other)
    return found


def newer_source(manifest: Path, *, repository: Path = REPOSITORY) -> str | None:
    """Return the newest source changed after ``manifest`` was written."""
    written = manifest.stat().st_mtime
    newest, found = written, None
    for source in SOURCES:
        root = repository / source
        for path in (root, *root.rglob("*")) if root.is_dir() else (root,):
            if not path.is_file() or "__pycache__" in path.parts or path.suffix == ".pyc":
                continue
            if (changed := path.stat().st_mtime) > newest:
                newest, found = changed, str(path.relative_to(repository))
    return found


def _check_deployment(folder: Path, templates: Mapping[str, Template], deployment: str) -> None:
    pattern = stack_pattern(deployment)
    others = sorted(name for name in templates if not pattern.fullmatch(name))
    recreate = f"recreate it with `cdk synth --quiet -c trainium:deployment={deployment}`"
    if not templates:
        raise Refusal("another-deployment", f"{folder} has no stack; {recreate}")
    if others:
        raise Refusal(
            "another-deployment",
            f"{folder} has stacks that do not belong to deployment {deployment!r}: "
            f"{', '.join(others)}; pass their --deployment, or {recreate}",
        )


def _check_region(folder: Path, regions: set[str], region: str | None) -> None:
    if region is not None and regions and regions != {region}:
        planned = ", ".join(sorted(regions))
        raise Refusal(
            "another-region",
            f"{folder} is for {planned}, but this command uses {region}; pass --region {planned}, "
            f"or recreate it with `cdk synth --quiet -c trainium:region={region}`",
        )
