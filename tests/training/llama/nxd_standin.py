"""What training/backends/nxd.py uses of NxD and torch_xla, on one CPU rank, with real arithmetic.

Parameters of every function are those of typings/ (a test compares them); what each does follows
the sources that the stubs name, for a world of one. Calls are recorded in order.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

CALLS: list[tuple[str, dict[str, Any]]] = []
FAIL_UPLOADS: list[str] = []
"""Reasons with which the next uploads fail."""
BUFFERS: list[Path] = []
"""Where the uploads that failed have left files."""


def _record(name: str, **details: Any) -> None:
    CALLS.append((name, details))


def names() -> list[str]:
    """What was called, in order."""
    return [name for name, _ in CALLS]


# --- torch_xla.core.xla_model ---------------------------------------------------------------------
REDUCE_SUM = "sum"
REDUCE_MAX = "max"


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    return torch.device("cpu")


def all_reduce(
    reduce_type: str,
    inputs: Any,
    scale: float = 1.0,
    groups: Any = None,
    pin_layout: bool = True,
) -> Any:
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


def set_rng_state(seed: int, device: str | None = None) -> None:
    _record("set_rng_state", seed=seed)
    torch.manual_seed(seed)


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    _record("mark_step")


def wait_device_ops(devices: list[str] = []) -> None:  # noqa: B006 - the signature is torch_xla's
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


class ParallelEmbedding(nn.Embedding):
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        init_method: Callable[[Any], Any] = nn.init.normal_,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        shard_across_embedding: bool = False,
        pad: bool = False,
        sequence_parallel_enabled: bool = False,
        tensor_model_parallel_group: Any = None,
        use_spmd_rank: bool = False,
        sequence_dimension: int | None = None,
        tile_cc: bool = False,
        rank_ordering: list[int] | None = None,
        collect_output: bool = True,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, device=device, dtype=dtype)


class ColumnParallelLinear(nn.Linear):
    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        gather_output: bool = True,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        stride: int = 1,
        init_method: Callable[[Any], torch.Tensor] | None = None,
        sequence_parallel_enabled: bool = False,
        sequence_dimension: int | None = None,
        keep_master_weight: bool = False,
        skip_bias_add: bool = False,
        pad: bool = False,
        pad_alignment_size_per_rank: int = 1,
        keep_padded_output: bool = False,
        tensor_model_parallel_group: Any = None,
        reduce_dtype: torch.dtype = torch.float32,
        rank_ordering: list[int] | None = None,
    ) -> None:
        super().__init__(input_size, output_size, bias=bias, device=device, dtype=dtype)
        self.gather_output = gather_output
        self.reduce_dtype = reduce_dtype


class RowParallelLinear(nn.Linear):
    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        input_is_parallel: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        stride: int = 1,
        init_method: Callable[..., Any] | None = None,
        sequence_parallel_enabled: bool = False,
        sequence_dimension: int | None = None,
        keep_master_weight: bool = False,
        skip_bias_add: bool = False,
        pad: bool = False,
        reduce_output: bool = True,
        tensor_model_parallel_group: Any = None,
        reduce_dtype: torch.dtype = torch.float32,
        tile_cc: bool = False,
        rank_ordering: list[int] | None = None,
    ) -> None:
        super().__init__(input_size, output_size, bias=bias, device=device, dtype=dtype)
        self.input_is_parallel = input_is_parallel


def parallel_cross_entropy(
    vocab_parallel_logits: torch.Tensor, target: torch.Tensor, label_smoothing: float = 0.0
) -> torch.Tensor:
    assert vocab_parallel_logits.dtype == torch.float32, "the sum over the vocabulary is in fp32"
    losses = nn.functional.cross_entropy(
        vocab_parallel_logits.flatten(0, 1), target.flatten(), reduction="none"
    )
    return losses.view_as(target)


# --- neuronx_distributed: trainer.py --------------------------------------------------------------
def neuronx_distributed_config(
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    expert_parallel_size: int = 1,
    context_parallel_size: int = 1,
    pipeline_config: dict[str, Any] | None = None,
    optimizer_config: dict[str, Any] | None = None,
    activation_checkpoint_config: Any = None,
    pad_model: bool = False,
    sequence_parallel: bool = False,
    model_init_config: dict[str, Any] | None = None,
    lora_config: Any = None,
    mixed_precision_config: dict[str, Any] | None = None,
    sequential_move_factor: int = 11,
    lnc_size: int = 1,
) -> dict[str, Any]:
    config = dict(locals())
    _record("neuronx_distributed_config", **config)
    return config


def initialize_parallel_model(
    nxd_config: dict[str, Any],
    model_fn: Callable[..., nn.Module],
    include_buffers: bool = False,
    *model_args: Any,
    **model_kwargs: Any,
) -> nn.Module:
    model = model_fn(*model_args, **model_kwargs)
    assert all(parameter.is_meta for parameter in model.parameters()), "no memory before its turn"
    assert not any(buffer.is_meta for buffer in model.buffers()), "buffers are never filled"
    # model_utils.py, reinit_model: module by module, parameters as they are typed, on the host.
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

    def __init__(
        self, parameters: Any, optimizer_class: Any, max_norm: float, save: bool, **defaults: Any
    ) -> None:
        super().__init__(parameters, defaults)
        self._class, self._defaults, self._max_norm, self._save = (
            optimizer_class,
            defaults,
            max_norm,
            save,
        )
        self.grad_norm = torch.zeros(())
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.register_post_accumulate_grad_hook(self._accumulate)
        self._init_zero()

    def _accumulate(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        main: torch.Tensor | None = getattr(parameter, "main_grad", None)
        fresh = parameter.grad.float()
        parameter.main_grad = fresh if main is None else main + fresh  # type: ignore[attr-defined]
        parameter.grad = None

    def _init_zero(self) -> None:
        groups = []
        self._pairs = []
        for group in self.param_groups:
            masters = [nn.Parameter(p.detach().float().clone()) for p in group["params"]]
            self._pairs += zip(group["params"], masters, strict=True)
            groups.append({**group, "params": masters})
        self.base = self._class(groups, **self._defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for mine, base in zip(self.param_groups, self.base.param_groups, strict=True):
            base.update({key: value for key, value in mine.items() if key != "params"})
        for parameter, master in self._pairs:
            master.grad = parameter.main_grad.clone()  # type: ignore[attr-defined]
        self.grad_norm = nn.utils.clip_grad_norm_([m for _, m in self._pairs], self._max_norm)
        self.base.step()
        self._gather()

    @torch.no_grad()
    def _gather(self) -> None:
        for parameter, master in self._pairs:
            parameter.copy_(master)

    def zero_grad(self, set_to_none: bool = False) -> None:
        for parameter, _ in self._pairs:
            parameter.main_grad = torch.zeros(parameter.shape)  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"base_state": self.base.state_dict()["state"]}
        if self._save:
            state["sharded_master_weights"] = [master.detach() for _, master in self._pairs]
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # As in torch_xla: masters are cut anew from the model as it is now.
        self._init_zero()
        base = self.base.state_dict()
        base["state"] = state_dict["base_state"]
        self.base.load_state_dict(base)
        for index, (_, master) in enumerate(self._pairs):
            if "sharded_master_weights" in state_dict:
                master.copy_(state_dict["sharded_master_weights"][index])
        self._gather()


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
    return _Zero1(
        parameters,
        optimizer_class,
        # NxD drops optimizer_config["max_grad_norm"] here; this default is torch_xla's.
        max_norm=defaults.pop("max_norm", 1.0),
        save=mixed["use_master_weights_in_ckpt"],
        **defaults,
    )


# --- neuronx_distributed.trainer.checkpoint -------------------------------------------------------
class CheckpointIOState:
    def __init__(self, async_save: bool = False) -> None:
        self._async_save = async_save
        self._save_task: concurrent.futures.Future[Any] | None = None
        self._executor = concurrent.futures.ThreadPoolExecutor(max_workers=1)

    def wait_all(self) -> None:
        raise AssertionError("there is no group any more when a process ends")


def save_checkpoint(
    checkpoint_dir_str: str,
    tag: str,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    user_content: Any = None,
    num_workers: int = 8,
    use_xser: bool = False,
    num_kept_ckpts: int | None = None,
    async_save: bool = False,
    zero1_optimizer: bool = False,
    use_zero1_dcp: bool = False,
    avoid_saving_lower_precision_weights: bool = False,
) -> None:
    _record("save_checkpoint", directory=checkpoint_dir_str, tag=tag, async_save=async_save)
    names = vars(sys.modules["neuronx_distributed.trainer.checkpoint"])
    if names["g_iostate"] is None:
        created = CheckpointIOState(async_save)
        names["g_iostate"] = created
        atexit.register(CheckpointIOState.wait_all, created)
    state: CheckpointIOState = names["g_iostate"]
    assert state._async_save
    assert state._save_task is None, "begin() would look for torn checkpoints and delete them"
    folder = Path(checkpoint_dir_str) / tag
    contents = {
        folder / "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt": optimizer.state_dict(),
        folder / "model/dp_rank_00_tp_rank_00_pp_rank_00.pt": model.state_dict(),
        folder / "user_content.pt": user_content,
    }
    buffers = Path(vars(sys.modules["neuronx_distributed.trainer.checkpoint_storage"])["SHM_PATH"])
    copies = {path: _copied(content) for path, content in contents.items()}

    def write() -> None:
        if FAIL_UPLOADS:
            (buffers / "tmp0").write_bytes(b"left behind")
            BUFFERS.append(buffers)
            raise OSError(FAIL_UPLOADS.pop())
        for path, content in copies.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(content, path)

    state._save_task = state._executor.submit(write)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value


def load_checkpoint(
    path: str,
    tag: str | None = None,
    model: nn.Module | None = None,
    optimizer: Any = None,
    scheduler: Any = None,
    num_workers: int = 8,
    strict: bool = True,
    use_zero1_dcp: bool = False,
) -> Any:
    _record("load_checkpoint", path=path, tag=tag)
    assert tag is not None
    assert model is not None
    name = "dp_rank_00_tp_rank_00_pp_rank_00.pt"
    # The optimizer first, as NxD does since 0.15.
    optimizer.load_state_dict(torch.load(Path(path) / tag / "optim" / name, weights_only=False))
    model.load_state_dict(torch.load(Path(path) / tag / "model" / name), strict=strict)
    content = Path(path) / tag / "user_content.pt"
    assert content.is_file(), "S3 tells a role that may not list everything 403 of what is missing"
    return torch.load(content)


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
        save_checkpoint,
        load_checkpoint,
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
    "neuronx_distributed.utils": [],
    "neuronx_distributed.utils.model_utils": [get_platform_lnc],
    "neuronx_distributed.trainer": [],
    "neuronx_distributed.trainer.checkpoint_storage": [],
    "neuronx_distributed.trainer.checkpoint": [CheckpointIOState],
}


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make them importable, for one test."""
    CALLS.clear()
    FAIL_UPLOADS.clear()
    BUFFERS.clear()
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
    modules["neuronx_distributed.trainer.checkpoint"].__dict__["g_iostate"] = None
    modules["neuronx_distributed.trainer.checkpoint_storage"].__dict__["SHM_PATH"] = "/dev/shm"
