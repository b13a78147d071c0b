"""Every family of decoders against transformers' own: parameters, forward pass, loss, gradients."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM

from tests.training.llama.conftest import LoneDevice
from training.backends import open_backend
from training.core.arguments import parse
from training.core.config import TrainConfig
from training.models.llama.data import random_batches
from training.models.llama.dry_run import dry_run
from training.models.llama.huggingface import decoder_config, initial_weight, meta_model
from training.models.llama.network import LlamaNetwork
from training.models.llama.parallel import parallelize
from trainium_catalogue.instances import InstanceType, find_instance_type
from trainium_catalogue.models.presets import MODELS, ModelShape
from trainium_catalogue.parameters.layout import Layout, activation_bytes
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.plan import GIB, TrainingPlan
from trainium_catalogue.workloads import WORKLOADS

LLAMA_3_1 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
LLAMA_3_2 = {**LLAMA_3_1, "factor": 32.0}
LLAMA = {
    "model_type": "llama",
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
}
QWEN3 = {
    "model_type": "qwen3",
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "vocab_size": 151936,
}


def sizes(hidden: int, inner: int, layers: int, heads: int, *, tied: bool) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "tie_word_embeddings": tied,
    }


PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "llama3.1-8b": (
        {**LLAMA, **sizes(4096, 14336, 32, 32, tied=False), "rope_scaling": LLAMA_3_1},
        8_030_261_248,
    ),
    "llama3.1-70b": (
        {**LLAMA, **sizes(8192, 28672, 80, 64, tied=False), "rope_scaling": LLAMA_3_1},
        70_553_706_496,
    ),
    "llama3.2-1b": (
        {**LLAMA, **sizes(2048, 8192, 16, 32, tied=True), "rope_scaling": LLAMA_3_2},
        1_235_814_400,
    ),
    "llama3.2-3b": (
        {**LLAMA, **sizes(3072, 8192, 28, 24, tied=True), "rope_scaling": LLAMA_3_2},
        3_212_749_824,
    ),
    "qwen3-0.6b": ({**QWEN3, **sizes(1024, 3072, 28, 16, tied=True)}, 596_049_920),
    "qwen3-1.7b": ({**QWEN3, **sizes(2048, 6144, 28, 16, tied=True)}, 1_720_574_976),
    "qwen3-4b": ({**QWEN3, **sizes(2560, 9728, 36, 32, tied=True)}, 4_022_468_096),
    "qwen3-8b": ({**QWEN3, **sizes(4096, 12288, 36, 32, tied=False)}, 8_190_735_360),
    "qwen3-32b": (
        {**QWEN3, **sizes(5120, 25600, 64, 64, tied=False)}
        | {"eos_token_id": 151645, "max_position_embeddings": 40960},
        32_762_123_264,
    ),
}
"""``config.json`` as on Hugging Face, in what decides the computation, and all parameters."""
TINY = ("llama3-tiny", "qwen3-tiny")
LARGE = ("llama3.1-70b", "qwen3-32b")


def shape_of(name: str) -> ModelShape:
    shape = MODELS[name].shape
    assert isinstance(shape, ModelShape)
    return shape


def config_of(name: str, *words: str) -> TrainConfig:
    return TrainConfig.from_values(parse(["pretrain", "--model", name, *words]).values, 1)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_is_configured_as_published(name: str) -> None:
    published, num_parameters = PUBLISHED[name]
    assert shape_of(name).num_parameters == num_parameters
    found = decoder_config(shape_of(name), seq_len=4096).to_dict()

    assert {key: found[key] for key in published} == published
    # Fields missing from a published file have transformers' defaults.
    whole = AutoConfig.for_model(**published).to_dict()
    ours = {"pad_token_id", "use_cache", "head_dim", "_attn_implementation_internal"}
    different = {key for key in whole if key not in ours and found[key] != whole[key]}
    assert not different


@pytest.mark.parametrize("name", TINY)
def test_the_plan_counts_the_parameters_pytorch_builds(name: str) -> None:
    config = config_of(name, "--tensor-parallel=1", "--global-batch=1")
    model = meta_model(decoder_config(config.shape, seq_len=config.plan.seq_len))
    parameters = list(model.parameters())

    assert config.shape == MODELS[name].shape
    assert config.shape.num_parameters == sum(one.numel() for one in parameters)
    norms = sum(one.numel() for one in parameters if one.dim() == 1)
    assert shape_of(name).num_norm_parameters == norms


def defaults_of(name: str) -> tuple[dict[str, Value], int, InstanceType]:
    """Return a model's parameters, number of nodes and instance type."""
    kind = find_instance_type("trn2.48xlarge" if name in LARGE else "trn1.32xlarge")
    workload = WORKLOADS["pretrain"].of_model({"model": name})
    values = {item.name: item.default for item in workload.parameters}
    return values, workload.default_nodes, kind


@pytest.mark.parametrize("name", MODELS)
def test_a_model_fits_its_type(name: str) -> None:
    values, num_nodes, kind = defaults_of(name)
    plan = TrainingPlan.from_values(values, num_nodes * kind.processes_per_node)
    needed = plan.state_bytes_per_rank + activation_bytes(plan, Layout.choose(values, plan))

    hbm_gib = kind.hbm_gib_per_device * kind.num_neuron_devices
    assert needed <= hbm_gib * GIB // kind.num_logical_cores


# Tied, untied, and with more ranks than key-value heads.
@pytest.mark.parametrize("name", ["llama3.2-1b", "qwen3-8b", "qwen3-32b"])
def test_a_models_plan_agrees_with_pytorchs_shards(name: str) -> None:
    values, num_nodes, kind = defaults_of(name)
    found = dry_run("pretrain", values, num_nodes=num_nodes, instance_type=kind)

    assert found.agrees
    state = found.memory.total - found.memory.activations
    assert state == found.plan.state_bytes_per_rank


@pytest.mark.parametrize(
    ("name", "adapters"),
    # Untied, tied, and with frozen weights.
    [
        ("llama3.1-8b", {}),
        ("qwen3-0.6b", {}),
        ("llama3.2-1b", {"lora-rank": 64, "init-from": "given"}),
    ],
)
def test_plan_of_resharded_weights_agrees_with_pytorchs_modules(
    name: str, adapters: dict[str, Value]
) -> None:
    values = {**defaults_of(name)[0], "reshard-after-forward": True, **adapters}
    kind = find_instance_type("trn2.48xlarge")
    found = dry_run("pretrain", values, num_nodes=1, instance_type=kind)

    state = found.memory.total - found.memory.activations
    # Tiny tensors do not divide among the ranks.
    assert state == pytest.approx(
        found.plan.state_bytes_per_rank, rel=0.0 if found.agrees else 0.02
    )
    assert found.memory.saved_by_resharding == 0


@pytest.mark.parametrize("name", LARGE)
def test_ranks_that_share_heads_trace_a_full_width_layer(name: str) -> None:
    """On the meta device: the shapes of a forward and a backward pass, without memory."""
    preset = MODELS[name]
    shape, degree = replace(shape_of(name), num_hidden_layers=1), preset.tensor_parallel
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=degree)
    try:
        model: Any = meta_model(decoder_config(shape, seq_len=preset.seq_len))
        parallelize(model, init_device_mesh("cpu", (degree,)))
        layer = model.model.layers[0]
        with torch.device("meta"):
            states = torch.empty(1, preset.seq_len, shape.hidden_size, requires_grad=True)
            turns = torch.empty(1, preset.seq_len, shape.head_size)
            result = layer(states, position_embeddings=(turns, turns), attention_mask=None)
            (result[0] if isinstance(result, tuple) else result).sum().backward()
    finally:
        dist.destroy_process_group()

    assert states.grad is not None and states.grad.shape == states.shape
    assert all(weight.grad.shape == weight.shape for weight in layer.parameters())
    rows = 8 * shape.head_size // degree
    assert layer.self_attn.k_proj.weight.grad.to_local().shape == (rows, shape.hidden_size)


def own(shape: ModelShape, seq_len: int) -> Any:
    """Build transformers' model from a configuration written here, not by the project."""
    published = {
        **(LLAMA if shape.family == "llama" else QWEN3),
        **{key: value for key, value in asdict(shape).items() if key != "family"},
        "max_position_embeddings": seq_len,
    }
    if shape.rope_scaling is not None:
        published["rope_scaling"] = {"rope_type": "llama3", **asdict(shape.rope_scaling)}
    config = AutoConfig.for_model(**published, attn_implementation="eager")
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_weight(name, parameter.size(), seed=12349))
    return model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", TINY)
def test_loss_and_gradients_are_transformers_own(name: str, tied: bool) -> None:
    words = ("--vocab-size=64", "--global-batch=2", "--micro-batch=2", "--tensor-parallel=1")
    config = config_of(name, *words)
    shape = replace(shape_of(name), vocab_size=64, tie_word_embeddings=tied)
    config = replace(config, plan=replace(config.plan, shape=shape), max_grad_norm=0.0)
    tokens = random_batches(vocab_size=64, seed=1, seq_len=config.plan.seq_len)(range(2))
    backend: Any = open_backend(
        config,
        LoneDevice(),
        LlamaNetwork(config),
    )
    backend.build()
    loss = backend.forward_backward(tokens, is_last=True)
    found = {name: one.grad for name, one in backend._model.named_parameters()}

    model = own(shape, config.plan.seq_len)
    assert isinstance(tokens, torch.Tensor)
    labels = torch.cat([torch.full_like(tokens[:, :1], -100), tokens[:, 1:]], dim=1)
    expected = model(input_ids=tokens, labels=labels).loss
    expected.backward()
    gradients = {name: one.grad for name, one in model.named_parameters()}

    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert found.keys() == gradients.keys()
    assert ("lm_head.weight" in found) != tied
    assert any("q_norm" in name for name in found) == (name == "qwen3-tiny")
    for name, gradient in gradients.items():
        off = (found[name] - gradient).norm() / gradient.norm()
        assert off < 1e-4, name
