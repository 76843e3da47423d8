"""Answers of a fleet in simulated time. Every user asks one question after the other; what is measured are answers.

Prompts are left out: a fleet's answers begin at their first step.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from benchmarks.fleet.answers import Answer, Emitted
from benchmarks.fleet.costs import Plan
from benchmarks.fleet.device import Device
from benchmarks.fleet.pass_times import PassTimes
from benchmarks.fleet.scenario import Fleet
from benchmarks.fleet.server import BatchingServer, Stream, Verification
from benchmarks.fleet.tree_widths import TreeWidths
from benchmarks.fleet.ways import Way

Events = Generator[simpy.Event, Any, None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What users ask, the same for every policy. answers: each user's, in order. pauses_s: before each of them."""

    answers: Sequence[Sequence[Answer]]
    pauses_s: Sequence[Sequence[float]]

    @classmethod
    def draw(cls, answers: Sequence[Answer], num_users: int, num_asked: int, seed: int) -> "Asked":
        """So many of each user, with pauses of a second in the mean."""
        rng = np.random.default_rng([seed, num_users])
        chosen = rng.integers(len(answers), size=(num_users, num_asked))
        pauses_s = rng.exponential(1.0, (num_users, num_asked))
        return cls([[answers[number] for number in row] for row in chosen], pauses_s.tolist())


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer as its user saw it. joules: of the device."""

    user: int
    num_tokens: int
    seconds: float
    joules: float


class Simulation:
    """A way of answering over a fleet with a plan."""

    def __init__(self, fleet: Fleet, plan: Plan, way: Way, times: PassTimes, emitted: Emitted) -> None:
        """times: of the target's passes. emitted: by which servers choose how wide trees are."""
        self._fleet, self._plan, self._way, self._times = fleet, plan, way, times
        beside_s = 0.0 if way.is_streamed else 2 * fleet.scenario.delay_s
        self._widths = TreeWidths(way.widths(), times, float(np.mean(fleet.pasts)), emitted, beside_s)

    def run(self, asked: Asked) -> list[Answered]:
        """All answers, in the order in which they ended."""
        env = simpy.Environment()
        servers = [BatchingServer(env, self._times, speed, self._widths) for speed in self._fleet.server_speeds]
        answered: list[Answered] = []
        for user, server in enumerate(self._plan.servers):
            device = Device.of(self._fleet, self._plan, self._way, self._times, user)
            env.process(self._user(env, user, device, servers[server], asked, answered))
        env.run()
        return answered

    def _user(
        self,
        env: simpy.Environment,
        user: int,
        device: Device,
        server: BatchingServer,
        asked: Asked,
        out: list[Answered],
    ) -> Events:
        for answer, pause_s in zip(asked.answers[user], asked.pauses_s[user], strict=True):
            yield env.timeout(pause_s)
            begun, joules = env.now, device.joules
            yield from self._answer(env, user, device, server, answer)
            out.append(Answered(user, len(answer), env.now - begun, device.joules - joules))

    def _answer(
        self, env: simpy.Environment, user: int, device: Device, server: BatchingServer, answer: Answer
    ) -> Events:
        if self._way.is_streamed:
            yield from self._streamed(env, user, device, server, answer)
        elif self._way.is_reserved:
            yield env.timeout(self._reserved_s(user, device, answer))
        else:
            yield from self._verified(env, user, device, server, answer)

    def _reserved_s(self, user: int, device: Device, answer: Answer) -> float:
        """Seconds of the paper's rounds, with a share of the server's computing: the device sends while it drafts, and
        drafts on while it waits, which counts only where the whole draft is accepted."""
        width, position, spare_s, seconds = self._way.width, 0, 0.0, 0.0
        server_speed = self._fleet.server_speeds[self._plan.servers[user]] * self._plan.work[user]
        while position < len(answer):
            emitted = answer.device[width][position]
            sent_s = device.draft_and_send(self._way.up_bits, spare_s)
            past = self._fleet.pasts[user] + position
            waited_s = device.delay_s * 2 + self._times.seconds(width, past) / server_speed
            waited_s += device.receive(self._way.down_bits(emitted))
            spare_s = waited_s if emitted == width else 0.0
            seconds += sent_s + waited_s
            position += emitted
        return seconds

    def _verified(
        self, env: simpy.Environment, user: int, device: Device, server: BatchingServer, answer: Answer
    ) -> Events:
        """Rounds in lock-step: a tree is sent, the server's next pass verifies it.

        The first token is the prompt's, and takes no tree: it comes after a trip of its own.
        """
        position = 1
        yield env.timeout(device.delay_s * 2 + device.receive(self._way.down_bits(1)))
        while position < len(answer):
            yield env.timeout(device.draft_and_send(self._way.up_bits) + device.delay_s)
            step = Verification(env.event(), self._fleet.pasts[user], answer.device, position)
            yield server.ask(step)
            position += step.emitted
            yield env.timeout(device.receive(self._way.down_bits(step.emitted)) + device.delay_s)

    def _streamed(
        self, env: simpy.Environment, user: int, device: Device, server: BatchingServer, answer: Answer
    ) -> Events:
        """The server decodes by itself. What it knows of the device's text is as old as a message each way."""
        first_s = device.delay_s * 2 + device.hint_s(self._way) if self._way.is_drafted else None
        stream = Stream(env.event(), self._fleet.pasts[user], answer, first_s)
        yield env.timeout(device.delay_s)
        yield server.ask(stream)
        device.followed(self._way, stream.num_steps, len(answer))
        yield env.timeout(device.down_s(self._way.down_bits(1)) + device.delay_s)
