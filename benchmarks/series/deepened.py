"""A trained model with layers appended that add nothing: the same forecasts, at the cost of a deeper model.

    python -m benchmarks.series.deepened TRAINED OUT --layers 32
    reader-edge series export OUT PACKAGE
    python -m benchmarks.series.speed DATA --model PACKAGE

So what drafts gain is timed on larger models without training one: what is drafted and accepted stays that of TRAINED.
"""

import argparse
from pathlib import Path

import torch

from reader_edge_export.series.checkpoint import read_checkpoint, write_checkpoint
from reader_edge_export.series.patch_module import PatchConfig, PatchModule


def deepened(module: PatchModule, num_layers: int) -> PatchModule:
    """A module of so many layers that says what `module` says."""
    config = module.config
    deep = PatchModule(PatchConfig.of_sizes(num_layers, config.hidden_size, config.num_patches))
    deep.load_state_dict(module.state_dict(), strict=False)
    with torch.no_grad():
        for layer in deep.model.layers[config.num_hidden_layers :]:
            for last in (layer.self_attn.o_proj, layer.mlp.down_proj):
                last.weight.zero_()
    deep.train(False)
    return deep


def main() -> None:
    parser = argparse.ArgumentParser(description="A trained model with layers appended that add nothing.")
    parser.add_argument("trained", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    given = parser.parse_args()
    module, small = read_checkpoint(given.trained)
    if small is None:
        raise SystemExit(f"'{given.trained}' has no small model: give what 'reader-edge series train' wrote.")
    given.out.mkdir()
    write_checkpoint(given.out, deepened(module, given.layers), small)


if __name__ == "__main__":
    main()
