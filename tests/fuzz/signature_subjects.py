"""Signatures of packages: what is spoilt is refused, or signs what was signed. Certificates of proofs."""

import base64
import json
from pathlib import Path

from reader_edge.verify.certificate import read_certificate
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.signature import SIGNATURE_NAME, PackageSignature, sign_package, signed_bytes
from reader_edge_runtime.package.signing_keys import read_private_key, sign
from tests.conftest import ROOT
from tests.fuzz.mutation import Subject, mutated_json
from tests.reader_edge.package_copy import PackageCopy
from tests.signing_keys import write_keys

_PACKAGE = "signed"
_COUNTS = (
    *("max_tokens", "prompts", "settings_covered", "settings_covered_in_part", "settings_not_covered"),
    *("tokens_compared", "divergences", "logit_rows", "logit_rows_equal"),
)
_CERTIFICATE = json.dumps(
    {
        **{"format": "reader-edge certificate", "format_version": 1, "package": "0" * 64, "is_promise_kept": True},
        **dict.fromkeys(("source_name", "source_fingerprint", "reader_edge", "attention", "precision"), "a"),
        **dict.fromkeys(_COUNTS, 1),
        "machine": {"processor": "a", "provider": "a", "instructions": "a", "kernels": ["a", ""], "threads": 2},
        "sample": [{"prompt_token_ids": [1, 2], "token_ids": [3], "bits": "0" * 64}],
    }
).encode()


def _made(folder: Path) -> tuple[Path, Path, Path]:
    """A signed package with its own signature, and the keys."""
    private, public = write_keys(folder)
    package = folder / _PACKAGE
    if not package.exists():
        PackageCopy(ROOT / "models" / "demo" / "package", package)
        sign_package(ModelPackage.open(package), private, lambda: "")
        (package / SIGNATURE_NAME).rename(folder / "good")
    return package, private, public


def _statement(content: bytes) -> bytes:
    return base64.b64decode(json.loads(content)["dsseEnvelope"]["payload"])


def _samples(folder: Path) -> list[bytes]:
    _made(folder)
    return [(folder / "good").read_bytes()]


def _read(path: Path) -> None:
    """With the key of the one who signed: what is taken says what he has signed, whatever else it has."""
    package, _, public = _made(path.parent)
    content = path.read_bytes()
    (package / SIGNATURE_NAME).write_bytes(content)
    signature = PackageSignature.read(package, public)
    assert _statement(content) == _statement((path.parent / "good").read_bytes())
    signature.check(ModelPackage.open(package))


def _read_statement(path: Path) -> None:
    """A liar signs what he likes with a key of his own; read as by one who knows no key."""
    package, private, _ = _made(path.parent)
    payload = path.read_bytes()
    bundle = json.loads((path.parent / "good").read_bytes())
    signature = sign(read_private_key(private, lambda: ""), signed_bytes(payload))
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
    bundle["dsseEnvelope"]["signatures"] = [{"sig": base64.b64encode(signature).decode(), "keyid": ""}]
    (package / SIGNATURE_NAME).write_text(json.dumps(bundle), "utf-8")
    PackageSignature.read(package, None).check(ModelPackage.open(package))


SIGNATURE_SUBJECTS = {
    "signature": Subject(_samples, mutated_json, _read),
    "certificate": Subject(lambda _: [_CERTIFICATE], mutated_json, read_certificate),
    "signed statement": Subject(lambda folder: [_statement(_samples(folder)[0])], mutated_json, _read_statement),
}
