"""Radio gains between users and servers: 3GPP's urban micro cells (TR 38.901, UMi street canyon).

The paper takes its gains from a ray tracer and publishes neither scene nor positions; these formulas stand in for it.
"""

import numpy as np

from reader_edge_runtime.arrays import Float64Array

SERVER_M, USER_M, _GROUND_M = 10.0, 1.5, 1.0  # heights of antennas, and of what waves are reflected by
_LIGHT_M_S = 299_792_458.0
_LOS_DB, _NLOS_DB = 4.0, 7.82  # how much shadows spread, in sight and out of it


def gains_db(distances_m: Float64Array, carrier_ghz: float, rng: np.random.Generator) -> Float64Array:
    """Gains, shadowed, each in sight of the server by chance. distances_m, result: float64 (M, E), along the ground."""
    in_sight = rng.random(distances_m.shape) < sight_chance(distances_m)
    loss_db = np.where(in_sight, sight_loss_db(distances_m, carrier_ghz), hidden_loss_db(distances_m, carrier_ghz))
    return -(loss_db + rng.standard_normal(distances_m.shape) * np.where(in_sight, _LOS_DB, _NLOS_DB))


def sight_chance(distances_m: Float64Array) -> Float64Array:
    """How likely a server is in line of sight (table 7.4.2-1)."""
    near = np.minimum(1.0, 18.0 / distances_m)
    chance: Float64Array = near + np.exp(-distances_m / 36.0) * (1.0 - near)
    return chance


def sight_loss_db(distances_m: Float64Array, carrier_ghz: float) -> Float64Array:
    """Path loss in line of sight (table 7.4.1-1): of the distance squared, and to its fourth power behind a break."""
    length_m = _length_m(distances_m)
    break_m = 4 * (SERVER_M - _GROUND_M) * (USER_M - _GROUND_M) * carrier_ghz * 1e9 / _LIGHT_M_S
    near = 32.4 + 21 * np.log10(length_m) + 20 * np.log10(carrier_ghz)
    behind = 9.5 * np.log10(break_m**2 + (SERVER_M - USER_M) ** 2)
    far = 32.4 + 40 * np.log10(length_m) + 20 * np.log10(carrier_ghz) - behind
    loss_db: Float64Array = np.where(distances_m <= break_m, near, far)
    return loss_db


def hidden_loss_db(distances_m: Float64Array, carrier_ghz: float) -> Float64Array:
    """Path loss out of sight; never less than in sight."""
    loss_db: Float64Array = 22.4 + 35.3 * np.log10(_length_m(distances_m)) + 21.3 * np.log10(carrier_ghz)
    return np.maximum(loss_db, sight_loss_db(distances_m, carrier_ghz))


def _length_m(distances_m: Float64Array) -> Float64Array:
    return np.hypot(distances_m, SERVER_M - USER_M)
