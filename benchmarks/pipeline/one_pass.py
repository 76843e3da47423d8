"""An engine over stages whose steps have one pass, as on one box."""

from pathlib import Path

from reader_edge_runtime import Engine, EngineConfig
from reader_edge_runtime.decoding.planning.planner import Planner
from reader_edge_runtime.measuring.cost_cache import load_or_measure


def load_one_pass(package: Path, config: EngineConfig) -> Engine:
    engine, planner = Engine.load(package, config), Planner()
    planner.add(load_or_measure(engine.decoder.target, config.threads, 1))
    engine.decoder.planner = planner
    return engine
