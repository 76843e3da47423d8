"""What `export` tells at its end."""

from rich.table import Table

from reader_edge.terminal.sizes import readable_size
from reader_edge_export.options import ExportReport


def export_table(report: ExportReport) -> Table:
    """Size, the figures of the export's own checks, and where the time went."""
    table = Table(title="Exported", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("precision", report.precision)
    table.add_row("attention", report.attention)
    table.add_row("size", readable_size(report.num_bytes))
    for name, value in report.checks.items():
        table.add_row(name.replace("_", " "), f"{value:.4g}")
    table.add_row("time", f"{sum(report.stage_seconds.values()):.1f} s")
    for name, seconds in report.stage_seconds.items():
        table.add_row(f"  {name}", f"{seconds:.1f} s")
    return table
