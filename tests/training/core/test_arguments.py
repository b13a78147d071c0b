"""The launcher's command line is strict and explains itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.core.arguments import ArgumentError, help_text, parse
from training.diagnostics.allreduce.sweep import Sweep
from training.workloads import IMPLEMENTATIONS
from trainium_catalogue.exit_codes import EXIT_CODES
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, WORKLOADS


def refusal(*words: str) -> str:
    with pytest.raises(ArgumentError) as error:
        parse(words)
    return str(error.value)


def test_both_spellings_of_a_value_are_accepted() -> None:
    request = parse(["all-reduce", "--max-bytes", "4096", "--peer-timeout-s=5"])

    assert (request.values["max-bytes"], request.launch.peer_timeout_s) == (4096, 5.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no workload specified; choose one of all-reduce"),
        (["all-redcue"], "did you mean 'all-reduce'?"),
        (["--max-bytes", "4", "all-reduce"], "--max-bytes precedes the workload"),
        # As in the CLI, which has the same parser.
        (["all-reduce", "--max-byte", "4"], "no parameter 'max-byte'; did you mean 'max-bytes'?"),
    ],
)
def test_a_malformed_command_line_is_refused_with_a_remedy(words: list[str], message: str) -> None:
    assert message in refusal(*words)


@given(
    st.lists(
        st.one_of(
            st.text(max_size=12),
            st.sampled_from(["--max-bytes", "--iterations=3", "--require-bar", "7", "-1"]),
        ),
        max_size=6,
    )
)
def test_any_command_line_is_parsed_or_refused(words: list[str]) -> None:
    try:
        request = parse(["all-reduce", *words])
    except ArgumentError:
        return
    assert set(request.values) == {p.name for p in WORKLOADS["all-reduce"].parameters}


def test_the_help_names_every_parameter_and_exit_code() -> None:
    text = "\n".join(help_text(words) for words in ([], *([name] for name in WORKLOADS)))

    parameters = [*LAUNCH_PARAMETERS, *(p for w in WORKLOADS.values() for p in w.parameters)]
    assert [p.name for p in parameters if f"--{p.name} " not in text] == []
    assert [c for c in EXIT_CODES if f"{c.value:>5}  " not in text] == []


def test_every_workload_of_the_catalogue_has_code() -> None:
    assert set(IMPLEMENTATIONS) == set(WORKLOADS)


def test_the_launcher_starts_without_torch_or_boto3() -> None:
    code = "import sys, training.launch; print({'torch', 'boto3', 'numpy'} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"min-bytes": 6}, "min-bytes=6 is not a multiple of 4, the size of an element; the "),
        ({"max-bytes": 512}, "max-bytes=512 is below min-bytes=1024"),
        ({"inject-error-rank": 8}, "the job has ranks 0 to 7"),
    ],
)
def test_parameters_that_disagree_are_refused(change: dict[str, int], message: str) -> None:
    values = {**parse(["all-reduce"]).values, **change}

    with pytest.raises(ValueError, match=message):
        Sweep.from_values(values, 8)
