"""Parameters of a user's own program, and of the job that collects its dependencies."""

from trainium_catalogue.parameters.parameter import Parameter

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
        help="SHA-256 of the bundle of the program's files; given by submit",
    ),
    Parameter(
        name="script",
        default="",
        pattern=_INSIDE,
        pattern_help=_INSIDE_HELP,
        help="file of the bundle to run; given by submit",
    ),
    Parameter(name="module", default="", help="module to run instead; given by submit -m"),
    Parameter(
        name="wheels",
        default="",
        pattern=_WHEELS_KEY,
        pattern_help="32 hexadecimal digits",
        help="key of its collected dependencies; given by submit --requirements",
    ),
    Parameter(
        name="checkpoint-dir",
        default="",
        pattern=rf"(?!~){_INSIDE}",
        pattern_help="a folder below the program's own, such as out, which the program is told "
        "with an argument of its own",
        help="folder that the program itself writes its checkpoints to, below its working folder; "
        "without it, the program is told a folder in TRAINIUM_CHECKPOINT_DIR",
    ),
    Parameter(
        name="resume-arguments",
        default="",
        help="arguments added once checkpoints have been given back, for a program that must be "
        "told to resume, after an equals sign: --resume-arguments='--resume out/last.pt'; "
        "out/checkpoint-* stands for the newest",
    ),
    Parameter(
        name="snapshot-every-s",
        default=60.0,
        minimum=1,
        maximum=86400,
        help="seconds between two snapshots of the checkpoint folder",
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
        help="most that a node sends to the bucket while the program runs, in MiB/s",
    ),
    Parameter(
        name="snapshot-limit-gib",
        is_advanced=True,
        default=500.0,
        minimum=0.001,
        maximum=100000,
        help="size of the checkpoint folder, on one node, at which the job is ended",
    ),
    Parameter(
        name=PROCESSES,
        default=0,
        minimum=0,
        maximum=256,
        help="processes of the program on each node; 0: one per NeuronCore. Each has the one core "
        "of its LOCAL_RANK, so with 1 the other cores of a node are idle; with --nodes 1 as well, "
        "it is the only process of the job",
    ),
    Parameter(
        name="progress-pattern",
        default="",
        help="regular expression of a line that reports progress, with a group (?P<step>...) and, "
        "if you like, (?P<loss>...); by default the forms of Hugging Face, Lightning and nanoGPT",
    ),
    Parameter(
        name="dataset",
        default="",
        help="dataset of the bucket to put into TRAINIUM_DATASET_DIR on every node",
    ),
    Parameter(
        name="input",
        default="",
        pattern=r"s3://[^/]+/.*",
        pattern_help="s3://BUCKET/PREFIX",
        help="prefix whose objects to put into TRAINIUM_INPUT_DIR on every node; one of the "
        "deployment's data_uris, or in its bucket",
    ),
    Parameter(
        name="env",
        default="",
        help="environment variables of the program, as NAME=VALUE; submit takes --env once for "
        "each, and a workload.toml a table [env]",
    ),
    Parameter(
        name="aws-credentials",
        default=False,
        help="let the program use the job's AWS role, to stream data itself",
    ),
)


def check_processes(wanted: int, cores: int) -> None:
    """Raise ``ValueError`` for a number of processes per node that its NeuronCores do not allow."""
    fitting = [str(number) for number in range(1, cores + 1) if cores % number == 0]
    if wanted and str(wanted) not in fitting:
        why = (
            "and each process needs one of its own"
            if wanted > cores
            else "so some chips would be only partly used"
        )
        raise ValueError(
            f"--processes-per-node {wanted}: a node has {cores} NeuronCores, {why}; give "
            f"{', '.join(fitting[:-1])} or {fitting[-1]}"
        )


WHEELS_PARAMETERS: tuple[Parameter, ...] = (
    Parameter(
        name="for-run",
        default="",
        required=True,
        help="run whose requirements to collect; given by submit --requirements",
    ),
    Parameter(
        name="key",
        default="",
        pattern=_WHEELS_KEY,
        pattern_help="32 hexadecimal digits",
        required=True,
        help="hash of requirements and image; given by submit --requirements",
    ),
)
