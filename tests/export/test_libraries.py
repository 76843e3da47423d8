"""What libraries say of their own accord does not reach the user's terminal."""

import logging

from reader_edge_export.libraries import quiet_libraries


def test_transformers_is_quiet_though_it_sets_its_level_meanwhile() -> None:
    root, inner = logging.getLogger("transformers"), logging.getLogger("transformers.integrations.hub_kernels")
    rope = logging.getLogger("transformers.modeling_rope_utils")  # speaks of a class's own defaults
    level = root.level
    try:
        with quiet_libraries():
            root.setLevel(logging.WARNING)  # as its first import does
            assert not inner.isEnabledFor(logging.WARNING)
            assert not rope.isEnabledFor(logging.WARNING)
            assert inner.isEnabledFor(logging.ERROR)
        assert logging.getLogger("transformers.integrations").level == logging.NOTSET
    finally:
        root.setLevel(level)
