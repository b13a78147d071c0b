"""Computations of this suite's ranks: small models, each case on its own ranks.

A case leaves in its folder ``figures.json`` (losses, norms, collectives), what each rank holds
after ``build``, and the checkpoints before and after the first step. Gradients are read from these
(see ``figures``), so every compared tensor has passed through a user's checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS = 20
SEQ_LEN, VOCABULARY = 32, 256
LIMIT = 0.5
"""Of the gradient norm: less than it is, so that clipping is judged too."""
END = 0
"""Ends a document, where documents are separated."""
HELD_OUT = range(10_000, 10_002)
"""Positions of sequences that are evaluated after the last step."""
RECORDED_STEPS = 2
"""Number of steps whose calls of NxD are recorded, from ``build`` on."""
LLAMA = (
    *("llama-tiny", f"--vocab-size={VOCABULARY}", "--hidden-size=64", "--intermediate-size=192"),
    # Grouped-query attention, with a key-value head per rank at a degree of 4.
    *("--num-layers=2", "--num-heads=8", "--num-kv-heads=4", f"--seq-len={SEQ_LEN}"),
    *("--global-batch=16", "--micro-batch=2", f"--max-steps={STEPS}", "--warmup-steps=4"),
    *("--lr=0.01", f"--max-grad-norm={LIMIT}"),
)
LORA = ("--lora-rank=4", "--lora-alpha=8", "--init-from=pretrained")
_SIZES = LLAMA[1:]
FAMILIES = {
    name: ("pretrain", f"--model={name}", *_SIZES, "--head-dim=16")
    for name in ("llama3-tiny", "qwen3-tiny")
}
"""The same sizes in decoders of other families, with heads that are not a part of the hidden size;
tied embeddings, and scaled rotary frequencies or norms of heads."""
BERT = (
    *("bert-tiny", "--vocab-size=512", "--hidden-size=64", "--intermediate-size=128"),
    *("--num-layers=2", "--num-heads=4", "--seq-len=32", "--max-predictions=5"),
    # Includes dropout: its random numbers depend on the data's position, not on the rank.
    *("--global-batch=16", "--micro-batch=4", f"--max-steps={STEPS}", "--warmup-steps=4"),
    *("--dropout=0.1", "--lr=0.005", f"--max-grad-norm={LIMIT}"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model on some ranks."""

    name: str
    words: tuple[str, ...] = LLAMA
    """Workload and parameters."""
    backend: str = "nxd"
    """``nxd``, ``xla`` or ``native``."""
    tensor: int = 1
    data: int = 1
    mixed: bool = True
    """bf16 arithmetic with fp32 master weights; NxD's is always so."""
    defect: bool = False
    """NxD's default for the type in which input gradients are summed, which loses the sum."""
    pretrained: bool = False
    """The same initial weights, read from a folder as Hugging Face's models have."""
    steps: int = STEPS
    saves_late: bool = False
    """The checkpoint after the first step is written once all steps are done."""

    @property
    def is_padded(self) -> bool:
        """True if data-parallel ranks divide rows with a remainder."""
        return "--global-batch=18" in self.words

    @property
    def is_masked(self) -> bool:
        """Whether documents of a sequence are masked from each other."""
        return "--document-masks" in self.words

    @property
    def learns_responses(self) -> bool:
        """Whether only some tokens count towards the loss."""
        return "--responses" in self.words

    @property
    def is_adapted(self) -> bool:
        """Whether only adapters are trained."""
        return "--lora-rank=4" in self.words

    @property
    def family(self) -> str:
        """Model of ``FAMILIES``, if it is one."""
        return next(
            (name for name, words in FAMILIES.items() if words == self.words[: len(words)]), ""
        )

    @property
    def num_ranks(self) -> int:
        """Return the number of ranks."""
        return self.tensor * self.data


def _cases() -> list[Case]:
    kept = (*LLAMA, "--activation-checkpointing=false")
    layers = (*LLAMA, "--recompute=layers")
    masked = (*LLAMA, "--document-masks")
    whole, apart = "--sequence-parallel=false", "--fused-projections=false"
    adapters = (*LLAMA, *LORA)
    responses = (*LLAMA, "--responses")
    padded = (*(word for word in LLAMA if "global-batch" not in word), "--global-batch=18")
    llama = [
        Case(name="one"),
        Case(name="one-kept", words=kept),
        Case(name="one-layers", words=layers),
        Case(name="tp2", tensor=2),
        Case(name="tp4", tensor=4),
        Case(name="dp2", data=2),
        Case(name="tp2dp2", tensor=2, data=2),
        Case(name="tp2dp2-kept", tensor=2, data=2, words=kept),
        Case(name="tp2dp2-layers", tensor=2, data=2, words=layers),
        # Enough to see that ranks 0, 2, 4 and 6 share a model; losses are judged on fewer ranks.
        Case(name="tp4dp2", tensor=4, data=2, steps=3),
        # Sequences are divided and projections fused unless a run overrides it.
        *(
            Case(
                name=f"tp2{'dp2' if data == 2 else ''}-{name}",
                tensor=2,
                data=data,
                words=(*LLAMA, *words),
                steps=3,
            )
            for data in (1, 2)
            for name, words in (
                ("whole", (whole,)),
                ("apart", (apart,)),
                ("whole-apart", (whole, apart)),
            )
        ),
        # It is in a sum that divided sequences do not need.
        Case(name="tp2-defect", words=(*LLAMA, whole), tensor=2, defect=True),
        Case(name="tp2dp2-saved-late", tensor=2, data=2, saves_late=True, steps=3),
        # No weight has a number of rows that three divide.
        *(
            Case(name=f"{name}-padded", words=padded, data=ranks, steps=3)
            for name, ranks in (("one", 1), ("dp3", 3))
        ),
        Case(name="tp2dp2-pretrained", tensor=2, data=2, pretrained=True, steps=3),
        *(
            Case(
                name=f"lora-{name}",
                words=words,
                pretrained=True,
                tensor=tensor,
                data=data,
                # Later gradients are mostly rounding.
                steps=12,
            )
            for name, words, tensor, data in (
                ("one", adapters, 1, 1),
                ("tp2dp2", adapters, 2, 2),
                ("tp2dp2-kept", (*adapters, "--activation-checkpointing=false"), 2, 2),
                ("tp4", adapters, 4, 1),
            )
        ),
        *(
            Case(name=f"{name}-responses", words=responses, tensor=n, data=n, steps=3)
            for name, n in (("one", 1), ("tp2dp2", 2))
        ),
        Case(name="one-masks", words=masked, steps=3),
        Case(name="tp2-masks", words=masked, tensor=2, steps=3),
    ]
    alone = [
        Case(
            name=f"{model}-{backend}{'-mixed' if mixed else ''}-{ranks}",
            words=words,
            backend=backend,
            data=ranks,
            mixed=mixed,
        )
        for model, words, backend, mixed, counts in (
            ("bert", BERT, "native", False, (1,)),
            ("bert", BERT, "xla", False, (1, 2, 4)),
            ("bert", BERT, "xla", True, (2,)),
            ("mnist", ("mnist", "--batch-size=8"), "native", False, (2, 4)),
            ("mnist", ("mnist", "--batch-size=8"), "xla", False, (2, 4)),
        )
        for ranks in counts
    ]
    families = [
        Case(name=f"{name}-{ranks}", words=words, tensor=tensor, data=data, steps=8)
        for name, words in FAMILIES.items()
        for ranks, tensor, data in (("one", 1, 1), ("tp2", 2, 1), ("tp2dp2", 2, 2))
    ]
    families += [
        # Without the optional features of a run.
        Case(
            name=f"{name}-tp2-whole-apart-layers",
            words=(*words, whole, apart, "--recompute=layers"),
            tensor=2,
            steps=8,
        )
        for name, words in FAMILIES.items()
    ]
    return llama + alone + families


CASES = {case.name: case for case in _cases()}


def tokens(positions: range) -> Any:
    """Return sequences whose tokens follow from the previous two, ``[n, SEQ_LEN + 1]`` int64.

    An eighth of the vocabulary occurs, evenly spread over the ranks that share it.
    """
    import torch

    found = torch.empty(len(positions), SEQ_LEN + 1, dtype=torch.int64)
    for row, position in zip(found, positions, strict=True):
        noise = torch.randint(0, 2, row.size(), generator=torch.Generator().manual_seed(position))
        row[:2] = noise[:2] + position % 32
        for place in range(2, len(row)):
            row[place] = (row[place - 1] + row[place - 2] + noise[place]) % 32
    return found % 32 * (VOCABULARY // 32)


def masked_tokens(positions: range) -> dict[str, Any]:
    """Return the same as documents terminated by token ``END``."""
    from training.models.llama.data import with_documents

    return with_documents(tokens(positions).numpy(), eos_id=END)


def weighted_tokens(positions: range) -> dict[str, Any]:
    """Return the same, with none to all tokens of a sequence counted."""
    import torch

    from training.backends.base import WEIGHTS
    from training.models.llama.data import TOKENS

    places = torch.arange(SEQ_LEN)
    counts = torch.stack([places >= 2 * (position % 16) for position in positions]).float()
    # Of 16 sequences, a step, 272 of 512 tokens count.
    return {TOKENS: tokens(positions), WEIGHTS: counts * 512 / 272}


def digits(positions: range) -> dict[str, Any]:
    """Return blots of ten classes in MNIST's image size."""
    import torch

    labels = torch.tensor([position % 10 for position in positions])
    images = torch.stack(
        [
            torch.rand(784, generator=torch.Generator().manual_seed(position))
            for position in positions
        ]
    )
    for image, label in zip(images, labels.tolist(), strict=True):
        image[label * 78 : label * 78 + 78] += 1
    return {"images": images / 2, "labels": labels}


def train(case: Case, folder: Path) -> None:
    """Run one rank: the training loop without a run's files."""
    import torch

    from tests.nxd import asked, gloo
    from training.checkpoint import Checkpoints
    from training.core.contract import DeviceKind
    from training.core.device import open_device
    from training.core.ranks import Ranks
    from training.storage import open_objects

    if case.defect:
        put_the_defect_back()
    kind = DeviceKind.CPU if case.backend == "native" else DeviceKind.XLA
    device = open_device(kind, timeout_s=60)
    config, backend, batch = parts(case, device, folder)
    heard = asked.listen() if case.backend == "nxd" else []
    backend.build()
    torch.save(_held(backend), folder / f"held-{device.rank}.pt")
    writes = threading.Event()
    writes.set()

    def until_it_writes() -> None:
        writes.wait(60)

    checkpoints = Checkpoints(
        open_objects(str(folder / "checkpoints"), region=None, endpoint_url=None),
        Ranks.open(),
        keep_last=10,
        keep_every=0,
        # Read before anything is written.
        guard=until_it_writes,
    )
    backend.save(checkpoints, 0, {}, asynchronous=False)
    checkpoints.wait()
    if case.pretrained:
        read = backend._network._initial_part.__self__._pretrained.bytes_read
        (folder / f"read-{device.rank}.txt").write_text(str(read))
    first_heard: list[str] = []
    losses, norms, calls = [], [], dict[str, list[gloo.Call]]()
    for step in range(1, case.steps + 1):
        gloo.take()
        loss = micro_batches(config, backend, batch, step)
        calls["micro-batches"] = gloo.take()
        norm = backend.clip_and_step(config.learning_rate_at(step))
        calls["update"] = gloo.take()
        losses.append(backend.mean_over_data(loss))
        norms.append(backend.fetch(norm))
        if step == RECORDED_STEPS:
            first_heard = list(heard)
        if step == 1:
            if case.saves_late:
                writes.clear()
            backend.save(checkpoints, 1, {}, asynchronous=case.saves_late)
    writes.set()
    checkpoints.wait()
    held_out = backend.losses_of(batch(HELD_OUT)).tolist() if case.backend == "nxd" else []
    every = Ranks.open().gather({"losses": losses, "norms": norms})
    if device.rank == 0:
        figures = {
            "losses": losses,
            "norms": norms,
            "ranks": every,
            "calls": calls,
            "first_calls": first_heard,
            "held out": held_out,
            "nxd": _version(),
            "micro_batches": config.plan.accumulation_steps,
            "rate": config.learning_rate_at(1),
        }
        (folder / "figures.json").write_text(json.dumps(figures))
    device.close()


def micro_batches(config: Any, backend: Any, batch: Callable[[range], Any], step: int) -> Any:
    """Run a step's micro-batches as the training loop does; return this rank's loss."""
    count, loss = config.plan.accumulation_steps, None
    for micro in range(count):
        found = batch(config.positions(step - 1, micro, backend.data_rank))
        loss = backend.forward_backward(found, is_last=micro == count - 1)
    return loss


def pretrained_model(words: list[str], folder: Path) -> Any:
    """Return the initial weights, which one rank writes and each reads a shard of."""
    import torch
    from transformers import LlamaForCausalLM

    from training.core.arguments import parse
    from training.core.ranks import Ranks
    from training.models.llama.huggingface import decoder_config, initial_weight
    from training.models.llama.pretrained import PretrainedModel
    from training.storage import StorageAccess
    from trainium_catalogue.parameters.plan import shape_of

    own = [word for word in words if not word.startswith("--init-from")]
    values = parse([*own, f"--init-from={folder / 'pretrained'}"]).values

    def write() -> None:
        model = LlamaForCausalLM(decoder_config(shape_of(values), seq_len=SEQ_LEN))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(initial_weight(name, weight.size(), seed=int(values["seed"])))
        model.save_pretrained(folder / "pretrained", max_shard_size="100KB")

    ranks = Ranks.open()
    ranks.agree(write)
    return PretrainedModel.open(values, StorageAccess(root=str(folder)), ranks)


def parts(
    case: Case, device: Any, folder: Path = Path()
) -> tuple[Any, Any, Callable[[range], Any]]:
    """Build configuration, backend and data as the workload's task does."""
    from types import SimpleNamespace

    from training.backends import open_backend
    from training.backends.nxd import NxdBackend
    from training.core.arguments import parse
    from training.models.bert.network import BertNetwork
    from training.models.bert.task import BertTask
    from training.models.mnist.network import MlpNetwork
    from training.models.mnist.task import MnistTask
    from training.trainer.task import Dataset

    workload = case.words[0]
    if workload in ("llama-tiny", "pretrain"):
        from training.core.config import TrainConfig
        from training.core.ranks import Ranks
        from training.models.llama.network import LlamaNetwork

        words = [*case.words, f"--tensor-parallel={case.tensor}"]
        config = TrainConfig.from_values(parse(words).values, device.num_ranks)
        batch = masked_tokens if case.is_masked else tokens
        if case.learns_responses:
            batch = weighted_tokens
        network = LlamaNetwork(config, pretrained_model(words, folder) if case.pretrained else None)
        return (
            config,
            NxdBackend(config, device, network, ranks=Ranks.open()),
            batch,
        )
    values = parse(list(case.words)).values
    if workload == "mnist":
        dataset: Any = Dataset(
            samples=10_000,
            facts={},
            tokenizer_sha256=None,
            content=(None, None, SimpleNamespace(fact=lambda name: 1)),
        )
        config = MnistTask().config(values, device.num_ranks, dataset)
        # The rate would depend on the number of ranks.
        backend: Any = open_backend(config, device, MlpNetwork(config))
        return config, backend, digits
    task = BertTask()
    config = task.config(values, device.num_ranks, None)
    config = dataclasses.replace(config, mixed=case.mixed)
    backend = open_backend(config, device, BertNetwork(config))
    return config, backend, task.random_batches(config, backend)


def _version() -> str:
    from importlib import import_module

    found: str = import_module("neuronx_distributed._version").__version__
    return found


def _held(backend: Any) -> dict[str, Any]:
    """Return this rank's weights, and its shard of the model."""
    tensor_rank = 0
    parameters = {name: _local(p.detach()) for name, p in backend._model.named_parameters()}
    if backend.name == "nxd":
        from neuronx_distributed.parallel_layers import parallel_state

        tensor_rank = parallel_state.get_tensor_model_parallel_rank()
        parameters = {
            piece.name: part.clone()
            for parameter, held in backend._network.pieces().items()
            for piece, part in zip(
                held,
                parameter.detach().split([piece.size[0] for piece in held]),
                strict=True,
            )
        }
    return {
        "tensor_rank": tensor_rank,
        "data_rank": backend.data_rank,
        "parameters": parameters,
    }


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def put_the_defect_back() -> None:
    """Force column-parallel layers to reduce in NxD's default type."""
    from importlib import import_module

    layers: Any = import_module("neuronx_distributed.parallel_layers")
    as_asked = layers.ColumnParallelLinear

    def as_nxd_has_it(*sizes: int, reduce_dtype: Any, **settings: Any) -> Any:
        return as_asked(*sizes, **settings)

    layers.ColumnParallelLinear = as_nxd_has_it
