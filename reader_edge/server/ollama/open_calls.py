"""Which call a tool's message answers, where clients name the tool alone, or nothing."""

from collections import OrderedDict, deque


class OpenCalls:
    """Calls that no tool has answered yet, in their order. Each is found in one step, however many there are."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, str] = OrderedDict()
        self._ids: dict[str, deque[str]] = {}

    def add(self, call_id: str, name: str) -> None:
        """A call of a function of this name."""
        self._names[call_id] = name
        self._ids.setdefault(name, deque()).append(call_id)

    def take(self, call_id: str | None, name: str | None) -> tuple[str, str] | None:
        """The id and function of the call that is answered: of this id, else the first of this name, else the first."""
        if call_id is None and name is not None:
            ids = self._ids.get(name, deque())
            while ids and ids[0] not in self._names:
                ids.popleft()
            call_id = ids[0] if ids else None
        if call_id is None:
            call_id = next(iter(self._names), None)
        if call_id is None or call_id not in self._names:
            return None
        return call_id, self._names.pop(call_id)
