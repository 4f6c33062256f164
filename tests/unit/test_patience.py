"""A long step at the end of a session: one signal waits for it, the next one does not."""

import os
import signal

import pytest

from launcher.jail import init
from tests.support import forked


def _sent(*numbers: int) -> tuple[int, int]:
    """What waits after a step in which a process sent itself signals, and how often it has said so."""
    said: list[None] = []
    init.block_signals()
    with init.Patience(lambda: said.append(None)):
        for number in numbers:
            os.kill(os.getpid(), number)
    return init.take_ending(), len(said)


@pytest.mark.parametrize("number", init.ENDING)
def test_the_first_signal_waits_and_the_next_one_ends_it(number: signal.Signals) -> None:
    """By its own number, as it would have without Paddock; what was said is said once."""
    assert forked.run(lambda: _sent()) == (0, 0)
    assert forked.run(lambda: _sent(number)) == (number, 1)
    with pytest.raises(forked.Killed) as killed:
        forked.run(lambda: _sent(signal.SIGTERM, number))
    assert killed.value.signal == number


def test_a_signal_from_before_is_the_first_one_and_an_ignored_one_is_none() -> None:
    """As behind nohup(1)."""

    def waiting(number: int, handler: signal.Handlers) -> tuple[int, int]:
        signal.signal(number, handler)
        init.block_signals()
        os.kill(os.getpid(), number)
        return _sent()

    assert forked.run(lambda: waiting(signal.SIGTERM, signal.SIG_DFL)) == (signal.SIGTERM, 1)
    assert forked.run(lambda: waiting(signal.SIGHUP, signal.SIG_IGN)) == (0, 0)
