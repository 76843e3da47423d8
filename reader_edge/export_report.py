"""What `export` tells at its end."""

from rich.table import Table

from reader_edge.terminal.console import pairs_table, stage_pairs
from reader_edge.terminal.sizes import readable_size
from reader_edge_export.options import ExportReport


def export_table(report: ExportReport) -> Table:
    """Size, the figures of the export's own checks, and where the time went."""
    checks = ((name.replace("_", " "), f"{value:.4g}") for name, value in report.checks.items())
    return pairs_table(
        "Exported",
        [
            ("precision", report.precision),
            ("attention", report.attention),
            ("size", readable_size(report.num_bytes)),
            *checks,
            *stage_pairs(report.stage_seconds),
        ],
    )
