"""Generate docs/schemas from the dataclasses that write the documents; run by `make readme`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from benchmarks.pairs import BenchResult
from jobs.commands.catalogue import CatalogueDocument
from jobs.commands.code import CodeDocument
from jobs.commands.download import DownloadDocument
from jobs.commands.kubeconfig import KubeconfigDocument
from jobs.commands.plan import PlanDocument
from jobs.commands.tensorboard import TensorboardDocument
from jobs.commands.upload import UploadDocument
from jobs.deploy_check.findings import DeployDocument
from jobs.diagnosis.doctor import DoctorDocument
from jobs.diagnosis.ranking import ExplainDocument
from jobs.eks.node_users import ScaleDocument
from jobs.eks.usage import TopDocument
from jobs.output import documents
from jobs.port.report import PortDocument
from jobs.program.bundle import BundleListing
from jobs.program.record import ProgramRecord
from jobs.report.document import ReportDocument
from jobs.teardown.receipt import DownDocument
from rehearsal.receipt import Receipt, ReceiptVerdict
from training.checkpoint.marker import Marker
from training.diagnostics.allreduce import allreduce
from training.launcher.bucket_records import AttemptEnding
from training.models.llama.export import ExportReceipt
from training.program.output import LossPoint
from training.program.snapshots.exchange import ProgramStatus
from training.program.snapshots.manifest import SnapshotManifest
from training.storage.run_lock import Holder
from training.trainer import records
from training.trainer.run_files import RunStatus
from training.trainer.runs import RunConfig
from trainium_catalogue.attempts import AttemptRecord, SubmissionRecord
from trainium_catalogue.probing import ProbeRecord

SCHEMAS = Path(__file__).resolve().parent.parent / "docs" / "schemas"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WIDTH = 100


class _Generator(GenerateJsonSchema):
    """Schema generator that describes a dataclass's fields by their attribute docstrings."""

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        generated = super().dataclass_schema(schema)
        cls = schema["cls"]
        described = dict(_docstrings(cls))
        properties = {}
        for field in dataclasses.fields(cls):
            name = field.name.rstrip("_")
            properties[name] = dict(generated["properties"][field.name])
            properties[name].pop("default", None)
            if properties[name].get("additionalProperties") is True:
                del properties[name]["additionalProperties"]
            if "optional" in field.metadata and field.default is None:
                properties[name] = _without_null(properties[name])
            if field.name in described:
                properties[name]["description"] = described[field.name]
        required = [
            f.name.rstrip("_") for f in dataclasses.fields(cls) if "optional" not in f.metadata
        ]
        return {
            "description": _text(cls.__doc__ or ""),
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": getattr(cls, "additional_properties", False),
        }

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        return value

    def nullable_schema(self, schema: Any) -> JsonSchemaValue:
        inner = self.generate_inner(schema["schema"])
        if isinstance(inner.get("type"), str) and "enum" not in inner and "const" not in inner:
            return {**inner, "type": [inner["type"], "null"]}
        return super().nullable_schema(schema)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def enum_schema(self, schema: Any) -> JsonSchemaValue:
        return {"enum": [member.value for member in schema["members"]]}


def _without_null(generated: JsonSchemaValue) -> JsonSchemaValue:
    """Remove null from an optional field, which is omitted instead."""
    if "anyOf" in generated:
        (some,) = [kind for kind in generated.pop("anyOf") if kind != {"type": "null"}]
        return {**some, **generated}
    return {**generated, "type": next(kind for kind in generated["type"] if kind != "null")}


def _text(docstring: str) -> str:
    return " ".join(docstring.split()).replace("``", "`")


def _docstrings(cls: type) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of each documented field of a class and its bases."""
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef)
        for field, below in zip(node.body, node.body[1:], strict=False):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    yield name, _text(text)


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """A published document and the dataclasses that write it."""

    title: str
    types: tuple[type, ...]
    """Alternative dataclasses of the document."""
    is_open: bool = False
    """True if it may have additional fields."""


def _command(name: str, *types: type) -> tuple[str, Document]:
    return f"jobs-{name}", Document(
        f"python -m jobs {name} --json", (*types, documents.RefusalDocument)
    )


DOCUMENTS: Mapping[str, Document] = {
    "all-reduce-result": Document(
        "runs/<run>/results/all-reduce.json", (allreduce.AllReduceResult,)
    ),
    "metrics-line": Document(
        "One line of runs/<run>/metrics/all-reduce.jsonl",
        (allreduce.StartLine, allreduce.SizeLine, allreduce.AllReduceEndLine),
    ),
    "train-metrics-line": Document(
        "One line of runs/<run>/metrics/train.jsonl, with each step once, in order",
        (
            *(records.BeginLine, records.StepLine, records.EvaluationLine, records.SaveLine),
            *(records.SavedLine, records.SaveFailedLine, records.TrainingEndLine),
        ),
    ),
    "attempt-ending": Document(
        "runs/<run>/results/attempts/<job id>/<attempt>-node-<index>.json", (AttemptEnding,)
    ),
    "attempt": Document(
        "runs/<run>/results/attempts/<job id>/<attempt>.json; for an array job's later children: "
        "<attempt>-child-<index>.json",
        (AttemptRecord,),
    ),
    "submission": Document(
        "runs/<run>/results/attempts/<job id>/submission.json", (SubmissionRecord,)
    ),
    "checkpoint": Document(
        "runs/<run>/checkpoints/step-<8 digits>/complete.json", (Marker,), is_open=True
    ),
    "export": Document("export/<run>/export.json", (ExportReceipt,)),
    "run": Document("runs/<run>/run.json", (RunConfig,)),
    "run-lock": Document("runs/<run>/lock.json", (Holder,)),
    "run-status": Document("runs/<run>/results/status.json", (RunStatus,)),
    "bundle": Document("runs/<run>/code/<sha256>.json", (BundleListing,)),
    "program": Document("runs/<run>/program.json", (ProgramRecord,)),
    "program-loss": Document(
        "One line of runs/<run>/metrics/losses/<time>-attempt-<n>.jsonl", (LossPoint,)
    ),
    "program-status": Document("runs/<run>/results/status.json of a program", (ProgramStatus,)),
    "snapshot": Document("runs/<run>/snapshots/<8 digits>.json", (SnapshotManifest,)),
    "verification-record": Document(
        "runs/<run>/results/probes.json and verification.json", (ProbeRecord,)
    ),
    "rehearsal-receipt": Document("build/rehearsal/receipt.json", (ReceiptVerdict, Receipt)),
    "bench": Document("build/bench.json", (BenchResult,)),
    **dict(
        (
            _command("submit", documents.SubmitDocument),
            _command("upload", UploadDocument),
            _command("code", CodeDocument),
            _command("download", DownloadDocument),
            _command("list", documents.ListDocument),
            _command("status", documents.StatusDocument, documents.ForgottenDocument),
            _command("explain", ExplainDocument),
            _command("doctor", DoctorDocument),
            _command("report", ReportDocument),
            _command("logs", documents.LogsDocument),
            _command("stop", documents.StopDocument),
            _command("catalogue", CatalogueDocument),
            _command("check-deploy", DeployDocument),
            _command("down", DownDocument),
            _command("kubeconfig", KubeconfigDocument),
            _command("scale", ScaleDocument),
            _command("plan", PlanDocument),
            _command("port", PortDocument),
            _command("top", TopDocument),
            _command("tensorboard", TensorboardDocument),
        )
    ),
}


def schema_of(document: Document) -> dict[str, Any]:
    """Return the JSON Schema of a document."""
    generated = TypeAdapter(reduce(or_, document.types)).json_schema(
        mode="serialization", schema_generator=_Generator
    )
    if document.types == (ReceiptVerdict, Receipt):
        # Merged into one object.
        parts = [generated["$defs"].pop(kind.__name__) for kind in document.types]
        generated = {
            **parts[-1],
            "properties": {k: v for part in parts for k, v in part["properties"].items()},
            "required": [name for part in parts for name in part["required"]],
            "$defs": generated["$defs"],
        }
    if document.is_open:
        del generated["additionalProperties"]
    defs = generated.pop("$defs", {})
    for definition in defs.values():
        definition.pop("title", None)
    whole = {"$schema": _DIALECT, "title": document.title, **generated}
    return {**whole, "$defs": defs} if defs else whole


def rendered(value: Any, indent: int = 0, before: int = 0) -> str:
    """Render JSON compactly: on one line if it fits after ``before`` characters.

    Otherwise each item is on its own line, except that strings in a list share lines.
    """
    line = json.dumps(value, ensure_ascii=False)
    if indent + before + len(line) < _WIDTH or not isinstance(value, dict | list) or not value:
        return line
    pad, end = " " * (indent + 2), " " * indent
    if isinstance(value, dict):
        named = ((f"{json.dumps(name)}: ", item) for name, item in value.items())
        lines = [f"{pad}{name}{rendered(item, indent + 2, len(name))}" for name, item in named]
        return "{\n" + ",\n".join(lines) + f"\n{end}}}"
    if all(isinstance(item, str) for item in value):
        words = textwrap.fill(line[1:-1], _WIDTH - indent - 2)
        return "[\n" + textwrap.indent(words, pad) + f"\n{end}]"
    return "[\n" + ",\n".join(pad + rendered(item, indent + 2) for item in value) + f"\n{end}]"


@cache
def schemas() -> Mapping[Path, str]:
    """Return the text of every file of docs/schemas."""
    return {
        SCHEMAS / f"{name}.schema.json": rendered(schema_of(document)) + "\n"
        for name, document in DOCUMENTS.items()
    }
