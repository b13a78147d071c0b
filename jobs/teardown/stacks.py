"""A deployment's stacks, also those that are deleted: what they keep, and how they are deleted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from jobs.aws import CloudFormationClient
from jobs.deploy_check.account import DeployedStack, read_stack
from jobs.deploy_check.assembly import REPOSITORY, SynthesizedStacks, Template, stack_pattern
from jobs.errors import Refusal
from jobs.teardown.remains import version_pages
from trainium_catalogue import contract

BUCKET = "AWS::S3::Bucket"
_DELETED = "DELETE_COMPLETE"
_OF_DEPLOYMENT = re.compile(r"trainium-(.+)-[a-z]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackHistory:
    """The stacks of a deployment: those there are, and those deleted within 90 days.

    CloudFormation remembers deleted stacks for that long (API reference, ListStackResources), so
    an interrupted destroy resumes from any machine without notes of its own.
    """

    live: Mapping[str, DeployedStack]
    deleted: tuple[DeployedStack, ...]
    """Newest first; a name may be there several times."""
    other_deployments: frozenset[str]
    """Names of other deployments in the region."""

    @property
    def every(self) -> tuple[DeployedStack, ...]:
        """Live stacks, then deleted ones."""
        return (*self.live.values(), *self.deleted)

    @property
    def kept(self) -> dict[str, str]:
        """What deleting leaves on purpose: resource types by physical id."""
        return {
            stack.physical_ids[name]: entry["Type"]
            for stack in self.every
            for name, entry in _resources(stack.template)
            if is_kept(entry) and stack.physical_ids.get(name)
        }

    @property
    def kept_buckets(self) -> list[str]:
        """Buckets of live stacks that stay."""
        return [id for id in self._buckets if id in self.kept]

    @property
    def buckets_to_empty(self) -> list[str]:
        """Buckets that go with their stack, for which they must be empty."""
        return [id for id in self._buckets if id not in self.kept]

    @property
    def _buckets(self) -> list[str]:
        return [id for stack in self.live.values() for id in stack.physical_ids_of(BUCKET)]

    @property
    def settings(self) -> dict[str, str] | None:
        """The ``-c`` settings of the newest deployment; None if its stack does not state them."""
        wanted = f"/{contract.SSM_SETTINGS}"
        for stack in self.every:
            for _, entry in _resources(stack.template):
                properties = entry.get("Properties", {})
                if entry["Type"] == "AWS::SSM::Parameter" and str(properties.get("Name")).endswith(
                    wanted
                ):
                    found = json.loads(properties["Value"])
                    return None if found is None else {k: str(v) for k, v in found.items()}
        return None

    def physical_ids(self) -> frozenset[str]:
        """Physical ids of everything that the stacks have or had."""
        return frozenset(
            stack.physical_ids[name]
            for stack in self.every
            for name, entry in _resources(stack.template)
            # Their ids may be those of somebody else's security group.
            if stack.physical_ids.get(name) and not entry["Type"].endswith(("Ingress", "Egress"))
        )


def read_history(cloudformation: CloudFormationClient, deployment: str) -> StackHistory:
    """Read the stacks of a deployment; refuse while one of them is being deployed."""
    pattern = stack_pattern(deployment)
    found = [
        stack
        for page in cloudformation.get_paginator("list_stacks").paginate()
        for stack in page["StackSummaries"]
    ]
    live: dict[str, DeployedStack] = {}
    deleted: list[tuple[Any, DeployedStack]] = []
    for item in (item for item in found if pattern.fullmatch(item["StackName"])):
        name, status = item["StackName"], item["StackStatus"]
        if status.endswith("_IN_PROGRESS") and not status.startswith(("DELETE", "REVIEW")):
            raise Refusal(
                "being-deployed",
                f"stack {name} is {status}: somebody is deploying it; wait until that has ended, "
                "then run this again",
            )
        stack = read_stack(cloudformation, name, item["StackId"], status)
        if status == _DELETED:
            deleted.append((item.get("DeletionTime") or item["CreationTime"], stack))
        else:
            live[name] = stack
    others = (_OF_DEPLOYMENT.fullmatch(item["StackName"]) for item in found)
    return StackHistory(
        live=live,
        deleted=tuple(stack for _, stack in sorted(deleted, key=lambda pair: pair[0])[::-1]),
        other_deployments=frozenset(m[1] for m in others if m) - {deployment},
    )


def is_kept(entry: Mapping[str, Any]) -> bool:
    """Tell whether a resource stays in the account after its stack."""
    return str(entry.get("DeletionPolicy", "Delete")).startswith("Retain")


def check_kept(live: Mapping[str, DeployedStack], assembly: SynthesizedStacks) -> None:
    """Refuse settings that keep other things than the deployed templates, which decide."""
    for stack, template in assembly.templates.items():
        now = dict(_resources(live[stack].template)) if stack in live else {}
        for name, entry in _resources(template):
            if name in now and is_kept(entry) != is_kept(now[name]):
                keeps = is_kept(now[name])
                raise Refusal(
                    "kept-differs",
                    f"the settings {'would delete' if keeps else 'would keep'} {entry['Type']} "
                    f"{live[stack].physical_ids.get(name, name)}, and stack {stack} was deployed "
                    f"to {'keep' if keeps else 'delete'} it (retain_data), which decides; leave "
                    f"that setting out, or deploy it first: `cdk deploy {stack}`",
                )


def destroy_order(live: Mapping[str, DeployedStack]) -> list[str]:
    """Sort stacks so that each comes before those whose exports it imports."""
    exporters = {
        json.dumps({"Fn::ImportValue": output["Export"]["Name"]}): name
        for name, stack in live.items()
        for output in stack.template.get("Outputs", {}).values()
        if "Export" in output
    }
    needs = {
        name: {
            exporters[export]
            for export in exporters
            if export in json.dumps(stack.template) and exporters[export] != name
        }
        for name, stack in live.items()
    }
    return list(TopologicalSorter(needs).static_order())[::-1]


def synthesize(folder: Path, settings: Mapping[str, str], more: Sequence[str]) -> None:
    """Run ``cdk synth`` with the recorded settings, and what the user added."""
    pairs = [word for key, value in settings.items() for word in ("-c", f"trainium:{key}={value}")]
    said: list[str] = []
    code = run_cdk(["synth", "--quiet", "--output", str(folder), *pairs, *more], said.append)
    if code:
        # The app's own refusal is not the CLI's last line.
        last = said[-1] if said else "it said nothing"
        reason = next((line for line in said if line.startswith("refused: ")), last)
        raise Refusal(
            "no-synth",
            f"cdk synth ended with {code} ({reason.removeprefix('refused: ')}), so which stacks "
            "there are to destroy is not known; give the -c settings that it was deployed "
            "with after --, use the checkout that deployed it, or name an assembly with --assembly",
        )


def run_cdk(words: Sequence[str], on_line: Callable[[str], None]) -> int:
    """Run the pinned CDK CLI of this environment; return its exit code."""
    cdk = Path(sys.executable).parent / "cdk"
    if not cdk.exists():
        raise Refusal(
            "no-cdk", f"{cdk} is missing, which destroys the stacks; install it with `make setup`"
        )
    with subprocess.Popen(
        [str(cdk), *words],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if text := line.strip():
                    on_line(text)
        except BaseException:
            # CloudFormation carries on with what it has begun.
            process.terminate()
            raise
    return process.wait()


def delete_stacks(client: Any, names: Iterable[str], note: Callable[[str], None]) -> None:
    """Delete stacks that the app no longer has, one after the other."""
    from botocore.exceptions import WaiterError

    for name in names:
        note(f"deleting stack {name}, which the app does not have")
        client.delete_stack(StackName=name)
        try:
            client.get_waiter("stack_delete_complete").wait(
                StackName=name, WaiterConfig={"Delay": 5, "MaxAttempts": 720}
            )
        except WaiterError as error:
            note(f"stack {name} was not deleted: {error}")


def empty_bucket(s3: Any, bucket: str) -> int:
    """Delete every version in a bucket; return their number."""
    count = 0
    for page in version_pages(s3, bucket):
        versions = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
        keys = [{"Key": item["Key"], "VersionId": item["VersionId"]} for item in versions]
        if keys:
            failed = s3.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
            if errors := failed.get("Errors"):
                raise Refusal(
                    "not-emptied",
                    f"bucket {bucket}: {errors[0]['Key']} cannot be deleted "
                    f"({errors[0].get('Message') or errors[0].get('Code')}); see to its rights or "
                    "locks, then run this again",
                )
        count += len(keys)
    return count


def _resources(template: Template) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from template.get("Resources", {}).items()
