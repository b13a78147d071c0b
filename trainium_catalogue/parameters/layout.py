"""The layout of a decoder: the sharing of layers among ranks, and their recomputation.

With TorchNeuron, projections are never fused, and attention is torch's. The layout depends only on
a run's parameters and its plan's arithmetic, so ``--compile`` compiles the run's own graphs, on any
instance type.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from trainium_catalogue.instances import INSTANCE_TYPES, InstanceType
from trainium_catalogue.models.presets import Family, ModelShape
from trainium_catalogue.parameters.attention import uses_flash
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.plan import GIB, TrainingPlan
from trainium_catalogue.releases import NEURON_RELEASES, TORCH_NEURON_RELEASE, TorchBackend

_BF16, _FP32 = 2, 4
_RANK_BYTES = min(
    GIB * kind.hbm_gib_per_device * kind.num_neuron_devices // kind.num_logical_cores
    for kind in INSTANCE_TYPES.values()
)
"""Memory of a rank, on the instance type with the least."""
FILLED = 0.75
"""Fraction of a rank's memory for a plan; the rest is for the compiler's copies and collectives."""


class Recompute(StrEnum):
    """Scope of recomputation; all but ``NOTHING`` are values of the parameter ``recompute``."""

    ATTENTION = "attention"
    """Attention's core, if it stores its scores, and the gated activation."""
    LAYERS = "layers"
    """Whole layers."""
    SELECTIVE = "selective"
    """Everything but matrix products and attention; not with NeuronX Distributed."""
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the ranks of a model share and compute its layers."""

    degree: int
    """Ranks that share a layer."""
    sequence_parallel: bool
    """True if norms and residual sums are split along the sequence."""
    fused: bool
    """True if projections of the same input are one product with shared collectives."""
    flash: bool
    """True if attention is Neuron's kernel."""
    obstacle: str | None = None
    """Why Neuron's kernel cannot compute the attention; None if it can."""
    recompute: Recompute

    @staticmethod
    def choose(values: Mapping[str, Value], plan: TrainingPlan) -> "Layout":
        """Choose a layout from a decoder's parameters and, for ``auto``, its memory needs."""
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
        recompute = str(values["recompute"])
        if recompute == "auto":
            needed = plan.state_bytes_per_rank + activation_bytes(plan, layout)
            recompute = "attention" if needed <= FILLED * _RANK_BYTES else "layers"
        return replace(layout, recompute=Recompute(recompute))

    def describe(self) -> str:
        """Describe the layout, for the log."""
        recomputed = {
            Recompute.LAYERS: "whole layers are recomputed",
            Recompute.SELECTIVE: "everything except matrix products and attention is recomputed",
            Recompute.ATTENTION: "gated activations are recomputed"
            if self.flash
            else "attention and gated activations are recomputed",
            Recompute.NOTHING: "nothing is recomputed",
        }[self.recompute]
        reason = f" ({self.obstacle})" if self.obstacle and not self.flash else ""
        return ", ".join(
            (
                "sequence parallelism" if self.sequence_parallel else "no sequence parallelism",
                f"projections {'fused' if self.fused else 'separate'}",
                f"{'flash' if self.flash else 'eager'} attention{reason}",
                recomputed,
            )
        )


def check_backend(values: Mapping[str, Value], backend: TorchBackend) -> None:
    """Refuse what a release's backend does not support; ``ValueError`` names alternatives."""
    recompute = values.get("recompute")
    if backend is TorchBackend.TORCH_NEURON and recompute == Recompute.ATTENTION:
        raise ValueError(
            "recompute=attention needs NeuronX Distributed, but the nodes have TorchNeuron; set "
            "recompute=selective or layers"
        )
    if backend is TorchBackend.XLA and recompute == Recompute.SELECTIVE:
        raise ValueError(
            "recompute=selective needs TorchNeuron, but the nodes have NeuronX Distributed; set "
            "recompute=attention or layers"
        )
    if backend is TorchBackend.XLA and values.get("reshard-after-forward"):
        raise ValueError(
            "reshard-after-forward=true needs TorchNeuron: NeuronX Distributed keeps whole "
            "weights (ZeRO-1); set reshard-after-forward=false, or raise tensor-parallel"
        )


def has_torch_neuron(kind: InstanceType) -> bool:
    """Return whether TorchNeuron supports an instance type."""
    return kind.family in NEURON_RELEASES[TORCH_NEURON_RELEASE].families


def saved_by_resharding(plan: TrainingPlan, kind: InstanceType) -> int:
    """Return the bytes per rank that the plan needs less with ``reshard-after-forward=true``.

    0 where it is set already, has no effect, or is not available.
    """
    if not has_torch_neuron(kind):
        return 0
    resharded = replace(plan, reshard_after_forward=True)
    return max(0, plan.state_bytes_per_rank - resharded.state_bytes_per_rank)


def activation_bytes(plan: TrainingPlan, layout: Layout) -> int:
    """Return an upper bound on one rank's peak memory for a micro-batch, without the weights.

    It counts tensors saved by autograd plus temporaries, and assumes that nothing is fused or
    computed in place, although the compiler does both. Autograd saves the inputs of whole layers,
    or the results within a layer that are not recomputed.
    """
    shape, degree = plan.shape, plan.tensor_parallel
    assert isinstance(shape, ModelShape), shape
    tokens = plan.micro_batch * plan.seq_len
    whole = tokens * shape.hidden_size * _BF16
    hidden = whole // degree if layout.sequence_parallel else whole
    local = tokens * shape.attention_size // degree * _BF16
    every_key = tokens * shape.num_key_value_heads * shape.head_size * _BF16
    # A rank has at least one head.
    keys = max(every_key // degree, tokens * shape.head_size * _BF16)
    wide = tokens * shape.intermediate_size // degree * _BF16
    heads = shape.num_attention_heads // degree
    square = plan.micro_batch * plan.seq_len**2
    # Eager attention stores its scores in bf16 and the softmax's result in fp32; the kernel
    # stores one sum per head.
    scores = 0 if layout.flash else heads * square * (_BF16 + _FP32)
    # One mask for all layers, computed in fp32.
    mask = 0 if layout.flash else square * (_BF16 + _FP32)
    sums = tokens * heads * _FP32 if layout.flash else 0
    # A norm saves its input and scale in fp32, the normalized input, and its result, the input of
    # a projection.
    norm = hidden * (_FP32 + 2 * _BF16) // _BF16 + tokens * _FP32
    # Two norms; queries, keys and values before and after the rotation, and the attention's
    # result; gate, up and their product.
    layer = 2 * norm + 6 * local + 3 * wide + sums
    if shape.family is Family.QWEN3:
        # Per-head norms of queries and keys, whose results are counted above.
        layer += (local + keys) * (_FP32 + _BF16) // _BF16
        layer += (local + keys) // shape.head_size * _FP32 // _BF16
    # The gated activation, and attention's scores.
    recomputed = wide + scores
    if plan.lora is not None:
        # Each adapter's activation between its matrices, and the sums of their results.
        between = tokens * plan.lora.rank * _BF16
        layer += len(plan.lora.targets) * between
        recomputed += 2 * (wide + local)
    # Inputs and outputs of projections with the whole sequence, if it is split.
    gathered = 2 * whole if layout.sequence_parallel else 0
    if plan.shares_heads:
        gathered += 2 * every_key
    # Logits and their gradient in bf16; logits, softmax and gradient in fp32.
    head = tokens * shape.vocab_size // degree * (2 * _BF16 + 3 * _FP32)
    saved = {
        Recompute.LAYERS: hidden,
        # Queries, keys, values, attention's result and projection, gate and up.
        Recompute.SELECTIVE: 2 * (hidden + local + keys + wide) + sums,
        Recompute.ATTENTION: layer,
        Recompute.NOTHING: layer + recomputed,
    }[layout.recompute]
    # A layer's backward pass needs about as much memory again as its forward pass.
    backward = {
        Recompute.LAYERS: 2 * (layer + recomputed),
        Recompute.SELECTIVE: 2 * (layer + recomputed),
        Recompute.ATTENTION: layer + 2 * recomputed,
        Recompute.NOTHING: layer + recomputed,
    }[layout.recompute]
    # The last norm belongs to the head.
    return mask + shape.num_hidden_layers * saved + gathered + max(backward, norm + head)
