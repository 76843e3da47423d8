"""Radio gains by ray tracing: sionna-rt, in the street canyon that it comes with.

The scene is 186 m long and 121 m wide, six buildings of marble along a street and two that cross it. It needs the extra
`fleet-sionna` and LLVM, of a version that knows the processor: DRJIT_LIBLLVM_PATH names its library.
"""

import mitsuba
import numpy as np
from sionna import rt

from benchmarks.fleet.channels.formulas import SERVER_M, USER_M
from reader_edge_runtime.arrays import Float64Array

LEAST_DB = -150.0  # where rays find no way, or only weaker ones: scattered waves are not traced
_OPEN_M = 0.5  # what lies lower than this is a street
_NUM_BOUNCES, _NUM_RAYS = 3, 100_000  # ten times as many change gains by 0.4 dB in the mean


def traced_gains_db(num_users: int, num_servers: int, carrier_ghz: float, rng: np.random.Generator) -> Float64Array:
    """Powers of all paths together, reflected and diffracted ones among them. Users and servers stand anywhere outside,
    with antennas that are alike in all directions. Result: float64 (M, E)."""
    scene = rt.load_scene(rt.scene.simple_street_canyon)
    scene.frequency = carrier_ghz * 1e9
    antenna = rt.PlanarArray(
        num_rows=1, num_cols=1, vertical_spacing=0.5, horizontal_spacing=0.5, pattern="iso", polarization="V"
    )
    scene.tx_array = scene.rx_array = antenna
    servers = places(scene, num_servers, rng)
    for number, place in enumerate(places(scene, num_users, rng)):
        scene.add(rt.Receiver(f"user {number}", position=[*place, USER_M]))
    powers = np.stack([_powers(scene, place) for place in servers], axis=1)
    gains: Float64Array = 10 * np.log10(np.maximum(powers, 10 ** (LEAST_DB / 10)))
    return gains


def _powers(scene: rt.Scene, server: list[float]) -> Float64Array:
    """From a server to all users, float64 (M,); one server at a time, as each takes a gigabyte."""
    scene.add(rt.Transmitter("server", position=[*server, SERVER_M]))
    paths = rt.PathSolver(deterministic=True)(
        scene, max_depth=_NUM_BOUNCES, samples_per_src=_NUM_RAYS, refraction=False, diffraction=True
    )
    scene.remove("server")
    real, imaginary = (np.array(part, np.float64) for part in paths.a)  # (M, 1, 1, 1, paths)
    powers: Float64Array = (real**2 + imaginary**2).sum(axis=(1, 2, 3, 4))
    return powers


def places(scene: rt.Scene, count: int, rng: np.random.Generator) -> list[list[float]]:
    """So many in the scene's streets, x and y in metres."""
    box, found = scene.mi_scene.bbox(), list[list[float]]()
    while len(found) < count:
        drawn = rng.uniform(np.array(box.min)[:2], np.array(box.max)[:2], (4 * count, 2))
        found += drawn[_heights_m(scene, drawn) < _OPEN_M].tolist()
    return found[:count]


def _heights_m(scene: rt.Scene, drawn: Float64Array) -> Float64Array:
    """Of what stands there, seen from above."""
    above_m = float(scene.mi_scene.bbox().max[2]) + 1
    x, y = drawn.T.astype(np.float32)
    rays = mitsuba.Ray3f(mitsuba.Point3f(x, y, np.full_like(x, above_m)), mitsuba.Vector3f(0, 0, -1))
    heights: Float64Array = above_m - np.array(scene.mi_scene.ray_intersect(rays).t, np.float64)
    return heights
