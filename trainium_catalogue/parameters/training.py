"""The parameters of training workloads, including those that a run keeps across submissions."""

import re
from collections.abc import Mapping
from dataclasses import replace

from trainium_catalogue.contract import DATASET_NAME_HELP, DATASET_NAME_PATTERN, EXPORT_PREFIX
from trainium_catalogue.models.presets import BERT_POSITIONS, MODELS, ModelShape, Preset
from trainium_catalogue.parameters.lora import TARGETS, TARGETS_PATTERN
from trainium_catalogue.parameters.parameter import Parameter, Value, flag_value

TENSOR_PARALLEL = "tensor-parallel"
SHAPE_FIELDS = {
    "vocab-size": "vocab_size",
    "hidden-size": "hidden_size",
    "intermediate-size": "intermediate_size",
    "num-layers": "num_hidden_layers",
    "num-heads": "num_attention_heads",
    "num-kv-heads": "num_key_value_heads",
}
"""Parameter to field of ``ModelShape``."""

DECODER_FIELDS = {**SHAPE_FIELDS, "head-dim": "head_dim"}
"""The same for ``pretrain``, whose models may have heads of any size."""

BERT_FIELDS = {name: field for name, field in SHAPE_FIELDS.items() if name != "num-kv-heads"}
"""Parameter to field of ``BertShape``."""

FIXED_IN_A_RUN = (
    "model", *DECODER_FIELDS, "dataset", "seed", "global-batch", "seq-len", "document-masks",
    "init-from", "responses", "lora-rank", "lora-alpha", "lora-targets",
)  # fmt: skip
"""Parameters that identify a run: a different value needs a different run name."""

DEFAULTS_OF_OLDER_RUNS: Mapping[str, Value] = {
    "document-masks": False, "init-from": "", "responses": False, "lora-rank": 0,
}  # fmt: skip
"""Values assumed for runs that predate a parameter of ``FIXED_IN_A_RUN``."""

GRAPH_PARAMETERS = (
    "model", *DECODER_FIELDS, "global-batch", "micro-batch", "seq-len", "tensor-parallel",
    "sequence-parallel", "fused-projections", "attention", "recompute",
    "activation-checkpointing", "document-masks", "responses", "max-predictions", "dropout",
    # The adapters matter, but not the pretrained weights.
    "lora-rank", "lora-alpha", "lora-targets",
    # The values 0 and 1, and two equal values, compile to different graphs (ADR 6).
    "weight-decay", "max-grad-norm", "beta1", "beta2", "adam-eps",
    # Determines whether there is an evaluation graph, not how often it runs.
    "eval-every",
)  # fmt: skip
"""Parameters that determine the compiled graphs, with the number of nodes and Neuron release.

No workload has all of them.
"""

_MODEL = (
    rf"|({EXPORT_PREFIX})?{DATASET_NAME_PATTERN}"
    r"|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[^\s]+|/[^\s]+"
)
_CHECKPOINT_URI = r"|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s]*)?|/[^\s]*"


_CPU_FALLBACK = Parameter(
    name="cpu-fallback",
    default=False,
    help="with TorchNeuron: fall back to the CPU for unsupported operators; by default the job "
    "fails after the first step and names them",
)


def _shape(preset: Preset) -> tuple[Parameter, ...]:
    fields = SHAPE_FIELDS if isinstance(preset.shape, ModelShape) else BERT_FIELDS
    return tuple(
        Parameter(
            name=name,
            default=getattr(preset.shape, field),
            minimum=1,
            help=f"{field} of the model",
        )
        for name, field in fields.items()
    )


def _decoder(preset: Preset) -> tuple[Parameter, ...]:
    """Return the parameters of decoders only."""
    return (
        Parameter(name="seq-len", default=preset.seq_len, minimum=8, help="tokens per sequence"),
        Parameter(
            name=TENSOR_PARALLEL,
            default=preset.tensor_parallel,
            minimum=1,
            help="number of ranks that share each layer",
        ),
        Parameter(
            name="sequence-parallel",
            default=True,
            help="sequence parallelism over the ranks that share a layer, if seq-len is a multiple "
            "of their number",
        ),
        Parameter(
            name="fused-projections",
            default=True,
            help="with NeuronX Distributed: fuse projections of the same input; checkpoints do "
            "not change",
        ),
        Parameter(
            name="attention",
            default="auto",
            pattern="auto|flash|eager",
            pattern_help="auto, flash or eager",
            help="with NeuronX Distributed: Neuron's flash-attention kernel, or matrix products "
            "and a softmax; auto uses the kernel if shape and mask allow it",
        ),
        Parameter(
            name="activation-checkpointing",
            default=True,
            help="recompute activations in the backward pass: less memory, more time",
        ),
        Parameter(
            name="recompute",
            default="auto",
            pattern="auto|attention|layers|selective",
            pattern_help="auto, attention, layers or selective",
            help="what activation-checkpointing recomputes: whole layers, which needs the least "
            "memory; attention and gated activations, with NeuronX Distributed; or (selective) all "
            "but matrix products and attention, with TorchNeuron and on CPUs; auto uses attention "
            "if the plan fits, otherwise layers",
        ),
        Parameter(
            name="reshard-after-forward",
            default=False,
            help="with TorchNeuron and on CPUs: gather a layer's weights again in the backward "
            "pass: less memory, more time (ZeRO-3)",
        ),
        Parameter(
            name="document-masks",
            default=False,
            help="tokens attend only to their own document, not to others in the sequence",
        ),
        Parameter(
            name="responses",
            default=False,
            help="compute the loss on responses only; needs a dataset of prompts and responses "
            "(tokenize --response-seq-len)",
        ),
        Parameter(
            name="init-from",
            default="",
            pattern=_MODEL,
            pattern_help="a model in the bucket, export/RUN, s3://bucket/prefix or an absolute "
            "path",
            help="pretrained weights of a new run, in Hugging Face format: a model in models/, "
            "or export/RUN (empty: random weights from the seed)",
        ),
        Parameter(
            name="lora-rank",
            default=0,
            minimum=0,
            maximum=1024,
            help="train adapters of this rank and freeze the weights of --init-from (0: train all "
            "weights)",
        ),
        Parameter(
            name="lora-alpha",
            default=16.0,
            minimum=0,
            help="scale the adapters' output by this, divided by their rank",
        ),
        Parameter(
            name="lora-targets",
            default=",".join(TARGETS),
            pattern=TARGETS_PATTERN,
            pattern_help=f"one or more of {', '.join(TARGETS)}, separated by commas",
            help="projections to which adapters are added",
        ),
        Parameter(
            name="eval-every",
            # Off by default: datasets of earlier releases have no validation split, and
            # evaluation needs another graph.
            default=0,
            minimum=0,
            help="steps between evaluations on the held-out split (0: none), plus one after "
            "max-steps",
        ),
        Parameter(
            name="eval-sequences",
            default=1024,
            minimum=1,
            help="maximum number of sequences per evaluation, the same each time; each takes a "
            "quarter to a third of the time of training on it",
        ),
    )


def _bert(preset: Preset) -> tuple[Parameter, ...]:
    """Return the parameters of BERT only."""
    return (
        Parameter(
            name="seq-len",
            default=preset.seq_len,
            minimum=8,
            maximum=BERT_POSITIONS,
            help="tokens per sequence, as in the dataset",
        ),
        Parameter(
            name="max-predictions",
            default=20,
            minimum=1,
            help="maximum number of masked tokens per sequence, as in the dataset",
        ),
        Parameter(
            name="dropout",
            default=0.1,
            minimum=0,
            maximum=0.9,
            help="dropout probability of hidden layers and attention",
        ),
    )


def training_parameters(preset: Preset) -> tuple[Parameter, ...]:
    """Return all parameters of the workload that trains ``preset``."""
    is_decoder = isinstance(preset.shape, ModelShape)
    dataset = "tokenized dataset (see tokenize)" if is_decoder else "dataset (see prepare)"
    return (
        Parameter(
            name="dataset",
            default=preset.dataset,
            pattern=f"|{DATASET_NAME_PATTERN}",
            pattern_help=DATASET_NAME_HELP,
            help=f"{dataset}; a resumed run keeps its own",
        ),
        Parameter(name="max-steps", default=preset.max_steps, minimum=1, help="optimizer steps"),
        Parameter(
            name="steps-this-run",
            default=0,
            minimum=0,
            help="end after this many steps, with a checkpoint, to resume later (0: max-steps)",
        ),
        Parameter(
            name="global-batch",
            default=preset.global_batch,
            minimum=1,
            help="sequences per optimizer step, over all ranks, for any number of nodes",
        ),
        Parameter(
            name="micro-batch",
            default=preset.micro_batch,
            minimum=1,
            help="sequences per forward pass on a rank; the rest of its share is accumulated",
        ),
        *(_decoder(preset) if is_decoder else _bert(preset)),
        Parameter(name="lr", default=preset.learning_rate, minimum=0, help="peak learning rate"),
        Parameter(
            name="warmup-steps",
            default=preset.warmup_steps,
            minimum=0,
            help="steps of linear warm-up, followed by linear decay to 0 at max-steps",
        ),
        Parameter(
            name="weight-decay",
            default=0.01,
            minimum=0,
            help="AdamW weight decay, except for norms and biases",
        ),
        Parameter(name="beta1", default=0.9, minimum=0, maximum=0.99999, help="AdamW beta1"),
        Parameter(name="beta2", default=0.999, minimum=0, maximum=0.99999, help="AdamW beta2"),
        Parameter(name="adam-eps", default=1e-6, minimum=1e-12, help="AdamW epsilon"),
        Parameter(
            name="max-grad-norm",
            default=1.0,
            minimum=0,
            help="maximum gradient norm for clipping (0: none)",
        ),
        Parameter(
            name="seed", default=12349, minimum=0, help="seed of the weights and the data order"
        ),
        Parameter(
            name="save-every",
            default=preset.save_every,
            minimum=0,
            help="steps between checkpoints (0: only at the end)",
        ),
        Parameter(
            name="keep-last", default=3, minimum=1, help="number of newest checkpoints to keep"
        ),
        Parameter(
            name="keep-every",
            default=0,
            minimum=0,
            help="also keep checkpoints at multiples of this many steps (0: none)",
        ),
        Parameter(
            name="async-save",
            default=True,
            help="upload checkpoints asynchronously, during training",
        ),
        Parameter(
            name="checkpoint-uri",
            default="",
            pattern=_CHECKPOINT_URI,
            pattern_help="s3://bucket/prefix, or an absolute path such as /fsx/checkpoints",
            help="location of checkpoints instead of the run's prefix in the deployment's bucket",
        ),
        Parameter(
            name="log-every", default=preset.log_every, minimum=1, help="steps between log lines"
        ),
        Parameter(
            name="compile-only",
            default=False,
            help="compile the graphs into the cache without training (see submit --compile)",
        ),
        _CPU_FALLBACK,
        *_shape(preset),
    )


_BY_MODEL = frozenset(
    {
        *DECODER_FIELDS, "seq-len", "global-batch", "micro-batch", "tensor-parallel", "lr",
        "warmup-steps", "max-steps", "save-every", "log-every",
    }
)  # fmt: skip
"""Parameters of ``pretrain`` whose default is the model's."""


def pretrain_parameters(preset: Preset | None) -> tuple[Parameter, ...]:
    """Return all parameters of ``pretrain`` for one of its models; None: model unknown."""
    first = preset or next(iter(MODELS.values()))
    assert isinstance(first.shape, ModelShape)
    model = Parameter(
        name="model",
        default="" if preset is None else preset.name,
        pattern="|".join(["", *map(re.escape, MODELS)]),
        pattern_help=f"one of {', '.join(MODELS)}",
        help="model to train (`catalogue` lists them); a resumed run keeps its own",
    )
    head_dim = Parameter(
        name="head-dim",
        default=first.shape.head_size,
        minimum=2,
        help="head_dim of the model",
    )
    parameters = (model, *training_parameters(first), head_dim)
    if preset is not None:
        return parameters
    return tuple(
        replace(item, default_of="model") if item.name in _BY_MODEL else item for item in parameters
    )


MNIST_PARAMETERS = (
    Parameter(
        name="dataset",
        default="mnist",
        pattern=DATASET_NAME_PATTERN,
        pattern_help=DATASET_NAME_HELP,
        help="image dataset (see prepare); a resumed run keeps its own",
    ),
    Parameter(
        name="epochs",
        default=0,
        minimum=0,
        help="passes over the training images (0: the dataset's default, 4 for mnist)",
    ),
    Parameter(
        name="batch-size",
        default=32,
        minimum=1,
        help="images per worker per step",
    ),
    Parameter(
        name="lr",
        default=0.01,
        minimum=0,
        help="learning rate per worker; multiplied by the number of workers",
    ),
    Parameter(name="seed", default=0, minimum=0, help="seed of the weights and the data order"),
    Parameter(
        name="save-every",
        default=0,
        minimum=0,
        help="steps between checkpoints (0: only at the end)",
    ),
    Parameter(name="log-every", default=10, minimum=1, help="steps between log lines"),
    Parameter(
        name="require-accuracy",
        default=False,
        help="fail if the accuracy is outside the dataset's expected band",
    ),
    _CPU_FALLBACK,
)
"""Parameters of the workload ``mnist``; the defaults are the reference's."""


# A run also keeps the location of its checkpoints; otherwise it would restart at step 0.
_FIXED = (*FIXED_IN_A_RUN, "batch-size", "checkpoint-uri")
_NOT_INHERITED = frozenset({"steps-this-run", "compile-only"})
"""Parameters that the next submission does not inherit."""


def resolve_values(
    *,
    run: str,
    workload: str,
    stored_workload: str,
    stored: Mapping[str, Value],
    values: Mapping[str, Value],
    given: Mapping[str, Value],
) -> dict[str, Value]:
    """Resolve a submission to an existing run: explicit values, then the run's, then defaults.

    ``values`` are all parameters including defaults, ``given`` only the explicit ones. Raise
    ``ValueError`` if a parameter that identifies the run would change.
    """
    if stored_workload != workload:
        raise ValueError(
            f"run {run} is a run of {stored_workload}, not of {workload}; submit "
            f"{stored_workload}, or use another run name"
        )
    stored = {**DEFAULTS_OF_OLDER_RUNS, **stored}
    changed = [
        f"{name}={flag_value(given[name])} (the run has {flag_value(stored[name])})"
        for name in _FIXED
        if name in given and name in stored and given[name] != stored[name]
    ]
    if changed:
        raise ValueError(
            f"run {run} cannot continue with {', '.join(changed)}; keep the run's values, or use "
            "another run name"
        )
    inherited = {
        name: value
        for name, value in stored.items()
        if name in values and name not in _NOT_INHERITED
    }
    return {**values, **inherited, **given}
