"""A model card for the Hugging Face hub: README.md with metadata, made of what a package says of itself."""

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from reader_edge.models.catalogue import find_origin, is_model_name
from reader_edge.models.pull import found_here
from reader_edge.terminal.export_report import check_pairs
from reader_edge.terminal.formatting import readable_size
from reader_edge.verify.certificate import read_certificate
from reader_edge_export.libraries import check_installation
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.assembly import settled_target
from reader_edge_runtime.errors import ReaderEdgeError
from reader_edge_runtime.machine.processor import num_usable_cores, processor_name
from reader_edge_runtime.measuring.cost_cache import kept_cost
from reader_edge_runtime.measuring.pass_cost import PassCost
from reader_edge_runtime.measuring.width_cache import kept_verdict
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.untrusted.gguf_header import is_gguf
from reader_edge_runtime.untrusted.user_input import as_text

CERTIFICATE_NAME = "certificate.json"

_PIPELINES = {"": "text-generation", "last": "feature-extraction", "rank": "text-ranking"}
_LICENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}")
_LICENCE_LINE = re.compile(r"\A---\n(?:.*\n)*?license: *([^\s#]+) *\n", re.MULTILINE)
_MAX_PAGE_BYTES = 1 << 16


def licence_of(manifest: Manifest) -> str | None:
    """The licence that a package's source names, as the hub calls it, where that source is on this machine."""
    named = None
    with suppress(ReaderEdgeError, OSError, UnicodeDecodeError):
        source = found_here(manifest.source_name) if is_model_name(manifest.source_name) else None
        if source is not None and is_gguf(source):
            check_installation(["gguf"], "Reading GGUF files")
            from reader_edge_export.sources.gguf.summary import summary_of

            named = summary_of(source).licence
        elif source is not None:
            with (source / "README.md").open("rb") as file:
                line = _LICENCE_LINE.match(as_text(file.read(_MAX_PAGE_BYTES)))
            named = line and line[1].strip("\"'")
    return named.lower() if named and _LICENCE.fullmatch(named) else None


def measured_cost(package: ModelPackage) -> PassCost | None:
    """Pass times of a package that were measured on this machine before; None where there are none."""
    with suppress(ReaderEdgeError):
        target, _ = settled_target(package, EngineConfig(is_probed=False))
        verdict = kept_verdict(target, 0)
        return kept_cost(target if verdict is None else verdict[0], 0, 1)
    return None


def model_card(package: ModelPackage, licence: str | None, cost: PassCost | None) -> str:
    """The page, in Markdown."""
    manifest = package.manifest
    hub_id = None
    with suppress(ReaderEdgeError):
        hub_id = find_origin(manifest.source_name).hub_id
    made_of = f"[{hub_id}](https://huggingface.co/{hub_id})" if hub_id else _code(manifest.source_name)
    licensed = f"`{licence}`" if licence else "that of its source, which is not recorded here"
    versions = ", ".join(f"{_code(name)} {_code(version)}" for name, version in manifest.exported_with.items())
    facts = [
        ("source", made_of),
        ("source fingerprint (SHA-256)", _code(manifest.source_fingerprint)),
        ("package fingerprint (SHA-256)", _code(package.fingerprint().hex())),
        ("licence", licensed),
        ("architecture", _code(manifest.architecture)),
        ("layers", str(manifest.num_layers)),
        ("vocabulary", str(manifest.vocab_size)),
        ("max context", f"{manifest.max_context} tokens"),
        ("precision, attention", f"{manifest.precision}, {manifest.attention}"),
        ("KV cache", f"{readable_size(manifest.kv_row_bytes)} a token ({manifest.kv_dtype})"),
        ("size", readable_size(manifest.num_bytes)),
        ("exported with", versions),
    ]
    files = [(_code(name), readable_size(entry.num_bytes)) for name, entry in manifest.files.items()]
    checks = [(words, value) for words, value in check_pairs(manifest.checks)]
    name = _code((hub_id or manifest.source_name).rpartition("/")[2])
    parts = [
        _metadata(manifest, hub_id, licence),
        f"# {name} for reader-edge",
        f"An ONNX package of {made_of} for reader-edge, which decodes it with "
        "lossless speculative decoding: the same tokens as plain decoding, sooner.",
        "## Run",
        "Download this repository into a folder, then:",
        '```sh\npip install "reader-edge[cpu]"\nreader-edge run FOLDER\nreader-edge serve FOLDER     # OpenAI\'s API, '
        "Anthropic's and Ollama's\n```",
        "## What it is",
        _table(("", ""), facts),
        _table(("file", "size"), files),
        "## Quality",
        "Measured by the export, against the source:" if checks else "Not measured against the source.",
        _table(("check", "result"), checks) if checks else "",
        *_proof(package),
        *_speed(cost),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _metadata(manifest: Manifest, hub_id: str | None, licence: str | None) -> str:
    """What the hub finds a model by; JSON's texts are YAML's too."""
    tags = ["onnx", "reader-edge", "speculative-decoding", manifest.precision]
    lines = ["---", "library_name: reader-edge", f"pipeline_tag: {_PIPELINES[manifest.pooling]}"]
    lines += [f"license: {json.dumps(licence)}"] if licence else []
    lines += [f"base_model: {json.dumps(hub_id)}"] if hub_id else []
    lines += ["base_model_relation: quantized"] if hub_id and manifest.precision != "fp32" else []
    return "\n".join([*lines, f"tags: {json.dumps(tags)}", "---"])


def _proof(package: ModelPackage) -> Iterable[str]:
    """Of the certificate in the package, where there is one of it."""
    path: Path = package.folder / CERTIFICATE_NAME
    if not path.exists():
        return
    proof = read_certificate(path)
    if proof.package != package.fingerprint().hex():
        return
    yield "## Proof"
    yield (
        f"`reader-edge verify` compared {proof.tokens_compared} tokens of drafted answers with plain ones on "
        f"{_code(proof.machine.processor)}: {proof.divergences} divergences, {proof.logit_rows_equal} of "
        f"{proof.logit_rows} logit rows equal to the bit. `reader-edge verify FOLDER --certificate "
        f"FOLDER/{CERTIFICATE_NAME}` decodes a sample of it again."
    )


def _speed(cost: PassCost | None) -> Iterable[str]:
    if cost is None:
        return
    yield "## Speed"
    yield (
        f"Milliseconds of one pass on {_code(processor_name())} with {num_usable_cores()} threads, which decodes one "
        "token plainly, or verifies so many drafted ones:"
    )
    rows = [(str(width), *(f"{1e3 * s[k]:.2f}" for s in cost.seconds)) for k, width in enumerate(cost.widths)]
    yield _table(("tokens", *(f"behind {past}" for past in cost.pasts)), rows)
    if cost.is_in_doubt:
        yield "Other work ran beside the measuring, so these may be too long."


def _table(head: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    head = tuple(head)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows))


def _code(text: str) -> str:
    """Whatever a manifest says, as no markup."""
    return f"`{text.replace('`', '').replace('|', '')}`"
