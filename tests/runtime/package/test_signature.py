"""Signatures of packages: what they cover, whose they are, and that nothing else is taken for one."""

import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reader_edge.cli import main
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.errors import IntegrityError, PackageError, SignatureError, UserFileError
from reader_edge_runtime.execution.pipeline.open_pipeline import addresses_now
from reader_edge_runtime.package.manifest import MANIFEST_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.pipeline_file import PIPELINE_NAME, write_pipeline
from reader_edge_runtime.package.signature import SIGNATURE_NAME, PackageSignature, check_signed, sign_package
from tests.signing_keys import write_keys


def no_passphrase() -> str:
    raise AssertionError("This key has none.")


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return write_keys(tmp_path)


@pytest.fixture
def signed(folder: Path, keys: tuple[Path, Path]) -> Path:
    """A signed package's folder, with a page beside what its manifest lists."""
    (folder / "README.md").write_text("A model.\n", "utf-8")
    sign_package(ModelPackage.open(folder), keys[0], no_passphrase)
    return folder


def check(folder: Path, key: Path | None) -> PackageSignature:
    """All that `package verify` compares."""
    package = ModelPackage.open(folder)
    signature = PackageSignature.read(folder, key)
    signature.check(package)
    package.check_files()
    return signature


def changed(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Change a signature's bundle and statement, as somebody without the key can."""
    path = folder / SIGNATURE_NAME
    bundle = json.loads(path.read_bytes())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    change(bundle, statement)
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    path.write_text(json.dumps(bundle), "utf-8")


def test_a_signature_has_every_file_and_the_key(signed: Path, keys: tuple[Path, Path]) -> None:
    names = {"README.md", "model.onnx", "tokenizer.json", MANIFEST_NAME}
    for key in (None, keys[1]):
        signature = check(signed, key)
        assert signature.files == {name: hashlib.sha256((signed / name).read_bytes()).hexdigest() for name in names}
        assert signature.key_id == hashlib.sha256(keys[1].read_bytes()).hexdigest()
        assert signature.is_trusted == (key is not None)


@pytest.mark.parametrize("curve", ["SECP256R1", "SECP384R1", "SECP521R1"])
def test_keys_of_each_curve_sign_with_a_passphrase_or_without(folder: Path, tmp_path: Path, curve: str) -> None:
    for number, passphrase in ((1, ""), (2, "open sesame")):
        private, public = write_keys(tmp_path, number, curve, passphrase.encode())
        sign_package(ModelPackage.open(folder), private, lambda passphrase=passphrase: passphrase)  # type: ignore[misc]
        assert check(folder, public).is_trusted
    with pytest.raises(UserFileError, match=r"signing2\.key' is no private key .* or has another passphrase"):
        sign_package(ModelPackage.open(folder), private, lambda: "wrong")


@pytest.mark.parametrize("name", ["README.md", MANIFEST_NAME, SIGNATURE_NAME])
def test_a_file_that_changed_by_a_byte_or_is_gone_is_named(signed: Path, keys: tuple[Path, Path], name: str) -> None:
    content = (signed / name).read_bytes()
    (signed / name).write_bytes(content.replace(b"e", b"f", 1))
    with pytest.raises(PackageError, match=name):
        check(signed, keys[1])
    (signed / name).unlink()
    with pytest.raises(PackageError, match=name if name != SIGNATURE_NAME else "is not signed: do not trust"):
        check(signed, keys[1])


def test_weights_are_bound_by_the_manifest_that_is_signed(signed: Path, keys: tuple[Path, Path]) -> None:
    """Also where a liar made the manifest fit what he changed."""
    (signed / "tokenizer.json").write_bytes(b"[]")
    with pytest.raises(IntegrityError, match=r"tokenizer\.json"):
        check(signed, keys[1])
    path = signed / MANIFEST_NAME
    fields = json.loads(path.read_bytes())
    fields["files"]["tokenizer.json"]["sha256"] = hashlib.sha256(b"[]").hexdigest()
    path.write_text(json.dumps(fields), "utf-8")
    with pytest.raises(SignatureError, match=r"reader_edge\.json' has changed since the key"):
        check_signed(ModelPackage.open(signed), keys[1])


def test_the_manifest_that_is_compared_is_the_one_that_was_read(signed: Path, keys: tuple[Path, Path]) -> None:
    path = signed / MANIFEST_NAME
    content = path.read_bytes()
    path.write_bytes(content + b" ")
    package = ModelPackage.open(signed)
    path.write_bytes(content)
    with pytest.raises(SignatureError, match=r"reader_edge\.json' has changed since the key"):
        check_signed(package, keys[1])


def test_a_file_that_came_later_is_refused_but_for_those_that_come_and_go(
    signed: Path, keys: tuple[Path, Path]
) -> None:
    (signed / ".gitattributes").write_bytes(b"")
    (signed / ".cache").mkdir()
    (signed / "own_answers.bin").write_bytes(b"")
    check(signed, keys[1])
    (signed / "more").mkdir()
    with pytest.raises(SignatureError, match="more' was not signed by the key"):
        check(signed, keys[1])


def test_another_key_signs_again_and_is_another(signed: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    private, public = write_keys(tmp_path, 8)
    sign_package(ModelPackage.open(signed), private, no_passphrase)
    assert check(signed, None).key_id == hashlib.sha256(public.read_bytes()).hexdigest()
    with pytest.raises(
        SignatureError, match=f"is of the key .*, not of {hashlib.sha256(keys[1].read_bytes()).hexdigest()}"
    ):
        check(signed, keys[1])

    def without_hint(bundle: dict[str, Any], statement: dict[str, Any]) -> None:
        bundle["verificationMaterial"]["publicKey"] = {}

    changed(signed, without_hint)
    with pytest.raises(SignatureError, match="is nothing that the key"):
        check(signed, keys[1])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("predicate", "resources"), [{"name": "../x", "algorithm": "sha256", "digest": "0" * 64}]),
        (("predicate", "resources"), []),
        (("predicate", "public_key"), "-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n"),
        (("predicate", "public_key"), None),
        (("predicate", "serialization"), {"method": "shards", "hash_type": "sha256"}),
        (("predicateType",), "https://slsa.dev/provenance/v1"),
        (("_type",), None),
        (("subject",), []),
    ],
)
def test_no_other_statement_is_taken_for_one(
    signed: Path, keys: tuple[Path, Path], place: tuple[str, ...], value: object
) -> None:
    def change(bundle: dict[str, Any], statement: dict[str, Any]) -> None:
        for name in place[:-1]:
            statement = statement[name]
        statement[place[-1]] = value

    changed(signed, change)
    for key in (None, keys[1]):
        with pytest.raises(SignatureError, match=r"^[^\n]*model\.sig'[^\n]*\.$"):
            check(signed, key)


def test_a_signature_of_another_package_does_not_fit(signed: Path, keys: tuple[Path, Path], demo_folder: Path) -> None:
    with pytest.raises(SignatureError, match="demo"):
        replace(PackageSignature.read(signed, keys[1]), folder=demo_folder).check(ModelPackage.open(demo_folder))


def test_where_the_stages_are_is_signed_with_the_last_of_them(pipeline: Path, keys: tuple[Path, Path]) -> None:
    out = pipeline
    signed = ran("sign", out, keys[0])
    assert signed.exit_code == 0, signed.output
    for folder in (out, out / "1", out / "2"):
        check_signed(ModelPackage.open(folder), keys[1])
    opened, config = ModelPackage.open(out), EngineConfig(signature_key=str(keys[1]))
    assert addresses_now(opened, config) == opened.addresses
    write_pipeline(out, ["tcp://127.0.0.1:5999"])
    assert addresses_now(opened, EngineConfig()) == ("tcp://127.0.0.1:5999",)
    with pytest.raises(SignatureError, match=r"pipeline.json' is not the one that was signed by the key"):
        addresses_now(opened, config)  # while it runs: a lost stage is looked for where the signed file has it
    check_signed(ModelPackage.open(out / "2"), keys[1])  # alone, it goes to no other box
    with pytest.raises(SignatureError, match=r"pipeline.json' is not the one that was signed by the key"):
        check_signed(ModelPackage.open(out), keys[1])
    sign_package(ModelPackage.open(out / "2"), keys[0], no_passphrase)
    with pytest.raises(SignatureError, match=r"pipeline.json' was not signed by the key"):
        check_signed(ModelPackage.open(out), keys[1])


@pytest.fixture
def pipeline(split_demo: Callable[[int], Path], tmp_path: Path) -> Path:
    """The folder of two stages, to be changed."""
    return shutil.copytree(split_demo(2), tmp_path / "pipeline")


def ran(command: str, folder: Path, key: Path) -> Result:
    return CliRunner().invoke(main, ["package", command, str(folder), "--key", str(key)])


def flip_byte(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def test_all_stages_that_are_there_are_verified(pipeline: Path, keys: tuple[Path, Path]) -> None:
    assert ran("sign", pipeline, keys[0]).exit_code == 0
    assert "2 of 2 are here" in ran("verify", pipeline, keys[1]).stdout
    flip_byte(pipeline / "1" / "model.onnx.data")
    tampered = ran("verify", pipeline, keys[1])
    assert (tampered.exit_code, tampered.stdout) == (1, "")
    assert "model.onnx.data' differs from its checksum" in tampered.stderr
    shutil.rmtree(pipeline / "1")
    assert "1 of 2 are here" in ran("verify", pipeline, keys[1]).stdout


def test_what_is_no_stage_of_the_pipeline_is_not_signed_with_it(
    pipeline: Path, keys: tuple[Path, Path], demo_folder: Path
) -> None:
    def other_model(stage: Path) -> None:
        path = shutil.copytree(first, stage) / MANIFEST_NAME
        fields = json.loads(path.read_bytes())
        fields["stage"]["whole"] = "0" * 64
        path.write_text(json.dumps(fields), "utf-8")

    first = (pipeline / "1").rename(pipeline / "first")
    for put in (partial(shutil.copytree, pipeline / "2"), partial(shutil.copytree, demo_folder), other_model):
        put(pipeline / "1")
        refused = ran("sign", pipeline, keys[0])
        assert refused.exit_code == 1
        assert "1' is not stage 1 of 2 of the model in '" in refused.stderr
        assert not list(pipeline.rglob(SIGNATURE_NAME))
        shutil.rmtree(pipeline / "1")


def test_no_stage_is_signed_where_another_is_damaged(pipeline: Path, keys: tuple[Path, Path]) -> None:
    flip_byte(pipeline / "2" / "model.onnx.data")
    assert ran("sign", pipeline, keys[0]).exit_code == 1
    assert not list(pipeline.rglob(SIGNATURE_NAME))


def test_the_addresses_that_were_read_are_those_compared(pipeline: Path, keys: tuple[Path, Path]) -> None:
    sign_package(ModelPackage.open(pipeline), keys[0], no_passphrase)
    content = (pipeline / PIPELINE_NAME).read_bytes()
    write_pipeline(pipeline, ["tcp://127.0.0.1:5999"])
    opened = ModelPackage.open(pipeline)
    (pipeline / PIPELINE_NAME).write_bytes(content)  # what was signed is back before it is compared
    with pytest.raises(SignatureError, match=r"pipeline.json' is not the one that was signed by the key"):
        check_signed(opened, keys[1])


def test_keys_of_other_kinds_are_refused_with_the_remedy(folder: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    other = tmp_path / "ed25519.key"
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    package = ModelPackage.open(folder)
    for content in (pem, b"", b"\xff" * 99):
        other.write_bytes(content)
        other.chmod(0o600)
        with pytest.raises(UserFileError, match=r"is no private key of P-256.*`openssl genpkey -algorithm EC"):
            sign_package(package, other, no_passphrase)
    sign_package(package, keys[0], no_passphrase)
    for content in (pem, keys[0].read_bytes(), b"", b"\xff" * 99):
        other.write_bytes(content)
        with pytest.raises(UserFileError, match=r"is no public key of P-256.*`openssl pkey -in"):
            check(folder, other)


def test_a_private_key_that_others_may_read_is_refused(folder: Path, keys: tuple[Path, Path]) -> None:
    keys[0].chmod(0o644)
    with pytest.raises(UserFileError, match="may be read by others"):
        sign_package(ModelPackage.open(folder), keys[0], no_passphrase)
    keys[1].chmod(0o644)
    with pytest.raises(UserFileError, match=r"signing\d*\.pub' is a public key, which signs nothing"):
        sign_package(ModelPackage.open(folder), keys[1], no_passphrase)


def test_what_could_not_be_read_again_is_not_signed(folder: Path, keys: tuple[Path, Path]) -> None:
    (folder / "a page.md").write_bytes(b"")
    with pytest.raises(SignatureError, match=r"a page\.md.*move what is odd out of the package"):
        sign_package(ModelPackage.open(folder), keys[0], no_passphrase)
    assert not (folder / SIGNATURE_NAME).exists()


def test_openssfs_own_tool_checks_our_signatures_and_we_check_its(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    reason = "the other tool is not installed: pip install model-signing pyopenssl"
    signing = pytest.importorskip("model_signing.signing", reason=reason)
    verifying = pytest.importorskip("model_signing.verifying", reason=reason)
    (signed / "own_answers.bin").write_bytes(b"which come and go")
    verifier = verifying.Config().use_elliptic_key_verifier(public_key=keys[1])
    verifier.verify(signed, signed / SIGNATURE_NAME)
    (signed / "more").write_bytes(b"")
    with pytest.raises(ValueError, match="more"):
        verifier.verify(signed, signed / SIGNATURE_NAME)
    (signed / SIGNATURE_NAME).unlink()
    signing.Config().use_elliptic_key_signer(private_key=keys[0]).sign(signed, signed / SIGNATURE_NAME)
    assert check(signed, keys[1]).files.keys() == {path.name for path in signed.iterdir()} - {SIGNATURE_NAME}
    with pytest.raises(SignatureError, match="which it does not hold: name that key's file"):
        check(signed, None)
