"""Adapters: training, saving and cost, and agreement with peft."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from tests.training.checkpoint.documents import assert_valid
from tests.training.llama import fake_nxd
from tests.training.llama.conftest import LoneDevice
from tests.training.llama.test_init_from import config_of, released, save, values_of, weights_of
from training.backends.native import NativeBackend
from training.core.config import TrainConfig
from training.core.contract import DeviceKind
from training.datasets.manifest import PackedManifest
from training.datasets.samples.packed import PackedDataset
from training.models.llama.data import packed_batches
from training.models.llama.export import ExportError, ExportRequest, export
from training.models.llama.lora import initial_adapter, is_adapter
from training.models.llama.network import LlamaNetwork
from training.storage import StorageAccess
from training.trainer.runs import RunConfigError
from trainium_catalogue.parameters.lora import TARGETS, Lora

if TYPE_CHECKING:
    from tests.training.llama.conftest import Laptop

WORDS = ("--init-from=base", "--lora-rank=4", "--lora-alpha=8")
STEPS = 5


@pytest.fixture(scope="module")
def based(laptop: Laptop) -> Laptop:
    save(released(), laptop.folder / "models/base")
    return laptop


@pytest.fixture(scope="module")
def adapted(based: Laptop) -> list[float]:
    """Return the losses of a run with adapters everywhere."""
    based.train(*WORDS, f"--max-steps={STEPS}", "--save-every=2", run="adapted")
    return based.losses("adapted")


def peft_model(targets: tuple[str, ...] = TARGETS, seed: int = 12349) -> Any:
    """Return the base with peft's adapters, initialized with ours."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=list(targets), lora_dropout=0.0, bias="none",
        task_type="CAUSAL_LM",
    )  # fmt: skip
    model = get_peft_model(released(), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                ours = name.removeprefix("base_model.model.").replace(".default.", ".")
                parameter.copy_(initial_adapter(ours, parameter.size(), seed=seed))
    return model


def theirs(laptop: Laptop, run: str, model: Any) -> tuple[list[float], list[float]]:
    """Return losses and norms of a plain loop on the same batches."""
    record = json.loads(laptop.file("run.json", run).read_text())
    config = TrainConfig.from_values(record["values"], 1)
    folder = laptop.folder / "datasets/words"
    manifest = PackedManifest.from_json((folder / "manifest.json").read_bytes(), name="words")
    batch: Any = packed_batches(PackedDataset(folder, manifest), seed=config.seed, seq_len=16)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, betas=(0.9, 0.999), eps=config.adam_eps, weight_decay=config.weight_decay
    )
    losses, norms = [], []
    for step in range(STEPS):
        ids = batch(range(step * 8, step * 8 + 8))
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(trained, config.max_grad_norm)))
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate_at(step + 1)
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def test_five_steps_are_those_of_a_plain_loop_over_peft(based: Laptop) -> None:
    """With some targets; the export is compared with all."""
    words = (*WORDS, "--lora-targets=q_proj,v_proj", f"--max-steps={STEPS}")
    based.train(*words, run="as-peft")

    losses, norms = theirs(based, "as-peft", peft_model(("q_proj", "v_proj")))
    assert based.losses("as-peft") == pytest.approx(losses, abs=1e-5)
    ours = [line["grad_norm"] for line in based.lines("as-peft", "step")]
    assert ours == pytest.approx(norms, rel=1e-4)
    assert losses[-1] < losses[0]


def test_only_adapters_are_trained_and_saved(based: Laptop, adapted: list[float]) -> None:
    folder = based.file("checkpoints/step-00000004", "adapted")
    names = set(FileSystemReader(folder).read_metadata().state_dict_metadata)
    expected = {
        f"{kind}model.layers.{layer}.{block}.{target}.{part}.weight"
        for kind in ("model.", "optimizer.exp_avg.", "optimizer.exp_avg_sq.")
        for layer in range(2)
        for target in TARGETS
        for block in ["mlp" if target.split("_")[0] in ("gate", "up", "down") else "self_attn"]
        for part in ("lora_A", "lora_B")
    }
    assert names == expected
    marker = json.loads((folder / "complete.json").read_text())
    record = json.loads(based.file("run.json", "adapted").read_text())
    assert marker["init_sha256"] == record["facts"]["init_sha256"]


def test_an_interrupted_run_has_the_losses_of_an_uninterrupted_one(
    based: Laptop, adapted: list[float]
) -> None:
    for _ in range(2):
        based.train(*WORDS, f"--max-steps={STEPS}", "--steps-this-run=3", run="lora-pieces")

    assert based.losses("lora-pieces") == adapted


def test_frozen_weights_are_read_at_every_start(based: Laptop) -> None:
    folder = save(released(), based.folder / "models/moves")
    words = ("--init-from=moves", *WORDS[1:], "--max-steps=4")
    based.train(*words, "--steps-this-run=2", run="moves")
    save(released(seed=9), folder)

    with pytest.raises(RunConfigError, match=r"cannot continue with init_sha256="):
        based.train(run="moves", tiny=False)
    shutil.rmtree(folder)
    with pytest.raises(ValueError, match=r"models/moves has no config.json"):
        based.train(run="moves", tiny=False)


@pytest.mark.parametrize("word", ["--lora-rank=8", "--lora-rank=0"])
def test_adapters_are_part_of_a_runs_identity(
    based: Laptop, adapted: list[float], word: str
) -> None:
    with pytest.raises(RunConfigError, match=rf"cannot continue with {word[2:]}"):
        based.train(word, run="adapted", tiny=False)


def test_adapters_without_pretrained_weights_are_refused(based: Laptop) -> None:
    with pytest.raises(ValueError, match=r"lora-rank=4 without init-from: .* with --init-from"):
        based.train("--lora-rank=4", run="on-nothing")


def test_targets_are_names_of_projections() -> None:
    with pytest.raises(
        ValueError, match=r"lora-targets=.* is not valid; it must be one or more of q_proj"
    ):
        values_of("--lora-targets=w_proj")


def test_nxd_trains_the_same_adapters(
    based: Laptop, adapted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nxd.install(monkeypatch)
    words = (*WORDS, f"--max-steps={STEPS}", "--save-every=2")
    based.train(*words, run="nxd-adapted", kind=DeviceKind.XLA)

    assert based.losses("nxd-adapted") == pytest.approx(adapted, rel=4e-3)
    folders = [based.file("checkpoints/step-00000004", run) for run in ("adapted", "nxd-adapted")]
    ours, nxds = (set(FileSystemReader(f).read_metadata().state_dict_metadata) for f in folders)
    assert nxds == ours


def test_the_plan_counts_trainable_parameters() -> None:
    config = config_of("--lora-rank=4", "--lora-targets=q_proj,down_proj")
    backend = NativeBackend(config, LoneDevice(), LlamaNetwork(config))
    backend.build()
    weights = weights_of(backend._model)
    adapters = sum(w.numel() for name, w in weights.items() if is_adapter(name))

    assert config.plan.num_trained_parameters == adapters
    assert config.plan.parameters_per_rank == sum(w.numel() for w in weights.values())
    assert config.plan.checkpoint_bytes == 12 * adapters
    assert config.plan.state_bytes_per_rank == 2 * config.plan.parameters_per_rank + 16 * adapters
    frozen = [p for name, p in backend._model.named_parameters() if not is_adapter(name)]
    assert not any(p.requires_grad for p in frozen)


def exported_run(laptop: Laptop, *, merge: bool = False, run: str = "adapted") -> dict[str, Any]:
    request = ExportRequest(run=run, step=0, dtype="float32", merge=merge)
    return export(request, StorageAccess(root=str(laptop.folder)), report=lambda text: None)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=torch.arange(16)[None]).logits
    return found


def test_targets_have_one_order() -> None:
    lora = Lora.of(values_of("--lora-rank=4", "--lora-targets=v_proj,q_proj"))
    assert lora is not None and lora.targets == ("q_proj", "v_proj")


@pytest.fixture(scope="module")
def exported(based: Laptop, adapted: list[float]) -> torch.Tensor:
    """Return the logits of the exported adapters, as loaded by peft."""
    from peft import PeftModel

    receipt = exported_run(based)
    folder = based.folder / "export/adapted"
    assert sorted(receipt["files"]) == ["adapter_config.json", "adapter_model.safetensors"]
    assert_valid(receipt, "export.schema.json")
    loaded = PeftModel.from_pretrained(
        LlamaForCausalLM.from_pretrained(based.folder / "models/base"), folder
    )
    return logits(loaded)


def test_peft_loads_the_export_and_computes_the_same(based: Laptop, exported: torch.Tensor) -> None:
    trained = peft_model()
    theirs(based, "adapted", trained)
    # Five steps of peft, within rounding; and far from the base.
    assert torch.allclose(exported, logits(trained), atol=2e-4)
    assert not torch.allclose(exported, logits(released()), atol=1e-2)


def test_a_merged_export_is_an_equivalent_full_model(based: Laptop, exported: torch.Tensor) -> None:
    receipt = exported_run(based, merge=True)
    assert receipt["adapters"] == {"rank": 4, "merged": True}
    assert_valid(receipt, "export.schema.json")
    merged = LlamaForCausalLM.from_pretrained(based.folder / "export/adapted")
    assert torch.allclose(logits(merged), exported, atol=1e-5)


def test_only_adapters_can_be_merged_and_only_with_their_own_weights(based: Laptop) -> None:
    based.train("--max-steps=1", run="whole-weights")
    with pytest.raises(ExportError, match=r"there are no adapters to merge; export it without"):
        exported_run(based, merge=True, run="whole-weights")

    folder = save(released(), based.folder / "models/other")
    based.train("--init-from=other", *WORDS[1:], "--max-steps=1", run="other-weights")
    save(released(seed=5), folder)
    with pytest.raises(ExportError, match=r"other no longer holds the weights on which the run's"):
        exported_run(based, merge=True, run="other-weights")
