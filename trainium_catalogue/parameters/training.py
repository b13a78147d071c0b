"""The parameters of training workloads, and those that a run keeps between submissions."""

import re
from collections.abc import Mapping
from dataclasses import replace

from trainium_catalogue.contract import DATASET_NAME_HELP, DATASET_NAME_PATTERN, EXPORT_PREFIX
from trainium_catalogue.models.presets import BERT_POSITIONS, MODELS, ModelShape, Preset
from trainium_catalogue.parameters.lora import TARGETS, TARGETS_PATTERN
from trainium_catalogue.parameters.parameter import Parameter, Value, flag_value

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
"""The same of ``pretrain``, whose models may have heads of any size."""

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
"""Values assumed for runs older than a parameter of ``FIXED_IN_A_RUN``."""

GRAPH_PARAMETERS = (
    "model", *DECODER_FIELDS, "global-batch", "micro-batch", "seq-len", "tensor-parallel",
    "sequence-parallel", "fused-projections", "attention", "recompute",
    "activation-checkpointing", "document-masks", "responses", "max-predictions", "dropout",
    # Which weights are given makes no difference, only whether adapters stand beside them.
    "lora-rank", "lora-alpha", "lora-targets",
    # The values 0 and 1, and two equal values, compile to different graphs (ADR 6).
    "weight-decay", "max-grad-norm", "beta1", "beta2", "adam-eps",
    # It decides whether there is an evaluation graph; how often makes no difference.
    "eval-every",
)  # fmt: skip
"""Parameters that decide the compiled graphs, besides number of nodes and Neuron release.

No workload has all of them.
"""

_MODEL = (
    rf"|({EXPORT_PREFIX})?{DATASET_NAME_PATTERN}"
    r"|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[^\s]+|/[^\s]+"
)
_CHECKPOINT_URI = r"|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s]*)?|/[^\s]*"


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


def _llama(preset: Preset) -> tuple[Parameter, ...]:
    return (
        Parameter(name="seq-len", default=preset.seq_len, minimum=8, help="tokens of one sequence"),
        Parameter(
            name="tensor-parallel",
            default=preset.tensor_parallel,
            minimum=1,
            help="ranks that share each layer",
        ),
        Parameter(
            name="sequence-parallel",
            default=True,
            help="with NeuronX Distributed, norms and residual sums are divided over the ranks "
            "that share a layer, if seq-len is a multiple of them",
        ),
        Parameter(
            name="fused-projections",
            default=True,
            help="with NeuronX Distributed, projections of the same input are one product; "
            "checkpoints are the same",
        ),
        Parameter(
            name="attention",
            default="auto",
            pattern="auto|flash|eager",
            pattern_help="auto, flash or eager",
            help="with NeuronX Distributed: Neuron's flash-attention kernel, or matrix products "
            "and a softmax; auto takes the kernel where shape and mask allow it",
        ),
        Parameter(
            name="activation-checkpointing",
            default=True,
            help="recompute activations in the backward pass: less memory, more time",
        ),
        Parameter(
            name="recompute",
            default="auto",
            pattern="auto|attention|layers",
            pattern_help="auto, attention or layers",
            help="with NeuronX Distributed, what activation-checkpointing computes again: "
            "attention and gated activations, or whole layers, which takes less memory; auto "
            "takes the first where the plan's arithmetic says that it fits",
        ),
        Parameter(
            name="document-masks",
            default=False,
            help="a token attends to its own document only, not to the others of its sequence",
        ),
        Parameter(
            name="responses",
            default=False,
            help="learn the responses of a dataset of prompts and responses (tokenize "
            "--response-seq-len), and not the prompts",
        ),
        Parameter(
            name="init-from",
            default="",
            pattern=_MODEL,
            pattern_help="a model of the bucket, export/RUN, s3://bucket/prefix or an absolute "
            "path",
            help="weights that a new run begins with, in Hugging Face's layout: what upload put "
            "into models/, or export/RUN (empty: random ones, by the seed)",
        ),
        Parameter(
            name="lora-rank",
            default=0,
            minimum=0,
            maximum=1024,
            help="train adapters of this rank beside the weights of --init-from, which stay as "
            "they are (0: train all weights)",
        ),
        Parameter(
            name="lora-alpha",
            default=16.0,
            minimum=0,
            help="what adapters add is multiplied by this over their rank",
        ),
        Parameter(
            name="lora-targets",
            default=",".join(TARGETS),
            pattern=TARGETS_PATTERN,
            pattern_help=f"names among {', '.join(TARGETS)}, separated by commas",
            help="projections that get adapters",
        ),
        Parameter(
            name="eval-every",
            # A dataset made by an earlier release has no validation split, and evaluation is one
            # more graph to compile.
            default=0,
            minimum=0,
            help="steps between two evaluations of what tokenize has held out (0: none); there is "
            "one more after max-steps",
        ),
        Parameter(
            name="eval-sequences",
            default=1024,
            minimum=1,
            help="sequences of the validation split that are evaluated, at most, the same each "
            "time; each costs a quarter to a third of what training on it does",
        ),
    )


def _bert(preset: Preset) -> tuple[Parameter, ...]:
    return (
        Parameter(
            name="seq-len",
            default=preset.seq_len,
            minimum=8,
            maximum=BERT_POSITIONS,
            help="tokens of one sequence, which the dataset has been cut to",
        ),
        Parameter(
            name="max-predictions",
            default=20,
            minimum=1,
            help="masked words of a sequence, at most, for which the dataset has room",
        ),
        Parameter(
            name="dropout",
            default=0.1,
            minimum=0,
            maximum=0.9,
            help="part of the activations that is left out, of hidden layers and attention",
        ),
    )


def training_parameters(preset: Preset) -> tuple[Parameter, ...]:
    """All parameters of the workload that trains ``preset``."""
    is_llama = isinstance(preset.shape, ModelShape)
    made_by = "tokenised dataset (see tokenize)" if is_llama else "dataset (see prepare)"
    return (
        Parameter(
            name="dataset",
            default=preset.dataset,
            pattern=f"|{DATASET_NAME_PATTERN}",
            pattern_help=DATASET_NAME_HELP,
            help=f"{made_by}; a run that continues remembers its own",
        ),
        Parameter(name="max-steps", default=preset.max_steps, minimum=1, help="optimizer steps"),
        Parameter(
            name="steps-this-run",
            default=0,
            minimum=0,
            help="end after this many steps, with a checkpoint, to continue later (0: max-steps)",
        ),
        Parameter(
            name="global-batch",
            default=preset.global_batch,
            minimum=1,
            help="sequences per optimizer step, over all ranks; any number of nodes keeps it",
        ),
        Parameter(
            name="micro-batch",
            default=preset.micro_batch,
            minimum=1,
            help="sequences that a rank computes at once; the rest of its share accumulates",
        ),
        *(_llama(preset) if is_llama else _bert(preset)),
        Parameter(name="lr", default=preset.learning_rate, minimum=0, help="peak learning rate"),
        Parameter(
            name="warmup-steps",
            default=preset.warmup_steps,
            minimum=0,
            help="steps of linear warm-up; afterwards the rate falls linearly to 0 at max-steps",
        ),
        Parameter(
            name="weight-decay",
            default=0.01,
            minimum=0,
            help="AdamW weight decay; norms and biases have none",
        ),
        Parameter(name="beta1", default=0.9, minimum=0, maximum=0.99999, help="AdamW beta1"),
        Parameter(name="beta2", default=0.999, minimum=0, maximum=0.99999, help="AdamW beta2"),
        Parameter(name="adam-eps", default=1e-6, minimum=1e-12, help="AdamW epsilon"),
        Parameter(name="max-grad-norm", default=1.0, minimum=0, help="gradient clipping (0: none)"),
        Parameter(name="seed", default=12349, minimum=0, help="of the weights and the data order"),
        Parameter(
            name="save-every",
            default=preset.save_every,
            minimum=0,
            help="steps between checkpoints (0: only at the end)",
        ),
        Parameter(name="keep-last", default=3, minimum=1, help="newest checkpoints that are kept"),
        Parameter(
            name="keep-every",
            default=0,
            minimum=0,
            help="checkpoints at multiples of this many steps are kept for good (0: none)",
        ),
        Parameter(name="async-save", default=True, help="train on while a checkpoint is uploaded"),
        Parameter(
            name="checkpoint-uri",
            default="",
            pattern=_CHECKPOINT_URI,
            pattern_help="s3://bucket/prefix, or an absolute path such as /fsx/checkpoints",
            help="where checkpoints go instead of the run's place in the deployment's bucket",
        ),
        Parameter(
            name="log-every", default=preset.log_every, minimum=1, help="steps between log lines"
        ),
        Parameter(
            name="compile-only",
            default=False,
            help="compile the graphs into the cache, train nothing (see submit --compile)",
        ),
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
    """All parameters of ``pretrain`` for one of its models; None: the model is not known."""
    first = preset or next(iter(MODELS.values()))
    assert isinstance(first.shape, ModelShape)
    model = Parameter(
        name="model",
        default="" if preset is None else preset.name,
        pattern="|".join(["", *map(re.escape, MODELS)]),
        pattern_help=f"one of {', '.join(MODELS)}",
        help="what to train (`catalogue` lists them); a run that continues remembers its own",
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
        help="images (see prepare); a run that continues remembers its own",
    ),
    Parameter(
        name="epochs",
        default=0,
        minimum=0,
        help="passes over the training images (0: as many as the dataset says, 4 for mnist)",
    ),
    Parameter(
        name="batch-size",
        default=32,
        minimum=1,
        help="images that each worker takes per step",
    ),
    Parameter(
        name="lr",
        default=0.01,
        minimum=0,
        help="learning rate of one worker; it is multiplied by their number",
    ),
    Parameter(name="seed", default=0, minimum=0, help="of the weights and the data order"),
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
        help="fail when accuracy is outside the band that the dataset says is right",
    ),
)
"""Parameters of the workload ``mnist``; the defaults are the reference's."""


# The checkpoints' location belongs to a run too: with another one it would restart at step 0.
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
    """Resolve a submission to an existing run: given values, then the run's own, then defaults.

    ``values`` are all parameters with defaults filled in, ``given`` those that the user named.
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
            f"run {run} cannot continue with {', '.join(changed)}; leave that out, or use "
            "another run name"
        )
    remembered = {
        name: value
        for name, value in stored.items()
        if name in values and name not in _NOT_INHERITED
    }
    return {**values, **remembered, **given}
