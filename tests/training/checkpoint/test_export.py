"""A run's checkpoint as a model that transformers loads, with the same logits."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from tests.training.checkpoint.documents import assert_valid
from tests.training.nodes import CPU_NODE
from training.checkpoint import Checkpoints, CheckpointUnusable
from training.core.ranks import Ranks
from training.models.llama.export import ExportError, ExportRequest, export, run
from training.models.llama.huggingface import decoder_config
from training.storage import LocalObjects, Objects, StorageAccess
from training.trainer.runs import RunConfig
from trainium_catalogue.parameters.plan import shape_of
from trainium_catalogue.workloads import WORKLOADS

VALUES = {p.name: p.default for p in WORKLOADS["llama-tiny"].parameters} | {
    "vocab-size": 96,
    "dataset": "books",
}
SHAPE = shape_of(VALUES)
TEXT = ["the quick brown fox jumps over the lazy dog"] * 10

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(decoder_config(SHAPE, seq_len=128)).eval()


def in_bfloat16(of: LlamaForCausalLM) -> LlamaForCausalLM:
    """Load weights only: rotary frequencies are unchanged, as when transformers loads a model."""
    for parameter in of.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return of


def logits(of: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = of(input_ids=torch.arange(64)[None]).logits
    return result


def write_dataset(bucket: Objects) -> None:
    """A tokenizer that puts a BOS in front, and a manifest by which training had none."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=96, special_tokens=["<unk>", "<s>", "</s>"])
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    bucket.put("datasets/books/tokenizer.json", tokenizer.to_str().encode())
    manifest = {"tokenizer_sha256": "a" * 64, "eos_id": 2, "bos": False}
    bucket.put("datasets/books/manifest.json", json.dumps(manifest).encode())


def write_run(bucket: Objects, name: str) -> Objects:
    """Write a run's configuration; return the location of its checkpoints."""
    config = RunConfig(
        workload="llama-tiny",
        values=VALUES,
        created="2026-01-01",
        facts={"tokenizer_sha256": "a" * 64, "eos_id": 2},
    )
    config.save(bucket.at(f"runs/{name}"))
    return bucket.at(f"runs/{name}/checkpoints")


def save(checkpoints: Objects, *steps: int) -> None:
    saver = Checkpoints(checkpoints, Ranks.open(), keep_last=9, keep_every=0)
    for step in steps:
        weights = dict(model(step).named_parameters())
        moments = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        state = {"model": weights, "optimizer": {"exp_avg": moments}}
        meta = {"model": asdict(SHAPE), "tokens_total": step * 4096}
        saver.save(state, step, meta, asynchronous=False)


def request(
    name: str = "my-run", *, step: int = 0, dtype: str = "float32", size: str = "5GB"
) -> ExportRequest:
    return ExportRequest(run=name, step=step, dtype=dtype, max_file_size=size)


def run_export(root: Path, wanted: ExportRequest) -> dict[str, Any]:
    return export(wanted, StorageAccess(root=str(root)), report=lambda text: None)


def loaded(root: Path, name: str = "my-run") -> Any:
    return AutoModelForCausalLM.from_pretrained(
        root / "export" / name, torch_dtype="auto", local_files_only=True
    )


def names(root: Path, name: str = "my-run") -> list[str]:
    return sorted(path.name for path in (root / "export" / name).iterdir())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bucket's content with a run of two checkpoints."""
    folder = tmp_path_factory.mktemp("bucket")
    bucket = LocalObjects(folder)
    write_dataset(bucket)
    save(write_run(bucket, "my-run"), 10, 20)
    return folder


@pytest.fixture
def root(tmp_path: Path, saved: Path) -> Path:
    """Return the same, writable by a test."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_transformers_loads_the_export_with_the_same_logits(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_export(root, request())

    assert torch.equal(logits(loaded(root)), logits(model(20)))
    assert "export: step-00000020 of run my-run is in " in capsys.readouterr().out


def test_rank_0_exports_what_the_job_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[ExportRequest, StorageAccess]] = []

    def record(wanted: ExportRequest, storage: StorageAccess, *, report: Any) -> None:
        requests.append((wanted, storage))

    monkeypatch.setattr("training.models.llama.export.export", record)
    values = {"run": "my-run", "step": 10, "dtype": "float32", "merge": True}
    for rank in (0, 1):
        job: Any = SimpleNamespace(
            context=CPU_NODE,
            values=values,
            device=SimpleNamespace(rank=rank),
            progress=SimpleNamespace(report=lambda text: None),
        )
        run(job)

    wanted = ExportRequest(run="my-run", step=10, dtype="float32", merge=True)
    assert requests == [(wanted, StorageAccess.of(CPU_NODE))]


def test_files_are_cut_where_they_become_too_large(root: Path) -> None:
    receipt = run_export(root, request(size="50KB"))

    files = [name for name in names(root) if name.startswith("model-")]
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert torch.equal(logits(loaded(root)), logits(model(20)))
    assert sorted([*receipt["files"], "export.json"]) == names(root)
    assert_valid(receipt, "export.schema.json")


def test_a_checkpoint_is_exported_by_step_in_half_the_bytes(root: Path) -> None:
    run_export(root, request(step=10, dtype="bfloat16"))

    exported = loaded(root)
    config = json.loads((root / "export/my-run/config.json").read_text())
    assert exported.dtype is torch.bfloat16
    assert torch.equal(logits(exported), logits(in_bfloat16(model(10))))
    assert (config["torch_dtype"], config["use_cache"]) == ("bfloat16", True)
    assert config["architectures"] == ["LlamaForCausalLM"]


def test_the_model_generates_from_all_the_tokenizers_outputs(root: Path) -> None:
    run_export(root, request())

    folder = root / "export/my-run"
    given = AutoTokenizer.from_pretrained(folder, local_files_only=True)(
        "the lazy dog", return_tensors="pt"
    )
    made = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).generate(
        **given, max_new_tokens=1, eos_token_id=None
    )

    assert set(given) == {"input_ids", "attention_mask"}
    assert made.shape[1] == given["input_ids"].shape[1] + 1


def test_leftovers_of_an_earlier_export_are_removed(root: Path) -> None:
    run_export(root, request(size="50KB"))
    run_export(root, request())

    assert "model.safetensors" in names(root)
    assert [name for name in names(root) if "-of-" in name or "index" in name] == []


def flip(root: Path, step: int) -> None:
    path = root / f"runs/my-run/checkpoints/step-{step:08}/__0_0.distcp"
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1
    path.write_bytes(data)


def test_a_damaged_checkpoint_falls_back_to_the_previous_for_export(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(root, 20)

    assert run_export(root, request())["step"] == 10
    assert torch.equal(logits(loaded(root)), logits(model(10)))
    assert "skipping checkpoint step-00000020: __0_0.distcp has" in capsys.readouterr().out


def test_a_damaged_checkpoint_that_was_asked_for_is_refused(root: Path) -> None:
    flip(root, 20)

    with pytest.raises(CheckpointUnusable, match=r"step-00000020 is damaged: .* another --step"):
        run_export(root, request(step=20))


def test_all_damaged_checkpoints_are_named(root: Path) -> None:
    flip(root, 10)
    flip(root, 20)

    with pytest.raises(
        ExportError, match="no complete checkpoint; step-00000020, step-00000010 cannot be read"
    ):
        run_export(root, request())


def test_an_unknown_run_and_an_unknown_step_are_refused(root: Path) -> None:
    with pytest.raises(ExportError, match="there is no run other in "):
        run_export(root, request("other"))
    with pytest.raises(ExportError, match="-00000015; export one of its complete steps: 10, 20"):
        run_export(root, request(step=15))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"intermediate-size": 64},
            r"belongs to another model: .* has shape \[192, 64\], but run\.js",
        ),
        ({"num-layers": 3}, r"has no model\.layers\.2\."),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(
    root: Path, changed: dict[str, int], reason: str
) -> None:
    document = json.loads((root / "runs/my-run/run.json").read_text())
    document["values"] |= changed
    (root / "runs/my-run/run.json").write_text(json.dumps(document))

    with pytest.raises(CheckpointUnusable, match=reason):
        run_export(root, request())


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (None, "the tokenizer is not exported: there is no "),
        ("b" * 64, "dataset books has been recreated with another one"),
    ],
)
def test_a_run_is_exported_without_a_tokenizer_other_than_its_own(
    root: Path, capsys: pytest.CaptureFixture[str], tokenizer: str | None, reason: str
) -> None:
    path = root / "datasets/books/manifest.json"
    if tokenizer is None:
        path.unlink()
    else:
        path.write_text(path.read_text().replace("a" * 64, tokenizer))

    run_export(root, request())

    assert "tokenizer.json" not in names(root)
    assert reason in capsys.readouterr().out
