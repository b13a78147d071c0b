"""Parameters of a user's own program and of the job that collects its dependencies."""

from trainium_catalogue.parameters.parameter import Parameter
from trainium_catalogue.wording import either

_DIGEST = r"[0-9a-f]{64}"
_DIGEST_HELP = "64 hexadecimal digits"
_INSIDE = r"(?!/)(?!.*\.\.(/|$)).+"
_INSIDE_HELP = "a path below the program's folder"
_WHEELS_KEY = r"[0-9a-f]{32}"

PROCESSES = "processes-per-node"

PROGRAM_PARAMETERS: tuple[Parameter, ...] = (
    Parameter(
        name="code",
        default="",
        pattern=_DIGEST,
        pattern_help=_DIGEST_HELP,
        required=True,
        help="SHA-256 of the program's bundle; set by submit",
    ),
    Parameter(
        name="script",
        default="",
        pattern=_INSIDE,
        pattern_help=_INSIDE_HELP,
        help="file in the bundle to run; set by submit",
    ),
    Parameter(name="module", default="", help="module to run instead; set by submit -m"),
    Parameter(
        name="wheels",
        default="",
        pattern=_WHEELS_KEY,
        pattern_help="32 hexadecimal digits",
        help="key of the program's wheels; set by submit --requirements",
    ),
    Parameter(
        name="checkpoint-dir",
        default="",
        pattern=rf"(?!~){_INSIDE}",
        pattern_help="a folder below the program's folder, such as out, which the program "
        "receives as one of its arguments",
        help="folder to which the program itself writes its checkpoints, below its working "
        "folder; by default the program receives a folder in TRAINIUM_CHECKPOINT_DIR",
    ),
    Parameter(
        name="resume-arguments",
        default="",
        help="arguments to add once checkpoints are restored, for a program that needs them to "
        "resume, written after an equals sign: --resume-arguments='--resume out/last.pt'; "
        "out/checkpoint-* stands for the newest",
    ),
    Parameter(
        name="snapshot-every-s",
        default=60.0,
        minimum=1,
        maximum=86400,
        help="seconds between snapshots of the checkpoint folder",
    ),
    Parameter(
        name="keep-snapshots",
        default=3,
        minimum=1,
        maximum=1000,
        help="complete snapshots to keep in the bucket",
    ),
    Parameter(
        name="snapshot-mib-per-s",
        is_advanced=True,
        default=200.0,
        minimum=1,
        maximum=100000,
        help="maximum upload rate of a node while the program runs, in MiB/s",
    ),
    Parameter(
        name="snapshot-limit-gib",
        is_advanced=True,
        default=500.0,
        minimum=0.001,
        maximum=100000,
        help="maximum size of the checkpoint folder on one node; a larger one ends the job",
    ),
    Parameter(
        name=PROCESSES,
        default=0,
        minimum=0,
        maximum=256,
        help="processes of the program per node (0: one per NeuronCore); each uses the core of its "
        "LOCAL_RANK, so with 1 the other cores of a node are idle",
    ),
    Parameter(
        name="progress-pattern",
        default="",
        help="regular expression that matches a line that reports progress, with a group "
        "(?P<step>...) and optionally (?P<loss>...); by default the formats of Hugging Face, "
        "Lightning and nanoGPT",
    ),
    Parameter(
        name="dataset",
        default="",
        help="dataset in the bucket to copy to TRAINIUM_DATASET_DIR on every node",
    ),
    Parameter(
        name="input",
        default="",
        pattern=r"s3://[^/]+/.*",
        pattern_help="s3://BUCKET/PREFIX",
        help="prefix to copy to TRAINIUM_INPUT_DIR on every node; one of the deployment's "
        "data_uris, or in its bucket",
    ),
    Parameter(
        name="env",
        default="",
        help="environment variables of the program, as NAME=VALUE; one --env per variable, or an "
        "[env] table in workload.toml",
    ),
    Parameter(
        name="aws-credentials",
        default=False,
        help="let the program use the job's IAM role, to stream data itself",
    ),
)


def check_processes(number: int, cores: int) -> None:
    """Raise ``ValueError`` for a number of processes that does not fit a node's NeuronCores."""
    fitting = [str(divisor) for divisor in range(1, cores + 1) if cores % divisor == 0]
    if number and str(number) not in fitting:
        why = (
            "and each process needs a separate one"
            if number > cores
            else "and the number of processes must divide that number evenly"
        )
        raise ValueError(
            f"--processes-per-node {number}: a node has {cores} NeuronCores, {why}; "
            f"use {either(fitting)}"
        )


WHEELS_PARAMETERS: tuple[Parameter, ...] = (
    Parameter(
        name="for-run",
        default="",
        required=True,
        help="run that needs the wheels; set by submit --requirements",
    ),
    Parameter(
        name="key",
        default="",
        pattern=_WHEELS_KEY,
        pattern_help="32 hexadecimal digits",
        required=True,
        help="hash of requirements and image; set by submit --requirements",
    ),
)
