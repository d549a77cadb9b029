"""One thread that owns the device, and a mailbox of one slot per source in front of it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerStoppedError(RuntimeError):
    """The work was not done, or not finished, because the worker was stopped."""


class Worker(Generic[Item]):
    """Runs everything that touches the device on one thread of its own.

    Two kinds of work: calls (`call`), done in order and before any item, and items (`put`), of which only the newest
    of each source waits. Sources take turns: a source that has waited longer goes first, and a newer item takes the
    place in the queue of the one that it replaces, so a fast source can't starve a slow one.

    Args:
        name: of the thread.
        handle: called on the thread with (source, item). What it raises goes to `on_error`, and the thread goes on.
        on_error: called on the thread with (source, exception).
        on_stop: called on the thread, last of all: the place to close the device.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[str, Item], None],
        on_error: Callable[[str, Exception], None],
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._handle = handle
        self._on_error = on_error
        self._on_stop = on_stop
        self._condition = threading.Condition()
        self._calls: deque[tuple[Callable[[], Any], Future]] = deque()
        self._items: dict[str, Item] = {}
        self._running: Future | None = None
        self._stopped = False
        # A daemon: a call that never returns (a device that hangs) must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, source: str, item: Item) -> Item | None:
        """Leave `item` as the newest of `source`. Returns the item that it replaces: one that is dropped unseen."""
        with self._condition:
            if self._stopped:
                return item
            replaced = self._items.get(source)
            self._items[source] = item
            self._condition.notify()
            return replaced

    def call(self, function: Callable[[], Result]) -> Future[Result]:
        """Run `function` on the thread; the future fails with WorkerStoppedError when `stop` comes before its end.

        Waiting for it on the worker's own thread would never end, so don't.
        """
        future: Future[Result] = Future()
        with self._condition:
            if self._stopped:
                future.set_exception(WorkerStoppedError("the worker is stopped"))
                return future
            self._calls.append((function, future))
            self._condition.notify()
        return future

    def clear(self) -> list[str]:
        """Forget the waiting items and wait until the one in work is done. Returns the sources of the forgotten.

        Raises:
            WorkerStoppedError: the worker is stopped meanwhile.
        """
        with self._condition:
            forgotten = list(self._items)
            self._items.clear()
        self.call(lambda: None).result()
        return forgotten

    def stop(self) -> None:
        """Take no more work and wake everyone who waits for a call, also for the one that is running.

        Doesn't wait for the thread, which ends with `on_stop` as soon as the running work returns: see `join`.
        """
        with self._condition:
            self._stopped = True
            futures = [future for _, future in self._calls]
            if self._running is not None:
                futures.append(self._running)
            self._calls.clear()
            self._items.clear()
            self._condition.notify()
        for future in futures:
            with suppress(InvalidStateError):
                future.set_exception(WorkerStoppedError("the worker was stopped before the work was done"))

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end of the thread after `stop`; False when it is still busy after `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def is_current_thread(self) -> bool:
        """Whether the caller is on the worker's thread."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work()
        self._on_stop()

    def _next(self) -> Callable[[], None] | None:
        with self._condition:
            self._running = None
            self._condition.wait_for(lambda: self._stopped or self._calls or self._items)
            if self._stopped:
                return None
            if self._calls:
                function, future = self._calls.popleft()
                self._running = future
                return lambda: _complete(function, future)
            source = next(iter(self._items))
            item = self._items.pop(source)
            return lambda: self._do(source, item)

    def _do(self, source: str, item: Item) -> None:
        try:
            self._handle(source, item)
        except Exception as error:
            self._on_error(source, error)


def _complete(function: Callable[[], Any], future: Future) -> None:
    """Settle `future` with what `function` does, unless `stop` has settled it meanwhile."""
    try:
        result = function()
    except BaseException as error:
        with suppress(InvalidStateError):
            future.set_exception(error)
        return
    with suppress(InvalidStateError):
        future.set_result(result)
