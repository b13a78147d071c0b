"""A deployment's stacks, including deleted ones: retained resources, and deletion."""

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
from jobs.errors import Refusal, is_ambiguous
from jobs.teardown.remains import version_pages
from trainium_catalogue import contract

BUCKET = "AWS::S3::Bucket"
_DELETED = "DELETE_COMPLETE"
_STACK_NAME = re.compile(r"trainium-(.+)-[a-z]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackHistory:
    """The existing stacks of a deployment, and those deleted in the last 90 days.

    CloudFormation keeps deleted stacks for that long (API reference, ListStackResources), so an
    interrupted destroy can resume from any machine without local state.
    """

    live: Mapping[str, DeployedStack]
    deleted: tuple[DeployedStack, ...]
    """Deleted stacks, newest first; names may repeat."""
    other_deployments: frozenset[str]
    """Names of other deployments in the region."""

    @property
    def every(self) -> tuple[DeployedStack, ...]:
        """Live stacks, then deleted ones."""
        return (*self.live.values(), *self.deleted)

    @property
    def kept(self) -> dict[str, str]:
        """Types of the resources to retain, by physical id."""
        return {
            stack.physical_ids[name]: entry["Type"]
            for stack in self.every
            for name, entry in _resources(stack.template)
            if is_kept(entry) and stack.physical_ids.get(name)
        }

    @property
    def kept_buckets(self) -> list[str]:
        """Retained buckets of live stacks."""
        return [id for id in self._buckets if id in self.kept]

    @property
    def buckets_to_empty(self) -> list[str]:
        """Buckets to be deleted with their stack, which must be empty."""
        return [id for id in self._buckets if id not in self.kept]

    @property
    def _buckets(self) -> list[str]:
        return [id for stack in self.live.values() for id in stack.physical_ids_of(BUCKET)]

    @property
    def settings(self) -> dict[str, str] | None:
        """The ``-c`` settings of the latest ``cdk deploy``; None if no stack has them."""
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
        """Return the physical ids of all present and past resources of the stacks."""
        return frozenset(
            stack.physical_ids[name]
            for stack in self.every
            for name, entry in _resources(stack.template)
            # The id of a rule may be the id of a security group outside the stack.
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
                f"stack {name} is {status}: it is being deployed; wait until the deployment has "
                "finished, then run this again",
            )
        stack = read_stack(cloudformation, name, item["StackId"], status)
        if status == _DELETED:
            deleted.append((item.get("DeletionTime") or item["CreationTime"], stack))
        else:
            live[name] = stack
    others = (_STACK_NAME.fullmatch(item["StackName"]) for item in found)
    return StackHistory(
        live=live,
        deleted=tuple(stack for _, stack in sorted(deleted, key=lambda pair: pair[0])[::-1]),
        other_deployments=frozenset(m[1] for m in others if m) - {deployment},
    )


def is_kept(entry: Mapping[str, Any]) -> bool:
    """Return whether a resource outlives its stack."""
    return str(entry.get("DeletionPolicy", "Delete")).startswith("Retain")


def check_kept(live: Mapping[str, DeployedStack], assembly: SynthesizedStacks) -> None:
    """Refuse settings that retain different resources than the deployed templates do."""
    for stack, template in assembly.templates.items():
        now = dict(_resources(live[stack].template)) if stack in live else {}
        for name, entry in _resources(template):
            if name in now and is_kept(entry) != is_kept(now[name]):
                keeps = is_kept(now[name])
                raise Refusal(
                    "kept-differs",
                    f"the settings {'would delete' if keeps else 'would retain'} {entry['Type']} "
                    f"{live[stack].physical_ids.get(name, name)}, but stack {stack} was deployed "
                    f"to {'retain' if keeps else 'delete'} it (retain_data), which takes "
                    f"precedence; omit that setting, or deploy it first: `cdk deploy {stack}`",
                )


def destroy_order(live: Mapping[str, DeployedStack]) -> list[str]:
    """Sort stacks so that importers come before exporters."""
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
    """Run ``cdk synth`` with the recorded settings and the user's arguments."""
    pairs = [word for key, value in settings.items() for word in ("-c", f"trainium:{key}={value}")]
    output: list[str] = []
    code = run_cdk(["synth", "--quiet", "--output", str(folder), *pairs, *more], output.append)
    if code:
        # The app's own refusal is not the CLI's last line.
        last = output[-1] if output else "no output"
        reason = next((line for line in output if line.startswith("refused: ")), last)
        raise Refusal(
            "no-synth",
            f"cdk synth exited with {code} ({reason.removeprefix('refused: ')}), so the stacks to "
            "destroy are unknown; pass, after --, the -c settings they were deployed with, use the "
            "checkout that deployed them, or specify an assembly with --assembly",
        )


def run_cdk(words: Sequence[str], on_line: Callable[[str], None]) -> int:
    """Run this environment's pinned CDK CLI; return its exit code."""
    cdk = Path(sys.executable).parent / "cdk"
    if not cdk.exists():
        raise Refusal(
            "no-cdk", f"{cdk} is needed to destroy the stacks; install it with `make setup`"
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
            # CloudFormation continues operations in progress.
            process.terminate()
            raise
    return process.wait()


def delete_stacks(client: Any, names: Iterable[str], note: Callable[[str], None]) -> None:
    """Delete stacks that are no longer part of the app, one by one."""
    from botocore.exceptions import WaiterError

    for name in names:
        note(f"deleting stack {name}, which is no longer part of the app")
        client.delete_stack(StackName=name)
        try:
            client.get_waiter("stack_delete_complete").wait(
                StackName=name, WaiterConfig={"Delay": 5, "MaxAttempts": 720}
            )
        except WaiterError as error:
            note(f"stack {name} was not deleted: {error}")


def empty_bucket(s3: Any, bucket: str, counts: dict[str, int]) -> None:
    """Delete all object versions in a bucket, and count them.

    The count is updated before each request, so that it is an upper bound after an interruption.
    """
    counts.setdefault(bucket, 0)
    for page in version_pages(s3, bucket):
        versions = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
        keys = [{"Key": item["Key"], "VersionId": item["VersionId"]} for item in versions]
        if keys:
            counts[bucket] += len(keys)
            try:
                response = s3.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
            except Exception as error:
                if not is_ambiguous(error):
                    counts[bucket] -= len(keys)
                raise
            if errors := response.get("Errors"):
                counts[bucket] -= len(errors)
                raise Refusal(
                    "not-emptied",
                    f"bucket {bucket}: {errors[0]['Key']} cannot be deleted "
                    f"({errors[0].get('Message') or errors[0].get('Code')}); fix its permissions "
                    "or locks, then run this again",
                )


def _resources(template: Template) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from template.get("Resources", {}).items()
