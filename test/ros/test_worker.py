"""One thread, newest item of each source, turns, calls first, and an end that wakes everyone."""

from __future__ import annotations

import threading

import pytest

from ttsp_ros.ros.worker import Worker, WorkerStoppedError


class Recorder:
    def __init__(self):
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.items: list[tuple[str, int]] = []
        self.errors: list[tuple[str, Exception]] = []
        self.stopped_on: list[threading.Thread] = []
        self.worker = Worker("test", self.handle, lambda *error: self.errors.append(error), self.on_stop)

    def handle(self, source: str, item: int) -> None:
        self.entered.set()
        assert self.gate.wait(10)
        if item < 0:
            raise RuntimeError(item)
        self.items.append((source, item))

    def on_stop(self) -> None:
        self.stopped_on.append(threading.current_thread())

    def flush(self) -> None:
        """Wait until nothing waits any more."""
        while self.worker._items:
            self.worker.call(lambda: None).result(10)
        self.worker.call(lambda: None).result(10)

    def end(self) -> None:
        self.gate.set()
        self.worker.stop()
        assert self.worker.join(10)


@pytest.fixture
def recorder():
    recorder = Recorder()
    yield recorder
    recorder.end()


def test_only_the_newest_item_of_a_source_waits(recorder):
    recorder.worker.put("a", 0)
    assert recorder.entered.wait(10)
    assert [recorder.worker.put("a", number) for number in (1, 2, 3)] == [None, 1, 2]
    recorder.gate.set()
    recorder.flush()
    assert recorder.items == [("a", 0), ("a", 3)]


def test_a_fast_source_does_not_starve_a_slow_one(recorder):
    recorder.worker.put("fast", 0)
    assert recorder.entered.wait(10)
    recorder.worker.put("fast", 1)
    recorder.worker.put("slow", 1)
    recorder.worker.put("fast", 2)  # takes the place of 1, so it is not served twice before slow
    recorder.gate.set()
    recorder.flush()
    assert recorder.items == [("fast", 0), ("fast", 2), ("slow", 1)]


def test_calls_go_before_items_and_run_on_the_same_thread(recorder):
    recorder.worker.put("a", 0)
    assert recorder.entered.wait(10)
    recorder.worker.put("a", 1)
    seen = recorder.worker.call(lambda: (list(recorder.items), recorder.worker.is_current_thread()))
    recorder.gate.set()
    assert seen.result(10) == ([("a", 0)], True)
    assert not recorder.worker.is_current_thread()


def test_an_error_is_reported_and_the_next_item_works(recorder):
    recorder.gate.set()
    recorder.worker.put("a", -1)
    recorder.flush()
    recorder.worker.put("a", 5)
    recorder.flush()
    assert [(source, str(error)) for source, error in recorder.errors] == [("a", "-1")]
    assert recorder.items == [("a", 5)]


def test_an_error_of_a_call_is_the_callers(recorder):
    with pytest.raises(ZeroDivisionError):
        recorder.worker.call(lambda: 1 / 0).result(10)


def test_clear_forgets_what_waits_and_waits_for_what_runs(recorder):
    recorder.worker.put("a", 0)
    assert recorder.entered.wait(10)
    recorder.worker.put("a", 1)
    recorder.worker.put("b", 2)
    threading.Timer(0.05, recorder.gate.set).start()
    assert recorder.worker.clear() == ["a", "b"]
    assert recorder.items == [("a", 0)]


def test_stop_wakes_who_waits_for_a_call_that_is_running_or_waiting(recorder):
    started = threading.Event()
    running = recorder.worker.call(lambda: (started.set(), recorder.gate.wait(10)))
    waiting = recorder.worker.call(lambda: None)
    assert started.wait(10)
    recorder.worker.stop()
    for future in (running, waiting, recorder.worker.call(lambda: None)):
        with pytest.raises(WorkerStoppedError):
            future.result(10)
    assert recorder.worker.put("a", 1) == 1, "an item after the end is handed back"
    assert not recorder.stopped_on, "the running call still has the device"


def test_the_device_is_closed_on_its_thread_last_of_all(recorder):
    thread = recorder.worker.call(threading.current_thread).result(10)
    recorder.end()
    assert recorder.stopped_on == [thread]
