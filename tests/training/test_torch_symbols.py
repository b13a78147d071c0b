"""Code on a node runs on the Neuron images' torch, 2.9, older than the laptop's."""

from __future__ import annotations

import ast
from pathlib import Path

TRAINING = Path(__file__).resolve().parents[2] / "training"
MODULES = sorted(TRAINING.rglob("*.py"))

# Each one looked up in the sources of the torch 2.9.1 wheel. Add a name only after doing the same.
IN_TORCH_2_9 = {
    "torch._foreach_add_",
    "torch._foreach_addcmul_",
    "torch._foreach_div",
    "torch._foreach_div_",
    "torch._foreach_lerp_",
    "torch._foreach_mul_",
    "torch._foreach_sqrt",
    "torch._foreach_sub_",
    "torch._functorch.partitioners",
    "torch.Generator",
    "torch.Size",
    "torch.Tensor",
    "torch.Tensor.contiguous",
    "torch.__version__",
    "torch.arange",
    "torch.bfloat16",
    "torch.cat",
    "torch.device",
    "torch.dtype",
    "torch.empty",
    "torch.empty_like",
    "torch.equal",
    "torch.finfo",
    "torch.float32",
    "torch.from_numpy",
    "torch.full",
    "torch.full_like",
    "torch.int32",
    "torch.int64",
    "torch.log_softmax",
    "torch.manual_seed",
    "torch.nn",
    "torch.nn.Module",
    "torch.no_grad",
    "torch.ones",
    "torch.set_num_threads",
    "torch.optim.Optimizer",
    "torch.stack",
    "torch.tensor",
    "torch.where",
    "torch.zeros",
    "torch.zeros_like",
    "torch.float16",
    "torch.frombuffer",
    "torch.randn",
    "torch.rsqrt",
    "torch.is_grad_enabled",
    "torch.autograd.Function",
    "torch.autograd.grad",
    "torch.distributed.ProcessGroup",
    "torch.distributed.ReduceOp.MAX",
    "torch.distributed.ReduceOp.SUM",
    "torch.distributed.all_gather",
    "torch.distributed.all_gather_object",
    "torch.distributed.all_reduce",
    "torch.distributed.barrier",
    "torch.distributed.broadcast_object_list",
    "torch.distributed.checkpoint.api.CheckpointException",
    "torch.distributed.checkpoint.filesystem.FileSystemBase",
    "torch.distributed.checkpoint.filesystem.FileSystemReader",
    "torch.distributed.checkpoint.filesystem.FileSystemWriter",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.planner.LoadPlan",
    "torch.distributed.checkpoint.planner.TensorWriteData",
    "torch.distributed.checkpoint.planner.WriteItem",
    "torch.distributed.checkpoint.planner.WriteItemType",
    "torch.distributed.checkpoint.staging.BlockingAsyncStager",
    "torch.distributed.checkpoint.state_dict_loader.load",
    "torch.distributed.checkpoint.state_dict_saver.save",
    "torch.distributed.checkpoint.storage.WriteResult",
    "torch.distributed.destroy_process_group",
    "torch.distributed.distributed_c10d",
    "torch.distributed.device_mesh.DeviceMesh",
    "torch.distributed.device_mesh.init_device_mesh",
    "torch.distributed.fsdp.FSDPModule",
    "torch.distributed.fsdp.MixedPrecisionPolicy",
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed.get_rank",
    "torch.distributed.get_world_size",
    "torch.distributed.init_process_group",
    "torch.distributed.is_available",
    "torch.distributed.is_initialized",
    "torch.distributed.new_group",
    "torch.nn.functional.scaled_dot_product_attention",
    "torch.distributed.tensor.DTensor",
    "torch.distributed.tensor.Partial",
    "torch.distributed.tensor.Replicate",
    "torch.distributed.tensor.Shard",
    "torch.distributed.tensor.parallel.ColwiseParallel",
    "torch.distributed.tensor.parallel.ParallelStyle",
    "torch.distributed.tensor.parallel.RowwiseParallel",
    "torch.distributed.tensor.parallel.PrepareModuleInput",
    "torch.distributed.tensor.parallel.SequenceParallel",
    "torch.distributed.tensor.parallel.parallelize_module",
    "torch.get_device_module",
    "torch.nn.functional",
    "torch.nn.functional.cross_entropy",
    "torch.nn.utils.clip_grads_with_norm_",
    "torch.nn.utils.get_total_norm",
    "torch.ops._c10d_functional",
    "torch.ops.aten",
    "torch.optim.AdamW",
    "torch.optim.SGD",
    "torch.testing._internal.distributed.fake_pg.FakeStore",
    "torch.utils.checkpoint.checkpoint",
    "torch.utils.checkpoint.create_selective_checkpoint_contexts",
    "torch.utils.tensorboard.SummaryWriter",
}


def dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)) is not None:
        return f"{owner}.{node.attr}"
    return None


def torch_names(source: str) -> set[str]:
    """Return every dotted name below torch that a module uses, through any alias."""
    tree = ast.parse(source)
    aliases: dict[str, str] = {}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    aliases[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            name = dotted(node)
            if name is not None and name.split(".")[0] in aliases:
                first, _, rest = name.partition(".")
                names.add(f"{aliases[first]}.{rest}")
    return names


def test_only_symbols_of_torch_2_9_are_used() -> None:
    used = {name: path for path in MODULES for name in torch_names(path.read_text())}

    assert {name: path for name, path in used.items() if name not in IN_TORCH_2_9} == {}
    assert IN_TORCH_2_9 - used.keys() == set()


def test_nothing_of_neuron_is_imported_at_module_level() -> None:
    for path in MODULES:
        body = ast.parse(path.read_text()).body
        names = {a.name for node in body if isinstance(node, ast.Import) for a in node.names}
        names |= {node.module or "" for node in body if isinstance(node, ast.ImportFrom)}
        roots = {name.partition(".")[0] for name in names}

        assert roots & {"torch_xla", "torch_neuronx", "boto3", "botocore"} == set(), path
