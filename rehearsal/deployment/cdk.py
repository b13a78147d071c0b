"""The pinned CDK CLI as a process: its commands and the synthesized assembly."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from rehearsal.deployment.aws import ACCOUNT, SUBMITTER
from rehearsal.deployment.state import DEPLOYMENT, ROOT, Settings
from trainium_catalogue.eks import DEFAULT_KUBERNETES_VERSION, host_image_version
from trainium_catalogue.releases import NEURON_RELEASES

Command = tuple[str, ...]


class StepFailed(RuntimeError):
    """Raised when a command fails; the message contains its last output and its log's path."""


def executable(bin_folder: Path) -> Path:
    """Return the virtual environment's pinned CLI."""
    cdk = bin_folder / "cdk"
    if not cdk.exists():
        raise StepFailed(f"{cdk} is missing; set the project up with: make setup")
    return cdk


def version() -> str:
    """Return the CLI's version from its package, because running it would take a second."""
    package = ROOT / "tools" / "cdk" / "node_modules" / "aws-cdk" / "package.json"
    return str(json.loads(package.read_text(encoding="utf-8"))["version"])


def context(settings: Settings) -> dict[str, str]:
    """Return a rehearsal's CDK context; a synthesis for AWS differs in nothing else."""
    cluster = {
        "trainium:eks_admin_arns": f"arn:aws:iam::{ACCOUNT}:role/rehearsal",
        "trainium:eks_submitter_arns": f"arn:aws:iam::{ACCOUNT}:user/{SUBMITTER}",
        # Documentation addresses (RFC 5737): the rehearsal's API server is on loopback.
        "trainium:eks_endpoint_cidrs": "192.0.2.0/24",
    }
    release = NEURON_RELEASES[settings.neuron_release]
    if release.eks_ami_since is not None:
        image = host_image_version(DEFAULT_KUBERNETES_VERSION, release.eks_ami_since)
        cluster["trainium:eks_node_image"] = image
    return {
        "trainium:orchestrators": ",".join(settings.orchestrators),
        "trainium:deployment": DEPLOYMENT,
        "trainium:instance_type": settings.instance_type,
        "trainium:neuron_release": settings.neuron_release,
        "trainium:max_nodes": str(settings.nodes),
        # Destroy must leave nothing behind; by default the bucket is retained.
        "trainium:retain_data": "false",
        # No email is sent; a queue is also subscribed.
        "trainium:notify_email": "rehearsal@example.com",
        **(cluster if "eks" in settings.orchestrators else {}),
    }


def synth_command(cdk: Path, *, assembly: Path, context: Mapping[str, str]) -> Command:
    """Build the command that synthesizes the assembly used by deploy and destroy."""
    pairs = [word for key, value in context.items() for word in ("-c", f"{key}={value}")]
    return (str(cdk), "synth", "--quiet", "--output", str(assembly), *pairs)


def shell_functions(settings: Settings) -> str:
    """Return shell functions that replace `cdk synth` and `cdk deploy`.

    They use the deployment's context, plus any changes, and the deployment method for moto
    (`deploy_command`).
    """
    keys = " ".join(f"-c {quote(f'{key}={value}')}" for key, value in context(settings).items())
    deploy = "--all --app cdk.out --method=direct --require-approval never"
    return (
        f'rehearsal_synth() {{ cdk synth --quiet {keys} "$@"; }}\n'
        f'rehearsal_deploy() {{ cdk deploy {deploy} "$@"; }}\n'
    )


def bootstrap_command(cdk: Path, *, assembly: Path, region: str) -> Command:
    """Build the command that bootstraps the account in a region.

    Without ``--app`` the CLI would synthesize again, into the user's output folder.
    """
    return (str(cdk), "bootstrap", f"aws://{ACCOUNT}/{region}", "--app", str(assembly))


def deploy_command(cdk: Path, *, assembly: Path, only: Sequence[str] | None = None) -> Command:
    """Build the command that deploys all stacks, or some of them.

    ``--method=direct``, because moto's change sets cannot use other stacks' exports.
    """
    return (
        *(str(cdk), "deploy", *_stack_arguments(only), "--app", str(assembly)),
        *("--method=direct", "--require-approval", "never", "--progress", "events"),
    )


def destroy_command(cdk: Path, *, assembly: Path, only: Sequence[str] | None = None) -> Command:
    """Build the command that destroys all stacks, or some of them, without confirmation."""
    return (str(cdk), "destroy", *_stack_arguments(only), "--force", "--app", str(assembly))


def _stack_arguments(only: Sequence[str] | None) -> Command:
    return ("--all",) if only is None else (*only, "--exclusively")


@dataclass(frozen=True, slots=True)
class CloudAssembly:
    """The cloud assembly written by ``cdk synth``."""

    region: str
    stacks: tuple[str, ...]


def read_assembly(folder: Path) -> CloudAssembly:
    """Read the app's region and the names of its stacks from the manifest."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    stacks = {
        name: artifact["environment"]
        for name, artifact in manifest["artifacts"].items()
        if artifact["type"] == "aws:cloudformation:stack"
    }
    regions = {environment.rpartition("/")[2] for environment in stacks.values()}
    if len(regions) != 1:
        raise StepFailed(f"the stacks are in {len(regions)} regions ({', '.join(sorted(regions))})")
    return CloudAssembly(region=regions.pop(), stacks=tuple(stacks))


def write_docker_emulator(path: Path, *, record: Path) -> None:
    """Write a script that runs the docker emulator, because CDK_DOCKER must be a single file."""
    path.write_text(
        "#!/bin/sh\n"
        "# Emulates docker while `python -m rehearsal` deploys: emulators/trainium_emulators/"
        "docker_cli.py\n"
        f"PYTHONPATH='{ROOT}/emulators' exec '{sys.executable}' -m trainium_emulators.docker_cli "
        f"--record '{record}' \"$@\"\n",
        encoding="utf-8",
    )
    path.chmod(0o755)


def run(
    command: Command,
    *,
    log: Path,
    environment: Mapping[str, str],
    on_line: Callable[[str], None],
    on_start: Callable[[subprocess.Popen[str]], None] = lambda process: None,
    codes: tuple[int, ...] | None = (0,),
) -> int:
    """Run a command and write its output to ``log``; raise ``StepFailed`` if it fails.

    ``codes`` are the exit codes that mean success; None accepts any.
    """
    last: list[str] = []
    with (
        log.open("w", encoding="utf-8") as record,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        on_start(process)
        try:
            for line in process.stdout:
                record.write(line)
                record.flush()
                if text := line.strip():
                    last = [*last[-11:], text]
                    on_line(text)
        except BaseException:
            process.terminate()
            raise
    code = process.wait()
    if codes is not None and code not in codes:
        name = " ".join([Path(command[0]).name, *command[1:2]])
        output = "\n  ".join(last)
        raise StepFailed(f"{name} exited with {code}; full log in {log}:\n  {output}")
    return code
