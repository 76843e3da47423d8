"""Outcomes that are kept, size by size and way by way, so that a run that was cut short goes on."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

from benchmarks.fleet.comparison import Cell, Outcome
from reader_edge_runtime.atomic_file import write_file


class OutcomeStore:
    """path: a JSON file of this class, or none yet; None keeps nothing. A changed simulation needs another file."""

    def __init__(self, path: Path | None, num_seeds: int) -> None:
        self._path, self._asked = path, {"seeds": num_seeds}
        self.outcomes: dict[Cell, Sequence[Outcome]] = {}
        if path is not None and path.exists():
            kept = json.loads(path.read_text())
            for name, value in self._asked.items():
                if kept[name] != value:
                    raise ValueError(f"'{path}' has outcomes of {name} {kept[name]}, not {value}: name another file.")
            for way, users, servers, policy, rows in kept["cells"]:
                self.outcomes[way, users, servers, policy] = [Outcome(*row) for row in rows]

    def has(self, way: str, users: int, servers: int) -> bool:
        """Whether a way was simulated for a size of fleet."""
        return any(cell[:3] == (way, users, servers) for cell in self.outcomes)

    def add(self, outcomes: Mapping[Cell, Sequence[Outcome]]) -> None:
        """Keep further ones."""
        self.outcomes.update(outcomes)
        if self._path is not None:
            cells = [[*cell, [astuple(outcome) for outcome in of_cell]] for cell, of_cell in self.outcomes.items()]
            write_file(self._path, json.dumps(self._asked | {"cells": cells}).encode())
