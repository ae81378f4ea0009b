"""A memo that forgets: values by key, the oldest dropped when they weigh too much together."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

V = TypeVar("V")


def _one(_: object) -> int:
    return 1


@dataclass
class Memo(Generic[V]):
    """Values that were made, by what they were made from.

    Attributes
    ----------
    limit : int
        The most that all values may weigh together. The newest stays, whatever it weighs.
    weigh : function of a value to int
        1 each, unless given.

    >>> memo = Memo[str](limit=2)
    >>> [memo.get(number, lambda: str(number)) for number in (1, 2, 3)], 1 in memo, 3 in memo
    (['1', '2', '3'], False, True)
    """

    limit: int
    weigh: Callable[[V], int] = _one
    _values: dict[Hashable, V] = field(default_factory=dict)
    _weight: int = 0

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of a key, made when it is not there. What `make` raises is not kept."""
        try:
            return self._values[key]
        except KeyError:
            pass
        value = make()
        self.put(key, value)
        return value

    def find(self, key: Hashable) -> V | None:
        """The value of a key, or None."""
        return self._values.get(key)

    def put(self, key: Hashable, value: V) -> None:
        """Keep a value, in place of the oldest ones where there is no room."""
        if key in self._values:
            self._weight -= self.weigh(self._values.pop(key))
        self._values[key] = value
        self._weight += self.weigh(value)
        while self._weight > self.limit and len(self._values) > 1:
            oldest = next(iter(self._values))
            self._weight -= self.weigh(self._values.pop(oldest))


@dataclass
class Known:
    """Numbers for values that cannot be keys themselves: equal values, equal numbers.

    >>> known = Known()
    >>> known.number({"a": 1}), known.number({"b": 2}), known.number({"a": 1})
    (0, 1, 0)
    """

    _values: list[object] = field(default_factory=list)

    def number(self, value: object) -> int:
        """The number of a value, given when it is first seen."""
        for number, known in enumerate(self._values):
            if known is value:
                return number
        for number, known in enumerate(self._values):
            if known == value:
                return number
        self._values.append(value)
        return len(self._values) - 1
