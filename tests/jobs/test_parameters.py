"""A workload's parameters on the command line."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.commands.submit import submit
from jobs.errors import Refusal
from jobs.job import JobRequest
from jobs.program.parameters import ENV, GIVEN_BY_SUBMIT
from jobs.submit.read import OWN_OPTIONS, read_parameters
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, WORKLOADS, Parameter, Value

LLAMA, ALL_REDUCE = WORKLOADS["llama2-7b"], WORKLOADS["all-reduce"]


def parsed(*words: str, assignments: tuple[str, ...] = ()) -> dict[str, Value]:
    return dict(read_parameters(LLAMA, words, assignments).given)


def test_parameter_is_an_option_of_its_name() -> None:
    assert parsed("--dataset", "x", "--lr", "1e-4", "--save-every=50") == {
        "dataset": "x",
        "lr": 1e-4,
        "save-every": 50,
    }


def test_set_and_options_are_equivalent() -> None:
    assert parsed("--max-steps", "7") == parsed(assignments=("max-steps=7",))


def test_underscores_are_accepted_for_hyphens() -> None:
    assert parsed("--max_steps", "7") == {"max-steps": 7}


def test_boolean_without_value_is_true() -> None:
    assert parsed("--compile-only", "--lr", "1") == {"compile-only": True, "lr": 1.0}


@pytest.mark.parametrize(
    ("words", "assignments", "message"),
    [
        (["--learning-rate", "1"], (), "no parameter 'learning-rate'; known:"),
        (["--save-evry", "1"], (), "no parameter 'save-evry'; did you mean 'save-every'?"),
        (["--node", "4"], (), "no parameter 'node'; did you mean 'nodes'?"),
        (["--lr"], (), "--lr needs a value: peak learning rate"),
        (["--lr", "--seed", "1"], (), "--lr needs a value"),
        (["--lr", "fast"], (), "--lr=fast is not a number; the default is 0.0003"),
        (["--lr", "nan"], (), "--lr=nan is not finite"),
        (["--beta1", "1"], (), "--beta1=1 is too large; the maximum is 0.99999"),
        (["--dataset", "a b"], (), "--dataset=a b is not valid; it must be a name"),
        (["--seed", "1", "--seed", "2"], (), "--seed is set twice; keep one of the two"),
        (["--seed", "1"], ("seed=2",), "--set seed is set twice; keep one of the two"),
        (["wikicorpus"], (), "'wikicorpus' is not a parameter; parameters look like --"),
        ([], ("seed",), "--set seed is not key=value; for example: --set "),
        (["--async-save", "1"], (), "--async-save=1 is not a boolean; write true or false"),
    ],
)
def test_invalid_option_or_value_is_refused(
    words: list[str], assignments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(Refusal) as refused:
        parsed(*words, assignments=assignments)

    assert message in refused.value.message


def test_parameter_without_default_is_required() -> None:
    with pytest.raises(Refusal, match=r"tokenize needs --input \(.*\) and --tokenizer .*--help"):
        read_parameters(WORKLOADS["tokenize"], ["--dataset", "x"])


def test_no_parameter_has_name_of_submit_option() -> None:
    parameters = {p.name for w in WORKLOADS.values() for p in (*w.parameters, *LAUNCH_PARAMETERS)}
    parameters -= {*GIVEN_BY_SUBMIT, ENV}  # users do not type those, and submit sets this one

    assert parameters.isdisjoint(OWN_OPTIONS)


def test_every_submit_option_is_known() -> None:
    own = {"as_json": "json", "compiles": "compile", "assignments": "set"}
    own |= {"releases": "release", "scales": "scale"}
    names = set(inspect.signature(submit).parameters) - {"context", "what"}

    assert {own.get(name, name.replace("_", "-")) for name in names} == {*OWN_OPTIONS} - {"help"}


def _texts(parameter: Parameter) -> st.SearchStrategy[str]:
    if isinstance(parameter.default, bool):
        return st.sampled_from(["true", "false"])
    if isinstance(parameter.default, int):
        return st.integers(1024, 2**20).map(str)
    if isinstance(parameter.default, float):
        return st.floats(1, 100, allow_nan=False).map(repr)
    return st.just("all")


@given(
    st.fixed_dictionaries(
        {}, optional={p.name: _texts(p) for p in (*ALL_REDUCE.parameters, *LAUNCH_PARAMETERS)}
    )
)
def test_parameters_round_trip_to_node(texts: dict[str, str]) -> None:
    words = [word for name, text in texts.items() for word in (f"--{name}", text)]
    given_values = read_parameters(ALL_REDUCE, words).given
    request = JobRequest(
        run="r",
        workload="all-reduce",
        num_nodes=1,
        time_limit_hours=1,
        deployment="d",
        job_queue="q",
        job_definition="j",
        usd_per_node_hour=1,
        parameters=given_values,
    )

    assert read_parameters(ALL_REDUCE, request.command()[4:]).given == given_values
