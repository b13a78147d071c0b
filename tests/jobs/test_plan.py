"""`jobs plan`: figures from the catalogue alone, and deployments that take what was planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jobs import planning
from stacks.config import AppConfig
from tests.jobs.conftest import Desk
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_constructs.network import DEFAULT_INTERFACE_ENDPOINTS

ROOT = Path(__file__).resolve().parents[2]


def plan(*words: str) -> dict[str, Any]:
    """Return the document of a plan that works."""
    result = Desk("").run("plan", *words, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    schema = json.loads((ROOT / "docs" / "schemas" / "jobs-plan.schema.json").read_text())
    jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)
    return document


def configuration(command: str) -> AppConfig:
    """Read the context of a `cdk deploy` as the app does."""
    command = command.replace("ADDRESS", "203.0.113.7")
    words = command.replace("ACCOUNT:role/ROLE", "111122223333:role/admin").split()
    assert words[:3] == ["cdk", "deploy", "--all"]
    pairs = [word.partition("=") for word in words[4::2]]
    return AppConfig.from_mapping({key: value for key, _, value in pairs})


def test_hours_agree_with_what_aws_measured() -> None:
    """81 sequences a second on 16 trn1.32xlarge are 31.4 % of their peak.

    Llama 2 7B with 1,024 sequences of 4,096 tokens a step (aws-neuron-sdk, trn1_trn1n_nlp_data.csv,
    Neuron 2.15), counted as PaLM does; AWS's own count gives 30.8 %.
    """
    sizes = ("--max-steps", "100", "--global-batch", "1024", "--seq-len", "4096")
    (found,) = plan("llama2-7b", "--nodes", "16", *sizes, "--mfu", "0.314")["estimates"]

    assert found["training_hours"] == pytest.approx(100 * 1024 / 81 / 3600, rel=0.01)


@pytest.mark.parametrize("orchestrator", ["batch", "eks"])
@pytest.mark.parametrize(
    "kind", [k for k in INSTANCE_TYPES if INSTANCE_TYPES[k].supports_multi_node]
)
def test_the_deployment_it_names_takes_the_run(kind: str, orchestrator: str) -> None:
    words = ("--nodes", "3", "--on", orchestrator, "--time-limit", "200.5")
    (found,) = plan("mnist", "--compare", kind, *words)["estimates"]

    config = configuration(found["deploy"])

    assert (config.instance_type, config.max_nodes) == (kind, 3)
    assert [*config.orchestrators] == [orchestrator]
    assert config.job_time_limit_hours >= 200.5
    assert found["addresses"] == 3 * config.addresses_per_node(config.efa_layout)
    assert found["addresses"] <= config.usable_addresses


def test_it_prices_the_endpoints_that_a_deployment_has() -> None:
    assert len(DEFAULT_INTERFACE_ENDPOINTS) == planning.INTERFACE_ENDPOINTS


def test_one_submission_costs_at_most_all_its_attempts() -> None:
    (found,) = plan("mnist", "--nodes", "2", "--time-limit", "6")["estimates"]

    standing = planning.standing_usd_per_hour(Orchestrator.BATCH)
    price = 2 * INSTANCE_TYPES["trn1.32xlarge"].usd_per_hour_estimate
    assert found["usd_at_most"] == pytest.approx(3 * 6 * (price + standing))
    assert standing == pytest.approx(0.045 + 0.005 + 6 * 0.01)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("llama2-7b", "--nodes", "2", "--compare", "trn1.2xlarge"), "has no EFA"),
        (
            ("llama2-7b", "--compare", "trn2.3xlarge", "--nodes", "4", "--region", "us-east-1"),
            "trn2.3xlarge is not offered in us-east-1; it is in ap-south-2",
        ),
        (("llama2-7b", "--nodes", "4", "--tensor-parallel", "3"), "does not divide"),
        (
            ("pretrain", "--model", "llama3.1-8b", "--nodes", "1", "--tensor-parallel", "1"),
            "raise --tensor-parallel",
        ),
    ],
)
def test_a_plan_that_cannot_work_says_why_and_ends_with_2(
    words: tuple[str, ...], reason: str
) -> None:
    result = Desk("").run("plan", *words)

    assert result.exit_code == 2
    assert "cannot work: " in result.stdout and reason in result.stdout
    assert "cdk deploy" not in result.stdout


def test_a_comparison_works_if_one_of_its_plans_does() -> None:
    words = ("llama2-7b", "--compare", "trn1.2xlarge,trn1.32xlarge", "--nodes", "1,4")
    result = Desk("").run("plan", *words)

    assert result.exit_code == 0
    assert "trn1.2xlarge x 4: trn1.2xlarge has no EFA" in " ".join(result.stdout.split())
    assert result.stdout.count("cdk deploy --all") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("mnist", "--nodes", "1,x"), "'x' is not a number of nodes; give one, or several"),
        (("mnist", "--nodes", "0"), "'0' is not a number of nodes"),
        (("mnist", "--compare", "trn9.large"), "'trn9.large' is not in the catalogue"),
        (("prepare", "--dataset", "wikicorpus"), "runs on ordinary instances"),
        (("lama2-7b",), "did you mean"),
        (("mnist", "--mfu", "nan"), "--mfu nan is no number"),
        (("mnist", "--time-limit", "nan"), "--time-limit nan is no number"),
        (("mnist", "--region", "us-east-1x"), "sells no Trainium that is known here; did you mean"),
        (("mnist", "--region", ""), "sells no Trainium that is known here"),
        (("mnist", "--max-stepz", "3"), "has no parameter 'max-stepz'"),
    ],
)
def test_what_cannot_be_planned_is_refused(words: tuple[str, ...], message: str) -> None:
    result = Desk("").run("plan", *words)

    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_idle_nodes_of_a_cluster_count() -> None:
    (found,) = plan("mnist", "--on", "eks", "--time-limit", "6")["estimates"]

    assert found["usd_at_most"] == pytest.approx(3 * 6.5 * found["usd_per_hour"])


def test_layers_that_span_nodes_are_remarked() -> None:
    words = ("plan", "llama2-7b", "--compare", "trn2.3xlarge", "--nodes", "2")

    assert "8 ranks that share a layer are on several nodes" in Desk("").run(*words).stdout


def test_what_a_plan_lacks_is_named_as_it_is() -> None:
    (found,) = json.loads(Desk("").run("plan", "pretrain", "--json").stdout)["estimates"]

    assert found["obstacle"].startswith("pretrain needs --model")


def test_a_program_of_ones_own_is_planned_by_its_time_limit() -> None:
    program = ROOT / "examples" / "own-program" / "train.py"
    (found,) = plan(str(program), "--nodes", "2", "--time-limit", "6")["estimates"]

    assert (found["memory"], found["training_hours"]) == (None, None)
    assert found["quota_vcpus"] == 256
