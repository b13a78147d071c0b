"""The rules: what of a GPU program is found, why it matters, and what to write instead.

Two lines of software reach the chips: torch_xla (SDK 2.28 to 2.31) and TorchNeuron (from 2.33 on).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    """What a finding is about, in the order in which a program is changed."""

    DEVICE = "device"
    BACKEND = "backend"
    LIBRARY = "library"
    DTYPE = "dtype"
    FORK = "fork"
    DYNAMIC_SHAPE = "dynamic-shape"
    HOST_SYNC = "host-sync"
    PIN_MEMORY = "pin_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that a program is searched for."""

    name: str
    kind: PortKind
    what: str
    why: str
    xla: str
    torch_neuron: str
    source: str

    def instead(self, backend: TorchBackend) -> str:
        """Return what to write for one of the two lines."""
        return self.xla if backend is TorchBackend.XLA else self.torch_neuron


def _rule(
    name: str,
    kind: PortKind,
    what: str,
    why: str,
    xla: str,
    torch_neuron: str | None = None,
    *,
    source: str,
) -> Rule:
    """Make a rule; without ``torch_neuron`` both lines have the same advice."""
    other = xla if torch_neuron is None else torch_neuron
    return Rule(
        name=name, kind=kind, what=what, why=why, xla=xla, torch_neuron=other, source=source
    )


_RULES = (
    _rule(
        "cuda-device",
        PortKind.DEVICE,
        "names a CUDA device",
        "there is no CUDA: .cuda() and .to('cuda') raise",
        ".to(device), with device = torch_xla.device()",
        ".to(device), with device = torch.device('neuron')",
        source=_TORCH_NEURON,
    ),
    _rule(
        "cuda-available",
        PortKind.DEVICE,
        "asks for CUDA",
        "torch.cuda.is_available() is False, so the program trains on the node's CPU, silently",
        "device = torch_xla.device()",
        "device = torch.device('neuron'), or torch.accelerator.current_accelerator()",
        source=_TORCH_NEURON,
    ),
    _rule(
        "cuda-call",
        PortKind.DEVICE,
        "uses torch.cuda",
        "there is no CUDA: calls raise, or do nothing",
        "leave it out; to wait for the device: torch_xla.sync(wait=True)",
        "torch.accelerator.<same name>, or torch.neuron.<same name>; or leave it out",
        source=_TORCH_NEURON,
    ),
    _rule(
        "cudnn",
        PortKind.DEVICE,
        "sets CUDA's or cuDNN's kernels",
        "there are none",
        "leave it out",
        source=_TORCH_NEURON,
    ),
    _rule(
        "device-ids",
        PortKind.DEVICE,
        "names the GPUs of a DistributedDataParallel",
        "each process has one NeuronCore, which the launcher chose",
        "DistributedDataParallel(model, gradient_as_bucket_view=True), without device_ids",
        "DistributedDataParallel(model), without device_ids",
        source=_XLA_GUIDE,
    ),
    _rule(
        "data-parallel",
        PortKind.DEVICE,
        "uses torch.nn.DataParallel",
        "it splits batches over GPUs of one process; here each NeuronCore has its own process",
        "DistributedDataParallel, one process per NeuronCore: submit starts them",
        source=_XLA_GUIDE,
    ),
    _rule(
        "visible-devices",
        PortKind.DEVICE,
        "reads or sets CUDA_VISIBLE_DEVICES",
        "it chooses nothing here: the launcher gives each process its NeuronCore",
        "leave it out",
        source=_TORCH_NEURON,
    ),
    _rule(
        "nccl",
        PortKind.BACKEND,
        "asks for the process group backend nccl",
        "there is no NCCL: init_process_group('nccl') raises",
        "import torch_xla.distributed.xla_backend, and init_process_group('xla')",
        "init_process_group('cpu:gloo,neuron:neuron'), without device_id",
        source=_XLA_GUIDE,
    ),
    _rule(
        "nccl-variable",
        PortKind.BACKEND,
        "sets a variable of NCCL",
        "there is no NCCL; the launcher sets what EFA needs",
        "leave it out",
        source=_XLA_GUIDE,
    ),
    _rule(
        "float16",
        PortKind.DTYPE,
        "selects float16",
        "the range of float16 needs a GradScaler, which CUDA alone has; bfloat16 runs as fast",
        "torch.bfloat16",
        source=_DATA_TYPES,
    ),
    _rule(
        "float64",
        PortKind.DTYPE,
        "selects 64-bit floats",
        "NeuronCores compute none: they are cut to float32, or run on the CPU",
        "torch.float32, or compute it on the CPU",
        source=_DATA_TYPES,
    ),
    _rule(
        "grad-scaler",
        PortKind.DTYPE,
        "scales gradients for float16",
        "bfloat16 has the range of float32: nothing is to be scaled",
        "loss.backward() and optimizer.step(), without a GradScaler",
        source=_AMP,
    ),
    _rule(
        "cuda-amp",
        PortKind.DTYPE,
        "uses CUDA's mixed precision",
        "without CUDA it warns and casts nothing",
        "torch.autocast('xla', dtype=torch.bfloat16)",
        "torch.autocast('neuron', dtype=torch.bfloat16)",
        source=_XLA_GUIDE,
    ),
    _rule(
        "pin-memory",
        PortKind.PIN_MEMORY,
        "pins host memory for CUDA",
        "without CUDA it raises or warns, and speeds nothing up",
        "pin_memory=False; torch_xla.distributed.parallel_loader.MpDeviceLoader loads ahead",
        "pin_memory=False",
        source=_LOADER,
    ),
    _rule(
        "data-dependent",
        PortKind.DYNAMIC_SHAPE,
        "makes a tensor whose shape depends on the data",
        "every new shape is compiled again, for minutes",
        "torch.where(mask, x, 0) or a product with the mask: the shape stays",
        source=_XLA_OVERVIEW,
    ),
    _rule(
        "last-batch",
        PortKind.DYNAMIC_SHAPE,
        "keeps the last, smaller batch",
        "its size is a second shape, which is compiled again",
        "drop_last=True",
        source=_XLA_OVERVIEW,
    ),
    _rule(
        "pad-to-longest",
        PortKind.DYNAMIC_SHAPE,
        "pads to the longest of a batch",
        "nearly every batch has another shape, and each is compiled again",
        "padding='max_length' with max_length, or pad_to_multiple_of with few lengths",
        source=_XLA_OVERVIEW,
    ),
    _rule(
        "copied-to-host",
        PortKind.HOST_SYNC,
        "copies a tensor from the device at every step",
        "the step is cut there, and the host waits for the device",
        "xm.add_step_closure(log, args=(loss,)) every N steps; keep sums on the device",
        "loss.detach() on the device, and .item() every N steps only",
        source=_XLA_OVERVIEW,
    ),
    _rule(
        "printed",
        PortKind.HOST_SYNC,
        "formats a tensor of the device at every step",
        "formatting fetches its value: the step is cut there, and the host waits",
        "xm.add_step_closure(print, args=(loss,)) every N steps",
        "print every N steps only",
        source=_XLA_OVERVIEW,
    ),
    _rule(
        "branch",
        PortKind.HOST_SYNC,
        "branches on a tensor of the device",
        "Python needs the value: the step is cut there, and the host waits",
        "torch.where(condition, a, b), or test it every N steps only",
        source=_XLA_OVERVIEW,
    ),
    _rule(
        "worker-device",
        PortKind.FORK,
        "touches the device in a worker of a DataLoader",
        "workers are forked, and the device belongs to the process that opened it",
        "keep datasets and collate functions on the CPU, and move batches in the training loop",
        source=_FORK,
    ),
    _rule(
        "forked",
        PortKind.FORK,
        "forks a process that uses the device",
        "the device belongs to the process that opened it: the fork fails or hangs",
        "set_start_method('spawn'), and leave the device to the processes that submit starts",
        source=_FORK,
    ),
    _rule(
        "cuda-library",
        PortKind.LIBRARY,
        "imports a library that needs CUDA",
        "its kernels are CUDA's: the import or the first call raises",
        "plain PyTorch: torch.optim, F.scaled_dot_product_attention; NKI for kernels of your own",
        "plain PyTorch: torch.optim, FSDP2, F.scaled_dot_product_attention; NKI for kernels",
        source=_TORCH_NEURON,
    ),
    _rule(
        "inductor",
        PortKind.LIBRARY,
        "compiles with Inductor, the default of torch.compile",
        "Inductor generates Triton or C++ code, none for NeuronCores",
        "leave it out: torch_xla compiles each step",
        "torch.compile(..., backend='neuron', dynamic=False)",
        source=_COMPILE,
    ),
    _rule(
        "cuda-graph",
        PortKind.LIBRARY,
        "captures a CUDA graph",
        "there is no CUDA, and each graph is compiled as a whole anyway",
        "leave it out",
        "leave it out, or torch.compile(..., backend='neuron')",
        source=_COMPILE,
    ),
    _rule(
        "cuda-kernel",
        PortKind.LIBRARY,
        "selects a kernel that needs CUDA",
        "there is no such kernel: it raises",
        "the plain one: attn_implementation='sdpa' or 'eager', optim='adamw_torch', fused=False",
        source=_TORCH_NEURON,
    ),
)

RULES: Mapping[str, Rule] = MappingProxyType({rule.name: rule for rule in _RULES})


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Hazard:
    """A place in a program that a rule is about."""

    file: str
    line: int
    rule: str
    text: str
    """The expression, shortened."""

    @property
    def kind(self) -> PortKind:
        """What it is about."""
        return RULES[self.rule].kind
