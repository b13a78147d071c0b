"""Every environment variable that the launcher sets for the workers, with reasons."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from training.core.contract import DeviceKind, NodeContract
from training.core.progress import MAX_COMPILE_S
from training.launcher.addresses import TASK_INTERFACE
from trainium_catalogue.contract import GRAPHS_PREFIX

_NEURON = (DeviceKind.XLA, DeviceKind.TORCH_NEURON)
ROOT_COMM_ID = "NEURON_RT_ROOT_COMM_ID"
BOUND_BY_TORCH_NEURON = ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES")
"""TorchNeuron assigns each process the core of its LOCAL_RANK when it joins the process group, and
refuses an environment that assigns several (distributed/backend.py in the public copy of April
2026, github.com/parmoham-aws/test-repo-parmoham). A node's processes inherit the same environment
from torchrun, so with a preset value they would share a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Inputs of the settings other than the contract."""

    kernel: str
    """``uname -r``."""
    interface: str | None
    """Name of the interface with the node's address."""
    has_cache: bool = False
    """True if the workload may write to the bucket's compile cache."""
    dataset_kind: str = ""
    """Kind of the dataset that the workload trains on, as in the catalogue."""
    is_own_model: bool = True
    """False for a user's program, whose settings may differ from this project's models."""
    neff_cache: str = ""
    """Folder for TorchNeuron's compiled graphs; if empty, the program's own."""
    neff_local_cache: str = ""
    """Folder on this node for TorchNeuron's locks."""
    needs_torch: bool = True
    """False for data jobs, which compute nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerVariable:
    """One environment variable; ``value`` returns None if it does not apply."""

    name: str
    value: Callable[[NodeContract, System], str | None]
    reason: str


def _on(
    *devices: DeviceKind, value: str, own_model: bool | None = None
) -> Callable[[NodeContract, System], str | None]:
    """Set ``value`` on these devices: for any model, only for this project's, or only others."""

    def of(node: NodeContract, system: System) -> str | None:
        applies = own_model in (None, system.is_own_model) and node.device in devices
        return value if applies else None

    return of


def _without_torch(value: str) -> Callable[[NodeContract, System], str | None]:
    return lambda node, system: None if system.needs_torch else value


def _efa(value: str) -> Callable[[NodeContract, System], str | None]:
    return lambda node, system: value if uses_efa(node) else None


def uses_efa(node: NodeContract) -> bool:
    """Return whether collectives cross node boundaries, on hardware with EFA."""
    return node.num_nodes > 1 and node.has_hardware


def _fork_safe(node: NodeContract, system: System) -> str | None:
    numbers = re.match(r"(\d+)\.(\d+)", system.kernel)
    is_old = numbers is not None and (int(numbers[1]), int(numbers[2])) < (5, 15)
    return "1" if uses_efa(node) and is_old else None


def _cache(node: NodeContract, system: System) -> str | None:
    if node.device is not DeviceKind.XLA or node.bucket is None or not system.has_cache:
        return None
    return f"s3://{node.bucket}/{GRAPHS_PREFIX}"


def _threads(node: NodeContract, system: System) -> str:
    instance = node.instance
    if node.device is not DeviceKind.TORCH_NEURON or instance is None or not node.has_hardware:
        return "1"
    return str(max(1, instance.container_vcpus // node.processes_per_node))


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
        reason="libfabric must use EFA or fail, never silently fall back to TCP",
    ),
    WorkerVariable(
        name="FI_EFA_USE_DEVICE_RDMA",
        value=_efa("1"),
        reason="lets EFA read and write device memory directly (Neuron multi-node set-up guide)",
    ),
    WorkerVariable(
        name="FI_EFA_FORK_SAFE",
        value=_fork_safe,
        reason="registered memory survives fork; kernels from 5.15 on need no setting",
    ),
    WorkerVariable(
        name="CCOM_SOCKET_IFNAME",
        value=lambda node, system: (system.interface or TASK_INTERFACE) if uses_efa(node) else None,
        reason="collectives bootstrap over the interface with the address that peers use",
    ),
    WorkerVariable(
        name="PJRT_DEVICE",
        value=_on(DeviceKind.XLA, value="NEURON"),
        reason="torch_xla must use the Neuron devices or fail, never fall back to its CPU",
    ),
    WorkerVariable(
        name="NEURON_COMPILE_CACHE_URL",
        value=_cache,
        reason="one cache for all nodes and jobs, in the bucket (Neuron persistent cache guide)",
    ),
    WorkerVariable(
        name="TORCH_NEURONX_NEFF_CACHE_DIR",
        value=lambda node, system: (
            system.neff_cache or None if node.device is DeviceKind.TORCH_NEURON else None
        ),
        reason="TorchNeuron's cache is a folder, which workers exchange with the bucket "
        "(backends/neff_cache.py)",
    ),
    WorkerVariable(
        name="TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR",
        value=lambda node, system: (
            system.neff_local_cache or None if node.device is DeviceKind.TORCH_NEURON else None
        ),
        reason="locks, which need a local disk; by default they would be in /tmp/local_cache, stay "
        "there and be shared by all launches on a machine (CompilationCache.cpp in TorchNeuron's "
        "public copy)",
    ),
    WorkerVariable(
        name="TORCH_NEURONX_NEFF_CACHE_LOCK_TIMEOUT",
        value=_on(DeviceKind.TORCH_NEURON, value=str(MAX_COMPILE_S)),
        reason="after 1,200 s a rank would treat the lock of one that is still compiling, or "
        "waiting for a slot, as stale and compile the same graph (FileLock.cpp in TorchNeuron's "
        "public copy)",
    ),
    WorkerVariable(
        name="AWS_DEFAULT_REGION",
        value=lambda node, system: node.region,
        reason="Neuron's compile cache opens the bucket with boto3, which does not read AWS_REGION "
        "and would ask the global endpoint first",
    ),
    WorkerVariable(
        name="AWS_RETRY_MODE",
        value=_on(DeviceKind.XLA, value="standard"),
        reason="Neuron's compile cache has its own client, and boto3's default retries less",
    ),
    WorkerVariable(
        name="AWS_MAX_ATTEMPTS",
        value=_on(DeviceKind.XLA, value="10"),
        reason="a broken connection must not make a whole cluster compile its graphs again",
    ),
    WorkerVariable(
        name="ALL_GATHER_REDUCE_SCATTER_BUCKET_CAP_MB",
        value=_on(DeviceKind.XLA, value="65", own_model=True),
        reason="bucket size of ZeRO-1's all-gathers and reduce-scatters: NxD's default for bf16 "
        "parameters when XLA_DOWNCAST_BF16=0, and half of its default for AWS's script, which does "
        "not set that variable. Buckets of more than 140 MB gave NaN, according to trainer.py, "
        "which does not state the data type",
    ),
    WorkerVariable(
        name="NEURON_CC_FLAGS",
        value=_compiler_flags,
        reason="the compiler's optimizations for transformers, and for those that are split across "
        "cores (neuronx-cc's reference). tp_zero1_llama2_7B_hf_pretrain.sh and, for BERT, "
        "dp_bert_large_hf_pretrain_hdf5.py set only the first, mnist_mlp neither",
    ),
    WorkerVariable(
        name="NEURON_FUSE_SOFTMAX",
        value=_on(DeviceKind.XLA, value="1", own_model=True),
        reason="fuses the softmax of attention (tp_zero1_llama2_7B_hf_pretrain.sh)",
    ),
    WorkerVariable(
        name="NEURON_RT_STOCHASTIC_ROUNDING_EN",
        value=_on(*_NEURON, value="0", own_model=True),
        reason="updates go to fp32 master weights, which need no stochastic rounding "
        "(tp_zero1_llama_hf_pretrain.py, use_gpu_compatible_precision)",
    ),
    WorkerVariable(
        name="NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS",
        value=_on(DeviceKind.XLA, value="3", own_model=True),
        reason="micro-batches are enqueued ahead (tp_zero1_llama2_7B_hf_pretrain.sh); the variable "
        "has had no effect since SDK 2.31",
    ),
    WorkerVariable(
        name="NEURON_RT_EXEC_TIMEOUT",
        value=_on(*_NEURON, value=str(MAX_COMPILE_S)),
        reason="seconds that a graph may run, including waits in a collective for ranks that are "
        "still compiling; hang-limit-s ends a hang earlier. The default is 30 according to "
        "Neuron's runtime configuration guide, 600 according to the messages in its training "
        "troubleshooting guide, which advises raising it; AWS's BERT scripts set 600. While graphs "
        "are loaded, ranks wait for each other without limit (runtime troubleshooting guide)",
    ),
    WorkerVariable(
        name="TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS",
        value=_on(DeviceKind.TORCH_NEURON, value="1"),
        reason="an operator that fails on the device must fail, not run on the CPU without "
        "reporting an error (CPUFallbackExecutor.cpp of TorchNeuron's public copy of April "
        "2026)",
    ),
    WorkerVariable(
        name="TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION",
        value=_on(DeviceKind.TORCH_NEURON, value="1"),
        reason="an error of the device must end the worker, not run the operator on the CPU; the "
        "default is 0 in TorchNeuron's public copy and 1 in SDK 2.33 (TorchNeuron environment "
        "variables)",
    ),
    WorkerVariable(
        name="NEURON_LAUNCH_BLOCKING",
        value=_on(DeviceKind.TORCH_NEURON, value="0"),
        reason="operators run asynchronously; the release builds of TorchNeuron's public copy "
        "waited for each one (_build_config.py)",
    ),
    WorkerVariable(
        name="MALLOC_ARENA_MAX",
        value=_on(*_NEURON, value="64"),
        reason="limits the heaps that glibc creates for the runtime's many threads (AWS's samples)",
    ),
    WorkerVariable(
        name="GLOO_SOCKET_IFNAME",
        value=lambda node, system: system.interface,
        reason="gloo would otherwise resolve the host name, which loopback nodes lack; on "
        "Trainium ranks use it to coordinate checkpoints",
    ),
    WorkerVariable(
        name="ACCELERATE_USE_CPU",
        value=_on(DeviceKind.CPU, value="true", own_model=False),
        reason="Accelerate forms no process group on a machine without a device unless requested, "
        "as `accelerate launch --cpu` does: each process would train alone",
    ),
    WorkerVariable(
        name="ACCELERATE_TORCH_DEVICE",
        value=_on(DeviceKind.CPU, value="cpu", own_model=False),
        reason="Accelerate would name the CPU cpu:0 (PartialState.set_device in 1.15), which "
        "torch.load does not accept: no program with Hugging Face's Trainer could resume",
    ),
    WorkerVariable(
        name="OMP_NUM_THREADS",
        value=_threads,
        reason="the workers of a node share its cores; more threads would only contend. On "
        "TorchNeuron the host dispatches every operator, so its processes share all vCPUs of the "
        "container",
    ),
    WorkerVariable(
        name="USE_TORCH",
        value=_without_torch("0"),
        reason="transformers would import torch, which takes twice as long as converting a "
        "tokenizer without it (`import_utils.py` in 4.56)",
    ),
    WorkerVariable(
        name="TRANSFORMERS_NO_ADVISORY_WARNINGS",
        value=_without_torch("1"),
        reason="transformers would warn about the missing torch, which is intentional",
    ),
    WorkerVariable(
        name="PYTHONUNBUFFERED",
        value=lambda node, system: "1",
        reason="a line must reach the log even if the process is killed right after it",
    ),
    WorkerVariable(
        name="PYTHONFAULTHANDLER",
        value=lambda node, system: "1",
        reason="a crash in native code leaves a Python traceback in the log",
    ),
)
"""``NEURON_RT_ROOT_COMM_ID`` is deliberately absent: torch_xla and TorchNeuron derive it from the
main node's address. A preset value, especially ``localhost``, could make every node its own
root."""

OMITTED: Mapping[str, str] = MappingProxyType(
    {
        "NUM_NEURONCORES": "read only by the script itself, for its number of processes",
        "NEURON_RT_NUM_CORES": "torch_xla assigns each process the core of its LOCAL_RANK, by "
        "NEURON_RT_VISIBLE_CORES (2.9, _internal/neuron.py, configure_pjrt_environment)",
        "TPU_NUM_DEVICES": "for torch_xla's older runtime; not read by 2.9",
        "TPU_CHIPS_PER_HOST_BOUNDS": "for torch_xla's older runtime; not read by 2.9",
        "XLA_DOWNCAST_BF16": "weights are created in bf16; the script sets it only without "
        "use_gpu_compatible_precision, which is its default",
        "XLA_USE_BF16": "the same, for training without fp32 master weights",
        "EXPLICIT_LOGDIR": "for AWS's own test clusters",
    }
)
"""Variables that AWS's recipe sets but the launcher does not, with reasons.

The recipe is ``tp_zero1_llama2_7B_hf_pretrain.sh`` with ``tp_zero1_llama_hf_pretrain.py``
(neuronx-distributed 0.18.0, examples/training/llama). From its NEURON_CC_FLAGS, ``--cache_dir`` is
omitted in favor of the bucket's cache, and ``--distribution-strategy`` is added. The recipe also
raises the open-files limit, which the launcher only checks (preflight.py), and reserves host ports,
including 44000 for torchrun, whose port here comes from the launcher.
"""


def worker_environment(
    env: Mapping[str, str], node: NodeContract, system: System
) -> tuple[dict[str, str], list[str]]:
    """Return the workers' environment, in which the user's values take precedence, and remarks."""
    result = dict(env)
    remarks = remove_shared_presets(result, node)
    for setting in SETTINGS:
        value = setting.value(node, system)
        if value is None:
            continue
        chosen = result.setdefault(setting.name, value)
        if chosen != value:
            remarks.append(f"{setting.name}={chosen} is kept; the launcher would set {value}")
    return result, remarks


def remove_shared_presets(env: dict[str, str], node: NodeContract) -> list[str]:
    """Remove values that would make processes share a core, or make each node its own root.

    Returns remarks for the log.
    """
    remarks: list[str] = []
    root = env.get(ROOT_COMM_ID)
    if root is not None and _is_loopback(root) and not _is_loopback(node.main_address):
        del env[ROOT_COMM_ID]
        remarks.append(
            f"{ROOT_COMM_ID}={root} is removed: on loopback every node would be its own root"
        )
    if node.device is DeviceKind.TORCH_NEURON and node.processes_per_node > 1:
        for name in BOUND_BY_TORCH_NEURON:
            if (preset := env.pop(name, None)) is not None:
                remarks.append(
                    f"{name}={preset} is removed: TorchNeuron assigns each process its own core"
                )
    return remarks


def _is_loopback(address: str) -> bool:
    return address.startswith(("localhost", "127.", "[::1]", "::1"))
