"""Synthesis of the whole app, compared with an app that has one empty stack."""

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


# Keys that a cluster requires; the rest have defaults.
EKS_CONTEXT = {
    "trainium:orchestrators": "eks",
    "trainium:eks_admin_arns": "arn:aws:iam::111122223333:role/admin",
    "trainium:eks_endpoint_cidrs": "203.0.113.7/32",
}


def synth(environment: Mapping[str, str]) -> Comparison:
    """Benchmark synthesis with default settings, on AWS Batch."""
    return _compare_with_empty_app("synth", "python app.py", environment, {}, target=1.8)


def synth_eks(environment: Mapping[str, str]) -> Comparison:
    """Benchmark synthesis with an EKS cluster instead of Batch nodes."""
    return _compare_with_empty_app(
        "synth-eks", "python app.py, on EKS", environment, EKS_CONTEXT, target=2.0
    )


def _compare_with_empty_app(
    name: str,
    product: str,
    environment: Mapping[str, str],
    context: Mapping[str, str],
    *,
    target: float,
) -> Comparison:
    """Time one Python process per app, without the CDK CLI, which costs both the same."""

    def run(*arguments: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            # cdk-preflight's time does not depend on the app.
            keys = {"trainium:cdk_preflight": "false", **context}
            variables = {"CDK_OUTDIR": folder, "CDK_CONTEXT_JSON": json.dumps(keys)}
            return seconds_of([sys.executable, *arguments], {**environment, **variables})

    return Comparison(
        name=name,
        product=product,
        baseline="an aws-cdk-lib app with one empty stack",
        target=target,
        measure_product=lambda: run(str(ROOT / "app.py")),
        measure_baseline=lambda: run("-c", EMPTY_APP),
    )
