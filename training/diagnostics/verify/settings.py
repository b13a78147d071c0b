"""The tiny models that the verify workload trains, their data, and the required accuracy.

The data are computed in integer arithmetic, so they are the same on every platform.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from training.core.config import Optimizer, TrainConfig
from training.models.bert.data import IGNORED
from trainium_catalogue.models.presets import PRESETS, MlpShape
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.plan import TrainingPlan
from trainium_catalogue.parameters.training import training_parameters
from trainium_catalogue.parameters.verify import SHAPE, family_values, llama_values

STEPS = int(SHAPE["max-steps"])
SAVED_STEP = 4
"""The step from which a run is resumed."""
REPEATED_STEP = 8
"""The last step repeated after resuming."""
LATE_STEP = 320
"""Soon after this step the correction of AdamW's second moment, ``1 - beta2 ** step``, becomes 1.0
in fp32. A graph with the correction as a constant would then be recompiled, as in any long run."""
LATE_STEPS = 8
DATA_PARALLEL_STEPS = 3
SEQ_LEN, BERT_SEQ_LEN, PREDICTIONS = int(SHAPE["seq-len"]), 16, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Maximum relative deviation from fp32 on one host."""

    loss: float
    norm: float
    gradient: float
    """Norm of one parameter's difference, divided by the norm of its gradient."""
    resumed: float
    """A resumed step's loss and norm, compared with the original step."""


FP32 = Tolerance(loss=1e-4, norm=1e-3, gradient=1e-4, resumed=0.0)
"""On CPUs only the summation order differs, and a resumed step repeats the original exactly."""
BF16 = Tolerance(loss=3e-3, norm=2e-2, gradient=5e-2, resumed=1e-4)
"""Three to six times the deviation of the real neuronx_distributed and torch_xla, in bf16 on CPU
processes, at tensor parallel 1, 2 and 4 (November 2026): losses 0.08%, norms 0.5%, worst gradient
0.8% for Llama and 1.8% for BERT, resumed steps none. Devices sum in a different order. Without
the all-reduce of input gradients the worst gradient is off by 100%, and the norm by 35%."""
UPDATE = 1e-3
"""Maximum deviation of a weight from the optimizer's update, in units of the learning rate."""


def config_for(num_ranks: int, tensor_parallel: int = 0) -> TrainConfig:
    """Configure Llama for ``num_ranks``; raise ``ValueError`` if it cannot be split across them.

    ``tensor_parallel`` 0 means the default degree. Model and batches are the same for every degree
    and number of ranks.
    """
    return TrainConfig.from_values(llama_values(num_ranks, tensor_parallel), num_ranks)


def family_config_for(model: str, num_ranks: int, tensor_parallel: int = 0) -> TrainConfig:
    """Configure a tiny decoder of another family, split and trained like Llama."""
    return TrainConfig.from_values(family_values(model, num_ranks, tensor_parallel), num_ranks)


_BERT_SHAPE: dict[str, Value] = {
    "vocab-size": 256,
    "hidden-size": 64,
    "intermediate-size": 128,
    "num-layers": 2,
    "num-heads": 2,
    "seq-len": BERT_SEQ_LEN,
    # One more for an absent prediction.
    "max-predictions": PREDICTIONS + 1,
    # Small, with accumulation in fp32: bf16 sums over many positions are mostly rounding error.
    "micro-batch": 4,
    "dropout": 0.0,
    "max-steps": DATA_PARALLEL_STEPS,
    "warmup-steps": 0,
    "max-grad-norm": 0.5,
}


def bert_config_for(num_ranks: int) -> TrainConfig:
    """Configure BERT for any number of ranks, with four micro-batches each."""
    preset = PRESETS["bert-tiny"]
    values = {p.name: p.default for p in training_parameters(preset)} | _BERT_SHAPE
    values["global-batch"] = 4 * int(_BERT_SHAPE["micro-batch"]) * num_ranks
    return TrainConfig.from_values(values, num_ranks)


def digits_config_for(num_ranks: int) -> TrainConfig:
    """Configure the digit network as in mnist: plain gradient descent, no clipping, no bf16."""
    config = bert_config_for(num_ranks)
    return replace(
        config,
        plan=TrainingPlan(
            shape=MlpShape(),
            num_ranks=num_ranks,
            tensor_parallel=1,
            global_batch=8 * num_ranks,
            micro_batch=8,
            seq_len=1,
        ),
        optimizer=Optimizer.SGD,
        mixed=False,
        decays_learning_rate=False,
        learning_rate=0.1,
        max_grad_norm=0.0,
    )


Numbers = NDArray[np.int64]
_KINDS = 32
"""Number of distinct tokens, spread over all parts of the vocabulary."""
_FIRST_WORD, _MASK = 8, 4
_PIXELS, _CLASSES = 784, 10


def _random_numbers(positions: range, count: int) -> Numbers:
    """Return pseudorandom 31-bit numbers, ``[positions, count]``."""
    place = np.array(positions, np.uint64)[:, None] * np.uint64(count)
    place = place + np.arange(count, dtype=np.uint64)
    # SplitMix64 (Steele, Lea, Flood 2014); weaker generators correlate adjacent numbers.
    mixed = (place + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed >> np.uint64(33)).astype(np.int64)


def _chains(numbers: Numbers) -> Numbers:
    """Return token kinds; seven in eight are determined by the token two positions earlier.

    To predict the next token, a model must attend to the previous position, so missing position
    encodings or attention to future tokens change the losses.
    """
    kinds = numbers // 8 % _KINDS
    for column in range(2, kinds.shape[1]):
        follows = (kinds[:, column - 2] + 1) % _KINDS
        kinds[:, column] = np.where(numbers[:, column] % 8 == 0, kinds[:, column], follows)
    return kinds


def tokens(positions: range) -> torch.Tensor:
    """Return Llama's data: int64 ``[positions, seq_len + 1]``, from 0 to 511."""
    kinds = _chains(_random_numbers(positions, SEQ_LEN + 1))
    return torch.from_numpy(kinds * 16 + kinds % 16)


def sentences(positions: range) -> Mapping[str, torch.Tensor]:
    """Return BERT's ``training.models.bert.data.Batch``: ids 8 to 225, lengths 10 to 16.

    Masked positions have id 4, and the padding 0.

    Every sequence has the same number of predictions, so the mean of means is the overall mean.
    """
    numbers = _random_numbers(positions, BERT_SEQ_LEN + PREDICTIONS + 1)
    words = _chains(numbers[:, :BERT_SEQ_LEN]) * 7 + _FIRST_WORD
    lengths = BERT_SEQ_LEN - numbers[:, -1:] % 7
    mask = np.arange(BERT_SEQ_LEN) < lengths
    # One position in each group of 3: never the first, no duplicates, none in the padding.
    places = np.arange(PREDICTIONS) * 3 + 1 + numbers[:, BERT_SEQ_LEN:-1] % 3
    labels = np.take_along_axis(words, places, axis=1)
    hidden = words * mask
    np.put_along_axis(hidden, places, _MASK, axis=1)
    arrays = {
        "input_ids": hidden,
        "attention_mask": mask,
        "token_type_ids": (np.arange(BERT_SEQ_LEN) >= BERT_SEQ_LEN // 2) * mask,
        "positions": places,
        "labels": labels,
        "next_sentence_label": words[:, 0] % 2,
    }
    batch = {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}
    # An absent prediction, as in real datasets: at position 0, ignored.
    absent = torch.zeros(len(lengths), 1, dtype=torch.int64)
    batch["positions"] = torch.cat([batch["positions"], absent], dim=1)
    batch["labels"] = torch.cat([batch["labels"], absent + IGNORED], dim=1)
    return batch


def images(positions: range) -> Mapping[str, torch.Tensor]:
    """Return the digits: float ``[positions, 784]`` from 0 to 1, with labels."""
    numbers = _random_numbers(positions, _PIXELS + 1)
    return {
        "images": torch.from_numpy((numbers[:, 1:] % 256).astype(np.float32) / 255),
        "labels": torch.from_numpy(numbers[:, 0] % _CLASSES),
    }
