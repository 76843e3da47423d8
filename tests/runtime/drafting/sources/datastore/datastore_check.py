"""Whether a datastore's arrays are what they should be, tokens, suffixes and keys alike."""

import numpy as np

from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.header import KEY_STEP
from reader_edge_runtime.errors import DatastoreError


def check_structure(datastore: Datastore) -> None:
    """Check every token, suffix and key, in linear time and about 40 bytes a token. Raises DatastoreError."""
    header = datastore.header
    tokens = datastore.tokens.astype(np.int64)
    suffixes = datastore.suffixes.astype(np.int64)
    is_end = tokens == np.iinfo(datastore.tokens.dtype).max
    positions = np.flatnonzero(~is_end)
    _require(bool(is_end[-1]) and len(positions) == header.num_tokens, datastore, "its document ends are not as told")
    _require(bool(np.all(tokens[positions] < header.vocab_size)), datastore, "it holds ids outside its vocabulary")
    _require(np.array_equal(np.sort(suffixes), positions), datastore, "its suffixes are not those of its tokens")

    # Sorted, if each suffix is not above the next: by its first token or, of equals, by the rank of the rest.
    ranks = np.full(len(tokens), header.num_tokens)
    ranks[suffixes] = np.arange(header.num_tokens)
    first, rest = tokens[suffixes], ranks[suffixes + 1]
    is_below = (first[:-1] < first[1:]) | ((first[:-1] == first[1:]) & (rest[:-1] <= rest[1:]))
    _require(bool(np.all(is_below)), datastore, "its suffixes are not sorted")

    second = np.where(is_end, 0xFFFFFFFF, tokens)[suffixes[::KEY_STEP] + 1]
    keys = np.stack([first[::KEY_STEP], second], axis=1)
    stored_keys = datastore.words[datastore.header.keys_at // 4 :].reshape(-1, 2)
    _require(np.array_equal(keys, stored_keys), datastore, "its keys are not those of its suffixes")


def _require(is_true: bool, datastore: Datastore, fault: str) -> None:
    if not is_true:
        raise DatastoreError(f"'{datastore.path}' is not sound, {fault}: do not trust this file, build it again.")
