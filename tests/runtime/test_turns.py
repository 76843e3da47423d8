"""Work that takes turns: one piece at a time, until it waits; errors and interrupts come where they belong."""

import pytest

from reader_edge_runtime.turns import Turn, give_way


def test_outside_of_a_turn_nobody_is_let_on() -> None:
    assert not give_way(lambda: False)


def test_a_turn_runs_until_it_waits_and_goes_on_when_that_is_over() -> None:
    done, is_there = list[str](), list[bool]()

    def work() -> str:
        done.append("begun")
        assert give_way(lambda: bool(is_there))
        done.append("over")
        return "said"

    turn = Turn(work)
    turn.go_on()
    assert (done, turn.is_done, turn.can_go_on) == (["begun"], False, False)
    is_there.append(True)
    assert turn.can_go_on
    turn.go_on()
    assert (done, turn.is_done, turn.can_go_on, turn.result()) == (["begun", "over"], True, False, "said")


def test_what_work_raises_is_raised_to_who_asks_for_its_result() -> None:
    turn = Turn(lambda: 1 / 0)
    turn.go_on()
    with pytest.raises(ZeroDivisionError):
        turn.result()


def test_what_is_thrown_is_raised_where_the_work_waits() -> None:
    turn = Turn(lambda: give_way(lambda: False))
    turn.go_on()
    turn.go_on(KeyboardInterrupt("now"))
    with pytest.raises(KeyboardInterrupt, match="now"):
        turn.result()


def test_an_interrupt_comes_when_the_work_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Turn(lambda: "said")
    stopped = turn._has_stopped

    class Interrupted:
        num_left = 2

        def acquire(self) -> None:
            if self.num_left:
                self.num_left -= 1
                raise KeyboardInterrupt
            stopped.acquire()

        def release(self) -> None:
            stopped.release()

    monkeypatch.setattr(turn, "_has_stopped", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        turn.go_on()
    assert turn.result() == "said"
