"""Every environment variable the launcher sets for the workers, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from training.core.contract import DeviceKind, NodeContract
from training.core.progress import COMPILES_AT_MOST_S
from training.launcher.addresses import TASK_INTERFACE
from trainium_catalogue.contract import GRAPHS_PREFIX

ROOT_COMM_ID = "NEURON_RT_ROOT_COMM_ID"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Facts beside the contract that settings depend on."""

    kernel: str
    """``uname -r``."""
    interface: str | None
    """Name of the interface with the node's address."""
    has_cache: bool = False
    """True if the workload may write the bucket's compile cache."""
    dataset_kind: str = ""
    """The catalogue's kind of dataset that the workload trains on."""
    is_own_model: bool = True
    """False for a user's program: what suits this project's models need not suit its."""
    needs_torch: bool = True
    """False for data jobs that compute nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerVariable:
    """One environment variable; ``value`` returns None if it does not apply."""

    name: str
    value: Callable[[NodeContract, System], str | None]
    reason: str


def _model(value: str) -> Callable[[NodeContract, System], str | None]:
    return lambda node, system: (
        value if node.device is DeviceKind.XLA and system.is_own_model else None
    )


def _neuron(value: str) -> Callable[[NodeContract, System], str | None]:
    return lambda node, system: None if node.device is DeviceKind.CPU else value


def _program_on_cpu(value: str) -> Callable[[NodeContract, System], str | None]:
    return lambda node, system: (
        value if node.device is DeviceKind.CPU and not system.is_own_model else None
    )


def _without_torch(value: str) -> Callable[[NodeContract, System], str | None]:
    return lambda node, system: None if system.needs_torch else value


def _efa(value: str) -> Callable[[NodeContract, System], str | None]:
    return lambda node, system: value if uses_efa(node) else None


def uses_efa(node: NodeContract) -> bool:
    """Tell if collectives leave the node, on hardware with EFA."""
    return node.num_nodes > 1 and node.device is not DeviceKind.CPU


def _fork_safe(node: NodeContract, system: System) -> str | None:
    numbers = re.match(r"(\d+)\.(\d+)", system.kernel)
    old = numbers is not None and (int(numbers[1]), int(numbers[2])) < (5, 15)
    return "1" if uses_efa(node) and old else None


def _xla(value: str) -> Callable[[NodeContract, System], str | None]:
    return lambda node, system: value if node.device is DeviceKind.XLA else None


def _cache(node: NodeContract, system: System) -> str | None:
    if node.device is not DeviceKind.XLA or node.bucket is None or not system.has_cache:
        return None
    return f"s3://{node.bucket}/{GRAPHS_PREFIX}"


def _compiler_flags(node: NodeContract, system: System) -> str | None:
    if node.device is not DeviceKind.XLA or system.dataset_kind == "images":
        return None
    if not system.is_own_model:
        return None
    split = "" if system.dataset_kind == "bert" else " --distribution-strategy=llm-training"
    return f"--model-type transformer{split}"


SETTINGS: tuple[WorkerVariable, ...] = (
    WorkerVariable(
        name="FI_PROVIDER",
        value=_efa("efa"),
        reason="libfabric must take EFA or fail, never fall back to TCP in silence",
    ),
    WorkerVariable(
        name="FI_EFA_USE_DEVICE_RDMA",
        value=_efa("1"),
        reason="lets EFA read and write device memory directly (Neuron multi-node set-up guide)",
    ),
    WorkerVariable(
        name="FI_EFA_FORK_SAFE",
        value=_fork_safe,
        reason="registered memory survives fork; kernels from 5.15 do it by themselves",
    ),
    WorkerVariable(
        name="CCOM_SOCKET_IFNAME",
        value=lambda node, system: (system.interface or TASK_INTERFACE) if uses_efa(node) else None,
        reason="bootstrap of collectives uses the interface whose address peers know",
    ),
    WorkerVariable(
        name="PJRT_DEVICE",
        value=_xla("NEURON"),
        reason="torch_xla must take the Neuron devices or fail, never fall back to its CPU",
    ),
    WorkerVariable(
        name="NEURON_COMPILE_CACHE_URL",
        value=_cache,
        reason="one cache for all nodes and jobs, in the bucket (Neuron persistent cache guide)",
    ),
    WorkerVariable(
        name="AWS_DEFAULT_REGION",
        value=lambda node, system: node.region,
        reason="Neuron's compile cache opens the bucket with boto3, which does not read AWS_REGION "
        "and would ask the global endpoint first",
    ),
    WorkerVariable(
        name="AWS_RETRY_MODE",
        value=_xla("standard"),
        reason="Neuron's compile cache has a client of its own, and boto3's default repeats less",
    ),
    WorkerVariable(
        name="AWS_MAX_ATTEMPTS",
        value=_xla("10"),
        reason="a broken connection must not cost the graphs of a whole cluster",
    ),
    WorkerVariable(
        name="ALL_GATHER_REDUCE_SCATTER_BUCKET_CAP_MB",
        value=_model("65"),
        reason="of ZeRO-1's gathers and scatters; what NxD takes by itself for parameters in bf16 "
        "when XLA_DOWNCAST_BF16=0 says so, and half of what AWS's script gets, which says nothing: "
        "buckets of more than 140 MB gave NaN (trainer.py), counted in a type that it does not say",
    ),
    WorkerVariable(
        name="NEURON_CC_FLAGS",
        value=_compiler_flags,
        reason="the compiler's optimizations for transformers, and for those that are split over "
        "cores (neuronx-cc's reference; tp_zero1_llama2_7B_hf_pretrain.sh names the first; of BERT "
        "dp_bert_large_hf_pretrain_hdf5.py names the first alone, mnist_mlp none)",
    ),
    WorkerVariable(
        name="NEURON_FUSE_SOFTMAX",
        value=_model("1"),
        reason="the softmax of attention is one operation (tp_zero1_llama2_7B_hf_pretrain.sh)",
    ),
    WorkerVariable(
        name="NEURON_RT_STOCHASTIC_ROUNDING_EN",
        value=_model("0"),
        reason="updates go to fp32 master weights, which need no rounding at random "
        "(tp_zero1_llama_hf_pretrain.py, use_gpu_compatible_precision)",
    ),
    WorkerVariable(
        name="NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS",
        value=_model("3"),
        reason="micro-batches are enqueued ahead (tp_zero1_llama2_7B_hf_pretrain.sh); without "
        "effect since SDK 2.31",
    ),
    WorkerVariable(
        name="NEURON_RT_EXEC_TIMEOUT",
        value=_neuron(str(COMPILES_AT_MOST_S)),
        reason="seconds that a graph may run, and so wait in a collective for ranks that still "
        "compile; a hang ends earlier, by hang-limit-s. 30 by Neuron's runtime configuration "
        "guide, 600 by the messages in its training troubleshooting guide, which says to raise it; "
        "600 in AWS's BERT scripts. While graphs are loaded ranks wait for each other without "
        "limit (runtime troubleshooting guide)",
    ),
    WorkerVariable(
        name="MALLOC_ARENA_MAX",
        value=_neuron("64"),
        reason="bounds the heaps that glibc makes for the runtime's many threads (AWS's samples)",
    ),
    WorkerVariable(
        name="GLOO_SOCKET_IFNAME",
        value=lambda node, system: system.interface,
        reason="gloo would otherwise look the host name up, which loopback nodes do not have; on "
        "Trainium it carries what the ranks agree on about checkpoints",
    ),
    WorkerVariable(
        name="ACCELERATE_USE_CPU",
        value=_program_on_cpu("true"),
        reason="Accelerate makes no process group on a machine without a device unless it is told, "
        "as `accelerate launch --cpu` does: each process would train alone",
    ),
    WorkerVariable(
        name="ACCELERATE_TORCH_DEVICE",
        value=_program_on_cpu("cpu"),
        reason="Accelerate would call the processor cpu:0 (PartialState.set_device of 1.15), which "
        "torch.load takes for no device: no program of Hugging Face's Trainer could resume",
    ),
    WorkerVariable(
        name="OMP_NUM_THREADS",
        value=lambda node, system: "1",
        reason="the workers of a node share its cores; more threads would only wait for each other",
    ),
    WorkerVariable(
        name="USE_TORCH",
        value=_without_torch("0"),
        reason="transformers would import torch, which takes twice as long as converting a "
        "tokenizer without it (`import_utils.py` of 4.56)",
    ),
    WorkerVariable(
        name="TRANSFORMERS_NO_ADVISORY_WARNINGS",
        value=_without_torch("1"),
        reason="transformers would report that there is no torch, which is on purpose",
    ),
    WorkerVariable(
        name="PYTHONUNBUFFERED",
        value=lambda node, system: "1",
        reason="a line must be in the log when the process is killed right after it",
    ),
    WorkerVariable(
        name="PYTHONFAULTHANDLER",
        value=lambda node, system: "1",
        reason="a crash in native code leaves a Python traceback in the log",
    ),
)
"""``NEURON_RT_ROOT_COMM_ID`` is absent on purpose: torch_xla derives it from the main node's
address; a preset one, above all ``localhost``, would make every node its own root."""

LEFT_OUT: Mapping[str, str] = MappingProxyType(
    {
        "NUM_NEURONCORES": "only the script itself reads it, for the number of its processes",
        "NEURON_RT_NUM_CORES": "torch_xla gives each process the core of its LOCAL_RANK, by "
        "NEURON_RT_VISIBLE_CORES (2.9, _internal/neuron.py, configure_pjrt_environment)",
        "TPU_NUM_DEVICES": "of torch_xla's older runtime; nothing of 2.9 reads it",
        "TPU_CHIPS_PER_HOST_BOUNDS": "of torch_xla's older runtime; nothing of 2.9 reads it",
        "XLA_DOWNCAST_BF16": "weights are bf16 as they are made; the script sets it only without "
        "use_gpu_compatible_precision, which is its default",
        "XLA_USE_BF16": "the same, for training without fp32 master weights",
        "EXPLICIT_LOGDIR": "of AWS's own test clusters",
    }
)
"""What AWS's recipe sets and the launcher does not, each with its reason.

The recipe is ``tp_zero1_llama2_7B_hf_pretrain.sh`` with ``tp_zero1_llama_hf_pretrain.py``
(neuronx-distributed 0.18.0, examples/training/llama). Of its NEURON_CC_FLAGS ``--cache_dir`` is
left out for the bucket's cache, and ``--distribution-strategy`` is added. Besides, it raises the
limit of open files, which the launcher checks (preflight.py), and reserves ports of the host, 44000
for its torchrun, which gets its port from the launcher here.
"""


def worker_environment(
    env: Mapping[str, str], node: NodeContract, system: System
) -> tuple[dict[str, str], list[str]]:
    """Environment of the workers, and remarks for the log. The user's own settings win."""
    result = dict(env)
    remarks: list[str] = []
    root = result.get(ROOT_COMM_ID)
    if root is not None and _is_loopback(root) and not _is_loopback(node.main_address):
        del result[ROOT_COMM_ID]
        remarks.append(
            f"{ROOT_COMM_ID}={root} is removed: on loopback every node would be its own root"
        )
    for setting in SETTINGS:
        value = setting.value(node, system)
        if value is None:
            continue
        chosen = result.setdefault(setting.name, value)
        if chosen != value:
            remarks.append(f"{setting.name}={chosen} is kept; the launcher would set {value}")
    return result, remarks


def _is_loopback(address: str) -> bool:
    return address.startswith(("localhost", "127.", "[::1]", "::1"))
