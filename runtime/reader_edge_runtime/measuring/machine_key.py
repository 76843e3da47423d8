"""What a measurement belongs to: this machine, a package's files, and all that passes over it depend on."""

import hashlib
import json

from reader_edge_runtime.machine.processor import num_usable_cores, processor_name
from reader_edge_runtime.target import Target


def machine_key(target: Target, threads: int, format_version: int) -> str:
    """24 hexadecimal digits, others for every machine, package, provider, thread count and version of what is kept."""
    checksums = {name: entry.sha256 for name, entry in sorted(target.manifest.model_files.items())}
    passes = [*target.pass_facts, target.provider, target.is_native, target.instructions, target.min_rows, checksums]
    facts = [format_version, processor_name(), num_usable_cores(), threads, *passes]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
