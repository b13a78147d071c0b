"""The layers of Hugging Face's decoders, built from NxD's parallel modules.

Each module keeps the submodules it does not replace, including norms of queries and keys. With
sequence parallelism hidden states are ``[sequence / degree, batch, hidden]``, so that NxD's layers
need not transpose: each rank computes norms and residual sums for its part of the sequence, and a
projection gathers its input and reduce-scatters its output. Otherwise they are ``[batch, sequence,
hidden]``. Attention and loss see whole sequences either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, eager_attention_forward

from trainium_catalogue.parameters.layout import Layout

_META = torch.device("meta")
_SEQUENCE = 0
"""Dimension that sequence parallelism shards."""


def _settings(layout: Layout) -> dict[str, Any]:
    """Return the arguments of every parallel linear module."""
    return {
        "bias": False,
        "dtype": torch.bfloat16,
        "device": _META,
        # The default, fp32, loses the all-reduce of a column-parallel input's gradient: if the
        # dtype differs from the activations', NxD reduces a converted copy and drops it (0.17.0 and
        # 0.18.0, parallel_layers/layers_utils.py, _linear_autograd_bwd_grad_reduce). Elsewhere it
        # sends twice as much data.
        "reduce_dtype": torch.bfloat16,
        "sequence_parallel_enabled": layout.sequence_parallel,
        "sequence_dimension": _SEQUENCE if layout.sequence_parallel else None,
    }


def parallelize_layers(model: Any, layout: Layout) -> None:
    """Replace a meta model's modules that have weight matrices with parallel ones."""
    model.model.embed_tokens = _embedding(model.model.embed_tokens, layout)
    for layer in model.model.layers:
        layer.self_attn = ParallelAttention(layer.self_attn, layout)
        layer.mlp = ParallelMlp(layer.mlp, layout)
    head = model.lm_head
    # Logits stay sharded, as parallel_cross_entropy expects.
    model.lm_head = column_parallel(head.in_features, head.out_features, layout)


def _embedding(module: nn.Embedding, layout: Layout) -> nn.Module:
    from neuronx_distributed.parallel_layers import ParallelEmbedding

    return ParallelEmbedding(
        module.num_embeddings,
        module.embedding_dim,
        device=_META,
        dtype=torch.bfloat16,
        # Without ``sequence_dimension``, NxD also transposes the result to sequence first.
        sequence_parallel_enabled=layout.sequence_parallel,
    )


def column_parallel(inputs: int, outputs: int, layout: Layout) -> nn.Module:
    """Build a projection whose outputs stay sharded over ranks."""
    from neuronx_distributed.parallel_layers import ColumnParallelLinear

    return ColumnParallelLinear(inputs, outputs, gather_output=False, **_settings(layout))


def row_parallel(module: nn.Linear, layout: Layout) -> nn.Module:
    """Build NxD's counterpart of a projection whose inputs are already sharded."""
    from neuronx_distributed.parallel_layers import RowParallelLinear

    return RowParallelLinear(
        module.in_features, module.out_features, input_is_parallel=True, **_settings(layout)
    )


class Projections(nn.Module):
    """Column-parallel projections of the same input."""

    def __init__(self, modules: Mapping[str, nn.Linear], layout: Layout) -> None:
        super().__init__()
        self.sources: dict[str, tuple[str, ...]]
        """Maps each parameter of this module to the names of the weights that it concatenates, in
        order."""
        widths = [module.out_features for module in modules.values()]
        inputs = next(iter(modules.values())).in_features
        self._sizes = [width // layout.degree for width in widths]
        if layout.fused:
            self.fused = column_parallel(inputs, sum(widths), layout)
            self.sources = {"fused.weight": tuple(f"{name}.weight" for name in modules)}
        else:
            self.parts = nn.ModuleList(column_parallel(inputs, width, layout) for width in widths)
            self.sources = {
                f"parts.{index}.weight": (f"{name}.weight",) for index, name in enumerate(modules)
            }

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute this rank's part of each projection."""
        if "fused" in self._modules:
            return tuple(self.fused(states).split(self._sizes, dim=-1))
        return tuple(part(states) for part in self.parts)


class AttentionCore(nn.Module):
    """Attention itself, without parameters, through transformers' attention interface."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        # Read by transformers' implementations.
        self.config, self.layer_idx, self.is_causal = whole.config, whole.layer_idx, True
        self.num_key_value_groups, self.scaling = whole.num_key_value_groups, whole.scaling

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Map ``[batch, heads, sequence, head]`` to ``[batch, sequence, heads, head]``."""
        name = self.config._attn_implementation
        attend: Any = eager_attention_forward if name == "eager" else ALL_ATTENTION_FUNCTIONS[name]
        result: torch.Tensor = attend(
            self, queries, keys, values, mask, dropout=0.0, scaling=self.scaling
        )[0]
        return result


class ParallelAttention(nn.Module):
    """A rank's heads of an attention layer."""

    def __init__(self, whole: Any, layout: Layout) -> None:
        super().__init__()
        self.qkv_proj = Projections(
            {name: getattr(whole, name) for name in ("q_proj", "k_proj", "v_proj")}, layout
        )
        self.o_proj = row_parallel(whole.o_proj, layout)
        # Models such as Qwen3 have one norm for all query heads, and one for all key heads.
        self.q_norm = getattr(whole, "q_norm", None)
        self.k_norm = getattr(whole, "k_norm", None)
        self.core = AttentionCore(whole)
        self._head_size: int = whole.head_dim
        self._sequence_first = layout.sequence_parallel

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None = None,
        **unused: Any,
    ) -> tuple[torch.Tensor, None]:
        """Compute the same as Hugging Face's layer, but without returning attention weights."""
        queries, keys, values = self.qkv_proj(hidden_states)
        queries, keys = apply_rotary_pos_emb(
            self._heads(queries, self.q_norm), self._heads(keys, self.k_norm), *position_embeddings
        )
        result = self.core(queries, keys, self._heads(values), attention_mask)
        if self._sequence_first:
            result = result.transpose(0, 1)
        return self.o_proj(result.flatten(2).contiguous()), None

    def _heads(self, states: torch.Tensor, norm: nn.Module | None = None) -> torch.Tensor:
        """Reshape to ``[batch, heads, sequence, head]``."""
        states = states.view(*states.shape[:-1], -1, self._head_size)
        if norm is not None:
            states = norm(states)
        return states.permute(1, 2, 0, 3) if self._sequence_first else states.transpose(1, 2)


class Gate(nn.Module):
    """The gated activation of an MLP."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Multiply the activated gate by ``up``."""
        result: torch.Tensor = self.activation(gate) * up
        return result


class ParallelMlp(nn.Module):
    """A rank's part of an MLP's inner dimension."""

    def __init__(self, whole: Any, layout: Layout) -> None:
        super().__init__()
        self.gate_up_proj = Projections(
            {name: getattr(whole, name) for name in ("gate_proj", "up_proj")}, layout
        )
        self.down_proj = row_parallel(whole.down_proj, layout)
        self.gate = Gate(whole.act_fn)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Compute the same as Hugging Face's MLP."""
        result: torch.Tensor = self.down_proj(self.gate(*self.gate_up_proj(states)))
        return result
