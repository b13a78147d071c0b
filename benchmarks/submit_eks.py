"""`jobs submit --on eks --dry-run` compared with `torchx run --dryrun` of the same Volcano job."""

import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.pairs import Comparison
from benchmarks.processes import ROOT, seconds_of
from rehearsal.deployment.aws import EmulatedAccount
from rehearsal.deployment.state import DEPLOYMENT
from trainium_catalogue import contract, kubernetes

_DEPLOYMENT = "bench-eks"
"""A separate deployment: the rehearsed one must not seem to have a cluster."""
_PARAMETERS = {
    contract.SSM_ORCHESTRATORS: "batch,eks",
    contract.SSM_EKS_CLUSTER: "cluster",
    contract.SSM_EKS_NAMESPACE: kubernetes.NAMESPACE,
    contract.SSM_EKS_QUEUE: kubernetes.QUEUE,
    contract.SSM_EKS_NODE_GROUP: "nodes",
    contract.SSM_EKS_IMAGE: "image",
    contract.SSM_EKS_JOB_TIME_LIMIT_HOURS: "24",
}


def submit_eks(aws: EmulatedAccount, environment: Mapping[str, str]) -> Comparison:
    """Compare without a cluster; `jobs submit` also reads the bucket and runs more checks."""
    for name, value in (_published(aws) | _PARAMETERS).items():
        aws.client("ssm").put_parameter(
            Name=contract.ssm_parameter(_DEPLOYMENT, name), Type="String", Value=value,
        )  # fmt: skip
    # The TorchX component reads the deployment's name from this variable.
    environment = {**environment, "TRAINIUM_DEPLOYMENT": _DEPLOYMENT}

    def product() -> float:
        arguments = ["submit", "all-reduce", "--on", "eks", "--nodes", "4", "--dry-run"]
        return seconds_of([sys.executable, "-m", "jobs", *arguments], environment)

    def baseline() -> float:
        options = f"queue={kubernetes.QUEUE},namespace={kubernetes.NAMESPACE},validate_spec=False"
        component = f"{ROOT / 'jobs' / 'torchx_components.py'}:all_reduce"
        arguments = ["run", "--dryrun", "-s", "kubernetes", "--workspace", "", "-cfg", options]
        program = str(Path(sys.executable).parent / "torchx")
        return seconds_of([program, *arguments, component, "--nnodes", "4"], environment)

    return Comparison(
        name="submit-eks",
        product="python -m jobs submit --on eks --dry-run, whole process",
        baseline="torchx run --dryrun of the same workload, whole process",
        target=1.2,
        measure_product=product,
        measure_baseline=baseline,
    )


def _published(aws: EmulatedAccount) -> dict[str, str]:
    """Read the rehearsed deployment's parameters, by name relative to its path."""
    root = contract.ssm_root(DEPLOYMENT)
    pages = aws.client("ssm").get_paginator("get_parameters_by_path")
    parameters = pages.paginate(Path=root, Recursive=True).search("Parameters[]")
    return {item["Name"].removeprefix(f"{root}/"): item["Value"] for item in parameters}
