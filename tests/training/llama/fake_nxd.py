"""The parts of NxD and torch_xla used by training/backends/nxd.py, on one real CPU rank.

Functions accept only the arguments passed to them and follow the sources named by the stubs in
typings/, for a world of one. Calls are recorded in order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

CALLS: list[tuple[str, dict[str, Any]]] = []
COMPILATIONS = {"begun": 0, "ended": 0}
"""What torch_xla would have counted."""


def _record(name: str, **details: Any) -> None:
    CALLS.append((name, details))


def names() -> list[str]:
    """Calls, in order."""
    return [name for name, _ in CALLS]


# --- torch_xla.core.xla_model ---------------------------------------------------------------------
REDUCE_SUM = "sum"
REDUCE_MAX = "max"


def xla_device() -> torch.device:
    return torch.device("cpu")


def all_reduce(reduce_type: str, inputs: Any, groups: Any = None, pin_layout: bool = True) -> Any:
    _record("all_reduce", reduce_type=reduce_type, groups=groups)
    return inputs.clone() if isinstance(inputs, torch.Tensor) else inputs


def all_reduce_bucketized_gradients(
    gradients: list[torch.Tensor],
    scale: float,
    groups: list[list[int]] | None,
    pin_layout: bool,
    bucket_cap_mb: int = 0,
) -> None:
    _record("all_reduce_bucketized_gradients", scale=scale, bucket_cap_mb=bucket_cap_mb)
    for gradient in gradients:
        gradient *= scale


def set_rng_state(seed: int) -> None:
    _record("set_rng_state", seed=seed)
    torch.manual_seed(seed)


def mark_step(wait: bool = False) -> None:
    _record("mark_step")


def wait_device_ops() -> None:
    _record("wait_device_ops")


# --- neuronx_distributed.parallel_layers ----------------------------------------------------------
def get_data_parallel_replica_groups() -> list[list[int]]:
    return [[0]]


def get_data_parallel_rank() -> int:
    return 0


def get_tensor_model_parallel_rank() -> int:
    return 0


# --- neuronx_distributed.utils.model_utils --------------------------------------------------------
def get_platform_lnc() -> int:
    return 1


# --- neuronx_distributed.kernels.flash_attn -------------------------------------------------------
def nki_flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    lnc: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    transpose_nki_inputs: bool,
) -> torch.Tensor:
    assert transpose_nki_inputs, "[batch, heads, head, sequence]"
    assert q.shape == k.shape == v.shape, "heads of keys and values are repeated"
    _record("nki_flash_attn_func", lnc=lnc, dropout_p=dropout_p, causal=causal)
    query, key, value = (one.transpose(2, 3) for one in (q, k, v))
    return nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=causal, scale=softmax_scale
    )


class ParallelEmbedding(nn.Embedding):
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        sequence_parallel_enabled: bool,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, device=device, dtype=dtype)
        self.sequence_parallel = sequence_parallel_enabled


class _ParallelLinear(nn.Linear):
    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        sequence_parallel_enabled: bool,
        sequence_dimension: int | None,
        reduce_dtype: torch.dtype,
    ) -> None:
        super().__init__(input_size, output_size, bias=bias, device=device, dtype=dtype)
        self.sequence_parallel = sequence_parallel_enabled
        self.reduce_dtype = reduce_dtype
        if sequence_parallel_enabled:
            assert sequence_dimension == 0, "the embedding exchanges sequence and batch"


class ColumnParallelLinear(_ParallelLinear):
    def __init__(self, *sizes: int, gather_output: bool, **settings: Any) -> None:
        super().__init__(*sizes, **settings)
        self.gather_output = gather_output


class RowParallelLinear(_ParallelLinear):
    def __init__(self, *sizes: int, input_is_parallel: bool, **settings: Any) -> None:
        super().__init__(*sizes, **settings)
        self.input_is_parallel = input_is_parallel


def parallel_cross_entropy(
    vocab_parallel_logits: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    assert vocab_parallel_logits.dtype == torch.float32, "the sum over the vocabulary is in fp32"
    losses = nn.functional.cross_entropy(
        vocab_parallel_logits.flatten(0, 1), target.flatten(), reduction="none"
    )
    return losses.view_as(target)


# --- neuronx_distributed: trainer.py --------------------------------------------------------------
def neuronx_distributed_config(
    *,
    tensor_parallel_size: int,
    lnc_size: int,
    optimizer_config: dict[str, Any],
    mixed_precision_config: dict[str, Any],
    activation_checkpoint_config: Any,
    sequence_parallel: bool,
    model_init_config: dict[str, Any],
) -> dict[str, Any]:
    config = dict(locals())
    _record("neuronx_distributed_config", **config)
    return config


def initialize_parallel_model(
    nxd_config: dict[str, Any], model_fn: Callable[[], nn.Module]
) -> nn.Module:
    model = model_fn()
    assert all(parameter.is_meta for parameter in model.parameters()), "no memory before its turn"
    assert not any(buffer.is_meta for buffer in model.buffers()), "buffers are never filled"
    # model_utils.py, reinit_model: module by module, parameters in their dtype, on the host.
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                empty = torch.empty_like(parameter, device="cpu").fill_(torch.nan)
                module._parameters[key] = nn.Parameter(empty, parameter.requires_grad)
        nxd_config["model_init_config"]["param_init_fn"](module, torch.device("cpu"))
    assert not any(bool(parameter.isnan().any()) for parameter in model.parameters())
    _record("initialize_parallel_model")
    return model.train()


class _Zero1(torch.optim.Optimizer):
    """torch_xla's ZeroRedundancyOptimizer, fp32 master weights and main gradients, of one rank."""

    local_rank = 0

    def __init__(
        self, parameters: Any, optimizer_class: Any, max_norm: float, **defaults: Any
    ) -> None:
        super().__init__(parameters, defaults)
        self._max_norm = max_norm
        self.grad_norm = torch.zeros(())
        groups = []
        for group in self.param_groups:
            masters = [nn.Parameter(p.detach().float().clone()) for p in group["params"]]
            groups.append({**group, "params": masters})
            for parameter in group["params"]:
                parameter.register_post_accumulate_grad_hook(self._accumulate)
        self.base_optimizer = optimizer_class(groups, **defaults)

    def _accumulate(self, parameter: torch.Tensor) -> None:
        assert hasattr(parameter, "main_grad"), "made in the first micro-batch: one more graph"
        assert parameter.grad is not None
        parameter.main_grad += parameter.grad.float()
        parameter.grad = None

    def _pairs(self) -> list[tuple[Any, Any]]:
        return [
            pair
            for mine, base in zip(self.param_groups, self.base_optimizer.param_groups, strict=True)
            for pair in zip(mine["params"], base["params"], strict=True)
        ]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for mine, base in zip(self.param_groups, self.base_optimizer.param_groups, strict=True):
            base.update({key: value for key, value in mine.items() if key != "params"})
        for parameter, master in self._pairs():
            assert parameter.main_grad is master.main_grad
            master.grad = master.main_grad.clone()
        masters = [master for _, master in self._pairs()]
        self.grad_norm = nn.utils.clip_grad_norm_(masters, self._max_norm)
        self.base_optimizer.step()
        self.base_optimizer.zero_grad(set_to_none=True)
        self.allgather_weights_and_update_full_parameter()

    @torch.no_grad()
    def allgather_weights_and_update_full_parameter(self) -> None:
        _record("allgather_weights_and_update_full_parameter")
        for parameter, master in self._pairs():
            assert hasattr(master, "main_grad"), "torch_xla gathers no other weights"
            parameter.copy_(master)

    def zero_grad(self, set_to_none: bool = False) -> None:
        for _, master in self._pairs():
            master.main_grad.zero_()


class _NxDOptimizer:
    """NxD's wrapper of it."""

    def __init__(self, optimizer: _Zero1) -> None:
        self.optimizer = optimizer
        self.step, self.zero_grad = optimizer.step, optimizer.zero_grad

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @property
    def grad_norm(self) -> torch.Tensor:
        return self.optimizer.grad_norm


def initialize_parallel_optimizer(
    nxd_config: dict[str, Any],
    optimizer_class: type[torch.optim.Optimizer],
    parameters: Any,
    **defaults: Any,
) -> Any:
    _record("initialize_parallel_optimizer", optimizer_class=optimizer_class, **defaults)
    assert nxd_config["optimizer_config"]["zero_one_enabled"]
    mixed = nxd_config["mixed_precision_config"]
    assert mixed["use_master_weights"]
    assert mixed["use_fp32_grad_acc"]
    return _NxDOptimizer(
        _Zero1(
            parameters,
            optimizer_class,
            # NxD drops optimizer_config["max_grad_norm"] here; this default is torch_xla's.
            max_norm=defaults.pop("max_norm", 1.0),
            **defaults,
        )
    )


# --- torch_xla.debug.metrics ----------------------------------------------------------------------
def counter_value(name: str) -> int | None:
    assert name == "UncachedCompile"
    return COMPILATIONS["begun"] or None


def metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    assert name == "CompileTime"
    return (COMPILATIONS["ended"], 0.0, []) if COMPILATIONS["ended"] else None


MODULES: dict[str, list[Any]] = {
    "torch_xla": [],
    "torch_xla.core": [],
    "torch_xla.core.xla_model": [
        xla_device,
        all_reduce,
        all_reduce_bucketized_gradients,
        set_rng_state,
        mark_step,
        wait_device_ops,
    ],
    "neuronx_distributed": [
        neuronx_distributed_config,
        initialize_parallel_model,
        initialize_parallel_optimizer,
    ],
    "neuronx_distributed.parallel_layers": [
        ParallelEmbedding,
        ColumnParallelLinear,
        RowParallelLinear,
        parallel_cross_entropy,
    ],
    "neuronx_distributed.parallel_layers.parallel_state": [
        get_data_parallel_rank,
        get_data_parallel_replica_groups,
        get_tensor_model_parallel_rank,
    ],
    "neuronx_distributed.kernels": [],
    "neuronx_distributed.kernels.flash_attn": [nki_flash_attn_func],
    "neuronx_distributed.utils": [],
    "neuronx_distributed.utils.model_utils": [get_platform_lnc],
    "torch_xla.debug": [],
    "torch_xla.debug.metrics": [counter_value, metric_data],
}


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the fakes importable, for one test."""
    CALLS.clear()
    COMPILATIONS.update(begun=0, ended=0)
    modules = {name: ModuleType(name) for name in MODULES}
    for name, contents in MODULES.items():
        for content in contents:
            setattr(modules[name], content.__name__, content)
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(modules[parent], leaf, modules[name])
        monkeypatch.setitem(sys.modules, name, modules[name])
    modules["torch_xla.core.xla_model"].__dict__.update(
        REDUCE_SUM=REDUCE_SUM, REDUCE_MAX=REDUCE_MAX
    )
