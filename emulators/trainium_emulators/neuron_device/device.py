"""The device's runtime in this process, and ``torch.neuron``, the module that programs call."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, MutableMapping
from types import ModuleType
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


class Runtime:
    """Stands for the Neuron runtime of this process, which is bound to one core for good."""

    def __init__(self) -> None:
        self.environment: MutableMapping[str, str] = {}
        self.is_initialized = self.has_had_group = self.in_forked_process = False
        self._bound: int | None = None

    @property
    def local_rank(self) -> int:
        """Index of this process's device."""
        if self._bound is not None:
            return self._bound
        return int(self.environment.get("LOCAL_RANK", 0))

    def start(self) -> None:
        """Initialize the runtime, as the first tensor on the device does."""
        if not self.is_initialized:
            rules.check_fork(self)
            self.is_initialized = True

    def bind(self, rank: int) -> None:
        """Bind this process to a core, as the first process group does."""
        rules.check_first_group(self, self.environment)
        self._bound = int(self.environment.get("LOCAL_RANK", rank))
        self.environment.setdefault("NEURON_RT_VISIBLE_CORES", str(self._bound))
        self.has_had_group = True
        self.start()

    def after_fork(self) -> None:
        """Mark a child of a process that uses the device."""
        self.in_forked_process, self.is_initialized = self.is_initialized, False


RUNTIME = Runtime()


class NeuronStream:
    """A queue of the device; everything is done when a call returns."""

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
    """A point in a queue."""

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
def _unchanged(selected: object = None) -> Iterator[None]:
    """Select a device or a stream for a block; there is only one."""
    yield


def _set_device(device: int | torch.device | str) -> None:
    found = device if isinstance(device, int) else torch.device(device).index
    if found is not None:
        rules.check_set_device(RUNTIME, found)


def _synchronize(device: object = None) -> None:
    COUNTS.host_sync("synchronize")


def _torch_neuron() -> ModuleType:
    """Make ``torch.neuron``, with the members that April's has and PyTorch's own code calls."""
    # The Python interface for back-ends knows a single device, whose index is 0.
    members: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: RUNTIME.is_initialized,
        "init": RUNTIME.start,
        "_is_in_bad_fork": lambda: RUNTIME.in_forked_process,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": _set_device,
        "device": _unchanged,
        "get_device_name": lambda device=0: LABEL,
        "synchronize": _synchronize,
        "Stream": NeuronStream,
        "Event": NeuronEvent,
        "stream": _unchanged,
        "current_stream": lambda device=None: NeuronStream(),
        "default_stream": lambda device=None: NeuronStream(),
        "set_stream": lambda stream: None,
        "manual_seed": lambda seed: None,  # torch.manual_seed has seeded the CPU's generator
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "get_amp_supported_dtype": lambda: [torch.float32, torch.float16, torch.bfloat16],
        "is_bf16_supported": lambda: True,
        "mem_get_info": lambda device=None: (_HBM_BYTES, _HBM_BYTES),
        "memory_allocated": lambda device=None: 0,
        "memory_reserved": lambda device=None: 0,
        "empty_cache": lambda: None,
    }
    made = ModuleType(f"torch.{DEVICE}", LABEL)
    made.__dict__.update(members)
    return made


def _torch_neuronx() -> ModuleType:
    """Make the package that programs import to register the device."""
    made = ModuleType(_REAL, LABEL)
    made.__dict__.update(
        __version__="0+pretend",
        __spec__=importlib.util.spec_from_loader(_REAL, None),
        is_neuron_runtime_initialized=lambda: RUNTIME.is_initialized,
    )
    return made


def register(environment: MutableMapping[str, str], *, report: bool) -> None:
    """Give PyTorch the device, its collectives and ``import torch_neuronx``."""
    if _REAL in sys.modules:
        return
    if importlib.util.find_spec(_REAL) is not None:
        raise RuntimeError("torch_neuronx is installed: there is nothing to pretend")
    RUNTIME.environment = environment
    _setup_privateuseone_for_python_backend(DEVICE, backend_module=_torch_neuron())
    sys.modules[_REAL] = _torch_neuronx()
    from trainium_emulators.neuron_device import collectives, tensors

    tensors.register()
    collectives.register()
    os.register_at_fork(after_in_child=RUNTIME.after_fork)
    print(f"{LABEL} (trainium_emulators)", file=sys.stderr)
    if report:
        atexit.register(_report)


def _report() -> None:
    print(*(f"{DEVICE} {line}" for line in COUNTS.lines()), sep="\n", file=sys.stderr)
