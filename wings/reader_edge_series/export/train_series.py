"""train_series(): series become a trained folder, or nothing does."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from reader_edge_export.package.package_folder import check_target, training_folder
from reader_edge_export.progress import Progress
from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.atomic_file import clear_leftovers, temporary_name
from reader_edge_runtime.errors import ConfigError, ExportError
from reader_edge_runtime.machine.path_lock import PathLock
from reader_edge_runtime.machine.process_memory import free_bytes
from reader_edge_series.checked_series import checked_series
from reader_edge_series.export.checkpoint import write_checkpoint
from reader_edge_series.export.learned_parts import LEAST_VALUES
from reader_edge_series.export.patch_module import PatchConfig, PatchModule
from reader_edge_series.export.training import SeriesTrainingOptions, train_patches

__all__ = ["SeriesTrainingOptions", "train_series"]

_PARAMETER_BYTES = 16  # itself, its gradient and two moments


def train_series(
    series: Mapping[str, Float64Array], out: Path, options: SeriesTrainingOptions, progress: Progress
) -> None:
    """Train on series by their names and write the folder `out`; OUT.training keeps progress meanwhile.

    Raises SeriesError for series with gaps or too short ones, ConfigError, or ExportError.
    """
    out = out.absolute()
    check_target(out, force=None)
    if options.hidden_size % 8 or options.draft_hidden_size % 8:
        raise ConfigError(f"The size is {options.hidden_size}, but must be a multiple of 8.")
    checked = [checked_series(name, values, LEAST_VALUES) for name, values in series.items()]
    partial, lock = temporary_name(out), None
    with training_folder(out) as work:
        try:
            with _memory_had(options):
                networks = train_patches(checked, options, work, progress)
            clear_leftovers(out)
            lock = PathLock.new_folder(partial)
            write_checkpoint(partial, *networks)
            check_target(out, force=None)  # again: a training takes long
            partial.rename(out)
        except OSError as error:
            raise ExportError(
                f"'{out}' cannot be written ({error.strerror or error}): choose another folder."
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            if lock is not None:
                lock.release()
            with suppress(OSError):  # unless progress is kept
                work.rmdir()


@contextmanager
def _memory_had(options: SeriesTrainingOptions) -> Iterator[None]:
    """Raise ExportError where there is less memory than a training takes, as far as that is known beforehand."""
    failure = ExportError(
        f"To train {options.num_layers} layers of size {options.hidden_size} takes more memory than there is: give "
        "fewer --layers or a smaller --size."
    )
    with torch.device("meta"):
        module = PatchModule(PatchConfig.of_sizes(options.num_layers, options.hidden_size, options.num_patches))
    free = free_bytes()
    if free is not None and sum(each.numel() for each in module.parameters()) * _PARAMETER_BYTES > free:
        raise failure
    try:
        yield
    except MemoryError:
        raise failure from None
    except RuntimeError as error:
        if "allocate memory" not in str(error):  # as torch says it
            raise
        raise failure from None
