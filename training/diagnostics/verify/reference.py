"""The reference: full models and batches on one host, in fp32, using only torch's autograd.

It shares no code with the backends, not even for the optimizer, clipping and the loss. A single
core of the device would be a weaker reference, since errors of its dtypes, compiler and backend
would go undetected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from training.backends.base import WeightPart
from training.core.config import Optimizer
from training.models.bert.network import bert_config
from training.models.bert.network import initial_weight as initial_bert
from training.models.llama.huggingface import decoder_config, whole_model
from training.models.llama.huggingface import initial_weight as initial_llama
from training.models.mnist.network import Mlp, MlpNetwork
from trainium_catalogue.models.presets import BertShape

if TYPE_CHECKING:
    from training.core.config import TrainConfig

Tensors = dict[str, torch.Tensor]
Step = tuple[float, float]
"""An optimizer step's loss and its gradient norm before clipping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceModel:
    """A Hugging Face or torch model with this project's initial weights."""

    config: TrainConfig
    model: torch.nn.Module
    loss: Callable[[Any, Any], torch.Tensor]
    """Computes the mean loss of the model on a batch."""

    @property
    def weights(self) -> Tensors:
        """Copies of the current weights, by name."""
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def gradients(self, batch: Any) -> tuple[Tensors, float, float]:
        """Compute unclipped gradients, loss and gradient norm of a global batch."""
        self.model.zero_grad()
        loss = self.loss(self.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {}
        for name, parameter in self.model.named_parameters():
            assert parameter.grad is not None, name
            gradients[name] = parameter.grad.clone()
        return gradients, float(loss.detach()), norm_of(gradients)

    def train(self, batches: Callable[[int], Any], steps: int) -> list[Step]:
        """Run the first steps; ``batches`` maps a 1-based step to its global batch."""
        config, parameters = self.config, dict(self.model.named_parameters())
        rule = _adamw if config.optimizer is Optimizer.ADAMW else _sgd
        optimizer = rule(parameters, config)
        results = []
        for step in range(1, steps + 1):
            gradients, loss, norm = self.gradients(batches(step))
            factor = clip_factor(norm, config.max_grad_norm)
            for name, parameter in parameters.items():
                parameter.grad = gradients[name] * factor
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate_at(step)
            optimizer.step()
            results.append((loss, norm))
        return results


def norm_of(tensors: Mapping[str, torch.Tensor]) -> float:
    """Compute the total norm of all tensors."""
    return float(sum(float(tensor.double().square().sum()) for tensor in tensors.values()) ** 0.5)


def clip_factor(norm: float, limit: float) -> float:
    """Return the clipping factor (torch.nn.utils.clip_grad_norm_); 1 if the limit is 0."""
    return min(1.0, limit / (norm + 1e-6)) if limit else 1.0


def _adamw(parameters: Mapping[str, torch.Tensor], config: TrainConfig) -> torch.optim.Optimizer:
    """Create AdamW with weight decay for matrices only; norms and biases have one dimension."""
    decayed = [p for p in parameters.values() if p.dim() > 1]
    others = [p for p in parameters.values() if p.dim() == 1]
    return torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.adam_eps,
    )


def _sgd(parameters: Mapping[str, torch.Tensor], config: TrainConfig) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(parameters.values()), lr=config.learning_rate)


def llama(config: TrainConfig) -> ReferenceModel:
    """Build Hugging Face's full decoder with an independent loss."""
    model = whole_model(
        decoder_config(config.shape, seq_len=config.plan.seq_len, attention="eager")
    )
    _fill(model, lambda name, size: initial_llama(name, size, seed=config.seed))

    def loss(model: Any, tokens: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        log_probabilities = torch.log_softmax(logits.float(), dim=-1)
        return -log_probabilities.gather(-1, tokens[:, 1:].unsqueeze(-1)).mean()

    return ReferenceModel(config=config, model=model.train(), loss=loss)


def bert(config: TrainConfig) -> ReferenceModel:
    """Build Hugging Face's BERT with its own loss, over every position of a sequence."""
    from transformers.models.bert.modeling_bert import BertForPreTraining

    shape = config.shape
    assert isinstance(shape, BertShape), shape
    model = BertForPreTraining(bert_config(shape, dropout=0.0))
    _fill(model, lambda name, size: initial_bert(name, size, seed=config.seed))

    def loss(model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        labels = torch.full_like(batch["input_ids"], -100)
        labels.scatter_(1, batch["positions"], batch["labels"])
        result: torch.Tensor = model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            token_type_ids=batch["token_type_ids"],
            labels=labels,
            next_sentence_label=batch["next_sentence_label"],
        ).loss
        return result

    return ReferenceModel(config=config, model=model.train(), loss=loss)


def digits(config: TrainConfig) -> ReferenceModel:
    """Build the digit network from torch's own modules."""
    network, model = MlpNetwork(config), Mlp()
    _fill(model, lambda name, size: network.initial_part(WeightPart.entire(name, size)))
    return ReferenceModel(config=config, model=model, loss=network.loss)


@torch.no_grad()
def _fill(model: torch.nn.Module, weight: Callable[[str, torch.Size], torch.Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(weight(name, parameter.size()))


def deviations(found: Sequence[Step], expected: Sequence[Step]) -> tuple[float, float]:
    """Return the largest relative deviations of losses and of norms; infinite if one is NaN."""

    def worst(index: int) -> float:
        pairs = [(f[index], e[index]) for f, e in zip(found, expected, strict=True)]
        return max(abs(f - e) / abs(e) if math.isfinite(f) else math.inf for f, e in pairs)

    return worst(0), worst(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """The largest distance of any parameter, and its name."""

    name: str
    value: float


def distance(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> Distance:
    """Return the largest distance; infinite for a missing, extra or differently sized parameter.

    A parameter's distance is the norm of the difference divided by the expected norm, or by a
    thousandth of the total norm if that is larger: the gradient of a bias without effect, such as
    BERT's key biases, is pure rounding error.
    """
    least = 1e-3 * norm_of(expected)
    worst = Distance(name="", value=-1.0)
    for name in sorted({*found, *expected}):
        value = math.inf
        if name in found and name in expected and found[name].shape == expected[name].shape:
            wanted = expected[name].double()
            off = float((found[name].double() - wanted).norm()) / max(float(wanted.norm()), least)
            value = off if math.isfinite(off) else math.inf
        if value > worst.value:
            worst = Distance(name=name, value=value)
    return worst
