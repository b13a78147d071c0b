"""The same training in a few lines of plain torch and transformers, fp32, one process.

It takes only initial weights and data from the project: an independent reference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.nxd.cases import END, HELD_OUT, LIMIT, SEQ_LEN, STEPS, VOCABULARY, tokens

GLOBAL_BATCH, WARMUP, RATE, DECAY = 16, 4, 0.01, 0.01


class Plain(NamedTuple):
    """Results of the reference."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, Any]
    """Of the first step, by name."""
    held_out: list[float]
    """Losses of two sequences that were not trained on."""


def _settings(family: str) -> dict[str, Any]:
    """Return a model's Hugging Face settings other than its sizes."""
    if family == "qwen3-tiny":
        return {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": True}
    if family == "llama3-tiny":
        scaling = {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
        return {
            "rms_norm_eps": 1e-5,
            "rope_theta": 5e5,
            "rope_scaling": scaling,
            "tie_word_embeddings": True,
        }
    return {"rms_norm_eps": 1e-5, "tie_word_embeddings": False}


def train(*, steps: int = STEPS, apart: bool = False, family: str = "") -> Plain:
    """Run this many steps; ``apart`` computes each document of a sequence separately."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import AutoConfig, AutoModelForCausalLM

    from training.core.arguments import parse
    from training.models.llama.huggingface import initial_weight

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(
            "qwen3" if family.startswith("qwen3") else "llama",
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=16 if family else 8,
            max_position_embeddings=2 * SEQ_LEN,
            use_cache=False,
            **_settings(family),
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

    def losses_of(ids: torch.Tensor) -> torch.Tensor:
        """Return the loss of every token of one sequence."""
        inputs = ids[:-1]
        ends = [place + 1 for place in range(len(inputs) - 1) if apart and inputs[place] == END]
        documents = inputs.tensor_split(ends)
        logits = torch.cat([model(input_ids=document[None]).logits[0] for document in documents])
        return cross_entropy(logits, ids[1:], reduction="none")

    for step in range(1, steps + 1):
        batch = tokens(range((step - 1) * GLOBAL_BATCH, step * GLOBAL_BATCH))
        loss = torch.stack([losses_of(ids) for ids in batch]).mean()
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
        held_out = [losses_of(ids).mean().item() for ids in tokens(HELD_OUT)]
    return Plain(losses, norms, first, held_out)
