"""The checks of verify: sums, the compile cache, Llama, and data parallelism."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from training.core.ranks import Ranks
from training.diagnostics.allreduce.sweep import compare, rank_pattern, sum_pattern, tile
from training.diagnostics.probes.node import VerifyResult
from training.diagnostics.verify import reference
from training.diagnostics.verify.reference import ReferenceModel, Step, deviations
from training.diagnostics.verify.run import TrialRun
from training.diagnostics.verify.saved import compare_first_step, read_whole
from training.diagnostics.verify.settings import (
    DATA_PARALLEL_STEPS,
    LATE_STEP,
    LATE_STEPS,
    REPEATED_STEP,
    SAVED_STEP,
    STEPS,
    Tolerance,
    bert_config_for,
    config_for,
    digits_config_for,
    family_config_for,
    images,
    sentences,
    tokens,
)
from training.models.bert.network import BertNetwork
from training.models.llama.network import LlamaNetwork
from training.models.mnist.network import MlpNetwork
from trainium_catalogue.contract import CACHE_PREFIX
from trainium_catalogue.parameters.verify import FAMILIES
from trainium_catalogue.wording import counted

if TYPE_CHECKING:
    from training.backends.base import Network
    from training.core.config import TrainConfig
    from training.core.contract import NodeContract
    from training.core.device import Device
    from training.storage import Objects

_ELEMENTS = 2**18
GOLDEN = Path(__file__).with_name("golden.json")
"""The reference's losses and norms; after changing model or data, regenerate with ``python -m
training.diagnostics.verify.checks > training/diagnostics/verify/golden.json``."""


def sums(device: Device, ranks: Ranks) -> VerifyResult:
    """Check sums over all ranks against exact values, in types that represent them exactly."""
    example = ""
    for data_type in (torch.int32, torch.float32):
        placed = device.place(tile(rank_pattern(device.rank), _ELEMENTS, data_type))
        device.all_reduce(placed)
        device.synchronize()
        _, text = compare(device.fetch(placed), sum_pattern(device.num_ranks))
        example = example or text
    wrong = [(rank, text) for rank, text in enumerate(ranks.gather(example)) if text]
    if wrong:
        rank, text = wrong[0]
        return VerifyResult(
            ok=False,
            detail=f"wrong on {counted(len(wrong), 'rank')}, first on rank {rank}{text}",
        )
    detail = f"{_ELEMENTS} elements over {device.num_ranks} ranks are exact in int32 and fp32"
    return VerifyResult(ok=True, detail=detail)


def cache(storage: Objects, context: NodeContract, ranks: Ranks) -> VerifyResult:
    """Check that an object written to the compile cache can be read back."""

    def write() -> VerifyResult:
        key = f"{CACHE_PREFIX}verify/{context.job_id}"
        data = context.run.encode()
        storage.put(key, data)
        same = storage.get(key) == data
        storage.delete([key])
        detail = f"{storage.uri}/{CACHE_PREFIX} stores and returns objects"
        return VerifyResult(
            ok=same,
            detail=detail if same else "the bytes read differ from those written",
        )

    return ranks.agree(write)


def attention(device: Device, tolerance: Tolerance, ranks: Ranks) -> VerifyResult:
    """Check Neuron's flash-attention kernel, which the tiny models' sequences are too short for."""
    from training.diagnostics.verify.attention import distances

    every = ranks.gather(distances(device))
    worst = {name: max((found[name] for found in every), key=_with_nan_last) for name in every[0]}
    shown = ", ".join(f"{name} {distance:.1e}" for name, distance in worst.items())
    return VerifyResult(
        # A NaN is never within the tolerance.
        ok=all(distance <= tolerance.gradient for distance in worst.values()),
        detail=f"maximum errors (tolerance {tolerance.gradient:.0e}): {shown}",
    )


def _with_nan_last(number: float) -> tuple[bool, float]:
    return math.isnan(number), number


def golden() -> list[Step]:
    """Read the expected losses and norms from ``GOLDEN``."""
    return [(loss, norm) for loss, norm in json.loads(GOLDEN.read_text())["steps"]]


class LlamaChecks:
    """Checks that share a run; each trains it as far as needed.

    Call them on all ranks, in the order of definition; any may be skipped.
    """

    def __init__(self, run: TrialRun, tolerance: Tolerance, ranks: Ranks) -> None:
        self._run, self._tolerance, self._ranks = run, tolerance, ranks

    def _train_to(self, step: int) -> list[Step]:
        for saved in (1, SAVED_STEP):
            if len(self._run.steps) < saved <= step:
                self._run.train_to(saved)
                self._run.save(saved)
        self._run.train_to(step)
        return self._run.steps

    def gradients(self) -> VerifyResult:
        """Check the first step's norm, and the gradient and weight of every parameter."""
        (_, norm), *_ = self._train_to(1)
        place, info = self._run.saved(1)

        def compare() -> VerifyResult:
            expected = reference.llama(self._run.config)
            batch = tokens(range(expected.config.plan.global_batch))
            found = compare_first_step(expected, batch, read_whole(place, info))
            off = abs(norm - found.norm) / found.norm
            return VerifyResult(
                # A NaN norm is never within the tolerance.
                ok=found.ok(self._tolerance.gradient) and off <= self._tolerance.norm,
                detail=f"{self._topology}: {found.describe(self._tolerance.gradient)}; norm "
                f"{norm:.5f}, expected {found.norm:.5f}",
            )

        return self._ranks.agree(compare)

    def parity(self) -> VerifyResult:
        """Check losses and norms of all steps."""
        found = self._train_to(STEPS)
        loss, norm = deviations(found, golden())
        return VerifyResult(
            ok=loss <= self._tolerance.loss and norm <= self._tolerance.norm,
            detail=(
                f"{self._topology}: loss {found[0][0]:.4f} to {found[-1][0]:.4f} in {STEPS} steps, "
                f"off by {loss:.1e} (tolerance {self._tolerance.loss:.0e}); norms by {norm:.1e} "
                f"(tolerance {self._tolerance.norm:.0e})"
            ),
        )

    def resume(self) -> VerifyResult:
        """Check that a checkpoint restores state bit for bit, and that steps are reproducible."""
        before = self._train_to(REPEATED_STEP)[SAVED_STEP:REPEATED_STEP]
        loaded = self._run.load(SAVED_STEP)
        first, again = self._run.saved(SAVED_STEP), self._run.save_again(SAVED_STEP)
        different = self._ranks.agree(lambda: _different(read_whole(*first), read_whole(*again)))
        after = [self._run.step(number) for number in range(SAVED_STEP + 1, REPEATED_STEP + 1)]
        off = max(deviations(after, before))
        detail = (
            f"loaded {loaded.name} ({loaded.num_bytes / 1e6:.1f} MB); the next {len(after)} losses "
            f"and norms are off by {off:.1e} (tolerance {self._tolerance.resumed:.0e})"
        )
        if different:
            more = len(different) - 1
            others = f" and {counted(more, 'other')} differ" if more else " differs"
            detail += f"; saved again, {different[0]}{others}"
        ok = loaded.step == SAVED_STEP and not different and off <= self._tolerance.resumed
        return VerifyResult(ok=ok, detail=detail)

    def graphs(self) -> VerifyResult:
        """Check that nothing is compiled after the first step, late in a run or on resuming.

        Uses torch_xla's count of compilations on this rank.
        """
        self._train_to(2)
        # Continue the run as if at a late step, with that step's bias corrections.
        self._run.save(LATE_STEP)
        self._run.load(LATE_STEP)
        for number in range(LATE_STEP + 1, LATE_STEP + LATE_STEPS + 1):
            self._run.step(number, rate=self._run.config.learning_rate)
        counts = self._ranks.gather((self._run.graphs[0], self._run.count()))
        first, last = max(counts, key=lambda pair: pair[1] - pair[0])
        return VerifyResult(
            ok=last == first,
            detail=f"{counted(first, 'graph')} compiled up to the first step, {last} in total, "
            f"after {len(self._run.steps)} steps, a save, a load and {LATE_STEPS} steps from "
            f"{LATE_STEP} on",
        )

    @property
    def _topology(self) -> str:
        plan = self._run.config.plan
        return f"TP {plan.tensor_parallel} x DP {plan.data_parallel}"


def _different(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of tensors that are not bitwise equal."""
    return [
        name
        for name in sorted({*first, *second})
        if name not in first or name not in second or not torch.equal(first[name], second[name])
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedModel:
    """A model whose first steps are compared with the reference."""

    name: str
    folder: str
    """Name of the folder of its checkpoints."""
    config: Callable[[int, int], TrainConfig]
    """Builds a configuration from the number of ranks and the tensor-parallel degree."""
    network: Callable[[TrainConfig], Network]
    batches: Callable[[range], Any]
    reference_of: Callable[[TrainConfig], ReferenceModel]


MODELS = {
    "data-parallel": (
        VerifiedModel(
            name="BERT",
            folder="bert",
            config=lambda num_ranks, degree: bert_config_for(num_ranks),
            network=BertNetwork,
            batches=sentences,
            reference_of=reference.bert,
        ),
        VerifiedModel(
            name="digits",
            folder="digits",
            config=lambda num_ranks, degree: digits_config_for(num_ranks),
            network=MlpNetwork,
            batches=images,
            reference_of=reference.digits,
        ),
    ),
    # Decoders of families other than Llama.
    "families": tuple(
        VerifiedModel(
            name=name,
            folder=model,
            config=partial(family_config_for, model),
            network=LlamaNetwork,
            batches=tokens,
            reference_of=reference.llama,
        )
        for name, model in FAMILIES.items()
    ),
}
"""The models of the checks that train several."""


def check_case(case: VerifiedModel, run: TrialRun, tolerance: Tolerance) -> tuple[bool, str]:
    """Train a few steps on all ranks; return whether they match the reference, and how closely."""
    run.train_to(1)
    run.save(1)
    run.train_to(DATA_PARALLEL_STEPS)
    place, info = run.saved(1)

    def compare() -> tuple[bool, str]:
        size = run.config.plan.global_batch
        first = compare_first_step(
            case.reference_of(run.config), case.batches(range(size)), read_whole(place, info)
        )
        expected = case.reference_of(run.config).train(
            lambda step: case.batches(range((step - 1) * size, step * size)), len(run.steps)
        )
        loss, norm = deviations(run.steps, expected)
        compiled = run.graphs[-1] - run.graphs[0] if run.graphs else 0
        ok = first.ok(tolerance.gradient) and loss <= tolerance.loss and norm <= tolerance.norm
        text = (
            f"{case.name}: {first.describe(tolerance.gradient)}; losses off by {loss:.1e} "
            f"(tolerance {tolerance.loss:.0e}), norms by {norm:.1e} (tolerance "
            f"{tolerance.norm:.0e})"
        )
        if compiled:
            text += f"; {counted(compiled, 'graph')} compiled after the first step"
        return ok and not compiled, text

    return Ranks.open().agree(compare)


def make_golden() -> dict[str, object]:
    """Train the reference for one rank; return the contents of ``GOLDEN``."""
    config = config_for(1)
    size = config.plan.global_batch
    model = reference.llama(config)
    steps = model.train(lambda step: tokens(range((step - 1) * size, step * size)), STEPS)
    return {
        "model": f"{config.shape}, seq_len={config.plan.seq_len}, global_batch={size}",
        "columns": ["loss", "grad_norm"],
        "steps": [[round(loss, 7), round(norm, 7)] for loss, norm in steps],
    }


if __name__ == "__main__":
    # The model is too small for more threads.
    torch.set_num_threads(1)
    print(json.dumps(make_golden(), indent=1))
