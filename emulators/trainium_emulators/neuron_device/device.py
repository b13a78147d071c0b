"""The device's runtime in this process, and ``torch.neuron``, the module used by programs."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import struct
import sys
from collections.abc import Callable, Iterator, MutableMapping
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from trainium_emulators.neuron_device import rules
from trainium_emulators.neuron_device.counts import COUNTS

DEVICE = "neuron"
LABEL = "pretend neuron: an emulator on this machine's CPU"
_REAL = "torch_neuronx"
_HBM_BYTES = 24 << 30
"""Device memory of a rank on trn2 (AWS, trn2 architecture: 96 GiB per chip, 4 logical cores)."""
_IN_BOTH = (
    *("device_count", "current_device", "set_device", "get_device_properties", "synchronize"),
    *("Stream", "Event", "stream", "current_stream", "default_stream", "set_stream", "device"),
    *("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
    *("memory_stats", "memory_summary", "reset_peak_memory_stats", "empty_cache"),
    *("reset_accumulated_memory_stats", "get_dynamo_metrics", "reset_dynamo_metrics"),
)
"""Members that ``torch_neuronx`` has too (April, torch_neuronx/__init__.py)."""


class Runtime:
    """The Neuron runtime of this process, bound to one core for its lifetime."""

    def __init__(self) -> None:
        self.environment: MutableMapping[str, str] = {}
        self.is_initialized = self.has_had_group = self.in_forked_process = False
        self._bound: int | None = None

    @property
    def local_rank(self) -> int:
        """Index of the device of this process."""
        if self._bound is not None:
            return self._bound
        return int(self.environment.get("LOCAL_RANK", 0))

    @property
    def device_count(self) -> int:
        """Number of devices on this node; each process uses one."""
        # April, csrc/core/NeuronDevice.cpp: LOCAL_WORLD_SIZE once a process group exists;
        # before, the number of visible cores: the same, as a launcher starts a process for each.
        return int(self.environment.get("LOCAL_WORLD_SIZE", 1))

    def start(self) -> None:
        """Initialize the runtime, as the first tensor on the device does."""
        if not self.is_initialized:
            rules.check_fork(self)
            self.is_initialized = True

    def bind(self, rank: int) -> None:
        """Bind this process to a core, as the first process group does."""
        rules.check_first_group(self, self.environment)
        self._bound = int(self.environment.get("LOCAL_RANK", rank))
        cores = "NEURON_RT_VISIBLE_CORES"
        self.environment[cores] = self.environment.get(cores) or str(self._bound)
        self.has_had_group = True
        self.start()

    def after_fork(self) -> None:
        """Record whether the parent of this forked process used the device."""
        self.in_forked_process, self.is_initialized = self.is_initialized, False


RUNTIME = Runtime()


class DeviceGenerator:
    """The device's random number generator: a seed, and an offset that advances with each draw.

    DTensor sets the offset to draw different numbers for each shard.
    """

    _STATE = struct.Struct("<Qq")

    def __init__(self) -> None:
        self.manual_seed(0)

    def manual_seed(self, seed: int) -> None:
        self._seed, self._offset = seed % 2**64, 0

    def get_state(self, device: object = None) -> torch.Tensor:
        # April, csrc/core/NeuronHooksInterface.cpp: the seed, then the Philox offset.
        state = bytearray(self._STATE.pack(self._seed, self._offset))
        return torch.frombuffer(state, dtype=torch.uint8)

    def set_state(self, state: torch.Tensor, device: object = None) -> None:
        self._seed, self._offset = self._STATE.unpack(bytes(state.tolist()))

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Make host operators use the device's generator and leave the host's unchanged."""
        host = torch.default_generator.get_state()
        torch.default_generator.manual_seed(hash((self._seed, self._offset)) % 2**63)
        self._offset += 4
        try:
            yield
        finally:
            torch.default_generator.set_state(host)


GENERATOR = DeviceGenerator()


class NeuronStream:
    """A device stream; every call is complete when it returns."""

    device_index = stream_id = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device(DEVICE, 0)

    def __enter__(self) -> NeuronStream:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def record_event(self, event: NeuronEvent | None = None) -> NeuronEvent:
        return event or NeuronEvent()

    def query(self) -> bool:
        return True

    def wait_stream(self, stream: NeuronStream) -> None:
        pass

    def wait_event(self, event: NeuronEvent) -> None:
        pass

    def synchronize(self) -> None:
        COUNTS.host_sync("Stream.synchronize")


class NeuronEvent:
    """A point in a stream."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: NeuronStream | None = None) -> None:
        pass

    def wait(self, stream: NeuronStream | None = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        COUNTS.host_sync("Event.synchronize")


@contextlib.contextmanager
def _no_op_guard(selected: object = None) -> Iterator[None]:
    """Select a device or a stream for a block; there is only one."""
    yield


def _set_device(device: int | torch.device | str) -> None:
    index = device if isinstance(device, int) else torch.device(device).index
    if index is not None:
        rules.check_set_device(RUNTIME, index)


def _synchronize(device: object = None) -> None:
    COUNTS.host_sync("synchronize")


def _properties(device: object = None) -> SimpleNamespace:
    # April, torch_neuronx/__init__.py: reading the memory's size starts the runtime.
    RUNTIME.start()
    return SimpleNamespace(name=LABEL, total_memory=_HBM_BYTES)


def _dynamo_metrics() -> list[SimpleNamespace]:
    """List compiled graphs, with two of April's fields."""
    _synchronize()
    return [
        SimpleNamespace(graph_id=str(number), graph_node_count=operations)
        for number, operations in enumerate(COUNTS.graphs)
    ]


def _warned(name: str, member: Callable[..., Any]) -> Callable[..., Any]:
    """Warn at each use of a member of ``torch.neuron`` that libraries call, but April lacks."""

    def run(*args: Any, **kwargs: Any) -> Any:
        rules.warn_of_member(name)
        return member(*args, **kwargs)

    return run


def _torch_neuron() -> ModuleType:
    """Build ``torch.neuron``, with April's members that PyTorch's own code or programs call."""
    # The Python interface for backends has a single device, with index 0.
    members: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: RUNTIME.is_initialized,
        "init": RUNTIME.start,
        "_is_in_bad_fork": lambda: RUNTIME.in_forked_process,
        "device_count": lambda: RUNTIME.device_count,
        "current_device": lambda: 0,
        "set_device": _set_device,
        "device": _no_op_guard,
        "get_device_name": lambda device=0: LABEL,
        "get_device_properties": _properties,
        "synchronize": _synchronize,
        "Stream": NeuronStream,
        "Event": NeuronEvent,
        "stream": _no_op_guard,
        "current_stream": lambda device=None: NeuronStream(),
        "default_stream": lambda device=None: NeuronStream(),
        "set_stream": lambda stream: None,
        "manual_seed": GENERATOR.manual_seed,
        "manual_seed_all": GENERATOR.manual_seed,
        "get_rng_state": GENERATOR.get_state,
        "set_rng_state": GENERATOR.set_state,
        "get_amp_supported_dtype": lambda: [torch.float32, torch.float16, torch.bfloat16],
        "is_bf16_supported": lambda: True,
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "memory_reserved": lambda device=None: 0,
        "max_memory_reserved": lambda device=None: 0,
        "memory_stats": lambda device=None: {},
        "memory_summary": lambda device=None, abbreviated=False: LABEL,
        "reset_peak_memory_stats": lambda device=None: None,
        "reset_accumulated_memory_stats": lambda device=None: None,
        "empty_cache": lambda: None,
        "get_dynamo_metrics": _dynamo_metrics,
        "reset_dynamo_metrics": COUNTS.graphs.clear,
    }
    # Not April's: accelerate 1.15, checkpointing.py, calls the first two.
    missing: dict[str, Callable[..., Any]] = {
        "get_rng_state_all": lambda: [GENERATOR.get_state()],
        "set_rng_state_all": lambda states: GENERATOR.set_state(states[0]),
        "mem_get_info": lambda device=None: (_properties().total_memory,) * 2,
    }
    members |= {name: _warned(name, member) for name, member in missing.items()}
    module = ModuleType(f"torch.{DEVICE}", LABEL)
    module.__dict__.update(members)
    return module


def _torch_neuronx(device_module: ModuleType) -> ModuleType:
    """Build the package that programs import to register the device."""
    module = ModuleType(_REAL, LABEL)
    module.__dict__.update({name: getattr(device_module, name) for name in _IN_BOTH})
    module.__dict__.update(
        __version__="0+pretend",
        __spec__=importlib.util.spec_from_loader(_REAL, None),
        is_neuron_runtime_initialized=lambda: RUNTIME.is_initialized,
        get_fallback_ops=lambda: list(COUNTS.cpu_fallbacks.elements()),
        clear_op_tracking=lambda: COUNTS.cpu_fallbacks.clear(),
    )
    return module


def register(environment: MutableMapping[str, str], *, report: bool) -> None:
    """Add the device, its collectives and ``torch_neuronx`` to PyTorch."""
    if _REAL in sys.modules:
        return
    if importlib.util.find_spec(_REAL) is not None:
        raise RuntimeError("torch_neuronx is installed: there is nothing to emulate")
    RUNTIME.environment = environment
    device_module = _torch_neuron()
    _setup_privateuseone_for_python_backend(DEVICE, backend_module=device_module)
    sys.modules[_REAL] = _torch_neuronx(device_module)
    from trainium_emulators.neuron_device import collectives, tensors

    tensors.register()
    collectives.register()
    os.register_at_fork(after_in_child=RUNTIME.after_fork)
    print(f"{LABEL} (trainium_emulators)", file=sys.stderr)
    if report:
        atexit.register(_report)


def _report() -> None:
    print(*(f"{DEVICE} {line}" for line in COUNTS.lines()), sep="\n", file=sys.stderr)
