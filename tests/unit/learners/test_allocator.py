import sys

from coterie.learners import allocator


def test_glibc_agrees_and_other_systems_are_left_alone(monkeypatch):
    if sys.platform == "linux":
        assert allocator.keep_freed_memory() in (True, False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert allocator.keep_freed_memory() is False


def test_a_c_library_without_mallopt_is_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert allocator.keep_freed_memory() is False
