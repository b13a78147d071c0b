"""`jobs explain`: why a run waits, prints nothing or has failed, and what to do."""

from typing import Annotated, Any

import typer

from jobs.commands.options import (
    DeploymentOption,
    JsonOption,
    RegionOption,
    command,
    open_deployment,
)
from jobs.diagnosis.evidence_reader import gather
from jobs.diagnosis.ranking import ExplainDocument, explanation
from jobs.errors import EXIT_OK
from jobs.orchestrators import find_job, services_of
from jobs.output.console import note, print_document
from jobs.output.explain import describe_zone


@command
def explain(
    context: typer.Context,
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Run name.", show_default="the newest run")
    ] = None,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Explain why a run is waiting, prints nothing or has failed: causes, evidence, remedies.

    Read-only. Names the missing permission for anything it is not permitted to read.

    \b
    Examples:
      python -m jobs explain
      python -m jobs explain my-run --json
    """
    aws, target = open_deployment(context, deployment, region)
    service, job = find_job(services_of(aws, target, note), target, run)
    evidence = gather(aws, target, service, job)
    document = explanation(target, job, evidence, zone=service.zone(job))
    if as_json:
        print_document(document)
        return EXIT_OK
    from jobs.output.terminal import Terminal

    Terminal().print(_describe(document), soft_wrap=True)
    return EXIT_OK


def _describe(document: ExplainDocument) -> Any:
    from rich.text import Text

    lines = [f"run {document.run}: {document.status}, {document.cause}"]
    for number, cause in enumerate(document.causes, start=1):
        when = ", in an earlier attempt" if cause.earlier else ""
        lines.append(f"{number}. {cause.cause}{when}: {cause.says}")
        lines += [f"   {fact.source.heading}: {fact.text}" for fact in cause.evidence]
        lines.append(f"   $ {cause.remedy}")
    if document.zone is not None:
        lines.append(describe_zone(document.zone))
    lines += [f"not read: {what}" for what in document.unread]
    return Text("\n".join(lines))
