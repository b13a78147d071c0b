"""The NxD backend, fully covered, on a fake that test_golden.py compares with NxD."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.training.llama import fake_nxd
from tests.training.llama.conftest import LoneDevice
from training.backends.base import WeightPart
from training.backends.nxd import NxdBackend, nxd_config
from training.backends.nxd_shards import _Shard
from training.backends.optimizers import TracedAdamW
from training.core.arguments import parse
from training.core.config import TrainConfig
from training.core.contract import DeviceKind
from training.core.heartbeat import heartbeat
from training.core.ranks import Ranks
from training.models.llama.huggingface import initial_weight
from training.models.llama.network import LlamaNetwork
from training.models.llama.nxd import NxdLlama
from training.models.llama.nxd_layers import AttentionCore, Gate
from training.models.llama.parallel import Split, split_dimension

if TYPE_CHECKING:
    from tests.training.llama.conftest import Laptop

STEPS = 6


@pytest.fixture(autouse=True)
def nxd(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nxd.install(monkeypatch)


def train(laptop: Laptop, *words: str, run: str, **more: Any) -> None:
    laptop.train(f"--max-steps={STEPS}", *words, run=run, kind=DeviceKind.XLA, **more)


def config_of(*words: str, num_ranks: int = 1) -> TrainConfig:
    shape = ("--hidden-size=32", "--num-layers=2", "--vocab-size=256", "--tensor-parallel=1")
    given = {word.partition("=")[0] for word in words}
    defaults = [word for word in shape if word.partition("=")[0] not in given]
    return TrainConfig.from_values(parse(["llama-tiny", *defaults, *words]).values, num_ranks)


def backend_of(config: TrainConfig, **more: Any) -> NxdBackend:
    """Return a single-rank backend whose model is not built yet."""
    device = LoneDevice(DeviceKind.XLA)
    return NxdBackend(config, device, LlamaNetwork(config), ranks=Ranks.open(), **more)


def nxd_llama(*words: str, num_ranks: int = 1) -> NxdLlama:
    return LlamaNetwork(config_of(*words, num_ranks=num_ranks)).for_nxd()


def call(name: str) -> dict[str, Any]:
    found = [details for recorded, details in fake_nxd.CALLS if recorded == name]
    assert len(found) == 1, fake_nxd.names()
    return found[0]


@pytest.mark.parametrize(
    ("words", "recomputed", "limit"),
    [
        (("--max-grad-norm=0.7",), [Gate, AttentionCore], 0.7),
        (("--recompute=layers",), "full", 1.0),
        # Without clipping the norm is still measured.
        (("--max-grad-norm=0", "--activation-checkpointing=false"), None, 1e30),
    ],
)
def test_nxd_is_configured_by_the_run(
    words: tuple[str, ...], recomputed: object, limit: float
) -> None:
    backend_of(config_of("--beta2=0.95", *words)).build()

    settings = call("neuronx_distributed_config")
    assert settings["activation_checkpoint_config"] == recomputed
    assert settings["optimizer_config"] == {
        "zero_one_enabled": True,
        "grad_clipping": True,
        "max_grad_norm": limit,
    }
    optimizer = call("initialize_parallel_optimizer")
    assert optimizer["optimizer_class"] is TracedAdamW
    assert (optimizer["max_norm"], optimizer["betas"]) == (limit, (0.9, 0.95))


def test_nxd_shards_a_model_over_as_many_ranks_as_the_run() -> None:
    config = config_of("--tensor-parallel=2", num_ranks=4)

    assert nxd_config(config, LlamaNetwork(config).for_nxd())["tensor_parallel_size"] == 2


def test_nxd_refuses_ranks_that_would_share_a_head() -> None:
    words = ("llama-tiny", "--tensor-parallel=4", "--dataset=words")
    config = TrainConfig.from_values(parse(words).values, 4)

    with pytest.raises(ValueError, match="--tensor-parallel 4 exceeds the 2 key-value heads"):
        NxdBackend(config, LoneDevice(), LlamaNetwork(config), ranks=Ranks.open())


def test_weight_decay_excludes_norms() -> None:
    backend = backend_of(config_of())
    backend.build()
    matrices, norms = backend._optimizer.param_groups
    assert {p.dim() for p in matrices["params"]} == {2}
    assert {p.dim() for p in norms["params"]} == {1}
    assert (matrices["weight_decay"], norms["weight_decay"]) == (0.01, 0.0)


def test_every_module_of_the_plan_is_replaced() -> None:
    model = nxd_llama().model()

    rows = [m for m in model.modules() if isinstance(m, fake_nxd.RowParallelLinear)]
    assert len(rows) == 2 * len(model.model.layers)
    assert all(module.input_is_parallel for module in rows)
    assert not model.lm_head.gather_output
    kinds = {type(module) for module in model.modules()}
    assert not kinds & {torch.nn.Linear, torch.nn.Embedding}


def test_projections_stay_separate_on_request() -> None:
    model = nxd_llama("--fused-projections=false").model()

    columns = [m for m in model.modules() if isinstance(m, fake_nxd.ColumnParallelLinear)]
    assert len(columns) == 5 * len(model.model.layers) + 1


def _are_divided(*words: str) -> bool:
    """Return whether two ranks that share a model shard the sequences."""
    network = nxd_llama("--tensor-parallel=2", *words, num_ranks=4)
    model = network.model()
    parallel = [m for m in model.modules() if type(m).__module__ == fake_nxd.__name__]
    (divided,) = {module.sequence_parallel for module in parallel}
    marked = {
        name
        for name, parameter in model.named_parameters()
        if getattr(parameter, "sequence_parallel_enabled", False)
    }
    norms = {name for name, _ in model.named_parameters() if name.endswith("norm.weight")}
    assert marked == (norms if divided else set())
    assert network.sequence_parallel == divided
    return bool(divided)


def test_divisible_sequences_are_sharded() -> None:
    assert _are_divided()
    assert not _are_divided("--sequence-parallel=false")
    # Ranks would have shards of different sizes.
    assert not _are_divided("--seq-len=15")


def test_gradients_of_inputs_are_summed_in_the_dtype_of_the_activations() -> None:
    # Any other dtype makes the real NxD drop the sum, see nxd_layers.py.
    model = nxd_llama().model()
    columns = [m for m in model.modules() if isinstance(m, fake_nxd.ColumnParallelLinear)]
    assert columns
    assert {module.reduce_dtype for module in columns} == {model.dtype} == {torch.bfloat16}


def _set_parallel_ranks(monkeypatch: pytest.MonkeyPatch, *, data: int, tensor: int) -> None:
    state = sys.modules["neuronx_distributed.parallel_layers.parallel_state"]
    monkeypatch.setattr(state, "get_data_parallel_rank", lambda: data)
    monkeypatch.setattr(state, "get_tensor_model_parallel_rank", lambda: tensor)


def test_nxd_reports_a_ranks_share_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    # At 4 on trn1 ranks 0, 8, 16 and 24 are one model.
    _set_parallel_ranks(monkeypatch, data=5, tensor=0)
    backend = backend_of(config_of())
    backend.build()

    assert backend.data_rank == 5


def test_a_rank_holds_its_shard_of_the_full_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _set_parallel_ranks(monkeypatch, data=0, tensor=1)
    builder = nxd_llama("--tensor-parallel=2", num_ranks=4)
    model = builder.model()
    attention = model.model.layers[0].self_attn
    # As left by NxD: this rank's shard, bf16, not yet filled.
    fused = attention.qkv_proj.fused
    fused.weight = torch.nn.Parameter(torch.empty(16 + 2 * 8, 32, dtype=torch.bfloat16))
    attention.o_proj.weight = torch.nn.Parameter(torch.empty(32, 16, dtype=torch.bfloat16))

    def part(name: str, rows: int, how: Split) -> torch.Tensor:
        full = f"model.layers.0.self_attn.{name}.weight"
        whole = initial_weight(full, torch.Size((rows, 32)), seed=12349)
        return whole.chunk(2, dim=split_dimension(how))[1]

    for module in (fused, attention.o_proj):
        builder.fill(module, torch.device("cpu"))
    # Two key-value heads for four of queries.
    rows = {"q_proj": 32, "k_proj": 16, "v_proj": 16}
    parts = [part(name, number, Split.COLWISE) for name, number in rows.items()]
    assert torch.equal(fused.weight, torch.cat(parts).to(torch.bfloat16))
    o_proj = part("o_proj", 32, Split.ROWWISE)
    assert torch.equal(attention.o_proj.weight, o_proj.to(torch.bfloat16))


def test_each_micro_batch_is_one_graph_and_each_step_one_more(laptop: Laptop) -> None:
    train(laptop, "--micro-batch=2", "--steps-this-run=2", "--log-every=100", run="nxd-graphs")

    # Two steps of four micro-batches and an update, after weights are placed and gathered.
    assert fake_nxd.names().count("mark_step") == 2 + 2 * (4 + 1)
    # The host waits for a device value only at the first and the last step.
    assert fake_nxd.names().count("all_reduce") == 2


def test_an_interrupted_run_has_the_losses_of_an_uninterrupted_one(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(laptop, "--save-every=2", run="nxd-whole")
    for _ in range(2):
        fake_nxd.install(monkeypatch)  # another process
        train(laptop, "--save-every=2", "--steps-this-run=3", run="nxd-pieces")

    assert laptop.losses("nxd-pieces") == laptop.losses("nxd-whole")


def test_a_run_resumes_with_the_other_backend(laptop: Laptop) -> None:
    words = (f"--max-steps={STEPS}", "--steps-this-run=2")
    for kind in (DeviceKind.XLA, DeviceKind.CPU, DeviceKind.XLA):
        laptop.train(*words, run="nxd-other", kind=kind)
    laptop.train(f"--max-steps={STEPS}", run="nxd-other-whole")

    # If moments or master weights were lost, the losses would differ.
    whole = laptop.losses("nxd-other-whole")
    assert laptop.losses("nxd-other") == pytest.approx(whole, rel=4e-3)


def test_new_runs_gather_weights_as_resumed_ones_do(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No job would compile a graph that only resumed runs have.
    train(laptop, "--steps-this-run=1", run="nxd-gather")
    first = fake_nxd.names()
    fake_nxd.install(monkeypatch)
    train(laptop, run="nxd-gather")

    gather = "allgather_weights_and_update_full_parameter"
    assert first.index(gather) < first.index("all_reduce")
    assert first[first.index(gather) + 1] == "mark_step"
    assert fake_nxd.names()[: first.index(gather) + 4].count(gather) == 2


def _places(shard: _Shard, padded: torch.Tensor) -> dict[str, list[Any]]:
    """By weight: the first row, column and sizes of what is saved, if anything, and its numbers."""
    return {
        name: [
            (*(number for number in lies.offsets), *lies.sizes, chunk.part[:, 0].tolist())
            for lies in chunk.__create_chunk_list__()
        ]
        for name, chunk in shard.chunks(padded)
    }


def test_padding_rows_are_not_saved() -> None:
    # 5 rows for 2 ranks are padded to 6: the second rank has 2 of its 3.
    part = WeightPart("w", torch.Size((10, 4)), torch.Size((5, 4)), (5, 0))
    shard = _Shard((part,), torch.zeros(3, 4), first_row=3)
    assert _places(shard, torch.zeros(3, 4)) == {"w": [(8, 0, 2, 4, [0.0, 0.0])]}

    # And of 5 rows for 4 ranks, 2 each, the last has none.
    empty = _Shard((part,), torch.zeros(2, 4), first_row=6)
    assert _places(empty, torch.zeros(2, 4)) == {"w": []}


def test_rows_of_fused_weights_are_saved_as_the_full_models() -> None:
    # Two ranks share the model: the second has the lower half of each of three weights, 4 + 2 + 2
    # rows. Three ranks share the optimizer: 3 rows each, the last one of padding.
    sizes = {"q": (8, 4), "k": (4, 4), "v": (4, 4)}
    held = tuple(
        WeightPart(name, torch.Size((rows, 4)), torch.Size((rows // 2, 4)), (rows // 2, 0))
        for name, (rows, _) in sizes.items()
    )
    rows = torch.arange(9.0)[:, None].expand(9, 4)
    shards = [_Shard(held, torch.zeros(3, 4), first_row=first) for first in (0, 3, 6)]
    found = [_places(shard, part) for shard, part in zip(shards, rows.chunk(3), strict=True)]

    assert found == [
        {"q": [(4, 0, 3, 4, [0, 1, 2])], "k": [], "v": []},
        {"q": [(7, 0, 1, 4, [3])], "k": [(2, 0, 2, 4, [4, 5])], "v": []},
        {"q": [], "k": [], "v": [(2, 0, 2, 4, [6, 7])]},
    ]


def test_compiling_counts_as_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("training.core.heartbeat._HEARTBEAT_S", 0.01)
    backend = backend_of(config_of(), report=said.append)

    def beats(**kind: bool) -> int:
        before = len(said)
        with backend._heartbeat.waiting(**kind):
            time.sleep(0.2)
        return len(said) - before

    # In the first steps other ranks may compile.
    assert beats() > 1
    backend._heartbeat.step_made()
    backend._heartbeat.step_made()
    assert beats() == 0  # silence is a hang again
    assert beats(is_first=True) > 1  # of an evaluation
    fake_nxd.COMPILATIONS.update(begun=5, ended=4)
    assert beats() > 1  # at any step
    fake_nxd.COMPILATIONS.update(ended=5)
    assert beats() == 0
    assert set(said) == {"compiling graphs"}


def test_a_heartbeat_ends_on_its_own() -> None:
    said: list[str] = []
    with heartbeat(said.append, "loading", at_most_s=0.0):
        time.sleep(0.05)

    assert said == []


def test_compiling_saves_nothing_and_ignores_losses(laptop: Laptop) -> None:
    train(laptop, "--compile-only", run="nxd-compile")

    assert not laptop.file("checkpoints", "nxd-compile").exists()
    # Graph warm-up: three steps of two micro-batches.
    assert fake_nxd.names().count("mark_step") == 2 + 3 * (2 + 1)
