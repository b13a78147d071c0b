"""The pinned CDK CLI as a process: its commands, and the assembly that it synthesises."""

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

Command = tuple[str, ...]


class StepFailed(RuntimeError):
    """Raised when a command fails; the message has its last lines and the path of its log."""


def executable(bin_folder: Path) -> Path:
    """The pinned CLI of the virtual environment."""
    cdk = bin_folder / "cdk"
    if not cdk.exists():
        raise StepFailed(f"{cdk} is missing; set the project up with: make setup")
    return cdk


def version() -> str:
    """The CLI's version, read from its package: asking the CLI would take a second."""
    package = ROOT / "tools" / "cdk" / "node_modules" / "aws-cdk" / "package.json"
    return str(json.loads(package.read_text(encoding="utf-8"))["version"])


def context(settings: Settings) -> dict[str, str]:
    """The CDK context of a rehearsal: all that differs from a deployment to AWS."""
    cluster = {
        "trainium:eks_admin_arns": f"arn:aws:iam::{ACCOUNT}:role/rehearsal",
        "trainium:eks_submitter_arns": f"arn:aws:iam::{ACCOUNT}:user/{SUBMITTER}",
        # Documentation addresses (RFC 5737): the rehearsal's API server is on loopback.
        "trainium:eks_endpoint_cidrs": "192.0.2.0/24",
    }
    return {
        "trainium:orchestrators": ",".join(settings.orchestrators),
        "trainium:deployment": DEPLOYMENT,
        "trainium:instance_type": settings.instance_type,
        "trainium:max_nodes": str(settings.nodes),
        # Destroy must leave nothing; by default the bucket is kept.
        "trainium:retain_data": "false",
        **(cluster if "eks" in settings.orchestrators else {}),
    }


def synth_command(cdk: Path, *, assembly: Path, context: Mapping[str, str]) -> Command:
    """Synthesise once; deploy and destroy read the result."""
    pairs = [word for key, value in context.items() for word in ("-c", f"{key}={value}")]
    return (str(cdk), "synth", "--quiet", "--output", str(assembly), *pairs)


def shell_functions(settings: Settings) -> str:
    """Return shell functions for a visitor that replace `cdk synth` and `cdk deploy`.

    They use the context of the deployment, to which a change adds, and the deployment method for
    moto (`deploy_command`).
    """
    keys = " ".join(f"-c {quote(f'{key}={value}')}" for key, value in context(settings).items())
    deploy = "--all --app cdk.out --method=direct --require-approval never"
    return (
        f'rehearsed_synth() {{ cdk synth --quiet {keys} "$@"; }}\n'
        f'rehearsed_deploy() {{ cdk deploy {deploy} "$@"; }}\n'
    )


def bootstrap_command(cdk: Path, *, assembly: Path, region: str) -> Command:
    """Bootstrap the account as a user does, once per account and region.

    Without ``--app`` the CLI would synthesise again, into the user's own output folder.
    """
    return (str(cdk), "bootstrap", f"aws://{ACCOUNT}/{region}", "--app", str(assembly))


def deploy_command(cdk: Path, *, assembly: Path, only: Sequence[str] | None = None) -> Command:
    """Deploy all stacks, or some of them.

    ``--method=direct``: moto's change sets do not see the exports of another stack.
    """
    return (
        *(str(cdk), "deploy", *_chosen(only), "--app", str(assembly)),
        *("--method=direct", "--require-approval", "never", "--progress", "events"),
    )


def destroy_command(cdk: Path, *, assembly: Path, only: Sequence[str] | None = None) -> Command:
    """Destroy all stacks, or some of them, without asking."""
    return (str(cdk), "destroy", *_chosen(only), "--force", "--app", str(assembly))


def _chosen(only: Sequence[str] | None) -> Command:
    return ("--all",) if only is None else (*only, "--exclusively")


@dataclass(frozen=True, slots=True)
class CloudAssembly:
    """The assembly that ``cdk synth`` wrote."""

    region: str
    stacks: tuple[str, ...]


def read_assembly(folder: Path) -> CloudAssembly:
    """Read the app's target account and region and its stacks' names from the manifest."""
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


def write_fake_docker(path: Path, *, record: Path) -> None:
    """Wrap a module and its options in a script, as CDK_DOCKER can only name a file."""
    path.write_text(
        "#!/bin/sh\n"
        "# A fake docker while `python -m rehearsal` deploys; see the module.\n"
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
    """Run a command with its output in ``log``; raise with its last lines if it fails.

    ``codes`` are the exit codes of success; None leaves the judgement to the caller.
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
        words = "\n  ".join(last)
        raise StepFailed(f"{name} ended with {code}; all of it is in {log}:\n  {words}")
    return code
