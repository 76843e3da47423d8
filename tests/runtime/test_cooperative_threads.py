"""Cooperative threads: one piece of work at a time, until it waits; errors and interrupts come where they belong."""

import pytest

from reader_edge_runtime.cooperative_threads import CooperativeThread, yield_turn


def test_outside_of_a_thread_nobody_is_let_on() -> None:
    assert not yield_turn(lambda: False)


def test_a_thread_runs_until_it_waits_and_goes_on_when_that_is_over() -> None:
    done, is_there = list[str](), list[bool]()

    def work() -> str:
        done.append("begun")
        assert yield_turn(lambda: bool(is_there))
        done.append("over")
        return "done"

    thread = CooperativeThread(work)
    thread.go_on()
    assert (done, thread.is_done, thread.can_go_on) == (["begun"], False, False)
    is_there.append(True)
    assert thread.can_go_on
    thread.go_on()
    assert (done, thread.is_done, thread.can_go_on, thread.result()) == (["begun", "over"], True, False, "done")


def test_what_work_raises_is_raised_to_who_wants_its_result() -> None:
    thread = CooperativeThread(lambda: 1 / 0)
    thread.go_on()
    with pytest.raises(ZeroDivisionError):
        thread.result()


def test_what_is_thrown_is_raised_where_the_work_waits() -> None:
    thread = CooperativeThread(lambda: yield_turn(lambda: False))
    thread.go_on()
    thread.go_on(KeyboardInterrupt("now"))
    with pytest.raises(KeyboardInterrupt, match="now"):
        thread.result()


def test_an_interrupt_comes_when_the_work_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = CooperativeThread(lambda: "done")
    stopped = thread._has_stopped

    class Interrupted:
        num_left = 2

        def acquire(self) -> None:
            if self.num_left:
                self.num_left -= 1
                raise KeyboardInterrupt
            stopped.acquire()

        def release(self) -> None:
            stopped.release()

    monkeypatch.setattr(thread, "_has_stopped", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        thread.go_on()
    assert thread.result() == "done"
