"""`jobs explain`: why a run waits, is silent or has failed, and what to do."""

from typing import Annotated, Any

import typer

from jobs.commands.options import DeploymentOption, JsonOption, RegionOption, command, opened
from jobs.diagnosis.ranking import ExplainDocument, explanation
from jobs.diagnosis.surroundings import gather
from jobs.errors import EXIT_OK
from jobs.orchestrators import found_job, services_of
from jobs.output.console import note, print_document


@command
def explain(
    context: typer.Context,
    run: Annotated[
        str | None, typer.Argument(help="Run name.", show_default="the newest run")
    ] = None,
    as_json: JsonOption = False,
    deployment: DeploymentOption = None,
    region: RegionOption = None,
) -> int:
    """Explain why a run waits, is silent or has failed: causes, evidence, remedies.

    Only reads. What it may not read is named with the right that is missing.

    \b
    Examples:
      python -m jobs explain
      python -m jobs explain my-run --json
    """
    aws, target = opened(context, deployment, region)
    service, job = found_job(services_of(aws, target, note), target, run)
    document = explanation(target, job, gather(aws, target, service, job))
    if as_json:
        print_document(document)
        return EXIT_OK
    from jobs.output.terminal import Terminal

    Terminal().print(_described(document), soft_wrap=True)
    return EXIT_OK


def _described(document: ExplainDocument) -> Any:
    from rich.text import Text

    lines = [f"run {document.run}: {document.status}, {document.cause}"]
    for number, cause in enumerate(document.causes, start=1):
        when = ", in an earlier attempt" if cause.earlier else ""
        lines.append(f"{number}. {cause.cause}{when}: {cause.says}")
        lines += [f"   {fact.source.heading}: {fact.text}" for fact in cause.evidence]
        lines.append(f"   $ {cause.remedy}")
    lines += [f"not read: {what}" for what in document.unread]
    return Text("\n".join(lines))
