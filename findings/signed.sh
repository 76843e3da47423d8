#!/usr/bin/env bash
# model-signing 1.1.1 with sigstore 4.5.1 (PyPI): OpenSSF's tool that signs models.
#
# 1. It cannot be imported as pip installs it: it needs pyOpenSSL, which it leaves to sigstore to require, and sigstore
#    4.5.1 does not.
# 2. `sign key` takes a PEM key for ECDSA on NIST's curves alone. An Ed25519 key, which openssl writes into the same kind
#    of file and Sigstore's bundles allow, is refused by an internal error, and no signature is written.
#
# Output seen:
#   as installed: ModuleNotFoundError: No module named 'OpenSSL'
#   P-256: Signing succeeded
#   Ed25519: object has no attribute 'curve'
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet model-signing==1.1.1 sigstore==4.5.1 cryptography==50.0.2
{
  echo "as installed: $(venv/bin/model_signing --version 2>&1 | tail -n 1)"
  venv/bin/pip install --quiet pyopenssl==26.4.0
  openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out ec.key
  openssl genpkey -algorithm ed25519 -out ed25519.key
  mkdir model
  echo weights >model/weights.bin
  echo "P-256: $(venv/bin/model_signing sign key model --signature ec.sig --private_key ec.key 2>&1)"
  refused=$(! venv/bin/model_signing sign key model --signature ed25519.sig --private_key ed25519.key 2>&1)
  echo "Ed25519: ${refused##*\' }" | sed "s/^Ed25519: .*object/Ed25519: object/"
} >seen
[ -f ec.sig ] && [ ! -f ed25519.sig ]
diff seen - <<'SEEN'
as installed: ModuleNotFoundError: No module named 'OpenSSL'
P-256: Signing succeeded
Ed25519: object has no attribute 'curve'
SEEN
cat seen
