"""Signals as a question that is asked between two chunks of steps."""

import os
import signal

import pytest

from hlformer_jax.training import signals


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_its_handler_put_back(number):
    before = signal.getsignal(number)
    with signals.received() as received:
        assert received() is None
        os.kill(os.getpid(), number)
        assert received() is number
    assert signal.getsignal(number) is before


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_interrupts(capsys):
    with pytest.raises(KeyboardInterrupt), signals.received():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    assert "Ctrl-C again stops at once" in capsys.readouterr().err


def test_ctrl_c_that_a_shell_told_its_jobs_to_ignore_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals.received() as received:
            os.kill(os.getpid(), signal.SIGINT)
            assert received() is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_a_program_exits_with_says_which_signal_it_was():
    assert signals.Stopped("saved", signal.SIGTERM).status == 143
