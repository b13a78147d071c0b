"""A job as pure data: what SubmitJob is told, built without touching AWS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainium_catalogue import contract
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.workloads import Hardware, Value

ESTIMATE_NOTE = "estimate, list price; check your account"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One submission of a workload."""

    run: str
    workload: str
    num_nodes: int
    """Of a CPU workload: children of an array job, or 1."""
    time_limit_hours: float
    deployment: str
    job_queue: str
    """Batch's ARN, or the name of Volcano's queue."""
    job_definition: str | None
    """None on EKS, which has none."""
    usd_per_node_hour: float
    hardware: Hardware = Hardware.TRAINIUM
    orchestrator: Orchestrator = Orchestrator.BATCH
    parameters: Mapping[str, Value] = field(default_factory=dict)
    depends_on: tuple[str, ...] = ()
    """Ids of jobs that have to succeed first."""
    scales: bool = False
    """On EKS: let the cluster get the nodes that are missing."""

    @property
    def time_limit_seconds(self) -> int:
        """What Batch calls ``attemptDurationSeconds``: it applies to each attempt."""
        return round(self.time_limit_hours * 3600)

    @property
    def usd_at_time_limit(self) -> float:
        """Estimate of one attempt that uses all its time."""
        return self.num_nodes * self.time_limit_hours * self.usd_per_node_hour

    def command(self) -> list[str]:
        """What every node runs."""
        command = contract.launch_command(self.workload)
        for name, value in self.parameters.items():
            command += [f"--{name}", flag_value(value)]
        return command

    def overrides_length(self) -> int:
        """Characters of the container overrides, which ECS limits."""
        return len(json.dumps(self._container_overrides(), separators=(",", ":")))

    def to_submit_kwargs(self) -> dict[str, Any]:
        """Arguments of Batch's SubmitJob."""
        assert self.orchestrator is Orchestrator.BATCH
        return {
            "jobName": self.run,
            "jobQueue": self.job_queue,
            "jobDefinition": self.job_definition,
            **self._overrides(),
            **({"dependsOn": [{"jobId": i} for i in self.depends_on]} if self.depends_on else {}),
            "timeout": {"attemptDurationSeconds": self.time_limit_seconds},
            "tags": {
                contract.TAG_DEPLOYMENT: self.deployment,
                contract.TAG_RUN: self.run,
                contract.TAG_WORKLOAD: self.workload,
            },
        }

    def _overrides(self) -> dict[str, Any]:
        if self.hardware is Hardware.CPU:
            # An array has 2 children at least (Batch user guide, array jobs).
            array = {"arrayProperties": {"size": self.num_nodes}} if self.num_nodes > 1 else {}
            return {"containerOverrides": self._container_overrides(), **array}
        return {
            "nodeOverrides": {
                "numNodes": self.num_nodes,
                "nodePropertyOverrides": [
                    # The job definition's one node range is open, so that it stretches.
                    {"targetNodes": "0:", "containerOverrides": self._container_overrides()}
                ],
            }
        }

    def _container_overrides(self) -> dict[str, Any]:
        return {
            "command": self.command(),
            "environment": [{"name": contract.ENV_RUN, "value": self.run}],
        }


def flag_value(value: Value) -> str:
    """How a parameter is spelt on a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
