"""Checks of verify on this process's ranks, and the defects they must detect."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import PrepareModuleInput
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from training.backends import native, open_backend
from training.backends.base import WeightPart
from training.backends.native import NativeBackend
from training.backends.optimizers import clip as clip_right
from training.core.ranks import Ranks
from training.diagnostics.verify import checks
from training.diagnostics.verify.checks import LlamaChecks
from training.diagnostics.verify.run import TrialRun
from training.diagnostics.verify.settings import Tolerance, config_for, tokens
from training.models.bert.network import BertNetwork
from training.models.llama import parallel
from training.models.llama.network import LlamaNetwork
from training.storage import Objects

Patch = pytest.MonkeyPatch


def llama(
    objects: Objects,
    device: Any,
    tolerance: Tolerance,
    *,
    tensor_parallel: int = 0,
    count_graphs: Callable[[], int | None] = lambda: None,
) -> LlamaChecks:
    """On all ranks: create the checks of an untrained Llama."""
    config = config_for(device.num_ranks, tensor_parallel)
    backend = open_backend(config, device, LlamaNetwork(config))
    run = TrialRun(config, backend, tokens, objects, count_graphs=count_graphs)
    return LlamaChecks(run, tolerance, Ranks.open())


def models(
    objects: Objects, device: Any, tolerance: Tolerance, *names: str, tensor_parallel: int = 0
) -> dict[str, tuple[bool, str]]:
    """On all ranks: return the outcomes of the named models, by name."""
    found = {}
    for case in itertools.chain(*checks.MODELS.values()):
        if case.name in names:
            config = case.config(device.num_ranks, tensor_parallel)
            backend = open_backend(config, device, case.network(config))
            run = TrialRun(config, backend, case.batches, objects.at(case.name))
            found[case.name] = checks.check_case(case, run, tolerance)
    return found


# --- Defects, each of which a release of Neuron or a change here could bring --------------------


class _Unsummed(torch.autograd.Function):
    """Treat a replicated tensor's partial gradient as complete."""

    @staticmethod
    def forward(context: Any, tensor: DTensor) -> Any:
        context.placements = tensor.placements
        return tensor.redistribute(placements=[Replicate()])

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        part, mesh = gradients[0].to_local(), gradients[0].device_mesh
        whole = DTensor.from_local(part, mesh, [Replicate()], run_check=False)
        return whole.redistribute(placements=context.placements)


def lose_sum_of_input_gradients(patch: Patch) -> None:
    """Reduce as NxD's column-parallel layers do with their default ``reduce_dtype``."""

    def prepare(style: Any, given: Any, mesh: Any, layout: Any, wanted: Any) -> Any:
        if layout is None:
            return given
        if not isinstance(given, DTensor):
            given = DTensor.from_local(given, mesh, [layout], run_check=False)
        return _Unsummed.apply(given)  # type: ignore[no-untyped-call]

    patch.setattr(PrepareModuleInput, "_prepare_input_arg", prepare)


def sum_over_data_ranks(patch: Patch) -> None:
    """Sum gradients instead of averaging them."""

    def summing(parameters: Any, limit: float) -> torch.Tensor:
        held = list(parameters)
        for parameter in held:
            mesh = parameter.grad.device_mesh
            parameter.grad.mul_(mesh["data"].size())
        return clip_right(held, limit)

    patch.setattr(native, "clip", summing)


def clip_by_local_norm(patch: Patch) -> None:
    """Clip on each rank by its local norm."""

    def clip(parameters: Any, limit: float) -> torch.Tensor:
        held = list(parameters)
        parts = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in held]
        norm: torch.Tensor = get_total_norm(parts)
        for parameter in held:
            clip_grads_with_norm_([parameter], limit, norm)
        return norm

    patch.setattr(native, "clip", clip)


def swap_ranks_of_a_model(patch: Patch) -> None:
    """Swap the shards of a model's ranks 0 and 1."""
    fill = native._fill

    def swapped(
        parameter: torch.Tensor, name: str, initial: Callable[[WeightPart], torch.Tensor]
    ) -> None:
        def of_the_other(part: WeightPart) -> torch.Tensor:
            sizes = zip(part.whole, part.size, part.offsets, strict=True)
            # Of two equal parts; an unsharded dimension stays at 0.
            return initial(
                replace(part, offsets=tuple(whole - size - offset for whole, size, offset in sizes))
            )

        fill(parameter, name, of_the_other)

    patch.setattr(native, "_fill", swapped)


def keep_gradients_of_qk_norms(patch: Patch) -> None:
    """Treat the gradient of a rank's heads as that of the shared norm."""
    patch.setattr(parallel, "share_head_norms", lambda model, sum_over_ranks: None)


def forget_positions(patch: Patch) -> None:
    """Make rotary embeddings the identity."""
    restore = LlamaNetwork.restore

    def unturned(self: LlamaNetwork, model: Any, device: torch.device) -> None:
        restore(self, model, device)
        model.model.rotary_emb.register_forward_hook(
            lambda module, given, found: (torch.ones_like(found[0]), torch.zeros_like(found[1]))
        )

    patch.setattr(LlamaNetwork, "restore", unturned)


def decay_norms(patch: Patch) -> None:
    """Apply weight decay to every parameter."""
    patch.setattr("training.backends.optimizers.is_decayed", lambda name: True)


def see_padding(patch: Patch) -> None:
    """Let BERT attend to padding."""
    loss = BertNetwork.loss

    def unmasked(self: BertNetwork, model: Any, batch: Any) -> torch.Tensor:
        everything = torch.ones_like(batch["attention_mask"])
        return loss(self, model, {**batch, "attention_mask": everything})

    patch.setattr(BertNetwork, "loss", unmasked)


def _after_load(patch: Patch, change: Callable[[NativeBackend], None]) -> None:
    load = NativeBackend.load

    def changed(backend: NativeBackend, *given: Any) -> Any:
        info = load(backend, *given)
        with torch.no_grad():
            change(backend)
        return info

    patch.setattr(NativeBackend, "load", changed)


def resume_without_moments(patch: Patch) -> None:
    """Reset the moments of a resumed run to 0."""

    def forget(backend: NativeBackend) -> None:
        state = backend.state_dict()["optimizer"]
        for kind in state.values():
            for moment in kind.values():
                moment.zero_()

    _after_load(patch, forget)


def resume_from_bf16_weights(patch: Patch) -> None:
    """Slice master weights from the bf16 weights."""

    def cut(backend: NativeBackend) -> None:
        for weight in backend._model.parameters():
            weight.copy_(weight.to(torch.bfloat16))

    _after_load(patch, cut)


def resume_counting_from_zero(patch: Patch) -> None:
    """Restart the bias corrections of a resumed run."""
    _after_load(patch, lambda backend: backend._optimizer.restore_step(0))
