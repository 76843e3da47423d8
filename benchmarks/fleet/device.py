"""A user's device: how long it drafts, sends and receives with its share of the band, and what its battery gives."""

from dataclasses import dataclass

from benchmarks.fleet.costs import Plan
from benchmarks.fleet.pass_times import PassTimes
from benchmarks.fleet.scenario import Fleet
from benchmarks.fleet.ways import Way

# Ours; the paper's energies have no units.
DRAFTING_W = 4.0  # of a processor that runs a small model
RADIO_W = 0.4  # of a radio that sends or receives, besides what it radiates
EFFICIENCY = 0.35  # of its amplifier


@dataclass(slots=True)
class Device:
    """up_bit_s, down_bit_s: with its share. delay_s: of a message each way besides. draft_s: of a draft. sending_w:
    what it radiates. joules: used so far."""

    up_bit_s: float
    down_bit_s: float
    delay_s: float
    draft_s: float
    sending_w: float
    joules: float = 0.0

    @classmethod
    def of(cls, fleet: Fleet, plan: Plan, way: Way, times: PassTimes, user: int) -> "Device":
        server, band = plan.servers[user], plan.band[user]
        return cls(
            float(fleet.up_bit_s[user, server] * band),
            float(fleet.down_bit_s[user, server] * band),
            fleet.scenario.delay_s,
            float(way.drafted_s(fleet, times) / fleet.device_speeds[user]),
            float(10 ** ((fleet.user_dbm[user] - 30) / 10)),
        )

    def draft_and_send(self, bits: float, spare_s: float = 0.0) -> float:
        """Seconds until a draft has been sent. spare_s: for which it has been drafted already, as it turned out."""
        up_s = self._send(bits)
        self.joules += self.draft_s * DRAFTING_W
        return max(self.draft_s - spare_s, up_s)

    def receive(self, bits: float) -> float:
        """Seconds until a message is there."""
        down_s = self.down_s(bits)
        self.joules += down_s * RADIO_W
        return down_s

    def down_s(self, bits: float) -> float:
        return bits / self.down_bit_s

    def hint_s(self, way: Way) -> float:
        """How long the air is needed until a token has been answered with a hint."""
        return way.up_bits / self.up_bit_s + self.down_s(way.down_bits(1))

    def followed(self, way: Way, num_steps: int, num_tokens: int) -> None:
        """It has received an answer as a stream, and has sent a hint after each step, if it does."""
        self.receive(num_steps * way.down_bits(num_tokens / num_steps))
        self._send(num_steps * way.up_bits)

    def _send(self, bits: float) -> float:
        up_s = bits / self.up_bit_s
        self.joules += up_s * (self.sending_w / EFFICIENCY + RADIO_W)
        return up_s
