"""A rank's memory under the native backend, counted on the real FSDP2 without other ranks."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses import FakeTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from training.backends.base import WeightPart, trainable_parameters
from training.backends.native import NativeBackend
from training.backends.optimizers import (
    ForeachAdamW,
    NamedOptimizer,
    adamw_settings,
    groups_by_decay,
)
from training.core.arguments import parse
from training.core.config import TrainConfig
from training.core.contract import DeviceKind
from training.core.device import EagerDevice
from training.models.llama.data import random_batches
from training.models.llama.network import LlamaNetwork
from trainium_catalogue.parameters.layout import activation_bytes

# Wide layers and short sequences, so that weights outweigh activations.
LAYERS = (
    *("--hidden-size=128", "--intermediate-size=512", "--num-layers=5", "--num-heads=4"),
    *("--seq-len=8", "--micro-batch=1"),
)
LLAMA = ("llama-tiny", *LAYERS, "--vocab-size=256", "--num-kv-heads=4")
SHARED_HEADS = ("llama-tiny", *LAYERS, "--vocab-size=256", "--num-kv-heads=1")
WIDE_ROOT = ("llama-tiny", *LAYERS, "--vocab-size=4096", "--num-kv-heads=4")
TIED = ("pretrain", "--model=qwen3-tiny", *LAYERS, "--vocab-size=256", "--num-kv-heads=4")
ADAPTERS = ("--lora-rank=16", "--init-from=given")
RANKS = 8
RESHARDED = "--reshard-after-forward=true"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Operators are too small for several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors, and their peak.

    Storages are measured after every operator, because FSDP2 frees gathered weights by resizing
    them.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._storages: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # calls again with its local part
        result = op(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            # DTensor computes shapes with fake tensors.
            if isinstance(tensor, torch.Tensor) and not isinstance(tensor, FakeTensor):
                storage = tensor.untyped_storage()
                if storage.device.type != "meta":
                    self._storages[storage._cdata] = storage
        alive = sum(storage.nbytes() for storage in self._storages.values())
        self.peak = max(self.peak, alive)
        return result


class RecordedNetwork(LlamaNetwork):
    """A Llama that records which weights it was asked for."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.parts: list[WeightPart] = []

    def initial_part(self, part: WeightPart) -> torch.Tensor:
        self.parts.append(part)
        return super().initial_part(part)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What a rank has held, in bytes."""

    config: TrainConfig
    build: int
    """Peak while the model is built, with the optimizer."""
    steps: int
    """Peak while it trains."""
    parts: list[WeightPart]


def counted(*words: str, rank: int = 0, steps: int = 1) -> Counted:
    """Build a model and train for some steps as one rank; nothing is sent."""
    config = replace(TrainConfig.from_values(parse(list(words)).values, RANKS), mixed=True)
    network = RecordedNetwork(config)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=RANKS)
    try:
        with PeakMemory() as memory:
            device = EagerDevice(DeviceKind.CPU, torch.device("cpu"))
            backend = NativeBackend(config, device, network)
            backend._mixed = True
            backend.build()
            build, memory.peak = memory.peak, 0
            # The device's optimizer.
            del backend._optimizer
            named = trainable_parameters(backend._model).items()
            groups, settings = groups_by_decay(named, config), adamw_settings(config)
            backend._optimizer = NamedOptimizer(ForeachAdamW(groups, **settings))
            vocab_size, seq_len = config.shape.vocab_size, config.plan.seq_len
            batch = random_batches(vocab_size=vocab_size, seed=1, seq_len=seq_len)
            count = config.plan.accumulation_steps
            for step in range(steps):
                for micro in range(count):
                    tokens = batch(config.positions(step, micro, backend.data_rank))
                    backend.forward_backward(tokens, is_last=micro == count - 1)
                backend.clip_and_step(1e-3)
    finally:
        dist.destroy_process_group()
        # Its entries have this rank's mesh, which equals other ranks'.
        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
    return Counted(config=config, build=build, steps=memory.peak, parts=network.parts)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((*LLAMA, "--tensor-parallel=1"), id="data parallel"),
        pytest.param((*LLAMA, "--tensor-parallel=2"), id="both"),
        pytest.param((*SHARED_HEADS, "--tensor-parallel=2"), id="shared heads"),
        pytest.param((*TIED, "--head-dim=32", "--tensor-parallel=1"), id="tied"),
        pytest.param((*LLAMA, "--tensor-parallel=1", *ADAPTERS), id="adapters"),
    ],
)
def test_no_rank_ever_holds_the_whole_model(words: tuple[str, ...]) -> None:
    found = counted(*words, "--global-batch=8", steps=0)

    plan = found.config.plan
    largest = max(part.whole.numel() for part in found.parts)
    frozen = plan.parameters_per_rank - plan.trained_parameters_per_rank
    shards = 12 * plan.optimizer_parameters_per_rank + 4 * -(-frozen // plan.data_parallel)
    # On the device there are only the shards; on the host, one weight is drawn at a time.
    assert found.build <= shards + 8 * largest + 2**16
    assert found.build < 4 * plan.parameters_per_rank


def test_parameter_with_fewer_rows_than_ranks_is_on_some_of_them() -> None:
    words = (*TIED, "--head-dim=4", "--tensor-parallel=1", "--global-batch=8")
    parts = {rank: counted(*words, rank=rank, steps=0).parts for rank in (3, 4)}

    norms = {
        rank: {tuple(p.size) for p in found if p.name.endswith("q_norm.weight")}
        for rank, found in parts.items()
    }
    assert norms == {3: {(1,)}, 4: {(0,)}}


@pytest.mark.parametrize(
    ("words", "global_batch"),
    [
        pytest.param((*LLAMA, "--tensor-parallel=1"), 8, id="one micro-batch"),
        pytest.param((*LLAMA, "--tensor-parallel=1"), 16, id="two micro-batches"),
        pytest.param((*LLAMA, "--tensor-parallel=2"), 8, id="both, two micro-batches"),
        pytest.param((*WIDE_ROOT, "--tensor-parallel=1"), 8, id="wide root"),
        pytest.param((*TIED, "--head-dim=32", "--tensor-parallel=1"), 16, id="tied"),
        pytest.param((*LLAMA, "--tensor-parallel=1", *ADAPTERS), 16, id="adapters"),
    ],
)
def test_plan_bounds_the_memory_of_resharded_weights(
    words: tuple[str, ...], global_batch: int
) -> None:
    found = counted(*words, f"--global-batch={global_batch}", RESHARDED)

    plan, layout = found.config.plan, found.config.layout
    assert layout is not None
    planned = plan.state_bytes_per_rank + activation_bytes(plan, layout)
    assert 0.7 * planned < found.steps <= planned


def test_resharded_weights_are_freed_in_every_micro_batch() -> None:
    """Otherwise the first backward pass would leave all layers gathered."""
    words = (*LLAMA, "--tensor-parallel=1", f"--global-batch={RANKS * 3}")
    kept, resharded = counted(*words), counted(*words, RESHARDED)
    # A layer in use and two buffers stay, of five layers.
    layers = kept.config.shape.num_parameters - 2 * 256 * 128
    assert kept.steps - resharded.steps > 2 * layers / 5
