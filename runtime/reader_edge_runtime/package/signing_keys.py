"""Keys that sign packages: ECDSA on NIST's curves, in PEM files, by the package `cryptography` (the extra "sign")."""

import hashlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from reader_edge_runtime.errors import InstallationError, ReaderEdgeError, UserFileError
from reader_edge_runtime.untrusted.plain_file import check_secret
from reader_edge_runtime.untrusted.user_input import read_bounded

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey

MAX_KEY_BYTES = 1 << 14
NEW_KEY = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out signing.key"
PUBLIC_KEY = "openssl pkey -in signing.key -pubout -out signing.pub"

_HASHES = {
    "secp256r1": "SHA256",
    "secp384r1": "SHA384",
    "secp521r1": "SHA512",
}  # by curve, as OpenSSF's format has them


def check_sign_installed() -> None:
    """Raise InstallationError without the extra "sign"."""
    if importlib.util.find_spec("cryptography") is None:
        raise InstallationError("Signatures need cryptography, which is missing: pip install 'reader-edge[sign]'.")


def read_public_key(path: Path) -> "EllipticCurvePublicKey":
    """The public key in a file. Raises UserFileError, InstallationError or OSError."""
    return parse_public_key(read_bounded(path, MAX_KEY_BYTES), f"'{path}'", UserFileError)


def parse_public_key(pem: bytes, name: str, error: type[ReaderEdgeError]) -> "EllipticCurvePublicKey":
    """name: what the sentence begins with. Raises `error` for what is no public key of these curves."""
    check_sign_installed()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePublicKey) or key.curve.name not in _HASHES:
        raise error(f"{name} is no public key of P-256, P-384 or P-521 in PEM: `{PUBLIC_KEY}` writes one.")
    return key


def read_private_key(path: Path, ask: Callable[[], str]) -> "EllipticCurvePrivateKey":
    """The private key in a file that its owner alone may read. ask: gives the passphrase of a key that has one.

    Raises UserFileError, InstallationError or OSError.
    """
    check_sign_installed()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    pem = read_bounded(path, MAX_KEY_BYTES)
    if b"PUBLIC KEY-----" in pem and b"PRIVATE KEY-----" not in pem:
        raise UserFileError(f"'{path}' is a public key, which signs nothing: give the private one.")
    check_secret(path, UserFileError, "make another where others have read it")
    try:
        try:
            key = load_pem_private_key(pem, None)
        except TypeError:  # encrypted
            key = load_pem_private_key(pem, ask().encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey) or key.curve.name not in _HASHES:
        raise UserFileError(
            f"'{path}' is no private key of P-256, P-384 or P-521 in PEM, or has another passphrase: `{NEW_KEY}` makes "
            "one."
        )
    return key


def pem_of(key: "EllipticCurvePublicKey") -> bytes:
    """As `openssl pkey -pubout` writes it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem: bytes = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem


def key_id(key: "EllipticCurvePublicKey") -> str:
    """What `sha256sum` prints of openssl's file of this key."""
    return hashlib.sha256(pem_of(key)).hexdigest()


def sign(key: "EllipticCurvePrivateKey", data: bytes) -> bytes:
    signature: bytes = key.sign(data, _algorithm(key.public_key()))
    return signature


def has_signed(key: "EllipticCurvePublicKey", signature: bytes, data: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, data, _algorithm(key))
    except InvalidSignature:
        return False
    return True


def _algorithm(key: "EllipticCurvePublicKey") -> "ECDSA":
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    return ECDSA(getattr(hashes, _HASHES[key.curve.name])())
