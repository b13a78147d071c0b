"""TorchX components, one per workload that runs on nodes: `torchx run` without the CLI.

    torchx run -s kubernetes --workspace "" -cfg queue=trainium \\
        jobs/torchx_components.py:llama2_7b --nnodes 4 -- --dataset wiki --lr 1e-4
    torchx run -s kubernetes --workspace "" -cfg queue=trainium \\
        jobs/torchx_components.py:program --nnodes 2 --name mine -- ./train.py --epochs 3

Queue and namespace are in ``.torchxconfig``, which TorchX reads in the folder it is called in.
Image, bucket and instance type are read from the deployment; ``python -m jobs kubeconfig`` gives
TorchX the cluster. What `python -m jobs submit` does beyond that (the policies of the whole job,
which know exit codes, and the checks before anything is spent) TorchX cannot: ``--max_retries``
retries lost pods and user errors alike, so it defaults to 0.
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
from jobs.submit.check import check_request
from jobs.submit.choose import chosen_orchestrator, request_for
from jobs.submit.program import named_program, packed, program_request
from jobs.submit.read import OWN_OPTIONS, known_workload, read_parameters, run_name
from trainium_catalogue.contract import DEFAULT_DEPLOYMENT, Orchestrator
from trainium_catalogue.parameters.command_line import ParameterValues


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


def pretrain(
    *parameters: str, nnodes: int = 1, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """Pre-training of a Llama 3 or a Qwen3, which --model names.

    Args:
        parameters: the workload's own, after --
        nnodes: number of nodes
        name: run name; default: workload and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT or default
        max_retries: restarts by TorchX, after whatever failed
    """
    return _app("pretrain", parameters, nnodes, name, deployment, max_retries)


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
    *words: str, nnodes: int = 1, name: str = "", deployment: str = "", max_retries: int = 0
) -> specs.AppDef:
    """A program of your own, whose files go into the bucket as `jobs submit` puts them there.

    Args:
        words: parameters of the job, FILE or -m MODULE, and the program's own arguments; after --
        nnodes: number of nodes
        name: run name; default: the program and time
        deployment: deployment to use; default: TRAINIUM_DEPLOYMENT or default
        max_retries: restarts by TorchX, after whatever failed
    """
    given, what, module, arguments = _as_torchrun(words)
    own = named_program(what, module, None, reserved=OWN_OPTIONS)
    if own is None:
        known_workload(what)
        raise Refusal("no-program", f"{what} is a component of its own; name a file: ./train.py")
    values = read_parameters(own.workload, given)
    order, values = packed(own, values, ProgramOptions(arguments=arguments))
    aws, target = _deployment(deployment)
    run = _run_name(name, own.name)
    bucket = Bucket(client=aws.s3(), name=target.bucket)
    request, record, _ = program_request(
        _request(target, values, run, nnodes), order, values, bucket
    )
    check_request(target, own.workload, request)
    upload(bucket, run, order.bundle)
    add_record(bucket, run, record)
    return app_def(launch_spec(request, target), max_retries=max_retries)


def _as_torchrun(
    words: tuple[str, ...],
) -> tuple[list[str], str | None, str | None, tuple[str, ...]]:
    """Split words as torchrun does: the first that belongs to no option names the program.

    Return the parameters, a file, a module, and the program's arguments.
    """
    left, given = list(words), []
    switches = {f"--{item.name}" for item in PLATFORM_PARAMETERS if isinstance(item.default, bool)}
    while left and left[0].startswith("--"):
        given.append(left.pop(0))
        if "=" not in given[-1] and given[-1] not in switches and left:
            given.append(left.pop(0))
    if left[:1] == ["-m"]:
        return given, None, left[1] if len(left) > 1 else "", tuple(left[2:])
    return given, left[0] if left else None, None, tuple(left[1:])


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
    run = _run_name(name, workload)
    _, target = _deployment(deployment)
    values = read_parameters(wanted, parameters)
    request = _request(target, values, run, nnodes)
    check_request(target, values.workload, request)
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
        orchestrator=chosen_orchestrator(target, values.workload, Orchestrator.EKS),
    )
