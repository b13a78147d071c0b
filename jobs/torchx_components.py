"""TorchX components, one per workload that runs on nodes: `torchx run` without the CLI.

    torchx run -s kubernetes --workspace "" -cfg queue=trainium \\
        jobs/torchx_components.py:llama2_7b --nnodes 4 -- --dataset wiki --lr 1e-4

Queue and namespace are in ``.torchxconfig``, which TorchX reads in the folder it is called in.
Image, bucket and instance type are read from the deployment; ``python -m jobs kubeconfig`` gives
TorchX the cluster. What `python -m jobs submit` does beyond that (the policies of the whole job,
which know exit codes, and the checks before anything is spent) TorchX cannot: ``--max_retries``
restarts after a lost pod and after a mistake alike, so it is 0 unless given.
"""

# No `from __future__ import annotations`: TorchX evaluates the annotations as types.
import os
import secrets
import time

from torchx import specs

from jobs.aws import Aws
from jobs.deployment import read_deployment
from jobs.eks.request import app_def, check_run_label, launch_spec
from jobs.job import valid_run_name
from jobs.submit.check import check_request
from jobs.submit.resolve import (
    chosen_orchestrator,
    known_workload,
    parsed_parameters,
    request_for,
)
from trainium_catalogue.contract import DEFAULT_DEPLOYMENT, Orchestrator


def all_reduce(
    *parameters: str, nnodes: int = 2, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """Correctness, latency and bandwidth of all-reduce over all nodes.

    Args:
        parameters: the workload's own, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT or default
        max_retries: restarts by TorchX, after whatever failed
    """
    return _app("all-reduce", parameters, nnodes, name, deployment, max_retries)


def llama2_7b(
    *parameters: str, nnodes: int = 4, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """Pre-training of Llama-2-7B.

    Args:
        parameters: the workload's own, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT or default
        max_retries: restarts by TorchX, after whatever failed
    """
    return _app("llama2-7b", parameters, nnodes, name, deployment, max_retries)


def llama_small(
    *parameters: str, nnodes: int = 1, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """Pre-training of a small Llama.

    Args:
        parameters: the workload's own, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT or default
        max_retries: restarts by TorchX, after whatever failed
    """
    return _app("llama-small", parameters, nnodes, name, deployment, max_retries)


def llama_tiny(
    *parameters: str, nnodes: int = 1, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """Pre-training of a tiny Llama, to try everything out.

    Args:
        parameters: the workload's own, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT or default
        max_retries: restarts by TorchX, after whatever failed
    """
    return _app("llama-tiny", parameters, nnodes, name, deployment, max_retries)


def verify(
    *parameters: str, nnodes: int = 1, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """Is this device, with this release, right?

    Args:
        parameters: the workload's own, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT or default
        max_retries: restarts by TorchX, after whatever failed
    """
    return _app("verify", parameters, nnodes, name, deployment, max_retries)


def mnist(
    *parameters: str, nnodes: int = 1, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """A small classifier of handwritten digits.

    Args:
        parameters: the workload's own, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT or default
        max_retries: restarts by TorchX, after whatever failed
    """
    return _app("mnist", parameters, nnodes, name, deployment, max_retries)


def bert(
    *parameters: str, nnodes: int = 2, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """Pre-training of BERT-large, phase 1.

    Args:
        parameters: the workload's own, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT or default
        max_retries: restarts by TorchX, after whatever failed
    """
    return _app("bert", parameters, nnodes, name, deployment, max_retries)


def bert_tiny(
    *parameters: str, nnodes: int = 1, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """Pre-training of a tiny BERT, to try everything out.

    Args:
        parameters: the workload's own, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT or default
        max_retries: restarts by TorchX, after whatever failed
    """
    return _app("bert-tiny", parameters, nnodes, name, deployment, max_retries)


def program(
    *parameters: str, nnodes: int = 1, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """A program whose files `python -m jobs submit` has put into the bucket.

    Args:
        parameters: the launcher's own, after --, then -- and the program's arguments
        nnodes: number of nodes
        name: run whose bundle it is
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT or default
        max_retries: restarts by TorchX, after whatever failed
    """
    return _app("program", parameters, nnodes, name, deployment, max_retries)


def _app(
    workload: str,
    parameters: tuple[str, ...],
    nnodes: int,
    name: str,
    deployment: str,
    max_retries: int,
) -> specs.AppDef:
    """Build the application; refuse what `jobs submit` would refuse without the bucket."""
    wanted = known_workload(workload)
    run = valid_run_name(name or f"{workload}-{time.strftime('%Y%m%d-%H%M%S')}-{_suffix()}")
    check_run_label(run)
    aws = Aws(os.environ.get("AWS_REGION"))
    target = read_deployment(
        aws.ssm(),
        deployment or os.environ.get("TRAINIUM_DEPLOYMENT", DEFAULT_DEPLOYMENT),
        region=aws.region,
    )
    request = request_for(
        target,
        wanted,
        run=run,
        num_nodes=nnodes,
        time_limit_hours=None,
        parameters=parsed_parameters(wanted, parameters, ()),
        orchestrator=chosen_orchestrator(target, wanted, Orchestrator.EKS),
    )
    check_request(target, wanted, request)
    return app_def(launch_spec(request, target), max_retries=max_retries)


def _suffix() -> str:
    return secrets.token_hex(2)
