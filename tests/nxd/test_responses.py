"""Loss weights on the real NxD: the mean over counted tokens, on any ranks."""

from __future__ import annotations

import pytest

from tests.nxd.cases import CASES, SEQ_LEN, tokens
from tests.nxd.figures import Figures, distance

pytestmark = pytest.mark.timeout(900)
NAMES = [case.name for case in CASES.values() if case.learns_responses]


@pytest.mark.parametrize("name", NAMES)
def test_the_first_loss_equals_transformers_with_masked_labels(name: str, figures: Figures) -> None:
    import torch

    from training.core.arguments import parse
    from training.models.llama.huggingface import decoder_config, initial_weight, whole_model
    from trainium_catalogue.parameters.plan import shape_of

    values = parse(list(CASES[name].words)).values
    model = whole_model(decoder_config(shape_of(values), seq_len=SEQ_LEN))
    with torch.no_grad():
        for weight, parameter in model.named_parameters():
            seed = int(values["seed"])
            parameter.copy_(initial_weight(weight, parameter.size(), seed=seed))
    ids = tokens(range(16))
    labels = ids.clone()
    for row, label in enumerate(labels):
        label[1 : 1 + 2 * row] = -100
    loss = model(input_ids=ids, labels=labels).loss
    loss.backward()
    found = distance(
        figures.gradients(name),
        {n: p.grad for n, p in model.named_parameters() if p.grad is not None},
    )

    assert figures.of(name)["losses"][0] == pytest.approx(loss.item(), rel=1e-3)
    assert max(found.values()) < 0.02, found


def test_all_ranks_together_learn_the_same_as_one(figures: Figures) -> None:
    one, four = (figures.of(name) for name in NAMES)

    assert four["losses"] == pytest.approx(one["losses"], rel=1e-3)
    assert four["norms"] == pytest.approx(one["norms"], rel=0.012)
