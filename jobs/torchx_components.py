"""TorchX components, one per workload that runs on nodes, for `torchx run` instead of the CLI.

    torchx run -s kubernetes --workspace "" -cfg queue=trainium \\
        jobs/torchx_components.py:llama2_7b --nnodes 4 -- --dataset wiki --lr 1e-4
    torchx run -s kubernetes --workspace "" -cfg queue=trainium \\
        jobs/torchx_components.py:program --nnodes 2 --name mine -- ./train.py --epochs 3

Queue and namespace are in ``.torchxconfig``, which TorchX reads from the current folder. Image,
bucket and instance type come from the deployment; ``python -m jobs kubeconfig`` gives TorchX access
to the cluster. TorchX lacks two features of `python -m jobs submit`: job policies by exit code, and
most checks before anything is spent. Its ``--max_retries`` retries lost pods and user errors alike,
so it defaults to 0.
"""

# No `from __future__ import annotations`: TorchX evaluates the annotations as types.
import os

from torchx import specs

from jobs.aws import Aws
from jobs.bucket.objects import Bucket
from jobs.deployment import Deployment, read_deployment
from jobs.eks.request import app_def, check_run_label, launch_spec
from jobs.errors import Refusal
from jobs.job import JobRequest
from jobs.program.bundle import upload
from jobs.program.entry import ProgramOptions
from jobs.program.parameters import PLATFORM_PARAMETERS
from jobs.program.record import add_record
from jobs.submit.check import check_backend, check_request
from jobs.submit.choose import choose_orchestrator, request_for
from jobs.submit.program import find_program, packed, program_request
from jobs.submit.read import OWN_OPTIONS, read_parameters, resolve_workload, run_name
from trainium_catalogue.contract import DEFAULT_DEPLOYMENT, Orchestrator
from trainium_catalogue.parameters.command_line import ParameterValues


def all_reduce(
    *parameters: str, nnodes: int = 2, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """Correctness, latency and bandwidth of all-reduce over all nodes.

    Args:
        parameters: parameters of the workload, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT, else "default"
        max_retries: maximum number of restarts by TorchX, after any failure
    """
    return _app("all-reduce", parameters, nnodes, name, deployment, max_retries)


def llama2_7b(
    *parameters: str, nnodes: int = 4, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """Pre-training of Llama-2-7B.

    Args:
        parameters: parameters of the workload, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT, else "default"
        max_retries: maximum number of restarts by TorchX, after any failure
    """
    return _app("llama2-7b", parameters, nnodes, name, deployment, max_retries)


def llama_small(
    *parameters: str, nnodes: int = 1, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """Pre-training of a small Llama.

    Args:
        parameters: parameters of the workload, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT, else "default"
        max_retries: maximum number of restarts by TorchX, after any failure
    """
    return _app("llama-small", parameters, nnodes, name, deployment, max_retries)


def llama_tiny(
    *parameters: str, nnodes: int = 1, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """Pre-training of a tiny Llama, to try everything out.

    Args:
        parameters: parameters of the workload, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT, else "default"
        max_retries: maximum number of restarts by TorchX, after any failure
    """
    return _app("llama-tiny", parameters, nnodes, name, deployment, max_retries)


def pretrain(
    *parameters: str, nnodes: int = 1, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """Pre-training of a Llama 3 or Qwen3 model, selected with --model.

    Args:
        parameters: parameters of the workload, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT, else "default"
        max_retries: maximum number of restarts by TorchX, after any failure
    """
    return _app("pretrain", parameters, nnodes, name, deployment, max_retries)


def verify(
    *parameters: str, nnodes: int = 1, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """Checks of the deployment's device and Neuron release.

    Args:
        parameters: parameters of the workload, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT, else "default"
        max_retries: maximum number of restarts by TorchX, after any failure
    """
    return _app("verify", parameters, nnodes, name, deployment, max_retries)


def mnist(
    *parameters: str, nnodes: int = 1, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """A small classifier of handwritten digits.

    Args:
        parameters: parameters of the workload, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT, else "default"
        max_retries: maximum number of restarts by TorchX, after any failure
    """
    return _app("mnist", parameters, nnodes, name, deployment, max_retries)


def bert(
    *parameters: str, nnodes: int = 2, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """Pre-training of BERT-large, phase 1.

    Args:
        parameters: parameters of the workload, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT, else "default"
        max_retries: maximum number of restarts by TorchX, after any failure
    """
    return _app("bert", parameters, nnodes, name, deployment, max_retries)


def bert_tiny(
    *parameters: str, nnodes: int = 1, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """Pre-training of a tiny BERT, to try everything out.

    Args:
        parameters: parameters of the workload, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT, else "default"
        max_retries: maximum number of restarts by TorchX, after any failure
    """
    return _app("bert-tiny", parameters, nnodes, name, deployment, max_retries)


def program(
    *words: str, nnodes: int = 1, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """A program of your own; its files are uploaded as by `jobs submit`.

    Args:
        words: parameters of the job, FILE or -m MODULE, and the program's own arguments; after --
        nnodes: number of nodes
        name: run name; default: the program and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT, else "default"
        max_retries: maximum number of restarts by TorchX, after any failure
    """
    given, what, module, arguments = _as_torchrun(words)
    own = find_program(what, module, None, reserved=OWN_OPTIONS)
    if own is None:
        resolve_workload(what)
        raise Refusal(
            "no-program",
            f"{what} is a separate component, not a program; specify a file: ./train.py",
        )
    values = read_parameters(own.workload, given)
    order, values = packed(own, values, ProgramOptions(arguments=arguments))
    aws, target = _deployment(deployment)
    run = _run_name(name, own.name)
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    request, record, _ = program_request(
        _request(target, values, run, nnodes), order, values, bucket, wheels_key=None
    )
    check_request(target, own.workload, request)
    upload(bucket, run, order.bundle)
    add_record(bucket, run, record)
    return app_def(launch_spec(request, target), max_retries=max_retries)


def _as_torchrun(
    words: tuple[str, ...],
) -> tuple[list[str], str | None, str | None, tuple[str, ...]]:
    """Split arguments as torchrun does: the first that belongs to no option is the program.

    Return the parameters, a file, a module, and the program's arguments.
    """
    remaining, given = list(words), []
    switches = {f"--{item.name}" for item in PLATFORM_PARAMETERS if isinstance(item.default, bool)}
    while remaining and remaining[0].startswith("--"):
        given.append(remaining.pop(0))
        if "=" not in given[-1] and given[-1] not in switches and remaining:
            given.append(remaining.pop(0))
    if remaining[:1] == ["-m"]:
        return given, None, remaining[1] if len(remaining) > 1 else "", tuple(remaining[2:])
    return given, remaining[0] if remaining else None, None, tuple(remaining[1:])


def _app(
    workload: str,
    parameters: tuple[str, ...],
    nnodes: int,
    name: str,
    deployment: str,
    max_retries: int,
) -> specs.AppDef:
    """Build the application, after those checks of `jobs submit` that do not need the bucket."""
    resolved = resolve_workload(workload)
    run = _run_name(name, workload)
    _, target = _deployment(deployment)
    values = read_parameters(resolved, parameters)
    request = _request(target, values, run, nnodes)
    check_request(target, values.workload, request)
    # An existing run of that name may have a tensor parallel degree other than the default.
    check_backend(target, values.given if name else values.own)
    return app_def(launch_spec(request, target), max_retries=max_retries)


def _run_name(name: str, what: str) -> str:
    run = run_name(name or None, what)
    check_run_label(run)
    return run


def _deployment(name: str) -> tuple[Aws, Deployment]:
    aws = Aws(os.environ.get("AWS_REGION"))
    name = name or os.environ.get("TRAINIUM_DEPLOYMENT", DEFAULT_DEPLOYMENT)
    return aws, read_deployment(aws.ssm(), name, region=aws.region)


def _request(target: Deployment, values: ParameterValues, run: str, nnodes: int) -> JobRequest:
    return request_for(
        target,
        values.workload,
        run=run,
        num_nodes=nnodes,
        time_limit_hours=None,
        parameters=dict(values.given),
        orchestrator=choose_orchestrator(target, values.workload, Orchestrator.EKS),
    )
