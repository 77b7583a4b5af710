"""The records of the requests that finished last, by id, for whoever asks where the time went."""

from collections import OrderedDict

from .attribution import Record


class TimingRing:
    """Bounded: the oldest record makes room for the newest."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._records: OrderedDict[str, Record] = OrderedDict()

    def add(self, record: Record) -> None:
        """Remember a finished request."""
        self._records[record.request_id] = record
        if len(self._records) > self._capacity:
            self._records.popitem(last=False)

    def get(self, request_id: str) -> Record | None:
        """The record of this request, None if it never was or is too old."""
        return self._records.get(request_id)

    def __len__(self) -> int:
        return len(self._records)
