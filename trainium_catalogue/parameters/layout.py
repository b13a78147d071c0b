"""How NeuronX Distributed divides a Llama's layers, and what it computes a second time.

Both are decided by a run's parameters and the arithmetic of its plan, so the graphs that
``--compile`` makes are those of the run, on any type of instance.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.models.presets import Family, ModelShape
from trainium_catalogue.parameters.attention import uses_flash
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.plan import GIB, TrainingPlan

_BF16, _FP32 = 2, 4
_RANK_BYTES = min(
    GIB * kind.hbm_gib_per_device * kind.num_neuron_devices // kind.num_logical_cores
    for kind in INSTANCE_TYPES.values()
)
"""Memory of a rank, of the type that has least."""
FILLED = 0.75
"""Part of it that a plan may fill: the rest is the compiler's, for its copies and collectives."""


class Recompute(StrEnum):
    """What the backward pass computes again; the first two are values of ``recompute``."""

    ATTENTION = "attention"
    """Attention's core, if it keeps its scores, and the gated activation."""
    LAYERS = "layers"
    """All of a layer."""
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the ranks of a model share and compute its layers."""

    degree: int
    """Ranks that share a layer."""
    sequence_parallel: bool
    """Norms and residual sums are divided too, by the sequence."""
    fused: bool
    """Projections of the same input are one product, and share its collectives."""
    flash: bool
    """Attention is Neuron's kernel."""
    obstacle: str | None = None
    """Why it is not, unless that was asked for."""
    recompute: Recompute

    @staticmethod
    def choose(values: Mapping[str, Value], plan: TrainingPlan) -> "Layout":
        """Decide by the parameters of a Llama's workload, and by memory where they leave it."""
        degree = plan.tensor_parallel
        assert isinstance(plan.shape, ModelShape), plan.shape
        flash, obstacle = uses_flash(values, plan.shape)
        layout = Layout(
            degree=degree,
            sequence_parallel=bool(values["sequence-parallel"])
            and degree > 1
            and plan.seq_len % degree == 0,
            fused=bool(values["fused-projections"]),
            flash=flash,
            obstacle=obstacle,
            recompute=Recompute.NOTHING,
        )
        if not values["activation-checkpointing"]:
            return layout
        layout = replace(layout, recompute=Recompute.ATTENTION)
        wanted = str(values["recompute"])
        if wanted == "auto":
            needed = plan.state_bytes_per_rank + activation_bytes(plan, layout)
            wanted = "attention" if needed <= FILLED * _RANK_BYTES else "layers"
        return replace(layout, recompute=Recompute(wanted))

    def describe(self) -> str:
        """List what was decided, for the log."""
        again = {
            Recompute.LAYERS: "whole layers are computed again",
            Recompute.ATTENTION: "gated activations are computed again"
            if self.flash
            else "attention and gated activations are computed again",
            Recompute.NOTHING: "nothing is computed again",
        }[self.recompute]
        reason = f" ({self.obstacle})" if self.obstacle and not self.flash else ""
        return ", ".join(
            (
                "sequences divided" if self.sequence_parallel else "sequences whole",
                f"projections {'fused' if self.fused else 'apart'}",
                f"{'flash' if self.flash else 'eager'} attention{reason}",
                again,
            )
        )


def activation_bytes(plan: TrainingPlan, layout: Layout) -> int:
    """Estimate an upper bound on one micro-batch's peak on one rank, beside the weights.

    It counts what autograd saves, and what passes while nothing is known to be fused or computed in
    place; the compiler does both. What is not computed again stays: of whole layers their inputs,
    otherwise the results in a layer.
    """
    shape, degree = plan.shape, plan.tensor_parallel
    assert isinstance(shape, ModelShape), shape
    tokens = plan.micro_batch * plan.seq_len
    whole = tokens * shape.hidden_size * _BF16
    hidden = whole // degree if layout.sequence_parallel else whole
    local = tokens * shape.attention_size // degree * _BF16
    keys = tokens * shape.num_key_value_heads * shape.head_size // degree * _BF16
    wide = tokens * shape.intermediate_size // degree * _BF16
    heads = shape.num_attention_heads // degree
    square = plan.micro_batch * plan.seq_len**2
    # Eager attention has its scores in bf16 and, as the softmax's result, in fp32; the kernel
    # keeps a sum of each head.
    scores = 0 if layout.flash else heads * square * (_BF16 + _FP32)
    # One for all layers, made in fp32.
    mask = 0 if layout.flash else square * (_BF16 + _FP32)
    sums = tokens * heads * _FP32 if layout.flash else 0
    # A norm saves its input and its scale in fp32, what it multiplies with its weight, and its
    # result, which is the input of a projection.
    norm = hidden * (_FP32 + 2 * _BF16) // _BF16 + tokens * _FP32
    # Two norms; queries, keys and values before and after the rotation, and the attention's
    # result; gate, up and their product.
    layer = 2 * norm + 6 * local + 3 * wide + sums
    if shape.family is Family.QWEN3:
        # The same norm of each head's queries and keys, whose results are counted above.
        layer += (local + keys) * (_FP32 + _BF16) // _BF16
        layer += (local + keys) // shape.head_size * _FP32 // _BF16
    # The activation, and what attention has made.
    again = wide + scores
    if plan.lora is not None:
        # What each adapter has between its matrices, and the sums of their results.
        between = tokens * plan.lora.rank * _BF16
        layer += len(plan.lora.targets) * between
        again += 2 * (wide + local)
    # An input and an output of projections with all of the sequence, where it is divided.
    gathered = 2 * whole if layout.sequence_parallel else 0
    # Logits and their gradient in bf16; in fp32 logits, softmax and gradient.
    head = tokens * shape.vocab_size // degree * (2 * _BF16 + 3 * _FP32)
    kept = {
        Recompute.LAYERS: hidden,
        Recompute.ATTENTION: layer,
        Recompute.NOTHING: layer + again,
    }[layout.recompute]
    # A layer's backward pass needs about as much again as its forward pass has made.
    passing = {
        Recompute.LAYERS: 2 * (layer + again),
        Recompute.ATTENTION: layer + 2 * again,
        Recompute.NOTHING: layer + again,
    }[layout.recompute]
    # The last norm is the head's.
    return mask + shape.num_hidden_layers * kept + gathered + max(passing, norm + head)
