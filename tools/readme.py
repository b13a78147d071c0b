"""Write the generated tables and schemas in docs/; run by `make readme`."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path

from jobs.diagnosis.cause import CAUSES, SOURCES
from jobs.output.explain import KNOWN_REASONS
from jobs.verify.claims import Claim, read_claims
from stacks.config import PREFIX, AppConfig
from stacks.config.keys import DerivedDefault, keys_of
from trainium_catalogue.exit_codes import EXIT_CODES
from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.models.presets import MODELS
from trainium_catalogue.neuron_faults import NEURON_FAULTS
from trainium_catalogue.parameters.data import CORPORA, DATASETS
from trainium_catalogue.releases import DEFAULT_RELEASE, NEURON_RELEASES, NeuronRelease

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def table(*rows: Iterable[str]) -> str:
    """Render rows as a Markdown table; the first is the header."""
    head, *body = (
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
    )
    return "\n".join((head, "| " + " | ".join("---" for _ in rows[0]) + " |", *body))


def reasons_table() -> str:
    """Tabulate cause and remedy of each known reason from Batch, ECS, Kubernetes or a node."""
    return table(
        ("symptom", "cause", "remedy"),
        *(
            (f"`{reason.pattern.strip('*').replace('*', '...')}`", reason.meaning, reason.remedy)
            for reason in KNOWN_REASONS
        ),
    )


def causes_table() -> str:
    """Tabulate the causes that `explain` reports, and the evidence for each."""
    names = {
        "redeploy": "cdk deploy --all",
        "jobs": "python -m jobs",
        "scale": "python -m jobs scale",
    }
    again = "python -m jobs submit ./train.py --name RUN"
    names |= dict.fromkeys(("again", "less_memory", "smaller_rate"), again)
    names |= {
        "with_module": f"{again} --requirements requirements.txt",
        "zone": "cdk deploy --all -c trainium:zone_ids=FIRST,NEXT",
        "grown": "cdk deploy --all -c trainium:max_nodes=NODES",
        "room": "python -m jobs list",
        "quota": "--quota-code CODE --desired-value VCPUS",
        "spot_quota": "--quota-code L-34B43A08 --desired-value VCPUS",
        "volume": "GIB",
        "data_uris": "",
        "namespace": "-n NAMESPACE",
        "region": "--region REGION",
        "hours": "24",
    }
    account_names = ("group", "vpc", "cluster", "node_group", "bucket", "key", "principal")
    run_names = ("run", "queue", "environment")
    names |= {name: name.upper().replace("_", "-") for name in (*run_names, *account_names)}
    names |= {"key_action": "enable-key", "denied": "ACTION", "fix": "python -m jobs doctor"}
    names["endpoint"] = "SERVICE"
    return table(
        ("cause", "meaning", "shown by", "command to paste", "source"),
        *(
            (
                f"`{cause.name}`",
                cause.says,
                ", ".join(
                    dict.fromkeys(
                        source.heading
                        for sources in (*(SOURCES[where] for where in cause.texts), cause.problems)
                        for source in sources
                    )
                ),
                f"`{cause.remedy.format(**names)}`",
                f"[source]({cause.source if '://' in cause.source else f'../{cause.source}'})",
            )
            for cause in CAUSES
        ),
    )


def exit_codes_table() -> str:
    """Tabulate cause and remedy of each exit code, and whether Batch retries it."""
    return table(
        ("exit code", "cause", "retried", "remedy"),
        *(
            (str(code.value), ending.meaning, "yes" if ending.retry else "no", ending.remedy)
            for code, ending in EXIT_CODES.items()
        ),
    )


def neuron_faults_table() -> str:
    """Tabulate the errors of the Neuron runtime and compiler that the launcher recognizes."""
    return table(
        ("Neuron failure", "cause", "retried", "remedy"),
        *(
            (fault.name, fault.meaning, "yes" if fault.retry else "no", fault.action)
            for fault in NEURON_FAULTS
        ),
    )


def context_table() -> str:
    """Tabulate the context keys."""
    return table(
        ("key", "type", "default", "what it does"),
        *(
            (f"`{PREFIX}{name}`", key.kind.noun, _default(key.default), key.help)
            for name, key in keys_of(AppConfig).items()
        ),
    )


def _default(value: object) -> str:
    match value:
        case DerivedDefault(text=text):
            return text
        case None | ():
            return "none"
        case bool():
            return str(value).lower()
        case tuple():
            return f"`{','.join(map(str, value))}`"
        case StrEnum() | str():
            return f"`{value}`"
        case _:
            return str(value)


def instances_table() -> str:
    """Tabulate the instance types."""
    return table(
        ("type", "chips", "workers", "HBM in GiB", "EFA interfaces", "USD/h, estimate"),
        *(
            (
                f"`{kind.name}`",
                str(kind.num_neuron_devices),
                str(kind.processes_per_node),
                str(kind.num_neuron_devices * kind.hbm_gib_per_device),
                str(kind.num_efa_interfaces),
                f"{kind.usd_per_hour_estimate:.2f}",
            )
            for kind in INSTANCE_TYPES.values()
        ),
    )


def releases_table() -> str:
    """Tabulate the instance families and the image of each Neuron release."""
    return table(
        ("SDK", "PyTorch", "host driver", "families", "image"),
        *(
            (
                f"{name} (default)" if name == DEFAULT_RELEASE else name,
                f"{release.pytorch}, {release.backend.value}" if release.backend else "none",
                release.driver_range,
                ", ".join(sorted(release.families)),
                _image_of(release),
            )
            for name, release in NEURON_RELEASES.items()
        ),
    )


def _image_of(release: NeuronRelease) -> str:
    if release.base_image:
        return "published"
    if release.packages:
        return f"built from AWS's packages: {release.why_no_image}"
    return f"set `base_image`: {release.why_no_image}"


def corpora_table() -> str:
    """Tabulate the corpora and datasets of ``prepare``."""
    return table(
        ("`--dataset`", "contents"),
        *((f"`{name}`", text) for name, text in {**CORPORA, **DATASETS}.items()),
    )


def models_table() -> str:
    """Tabulate the models of ``pretrain``."""
    return table(
        ("`--model`", "parameters", "sequence length", "tensor parallel", "nodes", "shape of"),
        *(
            (
                f"`{name}`",
                f"{preset.shape.num_parameters:,}",
                f"{preset.seq_len:,}",
                str(preset.tensor_parallel),
                str(preset.default_nodes),
                preset.summary.removeprefix("the shape of "),
            )
            for name, preset in MODELS.items()
        ),
    )


CLAIM_PAGES: Mapping[str, tuple[str, ...]] = {
    "claims-batch.md": (
        "Instances",
        "Neuron releases",
        "AWS Batch",
        "Storage and CPU jobs",
        "Datasets",
    ),
    "claims-eks.md": ("EKS", "Security", "Notifications"),
    "claims-training.md": (
        "Training on the device",
        "Compile cache",
        "Checkpoints on S3",
        "On the node",
        "Programs of your own",
    ),
}
"""Subjects of docs/claims.toml by page."""


def claims_summary() -> str:
    """Count each subject's open claims, in total and with a probe."""
    pages = {subject: page for page, subjects in CLAIM_PAGES.items() for subject in subjects}
    claims = [claim for claim in read_claims() if claim.open]
    probed = Counter(claim.subject for claim in claims if claim.probe)
    counts = Counter(claim.subject for claim in claims)
    return (
        f"{len(claims)} claims are open. Probes check {probed.total()} of them; the others need a "
        "manual check, an injected fault or another deployment.\n\n"
    ) + table(
        ("subject", "open", "with a probe"),
        *(
            (
                f"[{name}]({pages[name]}#{name.lower().replace(' ', '-')})",
                str(count),
                str(probed[name]),
            )
            for name, count in counts.items()
        ),
    )


def claims_sections(subjects: Iterable[str]) -> str:
    """List the claims of each subject: open ones in full, the rest in one line each."""
    claims = read_claims()
    lines: list[str] = []
    for subject in subjects:
        of_subject = [claim for claim in claims if claim.subject == subject]
        open_claims = [claim for claim in of_subject if claim.open]
        settled = [claim for claim in of_subject if not claim.open]
        lines += [f"## {subject}", ""]
        if open_claims:
            rows = (
                (f"`{claim.id}`: {claim.claim}", claim.evidence, claim.open, _check(claim))
                for claim in open_claims
            )
            lines += [table(("open claim", "evidence", "what is open", "check"), *rows), ""]
        if settled:
            lines += [*(f"- `{c.id}`: {c.claim} ({c.evidence})" for c in settled), ""]
    return "\n".join(lines)


def _check(claim: Claim) -> str:
    where = " and ".join(f"probe ({place})" for place in claim.probe)
    return "; ".join(filter(None, (where, claim.why)))


def tables() -> Mapping[Path, Mapping[str, str]]:
    """Return the generated sections of each file, by name."""
    from tests.jobs.diagnosis import plantings
    from tests.programs import page  # at module level a circular import

    return {
        DOCS / "configuration.md": {
            "context keys": context_table(),
            "instance types": instances_table(),
            "releases": releases_table(),
        },
        DOCS / "data.md": {"corpora": corpora_table()},
        DOCS / "diagnosis.md": {
            "causes": causes_table(),
            "plantings": f"{plantings.summary()}.",
        },
        DOCS / "llama.md": {"models": models_table()},
        DOCS / "troubleshooting.md": {
            "exit codes": exit_codes_table(),
            "Neuron failures": neuron_faults_table(),
            "reasons": reasons_table(),
        },
        **page.sections(),
        DOCS / "verification.md": {
            "open claims": claims_summary(),
        },
        **{
            DOCS / page: {"claims": claims_sections(subjects)}
            for page, subjects in CLAIM_PAGES.items()
        },
    }


def with_tables(text: str, sections: Mapping[str, str]) -> str:
    """Return ``text`` with all generated sections updated."""
    for name, content in sections.items():
        section = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = section.subn(lambda m, t=content: f"{m[1]}{t}\n{m[2]}", text)  # type: ignore[misc]
        assert count == 1, name
    return text


if __name__ == "__main__":
    from tools.schemas import schemas  # slow: imports torch and every writer of a document

    for path, text in schemas().items():
        path.write_text(text)
    for path, sections in tables().items():
        path.write_text(with_tables(path.read_text(), sections))
