"""The arithmetic of a training run: a model, a batch and a number of ranks.

The CLI shows it before submitting a job, the trainer logs it, and the full-size dry run compares it
with PyTorch's actual allocations.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainium_catalogue.models.presets import BertShape, ModelShape, Shape, find_model
from trainium_catalogue.parameters.attention import uses_flash
from trainium_catalogue.parameters.lora import Lora
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.training import BERT_FIELDS, DECODER_FIELDS, SHAPE_FIELDS
from trainium_catalogue.releases import TORCH_NEURON_RELEASE
from trainium_catalogue.wording import counted

GIB = 1024**3
BYTES_OF_STATE = 12
"""Bytes per parameter in a checkpoint: fp32 master weight and AdamW's two moments."""
_BF16, _FP32 = 2, 4


def shape_of(values: Mapping[str, Value]) -> Shape:
    """Return the model shape of a training workload's parameters; ``ValueError`` if invalid."""
    if "model" in values:
        shape = find_model(str(values["model"])).shape
        assert isinstance(shape, ModelShape), shape
        return replace(shape, **_sizes(values, DECODER_FIELDS))
    if set(SHAPE_FIELDS) <= set(values):
        return ModelShape(**_sizes(values, SHAPE_FIELDS))
    return BertShape(**_sizes(values, BERT_FIELDS))


def _sizes(values: Mapping[str, Value], fields: Mapping[str, str]) -> dict[str, Any]:
    return {field: int(values[name]) for name, field in fields.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Parameters of a rank that FSDP2 gathers together, after tensor parallelism."""

    weights: int
    trained: int
    """Trained parameters among them: all, or only adapters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """Memory of a rank without activations, in bytes, by purpose."""

    weights: int
    gradients: int
    optimizer: int
    """Master weights and moments."""

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.weights + self.gradients + self.optimizer

    @staticmethod
    def resharded(
        root: Gathered,
        layer: Gathered,
        *,
        trained: int,
        trained_shard: int,
        frozen_shard: int,
        accumulates: bool,
    ) -> "RankState":
        """Compute the peak where FSDP2 gathers each layer's weights when it needs them.

        Args:
            root: Everything but the layers, which stays gathered.
            layer: One layer.
            trained: Trained parameters after tensor parallelism.
            trained_shard: Trained parameters after data-parallel sharding.
            frozen_shard: Frozen parameters after data-parallel sharding.
            accumulates: True if a step has several micro-batches.
        """
        # The root, the layer in use, and two buffers from which gathered weights are copied: this
        # layer's, and the previous layer's or the root's (torch 2.13, ``wait_for_unshard``).
        gathered = _BF16 * (root.weights + 2 * layer.weights + max(root.weights, layer.weights))
        # Until the last micro-batch gradients accumulate whole, then each layer's are reduced to
        # shards. Besides: the root's in bf16, a layer's in bf16, and its reduce-scatter's input.
        gradients = _FP32 * (trained if accumulates else trained_shard)
        gradients += _BF16 * root.trained + (_BF16 + _FP32) * layer.trained
        # During the update, when nothing is gathered: gradients and two temporaries of AdamW.
        update = 3 * _FP32 * trained_shard
        return RankState(
            # Frozen weights are sharded in fp32 too.
            weights=gathered + _FP32 * frozen_shard,
            gradients=max(gradients, update - gathered),
            optimizer=BYTES_OF_STATE * trained_shard,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """A model and a batch that divide evenly among a number of ranks."""

    shape: Shape
    num_ranks: int
    tensor_parallel: int
    global_batch: int
    micro_batch: int
    seq_len: int
    lora: Lora | None = None
    """None: all weights are trained."""
    reshard_after_forward: bool = False
    """True if the backward pass gathers weights again (ZeRO-3)."""

    @staticmethod
    def from_values(values: Mapping[str, Value], num_ranks: int) -> "TrainingPlan":
        """Build a plan after checking the parameters and the number of ranks."""
        shape = shape_of(values)
        if isinstance(shape, ModelShape):
            uses_flash(values, shape)
        return TrainingPlan(
            shape=shape,
            num_ranks=num_ranks,
            # BERT is replicated on every rank.
            tensor_parallel=int(values.get("tensor-parallel", 1)),
            global_batch=int(values["global-batch"]),
            micro_batch=int(values["micro-batch"]),
            seq_len=int(values["seq-len"]),
            lora=Lora.of(values),
            reshard_after_forward=bool(values.get("reshard-after-forward")),
        )

    def __post_init__(self) -> None:
        """Refuse a plan that does not divide evenly; the message names parameters and remedy."""
        degree = self.tensor_parallel
        to_divide = (
            ("the {} ranks of the job", self.num_ranks),
            ("num-heads={}", self.shape.num_attention_heads),
            ("intermediate-size={}", self.shape.intermediate_size),
            ("vocab-size={}", self.shape.vocab_size),
        )
        # The suggestion has to divide all of them, to avoid another refusal.
        common = math.gcd(*(number for _, number in to_divide))
        for what, number in to_divide:
            if number % degree:
                raise ValueError(
                    f"tensor-parallel={degree} does not divide {what.format(number)}; "
                    f"{self._suggest_degrees(common)}"
                )
        if not self._splits_keys(degree):
            raise ValueError(
                f"tensor-parallel={degree} neither divides "
                f"num-kv-heads={self.shape.num_key_value_heads} nor is a multiple of it; "
                f"{self._suggest_degrees(common)}"
            )
        longest = self.shape.max_position_embeddings if isinstance(self.shape, ModelShape) else 0
        if 0 < longest < self.seq_len:
            raise ValueError(
                f"seq-len={self.seq_len} is more than the {longest:,} positions of the model; set "
                f"seq-len={longest} or less"
            )
        sequences = self.data_parallel * self.micro_batch
        if self.global_batch % sequences:
            nearest = -(-self.global_batch // sequences) * sequences
            ranks = counted(self.data_parallel, "data-parallel rank")
            raise ValueError(
                f"global-batch={self.global_batch} is not a multiple of the {sequences:,} "
                f"sequences processed at a time ({ranks} with micro-batch={self.micro_batch}); set "
                f"global-batch={nearest}, or change the number of nodes or micro-batch"
            )

    def _splits_keys(self, degree: int) -> bool:
        """Return whether ranks get whole key-value heads or share each head evenly."""
        heads = self.shape.num_key_value_heads
        head_size = self.shape.attention_size // self.shape.num_attention_heads
        shared = degree % heads == 0 and head_size % (degree // heads) == 0
        return heads % degree == 0 or shared

    def _suggest_degrees(self, common: int) -> str:
        """Suggest the nearest degrees that divide ``common`` and split the key-value heads."""
        degree = self.tensor_parallel
        fitting = [n for n in range(1, common + 1) if common % n == 0 and self._splits_keys(n)]
        below = max(n for n in fitting if n <= degree)
        above = min((n for n in fitting if n >= degree), default=below)
        return "set tensor-parallel=" + " or ".join(str(n) for n in sorted({below, above}))

    @property
    def shares_heads(self) -> bool:
        """True if several ranks compute with the same key-value head."""
        return self.tensor_parallel > self.shape.num_key_value_heads

    @property
    def data_parallel(self) -> int:
        """Ranks that compute different sequences."""
        return self.num_ranks // self.tensor_parallel

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches per optimizer step on each rank."""
        return self.global_batch // (self.data_parallel * self.micro_batch)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of the global batch."""
        return self.global_batch * self.seq_len

    @property
    def flops_per_token(self) -> int:
        """FLOPs of the forward and backward pass, as counted by PaLM: 6 N + 12 L H S.

        N excludes the input embedding, which is looked up, not multiplied; recomputed
        activations do not count (arXiv 2204.02311, appendix B).
        """
        attention = 12 * self.shape.num_hidden_layers * self.shape.attention_size * self.seq_len
        return 6 * self.shape.num_multiplied_parameters + attention

    @property
    def parameters_per_rank(self) -> int:
        """Parameters per rank after tensor parallelism; norms are replicated."""
        if not isinstance(self.shape, ModelShape):
            return self.shape.num_parameters
        norms = self.shape.num_norm_parameters
        own = (self.shape.num_parameters - norms) // self.tensor_parallel + norms
        return own if self.lora is None else own + self.trained_parameters_per_rank

    @property
    def num_trained_parameters(self) -> int:
        """Trained parameters: all, or only the adapters'."""
        if self.lora is None or not isinstance(self.shape, ModelShape):
            return self.shape.num_parameters
        return self.lora.num_parameters(self.shape)

    @property
    def trained_parameters_per_rank(self) -> int:
        """Trained parameters per rank, after tensor parallelism."""
        if self.lora is None or not isinstance(self.shape, ModelShape):
            return self.parameters_per_rank
        return self.lora.num_parameters(self.shape, tensor_parallel=self.tensor_parallel)

    @property
    def optimizer_parameters_per_rank(self) -> int:
        """Parameters per rank with fp32 master weight and moments (ZeRO-1), rounded up."""
        return -(-self.trained_parameters_per_rank // self.data_parallel)

    @property
    def state_per_rank(self) -> RankState:
        """Memory for bf16 weights, fp32 gradients and a rank's share of the optimizer state."""
        trained = self.trained_parameters_per_rank
        if self.reshard_after_forward and isinstance(self.shape, ModelShape):
            root, layer = self._gathered(self.shape)
            return RankState.resharded(
                root,
                layer,
                trained=trained,
                trained_shard=self.optimizer_parameters_per_rank,
                frozen_shard=-(-(self.parameters_per_rank - trained) // self.data_parallel),
                accumulates=self.accumulation_steps > 1,
            )
        return RankState(
            weights=_BF16 * self.parameters_per_rank,
            gradients=_FP32 * trained,
            optimizer=BYTES_OF_STATE * self.optimizer_parameters_per_rank,
        )

    def _gathered(self, shape: ModelShape) -> tuple[Gathered, Gathered]:
        """Return the parameters of a rank outside the layers, and those of one layer."""
        # The last norm is outside.
        outside = shape.num_end_parameters // self.tensor_parallel + shape.hidden_size
        layers = shape.num_hidden_layers
        weights = (self.parameters_per_rank - outside) // layers
        if self.lora is None:
            return Gathered(weights=outside, trained=outside), Gathered(
                weights=weights, trained=weights
            )
        return Gathered(weights=outside, trained=0), Gathered(
            weights=weights, trained=self.trained_parameters_per_rank // layers
        )

    @property
    def state_bytes_per_rank(self) -> int:
        """Size of weights, gradients and a rank's share of the optimizer state."""
        return self.state_per_rank.total

    @property
    def checkpoint_bytes(self) -> int:
        """Size of a whole checkpoint: fp32 master weights and AdamW's moments."""
        return BYTES_OF_STATE * self.num_trained_parameters

    def model_flops_utilization(self, tokens_per_second: float, *, peak_flops: float) -> float:
        """Return the fraction of the ranks' ``peak_flops`` that the model uses, 0 to 1."""
        return tokens_per_second * self.flops_per_token / (peak_flops * self.num_ranks)


def refuse_shared_heads(degree: int, num_kv_heads: int) -> None:
    """Raise ``ValueError`` for a degree that needs shared heads with NeuronX Distributed."""
    if degree > num_kv_heads:
        raise ValueError(
            f"--tensor-parallel {degree} exceeds the {num_kv_heads} key-value heads, which "
            "ranks can share only with TorchNeuron (trn2 with "
            f"neuron_release={TORCH_NEURON_RELEASE}); use {num_kv_heads} or less"
        )
