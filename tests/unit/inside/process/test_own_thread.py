"""What a thread of ours leaves behind where a fork meets it at work."""

from __future__ import annotations

import gc

import pytest
from support.session import Recorder

from trainprof.inside.process.own_thread import no_collections
from trainprof.inside.stacks.sampler import StackSampler, why_not_here

pytestmark = pytest.mark.skipif(why_not_here() is not None, reason="not told here")


def test_a_fork_in_the_midst_of_a_look_leaves_the_collector_on(recorder: Recorder) -> None:
    probe = StackSampler()
    recorder.start(probe)
    with no_collections():
        assert not gc.isenabled()
        probe._forget()  # as a child does, in which this thread does not go on
        assert gc.isenabled()
    gc.disable()
    try:
        with no_collections():
            probe._forget()
        assert not gc.isenabled()  # that is how the script has it
    finally:
        gc.enable()
