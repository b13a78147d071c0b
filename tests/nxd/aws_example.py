"""AWS's example model, at the best settings of its public scripts and options.

``examples/training/llama`` of the repository that NxD comes from, taken by path: sequence parallel
and selective recomputation (``tp_zero1_llama2_7B_hf_pretrain.sh``), flash attention, fused QKV and
transposed inputs of the kernel (defaults of ``tp_zero1_llama_hf_pretrain.py``). Its training script
cannot be imported without a dataset's packages, so its calls of NxD are repeated here.

It is written for transformers 4.48. Of a later one it lacks two docstrings, and a decoder layer
that returns a tuple.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

_CONFIG = Path("tp_zero1_llama_hf_pretrain", "7B_config_llama2")
_SEQ_LEN = 4096
_OPTIONS = {
    # As parsed, and as get_model of the script puts them into the configuration.
    "use_flash_attention": True,
    "transpose_nki_inputs": True,
    "fuse_qkv": True,
    "qkv_linear": False,
    "kv_shared_group_size": 1,
    "sequence_parallel_enabled": True,
    "selective_checkpoint_enabled": True,
}


def lower(example: Path, words: list[str]) -> tuple[str, str]:
    """The texts of its micro-batch and update; ``words`` are ``--name=value`` of its model."""
    import neuronx_distributed as nxd
    import torch
    import torch_xla.core.xla_model as xm

    from tests.nxd.lowering import DEGREE, graphs, zero

    llama = _model_of(example)
    adamw: Any = import_module("neuronx_distributed.utils.adamw_fp32_optim_params")
    settings = nxd.neuronx_distributed_config(
        tensor_parallel_size=DEGREE,
        optimizer_config={"zero_one_enabled": True, "grad_clipping": True, "max_grad_norm": 1.0},
        sequence_parallel=True,
        activation_checkpoint_config=llama.CoreAttention,
        model_init_config={
            "meta_device_init": True,
            # Values are not read; the rotary frequencies are recomputed, as in init_weights.
            "param_init_fn": lambda module, device: (
                llama.init_weights(module, device)
                if not list(module.parameters(recurse=False))
                else zero(module)
            ),
        },
        mixed_precision_config={
            "use_master_weights": True,
            "use_fp32_grad_acc": True,
            "use_master_weights_in_ckpt": False,
        },
    )
    config = _config_of(example, words)
    model = nxd.initialize_parallel_model(settings, lambda: llama.LlamaForCausalLM(config), True)
    decayed: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        decayed["norm" not in name].append(parameter)
    optimizer: Any = nxd.initialize_parallel_optimizer(
        settings,
        adamw.AdamW_FP32OptimParams,
        [
            {"params": decayed[True], "weight_decay": 0.01},
            {"params": decayed[False], "weight_decay": 0.0},
        ],
        lr=3e-4,
        betas=(0.9, 0.999),
        weight_decay=0.01,
    )
    zero1 = optimizer.optimizer
    _make_states(zero1)
    device = xm.xla_device()
    ids = torch.zeros((1, _SEQ_LEN), dtype=torch.int64).to(device)
    running = torch.zeros(1, dtype=torch.double).to(device)
    xm.mark_step()

    def micro_batch() -> Any:
        outputs = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
        outputs.loss.backward()
        return running.add_(outputs.loss.detach())

    def update() -> Any:
        optimizer.step()
        norm = optimizer.grad_norm
        optimizer.zero_grad()
        return norm

    return graphs(micro_batch, update, zero1)


def _model_of(example: Path) -> Any:
    """Import the example's module."""
    modeling: Any = import_module("transformers.models.llama.modeling_llama")
    for name in ("LLAMA_INPUTS_DOCSTRING", "LLAMA_START_DOCSTRING"):
        if not hasattr(modeling, name):
            setattr(modeling, name, "")
    sys.path.insert(0, str(example))
    llama: Any = import_module("modeling_llama_nxd")
    assert isinstance(llama, ModuleType)
    forward = llama.LlamaDecoderLayer.forward

    def in_a_tuple(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = forward(self, *args, **kwargs)
        return found if isinstance(found, tuple) else (found,)

    llama.LlamaDecoderLayer.forward = in_a_tuple
    return llama


def _config_of(example: Path, words: list[str]) -> Any:
    from transformers.models.llama.configuration_llama import LlamaConfig

    config: Any = LlamaConfig.from_pretrained(example / _CONFIG)
    config.use_cache = False
    config.max_position_embeddings = max(config.max_position_embeddings, _SEQ_LEN)
    for name, value in _OPTIONS.items():
        setattr(config, name, value)
    for word in words:
        name, _, number = word.removeprefix("--").partition("=")
        setattr(config, name, int(number))
    config.head_dim = config.hidden_size // config.num_attention_heads
    return config


def _make_states(zero1: Any) -> None:
    """Create the optimizer state of the first steps, for a steady-state step."""
    import torch

    for weights, masters in zip(zero1.param_groups, zero1.base_optimizer.param_groups, strict=True):
        for weight, master in zip(weights["params"], masters["params"], strict=True):
            gradient = torch.zeros(weight.size(), dtype=torch.float32, device=weight.device)
            weight.main_grad = master.main_grad = gradient
            states: dict[str, Any] = {
                name: torch.zeros_like(master) for name in ("exp_avg", "exp_avg_sq")
            }
            zero1.base_optimizer.state[master] = {"step": 1, **states}
