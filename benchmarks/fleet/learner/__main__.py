"""The paper's learner beside equal shares and the closed form, as one of the policies: a multi-agent soft actor-critic.

    python -m benchmarks.fleet.learner [--ways "paper, rows;lock-step"] [--trained-on 30,4] [--decisions 32768]
                                       [--trainings 3]

Needs the extra `fleet-learner`: MASAC is BenchMARL's. Every user is an agent. It sees its own round beside its server's
others, and wishes for band and computing; a server's users get shares by the exponentials of that. Association is the
exchange's, the reward by how much the rounds of a server are shorter than with equal shares. Trained on fleets of one
size that are not those of the tables; the actor is then used in every size. Writes `LEARNED.md`, which FLEET.md holds.
"""

import argparse
import sys
from datetime import date
from itertools import product
from pathlib import Path

from benchmarks.fleet.answers import emitted_table, read_answers
from benchmarks.fleet.comparison import Cell, Outcome, compare, planned_case
from benchmarks.fleet.learner.games import Games, plan_of, seen
from benchmarks.fleet.learner.page import BEST, EQUAL, LEARNED, page
from benchmarks.fleet.learner.training import DECISIONS_AT_ONCE, trained
from benchmarks.fleet.policies import POLICIES, Policy
from benchmarks.fleet.report import LEARNED_PAGE
from benchmarks.fleet.scenario import Scenario
from benchmarks.fleet.ways import WAYS
from reader_edge_runtime.atomic_file import write_file

_FIRST_SEED = 1000  # of fleets to learn from
_NUM_SERVERS = 1024  # that these have


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", default="30,90,180", help="numbers of users")
    parser.add_argument("--servers", default="4,12,20", help="numbers of servers")
    parser.add_argument("--ways", default="paper, rows;lock-step", help="ways of answering, separated by semicolons")
    parser.add_argument("--seeds", type=int, default=20, help="fleets of each size")
    parser.add_argument("--trained-on", default="30,4", help="users, servers")
    parser.add_argument("--decisions", type=int, default=32 * DECISIONS_AT_ONCE, help="of servers, to learn from")
    parser.add_argument("--trainings", type=int, default=3, help="actors, each of a seed of its own")
    parser.add_argument("--out", type=Path, default=LEARNED_PAGE, help="where the tables go")
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error(f"--seeds {options.seeds}: intervals need 2 or more")
    sizes = list(product(*(map(int, text.split(",")) for text in (options.users, options.servers))))
    size = tuple(map(int, options.trained_on.split(",")))
    command = (
        f"python -m benchmarks.fleet.learner --ways '{options.ways}' --trained-on {options.trained_on} "
        f"--decisions {options.decisions} --trainings {options.trainings} --seeds {options.seeds}"
    )
    answers = read_answers()
    outcomes: dict[Cell, list[Outcome]] = {}
    for way in options.ways.split(";"):
        policies = {name: POLICIES[name] for name in (EQUAL, BEST)}
        policies |= _learned(way, size, options.decisions, options.trainings)
        for users, servers in sizes:
            print(f"{way}: {users} users, {servers} servers", file=sys.stderr)
            outcomes |= dict(compare(Scenario(users, servers), WAYS[way], policies, answers, options.seeds))
        write_file(options.out, page(outcomes, size, command, str(date.today())).encode())


def _learned(way: str, size: tuple[int, ...], num_decisions: int, num_trainings: int) -> dict[str, Policy]:
    """An actor's policy for each training."""
    users, servers = size
    seeds = range(_FIRST_SEED, _FIRST_SEED + -(-_NUM_SERVERS // servers))
    emitted = emitted_table(read_answers())
    games = Games.of([planned_case(Scenario(users, servers), WAYS[way], emitted, seed) for seed in seeds])

    def policy(training: int) -> Policy:
        wishes = trained(games, num_decisions, training)
        return lambda case: plan_of(case, wishes(seen(case.costs, case.exchanged)))

    return {f"{LEARNED}{training}": policy(training) for training in range(num_trainings)}


if __name__ == "__main__":
    main()
