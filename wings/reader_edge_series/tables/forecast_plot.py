"""A forecast as a plot: the end of each series' past, its mean, and bands of quantiles."""

from pathlib import Path

from reader_edge.bench.plot import new_figure, save_plot
from reader_edge.terminal.formatting import visible
from reader_edge_series.forecaster import Forecast
from reader_edge_series.tables.table import SeriesTable

_BANDS = ((0.05, 0.95), (0.25, 0.75))
_PAST = 2  # horizons of the past that are shown
_MOST = 12  # series
_MOST_SHOWN = 80  # characters of a name


def plot_forecast(table: SeriesTable, forecast: Forecast, path: Path) -> None:
    """The first series, as many as a page has room for."""
    names, horizon = forecast.names[:_MOST], forecast.paths.shape[2]
    figure = new_figure(9.0, 2.4 * len(names) + 0.6)
    mean, coming = forecast.mean(), table.coming(horizon)
    bands = [forecast.quantiles(levels) for levels in _BANDS]
    for number, (name, axes) in enumerate(zip(names, figure.subplots(len(names), squeeze=False)[:, 0], strict=True)):
        past = table.series[name][-_PAST * horizon :]
        axes.plot(table.coming(0, 1 - len(past)), past, color="black", linewidth=1.0)
        for (low, high), band in zip(_BANDS, bands, strict=True):
            label = f"{high - low:.0%} of the paths"
            axes.fill_between(coming, band[number, 0], band[number, 1], color="tab:blue", alpha=0.25, label=label)
        axes.plot(coming, mean[number], color="tab:blue", linewidth=1.5, label="mean")
        axes.set_title(visible(name[:_MOST_SHOWN]), parse_math=False)
        axes.set_xlabel("step" if table.times is None else "time")
        axes.margins(x=0)  # no year beyond the calendar's
    figure.axes[0].legend(loc="upper left")
    save_plot(figure, path)
