"""Options that several commands have."""

from pathlib import Path

import click

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

temperature = click.option("-t", "--temperature", default=0.0, show_default=True, help="0 takes the most likely token.")
top_p = click.option(
    "--top-p", default=1.0, show_default=True, help="Keep the likeliest tokens up to this mass; 1 is off."
)
seed = click.option("--seed", default=0, show_default=True, help="The same seed gives the same text, drafted or not.")
threads = click.option("--threads", default=0, show_default=True, help="0 takes all usable cores.")
no_native = click.option("--no-native", is_flag=True, help="Leave native kernels out, where they are installed.")
provider = click.option(
    "--provider",
    type=click.Choice(["cpu", "cuda"]),
    help="Where the model runs. Default: on CUDA if package, wheel and machine allow it, else on the CPU.",
)
guard = click.option(
    "--guard", is_flag=True, help="Decide near ties by single-token passes, where wide passes differ from them."
)
datastores = click.option(
    "--datastore",
    "datastores",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="Draft from this file of `reader-edge datastore build` too; up to 4.",
)
prompts = click.option(
    "--prompts",
    type=FILE,
    help='Prompts to use: one a line, or a .jsonl file with a "prompt" a line. Default: a bundled set.',
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
