"""Synthesis of the whole app against an app with one empty stack."""

import sys
import tempfile
from collections.abc import Mapping

from benchmarks.pairs import Comparison
from benchmarks.processes import ROOT, seconds_of

EMPTY_APP = """\
import aws_cdk as cdk

app = cdk.App()
cdk.Stack(app, "Empty")
app.synth()
"""


def synth(environment: Mapping[str, str]) -> Comparison:
    """Both sides are one Python process each, without the CLI, which would add the same to both."""

    def run(*arguments: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            return seconds_of([sys.executable, *arguments], {**environment, "CDK_OUTDIR": folder})

    return Comparison(
        name="synth",
        product="python app.py",
        baseline="an aws-cdk-lib app with one empty stack",
        target=1.8,
        measure_product=lambda: run(str(ROOT / "app.py")),
        measure_baseline=lambda: run("-c", EMPTY_APP),
    )
