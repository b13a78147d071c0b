"""Adapters on the real NxD: only they are trained, identically on every topology.

Measured with NxD 0.18.0: losses within 3e-4 of one rank's and of fp32's, norms within 1%.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.nxd.cases import CASES, LIMIT, STEPS, tokens
from tests.nxd.figures import Figures, distance

pytestmark = pytest.mark.timeout(900)
ADAPTED = [case.name for case in CASES.values() if case.is_adapted]
LOSS, NORM, GRADIENT = 1e-3, 0.015, 0.02


@dataclass(frozen=True)
class Plain:
    """Results of an independent reference: torch and transformers, fp32, one process."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, Any]
    """Of the adapters' second matrices in the first step; the others' are 0 then."""


@pytest.fixture(scope="module")
def plain() -> Plain:
    """Adapters as their paper writes them, W + alpha / rank * B A, by torch's parametrizations.

    It takes only initial weights (including the adapters') and data from the project.
    """
    import torch
    from torch.nn.functional import cross_entropy
    from torch.nn.utils import parametrize

    from training.core.arguments import parse
    from training.models.llama.huggingface import decoder_config, initial_weight, whole_model
    from training.models.llama.lora import initial_adapter
    from trainium_catalogue.parameters.plan import shape_of

    values = parse(list(CASES[ADAPTED[0]].words)).values
    seed, rank = int(values["seed"]), int(values["lora-rank"])
    model: Any = whole_model(decoder_config(shape_of(values), seq_len=32))

    class LowRank(torch.nn.Module):
        def __init__(self, name: str, outputs: int, inputs: int) -> None:
            super().__init__()
            sizes = {"lora_A": torch.Size((rank, inputs)), "lora_B": torch.Size((outputs, rank))}
            self.parts = torch.nn.ParameterDict(
                {
                    part: initial_adapter(f"{name}.{part}.weight", size, seed=seed)
                    for part, size in sizes.items()
                }
            )

        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            changed: torch.Tensor = self.parts["lora_B"] @ self.parts["lora_A"]
            return weight + float(values["lora-alpha"]) / rank * changed

    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(initial_weight(name, weight.size(), seed=seed))
    model.requires_grad_(False)
    adapters = {}
    for name, module in list(model.named_modules()):
        if name.endswith("_proj"):
            adapters[name] = LowRank(name, *module.weight.shape)
            parametrize.register_parametrization(module, "weight", adapters[name])
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01, eps=1e-6, weight_decay=0.01)
    losses, norms, first = [], [], {}
    for step in range(1, STEPS + 1):
        ids = tokens(range((step - 1) * 16, step * 16))
        logits = model(input_ids=ids[:, :-1]).logits
        loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if step == 1:
            first = {
                f"{name}.lora_B.weight": adapter.parts["lora_B"].grad.clone()
                for name, adapter in adapters.items()
            }
        norms.append(float(torch.nn.utils.clip_grad_norm_(trained, LIMIT)))
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * min(step / 4, (STEPS + 1 - step) / (STEPS - 4))
        optimizer.step()
        losses.append(loss.item())
    return Plain(losses, norms, first)


@pytest.mark.parametrize("name", ADAPTED)
def test_every_gradient_is_that_of_plain_torch(name: str, figures: Figures, plain: Plain) -> None:
    mine = {n: g for n, g in figures.gradients(name).items() if n in plain.gradients}
    found = distance(mine, plain.gradients)
    print(f"{name}: gradients within {max(found.values()):.4f} of fp32's")

    assert max(found.values()) < GRADIENT, found


@pytest.mark.parametrize("name", ADAPTED)
def test_losses_and_norms_are_those_of_plain_torch_and_of_one_rank(
    name: str, figures: Figures, plain: Plain
) -> None:
    mine, one = figures.of(name), figures.of("lora-one")

    steps = CASES[name].steps
    for losses, norms in ((plain.losses, plain.norms), (one["losses"], one["norms"])):
        assert mine["losses"] == pytest.approx(losses[:steps], rel=LOSS)
        assert mine["norms"] == pytest.approx(norms[:steps], rel=NORM)
    first, *others = mine["ranks"]
    assert others == [first] * (CASES[name].num_ranks - 1)


@pytest.mark.parametrize("name", ADAPTED)
def test_only_adapters_are_trained_and_saved(name: str, figures: Figures) -> None:
    import torch

    from training.models.llama.lora import is_adapter

    initial, one = figures.initial(name), figures.initial("lora-one")
    assert initial and all(is_adapter(weight) for weight in initial)
    # Two matrices for each of seven projections of two layers.
    assert len(initial) == 2 * 7 * 2
    assert all(torch.equal(initial[weight], one[weight]) for weight in one)
    found = distance(figures.gradients(name), figures.gradients("lora-one"))
    assert max(found.values()) < GRADIENT, found
