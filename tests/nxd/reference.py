"""The same training in a few lines of plain torch and transformers, fp32, one process.

Of the project it takes the initial weights and the data, nothing else: an independent judge.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.nxd.cases import HELD_OUT, LIMIT, SEQ_LEN, STEPS, VOCABULARY, tokens

GLOBAL_BATCH, WARMUP, RATE, DECAY = 16, 4, 0.01, 0.01


class Plain(NamedTuple):
    """What it found."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, Any]
    """Of the first step, by name."""
    held_out: list[float]
    """Losses of two sequences that were not trained on."""


def train() -> Plain:
    """All steps."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from training.arguments import parse
    from training.llama.model import initial_weight

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=SEQ_LEN,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
            use_cache=False,
        )
    )
    seed = int(parse(["llama-tiny"]).values["seed"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_weight(name, parameter.size(), seed=seed))
    norms_apart: Any = [
        {"params": [p for n, p in model.named_parameters() if "norm" in n], "weight_decay": 0.0},
        {"params": [p for n, p in model.named_parameters() if "norm" not in n]},
    ]
    optimizer = torch.optim.AdamW(norms_apart, lr=RATE, eps=1e-6, weight_decay=DECAY)
    losses, norms, first = [], [], {}
    for step in range(1, STEPS + 1):
        ids = tokens(range((step - 1) * GLOBAL_BATCH, step * GLOBAL_BATCH))
        logits = model(input_ids=ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if step == 1:
            first = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)))
        rate = RATE * min(step / WARMUP, (STEPS + 1 - step) / (STEPS - WARMUP))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        held_out = [
            model(input_ids=ids[None], labels=ids[None]).loss.item() for ids in tokens(HELD_OUT)
        ]
    return Plain(losses, norms, first, held_out)
