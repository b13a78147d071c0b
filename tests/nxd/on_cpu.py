"""Run the real neuronx_distributed on this machine's CPU, in every process of a job.

``install`` imports nothing; it hooks later imports. It replaces only what a machine without Neuron
cannot have:

- Neuron's binary packages (torch_neuronx, neuronxcc, nki, nkilib, libneuronxla). NxD imports names
  of them that training never calls: whatever is taken from such a package raises when it is called.
- ``neuronx_distributed.trace``: inference, which subclasses classes of Neuron's torch.
- torch_xla's device, which becomes the CPU, and its collectives, which become gloo's, over the same
  replica groups. Arithmetic is then torch's, eager and in bf16 where the backend selects it.
- The host seen by the launcher's preflight: a trn1.32xlarge.

NxD's layers, mappings, loss, ZeRO-1 optimizer, gradient norm, activation recomputation and process
groups are the real ones, and so is torch_xla's optimizer below NxD's. Not tested is what exists
only compiled: neuronx-cc's fusion and rounding, and the device's collectives.

**Inside a Neuron image** the same holds. Its real torch_neuronx and libneuronxla are hidden in the
same way, so that torch_xla, which would otherwise hand the device over to them as it is imported
(``_aws_ec2_inf_trn_init``), takes the CPU by ``PJRT_DEVICE=CPU``, and torch loads no backend by
itself (``TORCH_DEVICE_BACKEND_AUTOLOAD=0``; both are set by ``environment``). The installed NxD is
used where ``NXD_SOURCE`` is not set. It needs no free NeuronCore and touches none.
"""

from __future__ import annotations

import collections
import importlib
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.nxd import faults, gloo

ROOT = Path(__file__).resolve().parents[2]
ENV_SOURCE = "NXD_SOURCE"
"""The folder that holds the package ``neuronx_distributed``; without it the installed one."""
INSTANCE_TYPE, RELEASE = "trn1.32xlarge", "2.28.0"
"""What jobs of the tests believe to run on."""

_ABSENT = ("torch_neuronx", "neuronxcc", "nki", "nkilib", "neuronx_distributed.trace")
_HIDDEN = ("libneuronxla",)
"""torch_xla looks for it; finding it means Neuron devices."""


def environment(*, lazy: bool = False) -> dict[str, str]:
    """Return the additional environment of a process that runs NxD on the CPU.

    ``lazy`` leaves torch_xla as it is: tensors are recorded and compiled, on one rank.
    """
    return {
        "PYTHONPATH": ":".join(str(path) for path in (ROOT, ROOT / "tests" / "nxd" / "site")),
        "PJRT_DEVICE": "CPU",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "XLA_REGISTER_INSTALLED_PLUGINS": "0",
        # NxD then makes gloo groups itself (parallel_state.py, _build_and_assign_groups).
        **({} if lazy else {"NXD_CPU_MODE": "1"}),
        **({ENV_SOURCE: source} if (source := os.environ.get(ENV_SOURCE)) else {}),
    }


def process_environment(home: Path, *, lazy: bool = False) -> dict[str, str]:
    """Return the full environment of a process that a test starts."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **environment(lazy=lazy),
    }


def install() -> None:
    """Install the replacements before torch_xla or NxD is imported."""
    sys.meta_path.insert(0, _Finder(os.environ.get(ENV_SOURCE)))


class _Absent(ModuleType):
    """A module whose names can all be imported but not called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        return _refusing(f"{self.__name__}.{name}")


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{name} was called, and there is no Neuron here")

    return refuse


class _AbsentLoader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_ANSWERS.get(module.__name__, {}))


class _Patched(importlib.abc.Loader):
    """Loader that patches the module after ``loader``."""

    def __init__(self, loader: Any, patch: Callable[[Any], None]) -> None:
        self._loader, self._patch = loader, patch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch(module)

    def __getattr__(self, name: str) -> Any:
        # The sources, for tracebacks and inspect.
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, source: str | None) -> None:
        self._source = source
        lazy = "NXD_CPU_MODE" not in os.environ
        self._patches = _ANYWHERE if lazy else {**_ANYWHERE, **_EAGER}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if _is_below(name, _HIDDEN):
            raise ModuleNotFoundError(f"{name} is hidden: this process runs on the CPU", name=name)
        if _is_below(name, _ABSENT):
            return importlib.machinery.ModuleSpec(name, _AbsentLoader(), is_package=True)
        if name == "neuronx_distributed" and self._source is not None:
            # Only that package: the folder may be another environment's site-packages.
            path = [self._source]
        elif name not in self._patches:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and name in self._patches:
            spec.loader = _Patched(spec.loader, self._patches[name])
        return spec


def _is_below(name: str, packages: Sequence[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


class _CollectivesConfig:
    """Return pairs for ring attention, which NxD requests but nothing here uses."""

    def __init__(self, **unused: Any) -> None:
        self.rank_src_tgt_pairs: dict[int, list[Any]] = collections.defaultdict(list)


def _nki_jit(**settings: Any) -> Callable[[Any], Any]:
    """Decorates kernels, as NxD 0.17.0 is imported (mappings.py): sequence parallelism has some."""
    return lambda kernel: _refusing(kernel.__name__)


_ANSWERS: Mapping[str, Mapping[str, Any]] = {
    # Determines neighbouring ranks: at a degree of 4 on trn1 every eighth core of a node.
    "torch_neuronx.utils": {"get_platform_target": lambda *args, **kwargs: "trn1"},
    "torch_neuronx.xla_impl.ops": {"nki_jit": _nki_jit},
    "neuronxcc.nki._pre_prod_kernels.collectives": {"CollectivesConfig": _CollectivesConfig},
}
"""What NxD does call as it is imported or set up."""


def _patch_xla_model(xm: Any) -> None:
    import torch

    cpu = torch.device("cpu")
    xm.xla_device = lambda *args, **kwargs: cpu
    # Nothing is recorded, so there is nothing to run.
    xm.mark_step = xm.wait_device_ops = xm.unlazy = lambda *args, **kwargs: None
    xm.set_rng_state = lambda seed, device=None: torch.manual_seed(seed)
    gloo.replace_collectives(xm)


def _patch_runtime(xr: Any) -> None:
    import torch.distributed as dist

    def local_rank() -> int:
        return int(os.environ.get("LOCAL_RANK", dist.get_rank()))

    xr.global_ordinal = lambda: dist.get_rank()
    xr.local_ordinal = local_rank
    xr.world_size = xr.global_device_count = lambda: dist.get_world_size()
    xr.local_process_count = lambda: int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))


def _patch_torch_xla(torch_xla: Any) -> None:
    torch_xla.sync = lambda *args, **kwargs: None
    torch_xla.device = lambda *args, **kwargs: torch_xla.core.xla_model.xla_device()


def _patch_zero1(module: Any) -> None:
    optimizer = module.ZeroRedundancyOptimizer
    # It asserts that parameters are on an XLA device; all else is as it is, super() not used.
    source = inspect.getsource(optimizer._shard_parameters)
    names = dict(vars(module))
    exec(textwrap.dedent(source).replace("assert self.device.type == 'xla'", "pass"), names)
    optimizer._shard_parameters = names["_shard_parameters"]


def _patch_comm(comm: Any) -> None:
    comm.dist = gloo.WithReplicaGroups()
    comm.cpu_reduce_scatter = gloo.noted_reduce_scatter(comm.cpu_reduce_scatter)


def _patch_parallel_utils(utils: Any) -> None:
    utils.is_pjrt_device = lambda: True


def _patch_model_utils(utils: Any) -> None:
    utils.get_platform_lnc = lambda: 1


def _patch_host(host: Any) -> None:
    """Return a healthy host, whatever this machine is."""
    from trainium_catalogue.instances import INSTANCE_TYPES
    from trainium_catalogue.releases import NEURON_RELEASES

    kind = INSTANCE_TYPES[INSTANCE_TYPE]
    found = {
        "num_neuron_devices": kind.num_neuron_devices,
        "num_efa_devices": kind.num_efa_interfaces,
        "num_efa_interfaces": kind.num_efa_interfaces,
        "num_efa_domains": kind.num_efa_interfaces,
        "driver_version": NEURON_RELEASES[RELEASE].driver_version,
        "memlock_bytes": None,
        "max_open_files": 65536,
        "shared_memory_mib": kind.shared_memory_mib,
        "free_disk_gib": 100.0,
    }
    for name, value in found.items():
        setattr(host.Host, name, lambda self, value=value: value)


_ANYWHERE: Mapping[str, Callable[[Any], None]] = {
    "neuronx_distributed.parallel_layers.utils": _patch_parallel_utils,
    "neuronx_distributed.utils.model_utils": _patch_model_utils,
    "training.core.host": _patch_host,
    "training.checkpoint.folders": faults.hold_commit,
}
_EAGER: Mapping[str, Callable[[Any], None]] = {
    "torch_xla": _patch_torch_xla,
    "torch_xla.core.xla_model": _patch_xla_model,
    "torch_xla.runtime": _patch_runtime,
    "torch_xla.distributed.zero_redundancy_optimizer": _patch_zero1,
    "neuronx_distributed.parallel_layers.comm": _patch_comm,
}
"""By module, what is done to it as soon as it has been imported."""
