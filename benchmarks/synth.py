"""Synthesis of the whole app against that of an app with one empty stack."""

import json
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


# Keys that a cluster requires; the rest are defaults.
EKS_CONTEXT = {
    "trainium:orchestrators": "eks",
    "trainium:eks_admin_arns": "arn:aws:iam::111122223333:role/admin",
    "trainium:eks_endpoint_cidrs": "203.0.113.7/32",
}


def synth(environment: Mapping[str, str]) -> Comparison:
    """Compare the app with its defaults, on AWS Batch."""
    return _against_the_empty_app("synth", "python app.py", environment, {}, target=1.8)


def synth_eks(environment: Mapping[str, str]) -> Comparison:
    """Compare the app with an EKS cluster instead of Batch's nodes."""
    return _against_the_empty_app(
        "synth-eks", "python app.py, on EKS", environment, EKS_CONTEXT, target=2.0
    )


def _against_the_empty_app(
    name: str,
    product: str,
    environment: Mapping[str, str],
    context: Mapping[str, str],
    *,
    target: float,
) -> Comparison:
    """Compare one Python process each, without the CLI, which would add the same to both."""

    def run(*arguments: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            # The time of its rules is cdk-preflight's, and does not depend on the app.
            keys = {"trainium:cdk_preflight": "false", **context}
            added = {"CDK_OUTDIR": folder, "CDK_CONTEXT_JSON": json.dumps(keys)}
            return seconds_of([sys.executable, *arguments], {**environment, **added})

    return Comparison(
        name=name,
        product=product,
        baseline="an aws-cdk-lib app with one empty stack",
        target=target,
        measure_product=lambda: run(str(ROOT / "app.py")),
        measure_baseline=lambda: run("-c", EMPTY_APP),
    )
