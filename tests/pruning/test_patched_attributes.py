"""Attributes that an instance has for a while."""

from vlprune.pruning.patched_attributes import patched_attributes


def test_patched_attributes():
    class Thing:
        pass

    thing = Thing()
    thing.own = 1
    with patched_attributes(thing, {"own": 2}), patched_attributes(thing, {"new": 3}):
        assert (thing.own, thing.new) == (2, 3)
    assert vars(thing) == {"own": 1}
