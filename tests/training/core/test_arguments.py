"""The launcher's command line is strict and explains itself."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.core.arguments import ArgumentError, parse
from training.launch import main
from training.workloads import IMPLEMENTATIONS
from trainium_catalogue.exit_codes import EXIT_CODES
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, WORKLOADS


def test_both_spellings_of_a_value_are_accepted() -> None:
    request = parse(["all-reduce", "--max-bytes", "4096", "--peer-timeout-s=5"])

    assert (request.values["max-bytes"], request.launch.peer_timeout_s) == (4096, 5.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no workload specified; choose one of all-reduce"),
        (["--max-bytes", "4", "all-reduce"], "--max-bytes precedes the workload"),
        # As in the CLI, which has the same parser.
        (["all-reduce", "--max-byte", "4"], "no parameter 'max-byte'; did you mean 'max-bytes'?"),
    ],
)
def test_a_malformed_command_line_is_refused_with_a_remedy(words: list[str], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        parse(words)


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


def test_the_help_names_every_parameter_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    codes = [main([*words, "--help"], {}) for words in ([], *([name] for name in WORKLOADS))]
    text = capsys.readouterr().out

    parameters = [*LAUNCH_PARAMETERS, *(p for w in WORKLOADS.values() for p in w.parameters)]
    assert [p.name for p in parameters if f"--{p.name} " not in text] == []
    assert set(codes) == {0}
    assert [c for c in EXIT_CODES if f"{c.value:>5}  " not in text] == []


def test_every_workload_of_the_catalogue_has_code() -> None:
    assert set(IMPLEMENTATIONS) == set(WORKLOADS)


def test_the_launcher_starts_without_torch_or_boto3() -> None:
    code = "import sys, training.launch; print({'torch', 'boto3', 'numpy'} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"
