"""A run from pretrained weights: what it reads, computes, stores and refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from tests.training.llama import fake_nxd
from tests.training.llama.conftest import TINY, LoneDevice
from training.backends.base import WeightPart
from training.backends.native import NativeBackend
from training.backends.nxd import NxdBackend
from training.checkpoint.pretrained import PretrainedWeightsError
from training.core.arguments import parse
from training.core.config import TrainConfig
from training.core.contract import DeviceKind
from training.core.ranks import Ranks
from training.datasets.samples.order import sequence_indices
from training.models.llama.export import ExportRequest, export
from training.models.llama.huggingface import decoder_config, whole_model
from training.models.llama.network import LlamaNetwork
from training.models.llama.pretrained import PretrainedModel, refuse_other_model
from training.storage import StorageAccess
from training.trainer.runs import RunConfigError
from trainium_catalogue.models.presets import find_model

if TYPE_CHECKING:
    from tests.training.llama.conftest import Laptop

WORDS = ("llama-tiny", *TINY, "--tensor-parallel=1", "--init-from=released")


def values_of(*words: str) -> dict[str, Any]:
    given = {word.partition("=")[0] for word in words}
    defaults = [word for word in WORDS if word.partition("=")[0] not in given]
    return dict(parse([*defaults, *words]).values)


def config_of(*words: str, num_ranks: int = 1) -> TrainConfig:
    return TrainConfig.from_values(values_of(*words), num_ranks)


def released(seed: int = 3, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """Return a pretrained model."""
    torch.manual_seed(seed)
    config = decoder_config(config_of().shape, seq_len=16)
    return LlamaForCausalLM(config).to(dtype)


def save(model: LlamaForCausalLM, folder: Path, *, size: str = "5GB") -> Path:
    model.save_pretrained(folder, max_shard_size=size)
    return folder


def opened(root: Path, *words: str) -> PretrainedModel:
    return PretrainedModel.open(values_of(*words), StorageAccess(root=str(root)), Ranks.open())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create a bucket with a model of several files and an index."""
    save(released(), tmp_path / "models/released", size="20KB")
    assert len(list((tmp_path / "models/released").glob("model-*"))) > 2
    return tmp_path


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().float() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    ("size", "dtype"), [("20KB", torch.float32), ("5GB", torch.bfloat16), ("5GB", torch.float16)]
)
def test_the_model_starts_with_exactly_these_weights(
    tmp_path: Path, size: str, dtype: torch.dtype
) -> None:
    theirs = released(dtype=dtype)
    save(theirs, tmp_path / "models/released", size=size)
    config = config_of()
    network = LlamaNetwork(config, opened(tmp_path))
    backend = NativeBackend(config, LoneDevice(), network)
    backend.build()

    expected = weights_of(theirs)
    found = weights_of(backend._model)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_each_rank_of_nxd_reads_its_part(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nxd.install(monkeypatch)
    config = config_of()
    given = opened(root)
    network = LlamaNetwork(config, given)
    backend = NxdBackend(config, LoneDevice(DeviceKind.XLA), network, ranks=Ranks.open())
    backend.build()

    expected = weights_of(released())
    masters = {
        name: chunk.part
        for shard in backend._shards._shards
        for name, chunk in shard.chunks(shard.master.detach())
    }
    assert masters.keys() == expected.keys()
    for name, master in masters.items():
        # NxD derives the master weights from the model's bf16 weights.
        assert torch.equal(master, expected[name].bfloat16().float()), name
    (size,) = {sum(p.numel() * 4 for p in released().parameters())}
    assert given.bytes_read == size


@pytest.mark.parametrize(
    ("size", "offsets", "num_read"),
    [((8, 64), (16, 0), 8 * 64), ((32, 16), (0, 48), 32 * 64), ((4, 16), (28, 48), 4 * 64)],
    ids=["rows", "columns", "both"],
)
def test_a_rank_reads_only_the_rows_of_its_part(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: tuple[int, ...],
    offsets: tuple[int, ...],
    num_read: int,
) -> None:
    monkeypatch.setattr("training.checkpoint.pretrained._READ_BYTES", 1000)  # three rows
    name = "model.layers.1.mlp.down_proj.weight"
    whole, given = weights_of(released())[name], opened(root)
    part = WeightPart(name, whole.size(), torch.Size(size), offsets)

    assert torch.equal(given.read(part), part.of(whole))
    assert given.bytes_read == 4 * num_read


def test_a_run_starts_from_the_export_of_another(laptop: Laptop) -> None:
    laptop.train("--max-steps=4", run="first")
    access = StorageAccess(root=str(laptop.folder))
    request = ExportRequest(run="first", step=0, dtype="float32")
    export(request, access, report=lambda text: None)

    laptop.train("--init-from=export/first", "--max-steps=1", "--lr=0", run="second")
    laptop.train("--max-steps=5", run="first")

    # The same weights on the data of the first step.
    model = LlamaForCausalLM.from_pretrained(laptop.folder / "export/first")
    assert laptop.losses("second")[0] < laptop.losses("first")[0]
    record = json.loads(laptop.file("run.json", "second").read_text())
    assert record["values"]["init-from"] == "export/first"
    assert len(record["facts"]["init_sha256"]) == 64
    assert model.config.max_position_embeddings == 16


def test_pretrained_weights_are_part_of_a_runs_identity(laptop: Laptop) -> None:
    folder = save(released(), laptop.folder / "models/base")
    laptop.train("--init-from=base", "--max-steps=4", "--steps-this-run=2", run="based")
    whole = "based-whole"
    laptop.train("--init-from=base", "--max-steps=4", run=whole)

    with pytest.raises(RunConfigError, match=r"cannot continue with init-from=export/other"):
        laptop.train("--init-from=export/other", run="based", tiny=False)
    # A run with a checkpoint no longer needs its pretrained weights.
    shutil.rmtree(folder)
    laptop.train(run="based", tiny=False)
    assert laptop.losses("based") == laptop.losses(whole)


def test_other_weights_of_the_same_name_are_refused(laptop: Laptop) -> None:
    folder = save(released(), laptop.folder / "models/changes")
    laptop.train("--init-from=changes", "--max-steps=4", "--steps-this-run=1", run="changing")
    shutil.rmtree(laptop.file("checkpoints", "changing"))
    save(released(seed=4), folder)

    with pytest.raises(
        RunConfigError, match=r"with init_sha256=.*use the dataset and the weights that the run"
    ):
        laptop.train(run="changing", tiny=False)


def test_the_hash_follows_the_weights_and_not_their_files(tmp_path: Path) -> None:
    first = save(released(), tmp_path / "a/models/released")
    save(released(), tmp_path / "b/models/released", size="20KB")
    save(released(seed=4), tmp_path / "c/models/released")
    a, b, c = (opened(tmp_path / name).sha256 for name in "abc")

    assert a == b != c
    assert first.is_dir()


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "config.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_every_field_that_differs_is_named_with_the_words_to_submit(tmp_path: Path) -> None:
    save(released(), tmp_path / "models/released")

    with pytest.raises(
        PretrainedWeightsError,
        match=r"hidden_size=32 \(the run has 64\), head_dim=8 \(the run has 16\); submit with "
        "--hidden-size 32$",
    ):
        opened(tmp_path, "--hidden-size=64")
    with pytest.raises(
        PretrainedWeightsError,
        match=r"vocab_size=256 \(the run has 512\), num_hidden_layers=2 \(the run has 3\); "
        r"submit with --vocab-size 256 --num-layers 2$",
    ):
        opened(tmp_path, "--vocab-size=512", "--num-layers=3")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"model_type": "mistral"}, "model_type=mistral (the run has llama)"),
        ({"rope_theta": 500000.0}, "rope_theta=500000.0 (the run has 10000.0)"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "rope_scaling={'rope_type': 'linear', 'factor': 2.0} (the run has None)",
        ),
        # As written by transformers 5.
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
            "rope_theta=1000000.0 (the run has 10000.0)",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
            "rope_scaling={'rope_type': 'linear', 'factor': 2.0} (the run has None)",
        ),
    ],
)
def test_a_model_with_a_different_architecture_is_refused(
    root: Path, changed: dict[str, Any], named: str
) -> None:
    edit(root / "models/released", lambda document: document.update(changed))

    with pytest.raises(PretrainedWeightsError) as refused:
        opened(root)
    assert named in str(refused.value)
    assert "start from another model, or submit the workload for this" in str(refused.value)


def test_the_config_of_transformers_5_is_equivalent() -> None:
    values = dict(parse(["pretrain", "--model=llama3.2-1b"]).values)
    ours = decoder_config(find_model("llama3.2-1b").shape, seq_len=8192)
    document = ours.to_dict()
    rope = {**document.pop("rope_scaling"), "rope_theta": document.pop("rope_theta")}

    refuse_other_model({**document, "rope_parameters": rope}, ours, values, uri="models/m")


@pytest.mark.parametrize("name", ["llama3.2-1b", "qwen3-0.6b"])
def test_only_a_model_that_uses_sliding_attention_is_refused(name: str) -> None:
    values = dict(parse(["pretrain", f"--model={name}"]).values)
    ours = decoder_config(find_model(name).shape, seq_len=4096)
    document = {**ours.to_dict(), "use_sliding_window": False}
    refuse_other_model(document, ours, values, uri="models/m")

    document |= {"use_sliding_window": True, "sliding_window": 1024}
    with pytest.raises(PretrainedWeightsError, match="use_sliding_window=True"):
        refuse_other_model(document, ours, values, uri="models/m")


def changed_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_missing_added_and_wrong_tensors_are_refused(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    changes: list[tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = [
        (lambda t: t.pop(name), rf"has no tensor {name}, which the model needs"),
        (
            lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}),
            r"has model.layers.0.self_attn.q_proj.bias, which the model would not use",
        ),
        (
            lambda t: t.update({name: t[name].to(torch.int8)}),
            rf"{name} has dtype I8, but only F32, BF16, F16",
        ),
        (
            lambda t: t.update({name: t[name][:-1].clone()}),
            rf"{name} has shape \[63, 32\], but the model",
        ),
    ]
    for number, (change, message) in enumerate(changes):
        folder = save(released(), tmp_path / str(number) / "models/released")
        changed_tensors(folder, change)
        with pytest.raises(PretrainedWeightsError, match=message):
            opened(tmp_path / str(number))


def test_tensors_whose_offsets_contradict_their_shapes_are_refused(tmp_path: Path) -> None:
    path = save(released(), tmp_path / "models/released") / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    for offsets in ([0, 4], [-64, 64]):
        header = json.loads(data[8 : 8 + length])
        header["model.norm.weight"]["data_offsets"] = offsets
        written = json.dumps(header).encode()
        path.write_bytes(len(written).to_bytes(8, "little") + written + data[8 + length :])

        with pytest.raises(
            PretrainedWeightsError, match=r"model\.safetensors is not a safetensors file"
        ):
            opened(tmp_path)


def test_frequencies_in_old_files_are_omitted(tmp_path: Path) -> None:
    folder = save(released(), tmp_path / "models/released")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    changed_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(4)}))

    assert opened(tmp_path).sha256


def cut(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:num_bytes])


def test_files_that_are_missing_or_broken_are_refused(root: Path) -> None:
    folder = root / "models/released"
    first, second = sorted(folder.glob("model-*"))[:2]
    whole = first.read_bytes()

    cut(first, len(whole) - 1)
    with pytest.raises(
        PretrainedWeightsError, match=rf"{first.name} has \d+ bytes, but its header"
    ):
        opened(root)
    cut(first, 20)
    with pytest.raises(
        PretrainedWeightsError, match=rf"{first.name} is truncated; upload it again"
    ):
        opened(root)
    first.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(PretrainedWeightsError, match=r"is not a safetensors file; .*git lfs pull"):
        opened(root)
    first.write_bytes(second.read_bytes())
    with pytest.raises(PretrainedWeightsError, match=r"its index lists .*, which no file contains"):
        opened(root)
    first.unlink()
    with pytest.raises(PretrainedWeightsError, match=rf"lacks {first.name}, which its index lists"):
        opened(root)
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(PretrainedWeightsError, match=r"lists no weights; upload the folder again"):
        opened(root)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(PretrainedWeightsError, match=r"has neither model.safetensors nor"):
        opened(root)
    (folder / "config.json").write_text("[]")
    with pytest.raises(PretrainedWeightsError, match=r"config.json is not a JSON object"):
        opened(root)
    (folder / "config.json").unlink()
    with pytest.raises(
        PretrainedWeightsError, match=r"has no config.json; upload a model's folder"
    ):
        opened(root)


def test_a_refused_model_is_refused_from_its_config_alone(laptop: Laptop) -> None:
    with pytest.raises(PretrainedWeightsError, match=r"models/nothing has no config.json"):
        laptop.train("--init-from=nothing", "--dataset=not-there-either", run="refused")

    assert not laptop.file("run.json", "refused").exists()


@pytest.mark.parametrize("name", ["llama3-tiny", "qwen3-tiny"])
def test_current_models_also_start_from_their_weights(laptop: Laptop, name: str) -> None:
    # Tied embeddings, scaled positions, query and key norms.
    config = decoder_config(find_model(name).shape, seq_len=128)
    torch.manual_seed(1)
    model = whole_model(config)
    folder = laptop.folder / "models" / name
    model.save_pretrained(folder)
    words = (f"--model={name}", "--vocab-size=32000", "--hidden-size=64", f"--init-from={name}")
    own = {word.partition("=")[0] for word in words} | {"--intermediate-size", "--num-layers"}
    tiny = [word for word in laptop.words if word.partition("=")[0] not in own]
    pretrain = replace(laptop, workload="pretrain", words=(*words, *tiny))
    pretrain.train("--max-steps=1", "--lr=0", "--seq-len=64", run=name)

    record = json.loads(laptop.file("run.json", name).read_text())
    seed, stream = (
        record["values"]["seed"],
        np.fromfile(laptop.folder / "datasets/words/shard-00000.bin", "<u2").astype(np.int64),
    )
    indices = sequence_indices(
        seed=seed, positions=np.arange(8, dtype=np.uint64), num_sequences=(len(stream) - 1) // 64
    )
    rows = torch.from_numpy(np.stack([stream[i * 64 : i * 64 + 65] for i in indices]))
    with torch.no_grad():
        expected = model(input_ids=rows, labels=rows).loss.item()
    assert laptop.losses(name) == [pytest.approx(expected, abs=1e-5)]
