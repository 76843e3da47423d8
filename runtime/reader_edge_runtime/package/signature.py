"""A package's signature: who vouches for its files, in the format of OpenSSF Model Signing, without any network.

`model.sig` is a Sigstore bundle: a DSSE envelope, signed by ECDSA, over an in-toto statement that has the SHA-256 of
every file. `model_signing verify key` (PyPI: model-signing) checks it too, and what `model_signing sign key` writes is
read here. Formats: https://github.com/ossf/model-signing-spec, https://github.com/secure-systems-lab/dsse
"""

import base64
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.errors import SignatureError
from reader_edge_runtime.package.manifest import MANIFEST_NAME, FileName, sha256_of
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.pipeline_file import PIPELINE_NAME
from reader_edge_runtime.package.signing_keys import (
    MAX_KEY_BYTES,
    has_signed,
    key_id,
    parse_public_key,
    pem_of,
    read_private_key,
    read_public_key,
    sign,
)
from reader_edge_runtime.untrusted.plain_file import check_plain_file
from reader_edge_runtime.untrusted.untrusted_json import Sha256, Text, converted, decoded, read_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

SIGNATURE_NAME = "model.sig"
# What comes and goes beside a package: of git and the hub's client, and what `warm` writes, which changes no token.
UNSIGNED_NAMES = (".cache", ".git", ".gitattributes", ".github", ".gitignore", "own_answers.bin", SIGNATURE_NAME)

_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_MAX_BYTES, _MOST_FILES = 1 << 22, 1 << 12
_REMEDY = "do not trust this package, or have its owner sign it again (`reader-edge package sign`)"
_UNSIGNED_REMEDY = _REMEDY.replace(" again", "")


class _Signature(Struct):
    sig: Annotated[str, Meta(max_length=1024)]


class _Envelope(Struct, rename="camel"):
    payload: str
    payload_type: Literal["application/vnd.in-toto+json"]
    signatures: Annotated[tuple[_Signature, ...], Meta(min_length=1, max_length=1)]


class _PublicKey(Struct):
    hint: Sha256 | None = None


class _Material(Struct, rename="camel"):
    public_key: _PublicKey


class _Bundle(Struct, rename="camel"):
    media_type: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"]
    verification_material: _Material
    dsse_envelope: _Envelope


class _Resource(Struct):
    name: FileName
    algorithm: Literal["sha256"]
    digest: Sha256


class _Serialization(Struct):
    method: Literal["files"]
    hash_type: Literal["sha256"]


class _Predicate(Struct):
    """public_key: of the signer, in PEM. pipeline: of the pipeline.json beside a last stage.

    Both are this project's own fields, which other readers ignore.
    """

    serialization: _Serialization
    resources: Annotated[tuple[_Resource, ...], Meta(min_length=1, max_length=_MOST_FILES)]
    public_key: Annotated[str, Meta(max_length=MAX_KEY_BYTES)] | None = None
    pipeline: Sha256 | None = None


class _Digest(Struct):
    sha256: Sha256


class _Subject(Struct):
    name: Text
    digest: _Digest


class _Statement(Struct, rename={"type": "_type", "predicate_type": "predicateType"}):
    type: Literal["https://in-toto.io/Statement/v1"]
    predicate_type: Literal["https://model_signing/signature/v1.0"]
    subject: Annotated[tuple[_Subject, ...], Meta(min_length=1, max_length=1)]
    predicate: _Predicate


@dataclass(frozen=True, slots=True)
class PackageSignature:
    """A signature that its key has made.

    key_id: SHA-256 (hex) of the public key's PEM. is_trusted: whether that key is the caller's; else the signature
    itself names it, which anybody can write. files: name -> SHA-256 (hex) of all that is signed. pipeline: of the
    pipeline.json whose last stage it is, if that is signed too.
    """

    folder: Path
    key_id: str
    is_trusted: bool
    files: Mapping[str, str]
    pipeline: str | None

    @classmethod
    def read(cls, folder: Path, key: Path | None) -> "PackageSignature":
        """The signature in a folder. key: file of the public key in PEM whose owner must have made it.

        Raises SignatureError where there is none or it is not that key's, UserFileError for what is no such key,
        InstallationError without the extra "sign", and OSError.
        """
        if not is_signed(folder):
            raise SignatureError(f"'{folder}' is not signed: {_UNSIGNED_REMEDY}.")
        trusted = None if key is None else read_public_key(key)
        path = folder / SIGNATURE_NAME
        fields = read_json(path, SignatureError, _REMEDY, _MAX_BYTES)
        bundle = converted(fields, _Bundle, f"'{path}'", SignatureError, _REMEDY)
        envelope, hint = bundle.dsse_envelope, bundle.verification_material.public_key.hint
        payload = _unpacked(envelope.payload, path)
        name = f"The statement in '{path}'"
        values = decoded(payload, name, SignatureError, _REMEDY)
        statement = converted(values, _Statement, name, SignatureError, _REMEDY)
        signer = trusted or _named_key(statement.predicate.public_key, hint, path)
        number = key_id(signer)
        if hint not in (None, number):
            raise SignatureError(f"'{path}' is of the key {hint}, not of {number}: {_REMEDY}.")
        if not has_signed(signer, _unpacked(envelope.signatures[0].sig, path), signed_bytes(payload)):
            raise SignatureError(f"'{path}' is nothing that the key {number} has signed: {_REMEDY}.")
        resources = statement.predicate.resources
        files = {each.name: each.digest for each in resources}
        if len(files) < len(resources) or statement.subject[0].digest.sha256 != _root_digest(files):
            raise SignatureError(f"'{path}' contradicts itself in what it signs: {_REMEDY}.")
        return cls(folder, number, trusted is not None, files, statement.predicate.pipeline)

    def check(self, package: ModelPackage) -> None:
        """Compare the manifest, by which `check_files` compares what it lists, all files beside it, and pipeline.json.

        Raises SignatureError for a file that has changed, is missing or was not signed.
        """
        listed = package.checksums
        for name in sorted({MANIFEST_NAME, *listed, *self.files, *_names(self.folder)}):
            path = self.folder / name
            if name not in self.files:
                raise SignatureError(f"'{path}' was not signed by the key {self.key_id}: {_REMEDY}.")
            if name not in listed:
                check_plain_file(path, SignatureError, "copy the package again")
            if self.files[name] != (listed.get(name) or sha256_of(path)):
                raise SignatureError(f"'{path}' has changed since the key {self.key_id} signed it: {_REMEDY}.")
        if self.pipeline != (found := package.pipeline_sha256) and found is not None:
            how = "was not signed by" if self.pipeline is None else "is not the one that was signed by"
            raise SignatureError(f"'{package.folder.parent / PIPELINE_NAME}' {how} the key {self.key_id}: {_REMEDY}.")


def is_signed(folder: Path) -> bool:
    """Whether there is a signature, whatever it is worth."""
    path = folder / SIGNATURE_NAME
    return path.exists() or path.is_symlink()


def check_signed(package: ModelPackage, key: str | os.PathLike[str] | None) -> None:
    """Raise SignatureError for a package that the owner of this public key, if one is given, has not signed so."""
    if key is not None:
        PackageSignature.read(package.folder, Path(key)).check(package)


def sign_package(package: ModelPackage, key: Path, ask: Callable[[], str]) -> PackageSignature:
    """Sign all files of a package whose checksums have been compared, in place of an earlier signature.

    key: file of a private key in PEM. ask: gives the passphrase of one that has some.
    Raises SignatureError, UserFileError, InstallationError or OSError.
    """
    folder, listed = package.folder, package.checksums
    private = read_private_key(key, ask)
    public = private.public_key()
    files, pipeline = {}, package.pipeline_sha256
    for name in sorted(_names(folder)):
        check_plain_file(folder / name, SignatureError, "move it out of the package, which has files alone")
        files[name] = listed.get(name) or sha256_of(folder / name)
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": package.manifest.source_name, "digest": {"sha256": _root_digest(files)}}],
        "predicateType": "https://model_signing/signature/v1.0",
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": UNSIGNED_NAMES,
            },
            "resources": [{"name": name, "algorithm": "sha256", "digest": digest} for name, digest in files.items()],
            "public_key": pem_of(public).decode(),
            "pipeline": pipeline,
        },
    }
    converted(statement, _Statement, f"What '{folder}' holds", SignatureError, "move what is odd out of the package")
    payload = msgspec.json.encode(statement)
    bundle = {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": key_id(public)}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": _PAYLOAD_TYPE,
            "signatures": [{"sig": base64.b64encode(sign(private, signed_bytes(payload))).decode(), "keyid": ""}],
        },
    }
    write_file(folder / SIGNATURE_NAME, msgspec.json.encode(bundle) + b"\n")
    return PackageSignature(folder, key_id(public), True, files, pipeline)


def _names(folder: Path) -> set[str]:
    """Of all in a folder that a signature has to have."""
    return {path.name for path in folder.iterdir()} - {*UNSIGNED_NAMES}


def _root_digest(files: Mapping[str, str]) -> str:
    return hashlib.sha256(b"".join(map(bytes.fromhex, files.values()))).hexdigest()


def signed_bytes(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(_PAYLOAD_TYPE), _PAYLOAD_TYPE.encode(), len(payload), payload)


def _unpacked(text: str, path: Path) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise SignatureError(f"'{path}' holds no base64 where it should ({error}): {_REMEDY}.") from None


def _named_key(pem: str | None, hint: str | None, path: Path) -> "EllipticCurvePublicKey":
    """The key that a signature itself says is its own."""
    if pem is None:
        named = f"the key {hint}" if hint else "a key"
        raise SignatureError(f"'{path}' is of {named}, which it does not hold: name that key's file.")
    return parse_public_key(pem.encode(), f"The key in '{path}'", SignatureError)
