"""docs/interfaces.md agrees with the code."""

import json
import re
from pathlib import Path

import jsonschema

from tools.schemas import SCHEMAS, schemas
from trainium_catalogue import contract
from trainium_catalogue.exit_codes import EXIT_CODES, RETRIED

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = (DOCS / "interfaces.md").read_text()
_RUN_FILES = (
    contract.RUN_CONFIG,
    contract.RUN_PROGRAM,
    contract.RUN_SUBMISSION,
    contract.RUN_LOCK,
)


def first_column(heading: str) -> list[str]:
    """First cells of the table under ``heading``, without backticks."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return [row.split("|")[1].strip().strip("`") for row in rows[2:]]


def test_every_ssm_parameter_is_documented() -> None:
    documented = first_column("SSM parameters")

    assert documented == [
        *contract.SSM_BATCH_NAMES,
        contract.ssm_job_definition("<workload>"),
        contract.SSM_BATCH_ZONES,
        contract.SSM_DEFAULT_SECURITY_GROUP,
        contract.SSM_MAX_COST_PER_JOB_USD,
        contract.SSM_ORCHESTRATORS,
        contract.SSM_SETTINGS,
        *contract.SSM_EKS_NAMES,
        contract.SSM_EKS_LUSTRE_CLAIM,
        contract.SSM_EKS_IDLE_MINUTES,
    ]


def test_every_exit_code_of_a_node_is_documented() -> None:
    assert first_column("Exit codes of a node") == [str(int(code)) for code in EXIT_CODES]


def test_retried_codes_are_documented_as_retried() -> None:
    section = PAGE.split("## Exit codes of a node")[1]
    retried = re.findall(r"^\| (\d+) \|.*\| retry \|$", section, re.MULTILINE)

    assert retried == [str(int(code)) for code in RETRIED]


def test_every_environment_variable_is_documented() -> None:
    variables = [value for name, value in vars(contract).items() if name.startswith("ENV_")]

    assert first_column("Environment of a node") == variables


def test_every_bucket_prefix_is_documented() -> None:
    tops = [
        *(contract.TOKENIZERS_PREFIX, contract.CORPORA_PREFIX, contract.MODELS_PREFIX),
        contract.DATASETS_PREFIX,
        *(contract.RUNS_PREFIX, contract.CACHE_PREFIX, contract.EXPORT_PREFIX),
        contract.WHEELS_PREFIX,
        contract.NOTIFICATIONS_PREFIX,
    ]
    folders = [contract.run_prefix("<name>", folder) for folder in contract.RUN_FOLDERS]
    files = [contract.run_key("<name>", name) for name in _RUN_FILES]
    documented = first_column("Bucket")

    assert list(dict.fromkeys(cell.partition("/")[0] + "/" for cell in documented)) == tops
    in_runs = [cell for cell in documented if cell.startswith(contract.RUNS_PREFIX)]
    assert [cell for cell in in_runs if "step-" not in cell] == [*files, *folders]


def test_every_schema_is_valid_and_current() -> None:
    for path, generated in schemas().items():
        assert path.read_text() == generated, "run make readme"
        jsonschema.Draft202012Validator.check_schema(json.loads(generated))


def test_every_schema_is_linked() -> None:
    linked = set(re.findall(r"\(schemas/([^)]+)\)", PAGE))

    assert {path.name for path in SCHEMAS.iterdir()} == {path.name for path in schemas()} == linked
