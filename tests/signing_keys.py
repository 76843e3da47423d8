"""Keys to sign packages with, in files as openssl writes them."""

from pathlib import Path

import pytest


def write_keys(folder: Path, number: int = 7, curve: str = "SECP256R1", passphrase: bytes = b"") -> tuple[Path, Path]:
    """A private and a public key, the same ones for a number. Skips the test where `cryptography` is not installed."""
    pytest.importorskip("cryptography", reason="signatures need it: pip install 'reader-edge[sign]'")
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = ec.derive_private_key(number, getattr(ec, curve)())
    private, public = folder / f"signing{number}.key", folder / f"signing{number}.pub"
    encryption = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    private.chmod(0o600)
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public
