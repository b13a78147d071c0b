"""Parameters of workloads are read strictly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainium_catalogue.parameters.command_line import ParameterError, parse_values
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, WORKLOADS, Parameter, find_workload

EVERY = [p for workload in WORKLOADS.values() for p in (*workload.parameters, *LAUNCH_PARAMETERS)]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--max-byte=1", "all-reduce has no parameter 'max-byte'; did you mean 'max-bytes'?"),
        ("--max-bytes=1GiB", "--max-bytes=1GiB is not a whole number; the default is 1073741824"),
        ("--max-bytes=0", "--max-bytes=0 is too small; the minimum is 4"),
        ("--seconds-per-size=soon", "--seconds-per-size=soon is not a number; the default is 20.0"),
        ("--seconds-per-size=nan", "--seconds-per-size=nan is not finite; the default is 20.0"),
        ("--require-bar=yes", "--require-bar=yes is not a boolean; write true or false"),
    ],
)
def test_invalid_parameter_is_refused(word: str, message: str) -> None:
    with pytest.raises(ParameterError) as refusal:
        parse_values(WORKLOADS["all-reduce"], [word])

    assert str(refusal.value) == message


def test_limit_of_a_parameter_is_printed_in_full() -> None:
    with pytest.raises(ParameterError, match=r"too large; the maximum is 2,147,483,648$"):
        parse_values(WORKLOADS["tokenize"], ["--shard-tokens=3000000000"])


@given(st.sampled_from(EVERY), st.text())
def test_any_text_is_read_or_refused(parameter: Parameter, text: str) -> None:
    try:
        value = parameter.parse(text)
    except ValueError:
        return
    assert isinstance(value, type(parameter.default))


def test_launch_parameters_do_not_collide_with_workload_parameters() -> None:
    for workload in WORKLOADS.values():
        names = [p.name for p in (*workload.parameters, *LAUNCH_PARAMETERS)]
        assert len(names) == len(set(names))


def test_unknown_workload_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'allreduce'; did you mean 'all-reduce'\?"):
        find_workload("allreduce")


TEXT = Parameter(name="dataset", default="", pattern="[a-z]+", pattern_help="letters", help="h")
COUNT = Parameter(name="count", default=1, maximum=9, help="h")


def test_text_mismatch_is_explained() -> None:
    with pytest.raises(ValueError, match=r"^dataset=a/b is not valid; it must be letters$"):
        TEXT.parse("a/b")


def test_value_above_maximum_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^count=10 is too large; the maximum is 9$"):
        COUNT.parse("10")
