"""The NxD backend, every line of it, on a stand-in that has exactly NxD's signatures."""

from __future__ import annotations

import ast
import atexit
import inspect
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.training.llama import nxd_standin as standin
from tests.training.llama.conftest import LoneDevice
from training.arguments import parse
from training.backends import beat
from training.backends.nxd import NxdBackend
from training.backends.nxd_model import Builder
from training.backends.nxd_saving import refuse_other_topology
from training.checkpoint import CheckpointInfo, Checkpoints, CheckpointUnusable
from training.config import TrainConfig
from training.contract import DeviceKind
from training.llama.model import initial_weight
from training.llama.parallel import Split, part_of
from training.objects import StorageUnavailable
from training.stopping import Stopped, StopSwitch

if TYPE_CHECKING:
    from tests.training.llama.conftest import Laptop

TYPINGS = Path(__file__).resolve().parents[3] / "typings"
STEPS = 6


@pytest.fixture(autouse=True)
def nxd(monkeypatch: pytest.MonkeyPatch) -> None:
    standin.install(monkeypatch)


def train(laptop: Laptop, *words: str, run: str, **more: Any) -> None:
    laptop.train(f"--max-steps={STEPS}", *words, run=run, kind=DeviceKind.XLA, **more)


def config_of(*words: str, num_ranks: int = 1) -> TrainConfig:
    shape = ("--hidden-size=32", "--num-layers=2", "--vocab-size=256", "--tensor-parallel=1")
    given = {word.partition("=")[0] for word in words}
    defaults = [word for word in shape if word.partition("=")[0] not in given]
    return TrainConfig.from_values(parse(["llama-tiny", *defaults, *words]).values, num_ranks)


def call(name: str) -> dict[str, Any]:
    found = [details for recorded, details in standin.CALLS if recorded == name]
    assert len(found) == 1, standin.names()
    return found[0]


def _parameters(path: Path, name: str) -> list[str]:
    """Names of the parameters of a function, or of a class's constructor, in a stub."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and node.name == name:
            node = next(n for n in node.body if isinstance(n, ast.FunctionDef))
        elif not (isinstance(node, ast.FunctionDef) and node.name == name):
            continue
        stars = [a.arg for a in (node.args.vararg, node.args.kwarg) if a is not None]
        return [a.arg for a in node.args.args] + stars
    raise AssertionError(f"{path} has no {name}")


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, content.__name__) for module, all_ in standin.MODULES.items() for content in all_],
)
def test_the_stand_in_has_the_signatures_of_the_stubs(module: str, name: str) -> None:
    content = getattr(standin, name)
    function = content.__init__ if inspect.isclass(content) else content
    stub = TYPINGS / module.replace(".", "/")
    path = stub / "__init__.pyi" if stub.is_dir() else stub.with_suffix(".pyi")

    assert list(inspect.signature(function).parameters) == _parameters(path, name)


def test_checkpoints_always_have_the_master_weights() -> None:
    NxdBackend(config_of(), LoneDevice(DeviceKind.XLA), peak_flops=None).build()

    mixed = call("neuronx_distributed_config")["mixed_precision_config"]
    assert mixed["use_master_weights_in_ckpt"] is True
    assert mixed["use_master_weights"] is True
    assert mixed["use_fp32_grad_acc"] is True


def test_nxd_is_configured_as_the_run_says() -> None:
    config = config_of("--max-grad-norm=0.7", "--weight-decay=0.02", "--beta2=0.95")
    NxdBackend(config, LoneDevice(DeviceKind.XLA), peak_flops=None).build()

    settings = call("neuronx_distributed_config")
    assert settings["tensor_parallel_size"] == 1
    assert settings["activation_checkpoint_config"] == "full"
    assert settings["optimizer_config"] == {
        "zero_one_enabled": True,
        "grad_clipping": True,
        "max_grad_norm": 0.7,
    }
    optimizer = call("initialize_parallel_optimizer")
    assert optimizer["optimizer_class"] is torch.optim.AdamW
    assert (optimizer["max_norm"], optimizer["betas"]) == (0.7, (0.9, 0.95))


def test_without_clipping_the_norm_is_measured_all_the_same() -> None:
    backend = NxdBackend(
        config_of("--max-grad-norm=0", "--activation-checkpointing=false"),
        LoneDevice(DeviceKind.XLA),
        peak_flops=None,
    )
    backend.build()

    assert call("neuronx_distributed_config")["activation_checkpoint_config"] is None
    assert call("initialize_parallel_optimizer")["max_norm"] == 1e30


def test_weight_decay_spares_norms() -> None:
    backend = NxdBackend(config_of(), LoneDevice(DeviceKind.XLA), peak_flops=None)
    backend.build()
    matrices, norms = backend._optimizer.param_groups
    assert {p.dim() for p in matrices["params"]} == {2}
    assert {p.dim() for p in norms["params"]} == {1}
    assert (matrices["weight_decay"], norms["weight_decay"]) == (0.01, 0.0)


def test_every_module_of_the_plan_is_replaced() -> None:
    model = Builder(config_of()).model()
    kinds = {name: type(module) for name, module in model.named_modules()}
    layer = "model.layers.1"
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
        assert kinds[f"{layer}.{name}"] is standin.ColumnParallelLinear
    for name in ("mlp.gate_proj", "mlp.up_proj"):
        assert kinds[f"{layer}.{name}"] is standin.ColumnParallelLinear
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        module = model.get_submodule(f"{layer}.{name}")
        assert isinstance(module, standin.RowParallelLinear)
        assert module.input_is_parallel
    assert kinds["model.embed_tokens"] is standin.ParallelEmbedding
    assert isinstance(model.lm_head, standin.ColumnParallelLinear)
    assert not model.lm_head.gather_output
    left = [n for n, kind in kinds.items() if kind in (torch.nn.Linear, torch.nn.Embedding)]
    assert left == []


def test_gradients_of_inputs_are_summed_in_the_dtype_of_the_activations() -> None:
    # Any other dtype makes the real NxD drop the sum, see parallel_module.
    model = Builder(config_of()).model()
    columns = [m for m in model.modules() if isinstance(m, standin.ColumnParallelLinear)]
    assert columns
    assert {module.reduce_dtype for module in columns} == {model.dtype} == {torch.bfloat16}


def _set_parallel_ranks(monkeypatch: pytest.MonkeyPatch, *, data: int, tensor: int) -> None:
    state = sys.modules["neuronx_distributed.parallel_layers.parallel_state"]
    monkeypatch.setattr(state, "get_data_parallel_rank", lambda: data)
    monkeypatch.setattr(state, "get_tensor_model_parallel_rank", lambda: tensor)


def test_nxd_says_which_share_of_the_data_a_rank_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    # At 4 on trn1 ranks 0, 8, 16 and 24 are one model.
    _set_parallel_ranks(monkeypatch, data=5, tensor=0)
    backend = NxdBackend(config_of(), LoneDevice(DeviceKind.XLA), peak_flops=None)
    backend.build()

    assert backend.data_rank == 5


def test_a_rank_keeps_its_part_of_the_weights_that_one_rank_would_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _set_parallel_ranks(monkeypatch, data=0, tensor=1)
    builder = Builder(config_of("--tensor-parallel=2", num_ranks=4))
    model = builder.model()
    attention = model.model.layers[0].self_attn
    # As NxD leaves them: this rank's part, bf16, not yet filled.
    attention.q_proj.weight = torch.nn.Parameter(torch.empty(16, 32, dtype=torch.bfloat16))
    attention.o_proj.weight = torch.nn.Parameter(torch.empty(32, 16, dtype=torch.bfloat16))
    for name, how in (("q_proj", Split.COLWISE), ("o_proj", Split.ROWWISE)):
        module = attention.get_submodule(name)
        builder.fill(module, torch.device("cpu"))
        full = f"model.layers.0.self_attn.{name}.weight"
        whole = initial_weight(full, torch.Size((32, 32)), seed=12349)
        part = part_of(whole, how, index=1, parts=2)
        assert torch.equal(module.weight, part.to(torch.bfloat16))


def test_the_losses_are_those_of_the_native_backend(laptop: Laptop) -> None:
    train(laptop, run="nxd")
    laptop.train(f"--max-steps={STEPS}", run="nxd-native")

    # bf16 keeps 8 bits; the master weights are fp32 in both.
    assert laptop.losses("nxd") == pytest.approx(laptop.losses("nxd-native"), rel=4e-3)
    norms = [line["grad_norm"] for line in laptop.lines("nxd", "step")]
    native = [line["grad_norm"] for line in laptop.lines("nxd-native", "step")]
    assert norms == pytest.approx(native, rel=3e-2)


def test_each_micro_batch_is_one_graph_and_each_step_one_more(laptop: Laptop) -> None:
    train(laptop, "--micro-batch=2", "--steps-this-run=2", "--log-every=100", run="nxd-graphs")

    # Two steps of four micro-batches and an update, and the one that places the weights.
    assert standin.names().count("mark_step") == 1 + 2 * (4 + 1)
    # The host waits for a number of the device at the first and at the last step only.
    assert standin.names().count("all_reduce") == 2


@pytest.mark.parametrize("asynchronous", ["true", "false"])
def test_a_run_in_pieces_has_the_losses_of_a_whole_one(
    laptop: Laptop, asynchronous: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, pieces = f"nxd-whole-{asynchronous}", f"nxd-pieces-{asynchronous}"
    words = (f"--async-save={asynchronous}", "--save-every=2")
    train(laptop, *words, run=whole)
    for _ in range(2):
        standin.install(monkeypatch)  # another process
        train(laptop, *words, "--steps-this-run=3", run=pieces)

    assert standin.names().count("load_checkpoint") == 1
    assert laptop.losses(pieces) == laptop.losses(whole)


def test_a_checkpoint_is_complete_with_our_marker_and_in_nxds_layout(laptop: Laptop) -> None:
    train(laptop, "--save-every=2", "--keep-last=2", run="nxd-layout")

    folders = sorted(path.name for path in laptop.file("checkpoints", "nxd-layout").iterdir())
    assert folders == ["step-00000004", "step-00000006"]
    marker = laptop.file("checkpoints/step-00000004/complete.json", "nxd-layout")
    document = json.loads(marker.read_text())
    assert (document["format"], document["step"]) == ("nxd", 4)
    assert (document["tensor_parallel"], document["data_parallel"]) == (1, 1)
    rank = "dp_rank_00_tp_rank_00_pp_rank_00.pt"
    assert set(document["files"]) == {f"model/{rank}", f"optim/{rank}", "user_content.pt"}
    assert laptop.status("nxd-layout")["last_checkpoint_step"] == STEPS


def test_an_upload_that_fails_costs_one_checkpoint_and_is_told(
    laptop: Laptop, capsys: pytest.CaptureFixture[str]
) -> None:
    standin.FAIL_UPLOADS.append("SlowDown")
    train(laptop, "--save-every=3", run="nxd-failing")

    folders = [path.name for path in laptop.file("checkpoints", "nxd-failing").iterdir()]
    assert folders == ["step-00000006"]
    assert laptop.status("nxd-failing")["failed_saves"] == 1
    assert (
        "step-00000003 was not saved, training goes on: rank 0: SlowDown" in capsys.readouterr().out
    )


def test_an_upload_that_fails_leaves_nothing_in_memory(laptop: Laptop) -> None:
    standin.FAIL_UPLOADS.append("SlowDown")
    train(laptop, "--save-every=3", run="nxd-failing-buffers")

    assert [folder.exists() for folder in standin.BUFFERS] == [False]


def test_a_save_that_storage_does_not_let_begin_costs_one_checkpoint(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, refusals = Checkpoints.begin, [StorageUnavailable("503 Slow Down")]

    def begin_or_fail(self: Checkpoints, step: int) -> str:
        if refusals:
            raise refusals.pop()
        return begin(self, step)

    monkeypatch.setattr(Checkpoints, "begin", begin_or_fail)
    train(laptop, "--save-every=3", run="nxd-refused")

    folders = [path.name for path in laptop.file("checkpoints", "nxd-refused").iterdir()]
    assert folders == ["step-00000006"]
    assert laptop.status("nxd-refused")["failed_saves"] == 1


def test_compiling_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(beat, "_BEAT_S", 0.01)
    backend = NxdBackend(
        config_of(), LoneDevice(DeviceKind.XLA), peak_flops=None, report=said.append
    )
    with backend._patience():
        time.sleep(0.2)
    before = len(said)
    backend._steps = 2  # all graphs are known: silence is a hang again
    with backend._patience():
        time.sleep(0.2)

    assert before > 1
    assert said == ["compiling graphs"] * before


def test_a_beat_ends_by_itself() -> None:
    said: list[str] = []
    with beat.beating(said.append, "loading", at_most_s=0.0):
        time.sleep(0.05)

    assert said == []


def test_a_request_to_stop_saves_at_the_next_step(laptop: Laptop) -> None:
    stop = StopSwitch()

    def request(text: str) -> None:
        stop.requested = stop.requested or text.startswith("step 2")

    with pytest.raises(Stopped):
        train(laptop, run="nxd-stopped", stop=stop, on_report=request)

    assert laptop.status("nxd-stopped")["last_checkpoint_step"] == 2


def test_nothing_of_nxd_runs_when_the_process_ends(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[object] = []
    monkeypatch.setattr(atexit, "unregister", removed.append)
    train(laptop, "--steps-this-run=1", run="nxd-atexit")
    assert removed == [standin.CheckpointIOState.wait_all]


def test_compiling_saves_nothing_and_believes_no_number(laptop: Laptop) -> None:
    train(laptop, "--compile-only", run="nxd-compile")

    assert "save_checkpoint" not in standin.names()
    assert not laptop.file("checkpoints", "nxd-compile").exists()
    # Warm-up of the graphs: three steps of two micro-batches.
    assert standin.names().count("mark_step") == 1 + 3 * (2 + 1)


def _info(**meta: Any) -> CheckpointInfo:
    topology = {"tensor_parallel": 8, "data_parallel": 4, **meta}
    kind = topology.pop("format", "nxd")
    return CheckpointInfo(step=7, format=kind, time="now", meta=topology, files={})


def test_a_checkpoint_of_the_same_topology_is_accepted() -> None:
    plan = config_of(
        "--tensor-parallel=8", "--hidden-size=64", "--num-heads=8", "--num-kv-heads=8",
        num_ranks=32,
    ).plan  # fmt: skip
    refuse_other_topology(_info(), plan)


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"tensor_parallel": 4}, "tensor-parallel=4, this job has 8"),
        ({"data_parallel": 16}, "data-parallel=16, this job has 4"),
        ({"format": "dcp"}, "has format dcp, and NxD reads only its own"),
    ],
)
def test_a_checkpoint_of_another_topology_or_format_is_refused(
    meta: dict[str, Any], words: str
) -> None:
    plan = config_of(
        "--tensor-parallel=8", "--hidden-size=64", "--num-heads=8", "--num-kv-heads=8",
        num_ranks=32,
    ).plan  # fmt: skip
    with pytest.raises(CheckpointUnusable, match=words):
        refuse_other_topology(_info(**meta), plan)


def test_resuming_on_the_other_backend_is_refused(laptop: Laptop) -> None:
    train(laptop, "--steps-this-run=1", run="nxd-then-native")
    with pytest.raises(CheckpointUnusable, match="format nxd"):
        laptop.train(f"--max-steps={STEPS}", run="nxd-then-native")

    laptop.train(f"--max-steps={STEPS}", "--steps-this-run=1", run="native-then-nxd")
    with pytest.raises(CheckpointUnusable, match="format dcp"):
        train(laptop, run="native-then-nxd")
