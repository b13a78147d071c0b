"""The rules: patterns to find in a GPU program, reasons and replacements.

There are two PyTorch backends: torch_xla (SDK 2.28 to 2.31) and TorchNeuron (SDK 2.33 and later).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from trainium_catalogue.releases import TorchBackend

_NEURON = "https://awsdocs-neuron.readthedocs-hosted.com/en"
_XLA_GUIDE = (
    f"{_NEURON}/v2.28.0/frameworks/torch/torch-neuronx/programming-guide/training/"
    "pytorch-neuron-programming-guide.html"
)
_XLA_OVERVIEW = "https://docs.pytorch.org/xla/release/r2.8/learn/xla-overview.html"
_TORCH_NEURON = f"{_NEURON}/latest/torch/index.html"
_COMPILE = f"{_NEURON}/latest/torch/compile/index.html"
_DATA_TYPES = f"{_NEURON}/latest/general/arch/neuron-features/data-types.html"
_FORK = "https://docs.pytorch.org/docs/stable/notes/multiprocessing.html"
_LOADER = "https://docs.pytorch.org/docs/stable/data.html"
_AMP = "https://docs.pytorch.org/docs/stable/amp.html"


class PortKind(StrEnum):
    """Topic of a finding, in the order in which to port a program."""

    DEVICE = "device"
    BACKEND = "backend"
    LIBRARY = "library"
    DTYPE = "dtype"
    FORK = "fork"
    DYNAMIC_SHAPE = "dynamic-shape"
    HOST_SYNC = "host-sync"
    PIN_MEMORY = "pin_memory"


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern to find in programs."""

    name: str
    kind: PortKind
    what: str
    why: str
    xla: str
    """The replacement, for torch_xla."""
    torch_neuron: str = ""
    """The one for TorchNeuron, if it differs."""
    source: str = field(kw_only=True)

    def instead(self, backend: TorchBackend) -> str:
        """Return the replacement for a backend."""
        return self.xla if backend is TorchBackend.XLA else self.torch_neuron or self.xla


_RULES = (
    Rule(
        "cuda-device",
        PortKind.DEVICE,
        "names a CUDA device",
        "CUDA is not available: .cuda() and .to('cuda') raise an error",
        ".to(device), with device = torch_xla.device()",
        ".to(device), with device = torch.device('neuron')",
        source=_TORCH_NEURON,
    ),
    Rule(
        "cuda-available",
        PortKind.DEVICE,
        "checks for CUDA",
        "torch.cuda.is_available() is False, so the program silently trains on the node's CPU",
        "device = torch_xla.device()",
        "device = torch.device('neuron'), or torch.accelerator.current_accelerator()",
        source=_TORCH_NEURON,
    ),
    Rule(
        "cuda-call",
        PortKind.DEVICE,
        "uses torch.cuda",
        "CUDA is not available: calls raise an error, or do nothing",
        "remove it; to wait for the device: torch_xla.sync(wait=True)",
        "torch.accelerator.<same name>, or torch.neuron.<same name>; or remove it",
        source=_TORCH_NEURON,
    ),
    Rule(
        "cudnn",
        PortKind.DEVICE,
        "configures CUDA or cuDNN kernels",
        "CUDA is not available",
        "remove it",
        source=_TORCH_NEURON,
    ),
    Rule(
        "device-ids",
        PortKind.DEVICE,
        "passes device_ids to DistributedDataParallel",
        "each process has one NeuronCore, assigned by the launcher",
        "DistributedDataParallel(model, gradient_as_bucket_view=True), without device_ids",
        "DistributedDataParallel(model), without device_ids",
        source=_XLA_GUIDE,
    ),
    Rule(
        "data-parallel",
        PortKind.DEVICE,
        "uses torch.nn.DataParallel",
        "it splits batches over the GPUs of one process; here each NeuronCore has its own process",
        "DistributedDataParallel with one process per NeuronCore, which submit starts",
        source=_XLA_GUIDE,
    ),
    Rule(
        "visible-devices",
        PortKind.DEVICE,
        "reads or sets CUDA_VISIBLE_DEVICES",
        "it has no effect here: the launcher assigns each process its NeuronCore",
        "remove it",
        source=_TORCH_NEURON,
    ),
    Rule(
        "nccl",
        PortKind.BACKEND,
        "selects the process group backend nccl",
        "NCCL is not available: init_process_group('nccl') raises an error",
        "import torch_xla.distributed.xla_backend, and init_process_group('xla')",
        "init_process_group('cpu:gloo,neuron:neuron'), without device_id",
        source=_XLA_GUIDE,
    ),
    Rule(
        "nccl-variable",
        PortKind.BACKEND,
        "sets an NCCL variable",
        "NCCL is not available; the launcher sets the variables that EFA needs",
        "remove it",
        source=_XLA_GUIDE,
    ),
    Rule(
        "float16",
        PortKind.DTYPE,
        "selects float16",
        "float16 has a narrow range and needs loss scaling; bfloat16 needs none, and is as fast",
        "torch.bfloat16",
        source=_DATA_TYPES,
    ),
    Rule(
        "float64",
        PortKind.DTYPE,
        "selects 64-bit floats",
        "NeuronCores do not support it: values are converted to float32, or computed on the CPU",
        "torch.float32, or compute on the CPU",
        source=_DATA_TYPES,
    ),
    Rule(
        "grad-scaler",
        PortKind.DTYPE,
        "scales gradients for float16",
        "bfloat16 has the range of float32, so no scaling is needed",
        "loss.backward() and optimizer.step(), without a GradScaler",
        source=_AMP,
    ),
    Rule(
        "cuda-amp",
        PortKind.DTYPE,
        "uses CUDA's mixed precision",
        "without CUDA it warns and has no effect",
        "torch.autocast('xla', dtype=torch.bfloat16)",
        "torch.autocast('neuron', dtype=torch.bfloat16)",
        source=_XLA_GUIDE,
    ),
    Rule(
        "pin-memory",
        PortKind.PIN_MEMORY,
        "pins host memory for CUDA",
        "without CUDA it raises an error or warns, and has no benefit",
        "pin_memory=False; torch_xla.distributed.parallel_loader.MpDeviceLoader prefetches",
        "pin_memory=False",
        source=_LOADER,
    ),
    Rule(
        "data-dependent",
        PortKind.DYNAMIC_SHAPE,
        "creates a tensor whose shape depends on the data",
        "the graph is recompiled for every new shape, which takes minutes",
        "torch.where(mask, x, 0) or multiply by the mask, which keep the shape",
        source=_XLA_OVERVIEW,
    ),
    Rule(
        "last-batch",
        PortKind.DYNAMIC_SHAPE,
        "keeps the last, smaller batch",
        "its size is a second shape, for which the graph is recompiled",
        "drop_last=True",
        source=_XLA_OVERVIEW,
    ),
    Rule(
        "pad-to-longest",
        PortKind.DYNAMIC_SHAPE,
        "pads to the longest sequence of a batch",
        "nearly every batch has a different shape, for which the graph is recompiled",
        "padding='max_length' with max_length, or pad_to_multiple_of to limit the lengths",
        source=_XLA_OVERVIEW,
    ),
    Rule(
        "copied-to-host",
        PortKind.HOST_SYNC,
        "copies a tensor from the device in every step",
        "the host waits for the device; torch_xla also splits the graph there",
        "xm.add_step_closure(log, args=(loss,)) every N steps; keep sums on the device",
        "loss.detach() on the device, and .item() only every N steps",
        source=_XLA_OVERVIEW,
    ),
    Rule(
        "printed",
        PortKind.HOST_SYNC,
        "formats a device tensor in every step",
        "formatting fetches its value: the host waits, and torch_xla splits the graph",
        "xm.add_step_closure(print, args=(loss,)) every N steps",
        "print only every N steps",
        source=_XLA_OVERVIEW,
    ),
    Rule(
        "branch",
        PortKind.HOST_SYNC,
        "branches on a device tensor",
        "Python needs its value: the host waits, and torch_xla splits the graph",
        "torch.where(condition, a, b), or check it only every N steps",
        source=_XLA_OVERVIEW,
    ),
    Rule(
        "worker-device",
        PortKind.FORK,
        "uses the device in a DataLoader worker",
        "the device belongs to the process that opened it, and workers are other processes",
        "keep datasets and collate functions on the CPU, and move batches in the training loop",
        source=_FORK,
    ),
    Rule(
        "forked",
        PortKind.FORK,
        "forks a process that uses the device",
        "the device belongs to the process that opened it: the fork fails or hangs",
        "set_start_method('spawn'), and use the device only in the processes that submit starts",
        source=_FORK,
    ),
    Rule(
        "cuda-library",
        PortKind.LIBRARY,
        "imports a library that needs CUDA",
        "it has CUDA kernels: the import or the first call raises an error",
        "plain PyTorch: torch.optim, F.scaled_dot_product_attention; NKI for your own kernels",
        "plain PyTorch: torch.optim, FSDP2, F.scaled_dot_product_attention; NKI for kernels",
        source=_TORCH_NEURON,
    ),
    Rule(
        "inductor",
        PortKind.LIBRARY,
        "compiles with Inductor, the default backend of torch.compile",
        "Inductor generates Triton or C++ code, which NeuronCores cannot run",
        "remove it: torch_xla compiles each step",
        "torch.compile(..., backend='neuron', dynamic=False)",
        source=_COMPILE,
    ),
    Rule(
        "cuda-graph",
        PortKind.LIBRARY,
        "captures a CUDA graph",
        "CUDA is not available; a graph compiled for Neuron takes its place",
        "remove it",
        "remove it, or torch.compile(..., backend='neuron')",
        source=_COMPILE,
    ),
    Rule(
        "cuda-kernel",
        PortKind.LIBRARY,
        "selects a kernel that needs CUDA",
        "no such kernel is available: selecting it raises an error",
        "a standard one: attn_implementation='sdpa' or 'eager', optim='adamw_torch', fused=False",
        source=_TORCH_NEURON,
    ),
)

RULES: Mapping[str, Rule] = MappingProxyType({rule.name: rule for rule in _RULES})


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Hazard:
    """Code in a program that matches a rule."""

    file: str
    line: int
    rule: str
    text: str
    """The expression, shortened."""

    @property
    def kind(self) -> PortKind:
        """Topic of its rule."""
        return RULES[self.rule].kind
