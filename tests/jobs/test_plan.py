"""`jobs plan`: figures from the catalogue alone, and deployments that fit the plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jobs import planning
from stacks.config import AppConfig
from tests.jobs.conftest import Cli
from trainium_catalogue.contract import Orchestrator
from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.releases import TorchBackend

ROOT = Path(__file__).resolve().parents[2]


LARGE_RANKS = (
    *("--compare", "trn2.48xlarge", "--nodes", "1", "--tensor-parallel", "1"),
    *("--global-batch", "64"),
)
"""Ranks with whole layers, each of which computes one sequence in a step."""


def plan(*words: str) -> dict[str, Any]:
    """Return the document of a feasible plan."""
    result = Cli("").run("plan", *words, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    schema = json.loads((ROOT / "docs" / "schemas" / "jobs-plan.schema.json").read_text())
    jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)
    return document


def configuration(command: str) -> AppConfig:
    """Parse the context of a `cdk deploy` like the app."""
    command = command.replace("ADDRESS", "203.0.113.7")
    words = command.replace("ACCOUNT:role/ROLE", "111122223333:role/admin").split()
    assert words[:3] == ["cdk", "deploy", "--all"]
    pairs = [word.partition("=") for word in words[4::2]]
    return AppConfig.from_mapping({key: value for key, _, value in pairs})


def test_hours_match_aws_measurement() -> None:
    """81 sequences a second on 16 trn1.32xlarge are 31.4% of their peak.

    Llama 2 7B with 1,024 sequences of 4,096 tokens a step (aws-neuron-sdk, trn1_trn1n_nlp_data.csv,
    Neuron 2.15), counted as in PaLM; AWS's own count gives 30.8%.
    """
    sizes = ("--max-steps", "100", "--global-batch", "1024", "--seq-len", "4096")
    (found,) = plan("llama2-7b", "--nodes", "16", *sizes, "--mfu", "0.314")["estimates"]

    assert found["training_hours"] == pytest.approx(100 * 1024 / 81 / 3600, rel=0.01)


@pytest.mark.parametrize("orchestrator", ["batch", "eks"])
@pytest.mark.parametrize(
    "kind", [k for k in INSTANCE_TYPES if INSTANCE_TYPES[k].supports_multi_node]
)
def test_planned_deployment_fits_run(kind: str, orchestrator: str) -> None:
    words = ("--nodes", "3", "--on", orchestrator, "--time-limit", "200.5")
    (found,) = plan("mnist", "--compare", kind, *words)["estimates"]

    config = configuration(found["deploy"])

    assert (config.instance_type, config.max_nodes) == (kind, 3)
    assert [*config.orchestrators] == [orchestrator]
    assert config.job_time_limit_hours >= 200.5
    assert found["addresses"] == 3 * config.addresses_per_node(config.efa_layout)
    assert found["addresses"] <= config.usable_addresses


@pytest.mark.parametrize(
    ("model", "ranks"), [("llama3.1-70b", (4, 64, 4)), ("qwen3-32b", (2, 16, 8))]
)
def test_model_with_more_ranks_than_heads_is_planned_for_torchneuron(
    model: str, ranks: tuple[int, int, int]
) -> None:
    (found,) = plan("pretrain", "--model", model, "--compare", "trn2.48xlarge")["estimates"]

    assert (found["nodes"], found["tensor_parallel"], found["data_parallel"]) == ranks
    config = configuration(found["deploy"])
    assert config.release is not None and config.release.backend is TorchBackend.TORCH_NEURON


def test_resharded_weights_are_planned_for_torchneuron() -> None:
    (found,) = plan("llama2-7b", *LARGE_RANKS, "--reshard-after-forward", "true")["estimates"]

    assert found["obstacle"] is None and found["memory"]["saved_by_resharding"] == 0
    config = configuration(found["deploy"])
    assert config.release is not None and config.release.backend is TorchBackend.TORCH_NEURON


def test_resharding_is_named_where_it_leaves_the_compiler_memory() -> None:
    words = ("pretrain", "--model", "llama3.2-3b", *LARGE_RANKS, "--seq-len", "2048")
    advice = "; the compiler may need more than is left, which --reshard-after-forward true avoids"

    assert advice in Cli("").run("plan", *words).stdout
    resharded = Cli("").run("plan", *words, "--reshard-after-forward", "true").stdout
    assert "the compiler may need" not in resharded


def test_maximum_cost_of_submission_covers_all_attempts() -> None:
    (found,) = plan("mnist", "--nodes", "2", "--time-limit", "6")["estimates"]

    standing = planning.standing_usd_per_hour(Orchestrator.BATCH)
    assert found["usd_per_hour"] == pytest.approx(2 * 21.5 + standing)
    assert standing == pytest.approx(0.045 + 0.005 + 6 * 0.01)
    # Three times one hour of waiting, six of work and two minutes of grace.
    assert found["usd_at_most"] == pytest.approx(2 * 21.5 * 3 * (1 + 6 + 120 / 3600))
    assert "ready hosts wait until `jobs stop`" in found["usd_at_most_caveat"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("llama2-7b", "--nodes", "2", "--compare", "trn1.2xlarge"), "has no EFA"),
        (
            ("llama2-7b", "--compare", "trn2.3xlarge", "--nodes", "4", "--region", "us-east-1"),
            "trn2.3xlarge is not offered in us-east-1; use one of sa-east-1",
        ),
        (("llama2-7b", "--nodes", "4", "--tensor-parallel", "3"), "does not divide"),
        (
            ("pretrain", "--model", "qwen3-32b", "--nodes", "4"),
            "--tensor-parallel 16 exceeds the 8 key-value heads",
        ),
        (
            ("pretrain", "--model=qwen3-32b", "--compare=trn2.48xlarge", "--tensor-parallel=32"),
            "its torus of chips cannot route",
        ),
        (
            ("pretrain", "--model", "llama3.1-8b", "--nodes", "1", "--tensor-parallel", "1"),
            "GiB but has 16; raise --tensor-parallel",
        ),
        (("llama2-7b", *LARGE_RANKS), "GiB but has 24; set --reshard-after-forward true, raise"),
        (
            ("llama2-7b", "--nodes", "4", "--reshard-after-forward", "true"),
            "--reshard-after-forward=true needs TorchNeuron",
        ),
    ],
)
def test_infeasible_plan_shows_reason_and_exits_with_2(words: tuple[str, ...], reason: str) -> None:
    result = Cli("").run("plan", *words)

    assert result.exit_code == 2
    assert "not feasible: " in result.stdout and reason in result.stdout
    assert "cdk deploy" not in result.stdout


def test_comparison_succeeds_if_one_plan_is_feasible() -> None:
    words = ("llama2-7b", "--compare", "trn1.2xlarge,trn1.32xlarge", "--nodes", "1,4")
    result = Cli("").run("plan", *words)

    assert result.exit_code == 0
    assert "trn1.2xlarge x 4: trn1.2xlarge has no EFA" in " ".join(result.stdout.split())
    assert result.stdout.count("cdk deploy --all") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("mnist", "--nodes", "1,x"), "'x' is not a number of nodes; specify one number, or"),
        (("mnist", "--compare", "trn9.large"), "'trn9.large' is not in the catalogue"),
        (("prepare", "--dataset", "wikicorpus"), "runs on CPU instances"),
        (("mnist", "--compile"), "--compile is an option of `submit` itself"),
        (("mnist", "--mfu", "nan"), "--mfu nan is not a number"),
        (("mnist", "--time-limit", "nan"), "--time-limit nan is not a number"),
        (("mnist", "--region", "us-east-1x"), "offers no known Trainium type; did you mean"),
        (
            ("mnist", "--max-usd", "nan"),
            "--max-usd nan is not a positive amount; specify one above 0",
        ),
    ],
)
def test_invalid_plan_is_refused(words: tuple[str, ...], message: str) -> None:
    result = Cli("").run("plan", *words)

    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_idle_nodes_of_cluster_are_included() -> None:
    (found,) = plan("mnist", "--on", "eks", "--time-limit", "6")["estimates"]

    assert found["billed_hours"]["idle"] == pytest.approx(0.5 + 20 / 3600)


def test_plan_over_cap_names_options_that_fit() -> None:
    words = ("plan", "mnist", "--nodes", "2", "--time-limit", "6", "--max-usd", "500")
    over = Cli("").run(*words)

    assert over.exit_code == 2
    assert "can cost $907.30, and --max-usd is $500.00" in over.stdout
    assert "submit with --nodes 1, or submit with --time-limit 2.8, or raise" in over.stdout
    assert Cli("").run(*words, "--nodes", "1").exit_code == 0


def test_unknown_price_has_no_upper_bound() -> None:
    words = ("mnist", "--compare", "trn2.48xlarge", "--nodes", "1")
    (found,) = plan(*words)["estimates"]

    assert found["usd_at_most_caveat"] == "no list price of trn2.48xlarge is known"
    assert "no list price of trn2.48xlarge" in Cli("").run("plan", *words).stdout
    assert Cli("").run("plan", *words, "--max-usd", "1e9").exit_code == 2


def test_layers_spanning_nodes_are_noted() -> None:
    words = ("plan", "llama2-7b", "--compare", "trn2.3xlarge", "--nodes", "2")

    assert "8 ranks that share a layer span several nodes" in Cli("").run(*words).stdout


def test_missing_parameter_is_named() -> None:
    (found,) = json.loads(Cli("").run("plan", "pretrain", "--json").stdout)["estimates"]

    assert found["obstacle"].startswith("pretrain needs --model")


def test_program_is_planned_by_time_limit() -> None:
    program = ROOT / "examples" / "own-program" / "train.py"
    (found,) = plan(str(program), "--nodes", "2", "--time-limit", "6")["estimates"]

    assert (found["memory"], found["training_hours"]) == (None, None)
    assert found["quota_vcpus"] == 256
