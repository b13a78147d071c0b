"""One rank of a side of the BERT benchmark: ``python -m benchmarks.bert_worker loop | ddp``.

For each line on its standard input, rank 0 and the others run that many steps, and rank 0 prints
the seconds they took.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.bert import BATCH, RANKS, SEQ_LEN
from training.core.arguments import parse
from training.core.config import TrainConfig
from training.core.contract import DeviceKind
from training.core.device import open_device
from training.core.logs import set_up_logging
from training.datasets.prepared.bert_shards import read_shard
from training.datasets.prepared.prepare import prepare_dataset
from training.models.bert.data import to_batch
from training.models.bert.task import BertTask
from training.storage import StorageAccess
from training.trainer.task import Staging

_DOCUMENTS = 300
_NEVER = 10**6
"""Steps of the run, more than are ever measured."""
_WORDS = (
    *("bert-tiny", f"--global-batch={BATCH * RANKS}", f"--micro-batch={BATCH}"),
    *(f"--seq-len={SEQ_LEN}", f"--max-steps={_NEVER}"),
)

Make = Callable[[int], float]
"""Runs that many steps and returns their seconds."""


def main(side: str) -> None:
    """Serve one side of the comparison."""
    answers = sys.stdout
    set_up_logging()
    with contextlib.redirect_stdout(sys.stderr):
        device = open_device(DeviceKind.CPU, timeout_s=24 * 3600.0)
        root = Path(f"rank-{dist.get_rank()}")
        place = StorageAccess(root=str(root))
        prepare_dataset("bert-tiny", place, max_documents=_DOCUMENTS, report=lambda text: None)
        values = parse(_WORDS).values
        config = TrainConfig.from_values(values, RANKS)
        make = {"loop": loop, "ddp": ddp}[side](config, device, values, root)
        make(2)  # memory is allocated, code is warm
        for steps in _orders():
            seconds = make(steps)
            if dist.get_rank() == 0:
                answers.write(f"{seconds}\n")
                answers.flush()


def _orders() -> Iterator[int]:
    """Yield on every rank the numbers of steps that rank 0 reads."""
    while True:
        steps = torch.zeros(1, dtype=torch.int64)
        if dist.get_rank() == 0:
            steps[0] = int(sys.stdin.readline() or 0)
        dist.broadcast(steps, 0)
        if not steps.item():
            return
        yield int(steps.item())


def loop(config: TrainConfig, device: Any, values: Any, root: Path) -> Make:
    """The product's loop, with its data order and, on rank 0, its metrics files."""
    import dataclasses

    from training.core.contract import NodeContract
    from training.core.job import StopSwitch
    from training.core.ranks import Ranks
    from training.storage import open_objects
    from training.trainer.loop import Loop
    from training.trainer.metrics import MetricsRecorder
    from training.trainer.run_files import RunFiles

    task, objects = BertTask(), open_objects(str(root), region=None, endpoint_url=None)
    dataset = task.open_data(
        Staging(
            objects=objects.at("datasets/bert-tiny"), cache=root / "cache", is_leader=True,
            wait=lambda: None, report=lambda text: None,
        ),
        values,
    )  # fmt: skip
    backend = task.backend(config, device, peak_flops=None, report=lambda text: None)
    backend.build()
    context = NodeContract(
        run="bench", deployment="bench", job_id="bench", attempt=1, node_index=0, num_nodes=1,
        processes_per_node=RANKS, device=DeviceKind.CPU,
    )  # fmt: skip
    files = None
    if device.rank == 0:
        files = RunFiles.open(
            objects.at("runs/bench"), root / "files", context=context, workload="bert-tiny"
        )
        files.announce(max_steps=config.max_steps)
        files.begin(0, num_ranks=RANKS, backend=backend.name)
    metrics = MetricsRecorder(config, files, sequences_per_epoch=dataset.samples, peak_flops=None)
    batch = task.batches(config, dataset, backend)
    ranks = Ranks.open()
    done = 0

    def make(steps: int) -> float:
        nonlocal done
        timed = Loop(
            config=dataclasses.replace(config, steps_this_run=steps),
            backend=backend,
            batch=batch,
            metrics=metrics,
            stop=StopSwitch(),
            ranks=ranks,
            report=lambda text: None,
        )
        began = time.perf_counter()
        timed.run(done)
        done += steps
        return time.perf_counter() - began

    return make


def ddp(config: TrainConfig, device: Any, values: Any, root: Path) -> Make:
    """Hugging Face's model and loss under DistributedDataParallel."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    from torch.utils.tensorboard import SummaryWriter
    from transformers import BertForPreTraining, get_linear_schedule_with_warmup

    from training.models.bert.network import bert_config

    shards = [read_shard(path) for path in sorted((root / "datasets/bert-tiny").glob("*.hdf5"))]
    parts = [to_batch(shard) for shard in shards]
    rows = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    labels = torch.full_like(rows["input_ids"], -100)
    labels.scatter_(1, rows["positions"], rows["labels"])
    names = ("input_ids", "attention_mask", "token_type_ids", "next_sentence_label")
    dataset = TensorDataset(*(rows[name] for name in names), labels)
    sampler: Any = DistributedSampler(dataset, seed=config.seed, drop_last=True)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler, drop_last=True)
    torch.manual_seed(config.seed)
    shape: Any = config.shape
    model = DistributedDataParallel(BertForPreTraining(bert_config(shape, dropout=config.dropout)))
    spared = ("bias", "LayerNorm.weight")
    groups: list[dict[str, Any]] = [
        {
            "params": [p for n, p in model.named_parameters() if n.endswith(spared) is free],
            "weight_decay": 0.0 if free else config.weight_decay,
        }
        for free in (False, True)
    ]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, eps=config.adam_eps)
    schedule = get_linear_schedule_with_warmup(optimizer, config.warmup_steps, config.max_steps)
    writer = SummaryWriter(str(root / "logs")) if device.rank == 0 else None

    def batches() -> Iterator[Any]:
        epoch = 0
        while True:
            sampler.set_epoch(epoch)
            yield from loader
            epoch += 1

    data, done = batches(), 0

    def make(steps: int) -> float:
        nonlocal done
        began = time.perf_counter()
        for _ in range(steps):
            ids, mask, segments, follows, words = next(data)
            loss = model(
                input_ids=ids,
                attention_mask=mask,
                token_type_ids=segments,
                labels=words,
                next_sentence_label=follows,
            ).loss
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            mean = loss.detach()
            dist.all_reduce(mean)
            done += 1
            if writer is not None:
                writer.add_scalar("step loss", mean.item() / RANKS, done)
                writer.add_scalar("grad-norm", norm.item(), done)
        return time.perf_counter() - began

    return make


if __name__ == "__main__":
    main(sys.argv[1])
    # gloo's threads may outlive the group.
    os._exit(0)
