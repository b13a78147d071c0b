"""Worker of the training benchmarks: ``python -m benchmarks.train_worker WHAT``.

For each number read from standard input, one per line, ``loop``, ``trainer`` and ``litgpt`` run
that many steps and print the seconds; ``dataset`` writes build/datasets/words in the working
folder.
"""

import contextlib
import hashlib
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.train import BATCH, SEQ_LEN, SETTINGS, VOCABULARY
from training.core.logs import set_up_logging

_LEARNING_RATE = 3e-3
_MANY_STEPS = 10**6
"""Maximum steps of a run, and the evaluation interval: more than any benchmark measures."""


def main(what: str) -> None:
    """Run one of the trainers, or write the dataset."""
    if what == "dataset":
        write_dataset()
        return
    answers = sys.stdout
    set_up_logging()
    with contextlib.redirect_stdout(sys.stderr):
        run_steps = {"loop": loop, "trainer": trainer, "litgpt": litgpt}[what]()
        run_steps(2)  # warms up: memory is allocated, code is loaded
        for line in sys.stdin:
            answers.write(f"{run_steps(int(line))}\n")
            answers.flush()


def tokens() -> Any:
    """Return random token ids as uint16."""
    return np.random.default_rng(0).integers(VOCABULARY, size=2**20).astype("<u2")


def write_dataset() -> None:
    """Write a dataset in tokenize's format."""
    from training.datasets.manifest import PackedManifest, Shard, Source

    folder = Path("build/datasets/words")
    folder.mkdir(parents=True, exist_ok=True)
    data = tokens().tobytes()
    sha256 = hashlib.sha256(data).hexdigest()
    shard = Shard(name="shard-00000.bin", tokens=len(data) // 2, bytes=len(data), sha256=sha256)
    manifest = PackedManifest(
        dtype="uint16",
        vocab_size=VOCABULARY,
        eos_id=2,
        bos=False,
        tokenizer="none",
        tokenizer_file_sha256="0" * 64,
        tokenizer_sha256="0" * 64,
        num_tokens=shard.tokens,
        documents=1,
        empty_documents=0,
        source=Source(uri="none", files=1, bytes=1, text_field="text"),
        shards=(shard,),
    )
    (folder / shard.name).write_bytes(data)
    (folder / "manifest.json").write_bytes(manifest.to_json())


class _Device:
    """One rank on the CPU."""

    def __init__(self) -> None:
        from training.core.contract import DeviceKind

        self.kind = DeviceKind.CPU
        self.rank, self.num_ranks = 0, 1


def loop() -> Any:
    """Build our loop, with its data order and its metrics files."""
    import dataclasses

    from training.backends.native import NativeBackend
    from training.core.arguments import parse
    from training.core.config import TrainConfig
    from training.core.contract import DeviceKind, NodeContract
    from training.core.job import StopSwitch
    from training.core.ranks import Ranks
    from training.datasets.samples.packed import open_dataset
    from training.models.llama.data import packed_batches
    from training.models.llama.network import LlamaNetwork
    from training.storage import open_objects
    from training.trainer.loop import Loop
    from training.trainer.metrics import MetricsRecorder
    from training.trainer.run_files import RunFiles

    write_dataset()
    request = parse(
        ["llama-tiny", *SETTINGS, f"--lr={_LEARNING_RATE}", f"--max-steps={_MANY_STEPS}"]
    )
    config = TrainConfig.from_values(request.values, 1)
    device: Any = _Device()
    backend = NativeBackend(config, device, LlamaNetwork(config))
    backend.build()
    objects = open_objects("build", region=None, endpoint_url=None)
    dataset = open_dataset(
        objects.at("datasets/words"), Path("cache"), is_leader=True,
        wait=lambda: None, report=lambda text: None,
    )  # fmt: skip
    context = NodeContract(
        run="bench", deployment="bench", job_id="bench", attempt=1, node_index=0, num_nodes=1,
        processes_per_node=1, device=DeviceKind.CPU,
    )  # fmt: skip
    files = RunFiles(
        objects.at("runs/bench"), Path("files"), context=context, workload="llama-tiny"
    )
    files.announce(max_steps=config.max_steps)
    files.begin(0, num_ranks=1, backend=backend.name)
    seq_len = config.plan.seq_len
    metrics = MetricsRecorder(
        config, files, sequences_per_epoch=dataset.num_sequences(seq_len), peak_flops=None
    )
    ranks = Ranks.open()
    done = 0

    def run_steps(steps: int) -> float:
        nonlocal done
        loop = Loop(
            config=dataclasses.replace(config, steps_this_run=steps),
            backend=backend,
            batch=packed_batches(dataset, seed=config.seed, seq_len=seq_len),
            metrics=metrics,
            stop=StopSwitch(),
            ranks=ranks,
            report=lambda text: None,
        )
        began = time.perf_counter()
        loop.run(done)
        done += steps
        return time.perf_counter() - began

    return run_steps


def trainer() -> Any:
    """Build transformers.Trainer with the same model and batches."""
    import dataclasses

    import torch
    import transformers
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from training.core.arguments import parse
    from training.core.config import TrainConfig
    from training.models.llama.huggingface import decoder_config

    config = TrainConfig.from_values(parse(["llama-tiny", *SETTINGS]).values, 1)
    model = transformers.LlamaForCausalLM(decoder_config(config.shape, seq_len=config.plan.seq_len))
    ids = torch.from_numpy(tokens().astype(np.int64))

    class Sequences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return int(len(ids) // SEQ_LEN)

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            row = ids[index * SEQ_LEN : (index + 1) * SEQ_LEN]
            return {"input_ids": row, "labels": row}

    class TimingCallback(TrainerCallback):  # type: ignore[misc]
        """Times the steps, from the first batch to the end of the last step.

        Excludes the set-up and teardown of ``train``.
        """

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 0:
                self.began = time.perf_counter()

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.ended = time.perf_counter()

    def run_steps(steps: int) -> float:
        clock = TimingCallback()
        timed = Trainer(
            model=model,
            args=dataclasses.replace(arguments, max_steps=steps, warmup_steps=0),
            train_dataset=Sequences(),
            callbacks=[clock],
        )
        timed.train()
        return clock.ended - clock.began

    arguments = TrainingArguments(
        output_dir="trainer", max_steps=1, per_device_train_batch_size=BATCH, use_cpu=True,
        learning_rate=_LEARNING_RATE, lr_scheduler_type="linear", warmup_steps=5,
        weight_decay=config.weight_decay, max_grad_norm=config.max_grad_norm, logging_steps=1,
        save_strategy="no", report_to="none", disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    return run_steps


def litgpt() -> Any:
    """Build litgpt's pretraining loop, with its own model of the same shape, not compiled."""
    import lightning
    import torch
    from lightning.fabric.loggers.logger import Logger
    from litgpt.args import EvalArgs, TrainArgs
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.pretrain import fit

    from training.core.arguments import parse
    from training.core.config import TrainConfig

    config = TrainConfig.from_values(parse(["llama-tiny", *SETTINGS]).values, 1)
    shape: Any = config.shape
    ids = torch.from_numpy(tokens().astype(np.int64))
    rows = [ids[i : i + SEQ_LEN + 1] for i in range(0, len(ids) - SEQ_LEN, SEQ_LEN)]

    class TimingLogger(Logger):  # type: ignore[misc]
        """Records the time of each step's log record, which is the step's last action."""

        name, version = "clock", 0

        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            self.ends.append(time.perf_counter())

        def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
            return

    clock = TimingLogger()
    fabric = lightning.Fabric(accelerator="cpu", devices=1, loggers=[clock])
    model = GPT(
        Config(
            name="llama-tiny",
            block_size=SEQ_LEN,
            vocab_size=shape.vocab_size,
            padded_vocab_size=shape.vocab_size,
            n_layer=shape.num_hidden_layers,
            n_head=shape.num_attention_heads,
            n_query_groups=shape.num_key_value_heads,
            n_embd=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            rotary_percentage=1.0,
            parallel_residual=False,
            bias=False,
            norm_class_name="RMSNorm",
            mlp_class_name="LLaMAMLP",
        )
    )
    ours = shape.num_parameters
    assert sum(parameter.numel() for parameter in model.parameters()) == ours, ours
    model = fabric.setup(model)
    optimizer = fabric.setup_optimizers(
        torch.optim.AdamW(
            model.parameters(), lr=_LEARNING_RATE, weight_decay=config.weight_decay, fused=False
        )
    )
    loader = fabric.setup_dataloaders(
        torch.utils.data.DataLoader(rows, batch_size=BATCH, shuffle=True)  # type: ignore[arg-type]
    )

    def run_steps(steps: int) -> float:
        clock.ends = []
        fit(
            fabric=fabric,
            devices=1,
            state={
                "model": model,
                "optimizer": optimizer,
                "train_dataloader": loader,
                "iter_num": 0,
                "step_count": 0,
            },
            train_dataloader=loader,
            val_dataloader=loader,
            out_dir=Path("litgpt"),
            tokenizer_dir=None,
            train=TrainArgs(
                save_interval=None,
                log_interval=1,
                global_batch_size=BATCH,
                micro_batch_size=BATCH,
                lr_warmup_steps=5,
                max_tokens=(steps + 1) * BATCH * SEQ_LEN,
                max_norm=config.max_grad_norm,
            ),
            eval=EvalArgs(interval=_MANY_STEPS, max_iters=1, final_validation=False),
        )
        # The first step includes the loop's own set-up and does not count.
        assert len(clock.ends) == steps + 1, clock.ends
        elapsed_s: float = clock.ends[-1] - clock.ends[0]
        return elapsed_s

    return run_steps


if __name__ == "__main__":
    main(sys.argv[1])
