"""The states a request passes through, as a table. What isn't in the table raises and changes nothing.

The end of a call is not the end of a request: a failed call may be followed by another on a different replica, and a
long prefill is made of several calls. So states describe the request, and `call ended` comes in three kinds.
"""

from enum import StrEnum


class State(StrEnum):
    WAITING = "waiting"  # in the queue
    CALLING = "calling"  # a call runs, nothing has come back
    STREAMING = "streaming"  # its first token was seen
    STOPPING = "stopping"  # we asked to close a running prefill and wait for its end
    LEAVING = "leaving"  # the client left while a call ran; the slot stays until the call has ended
    PARKED = "parked"  # between two calls that compute its prompt in slices; it keeps its slot
    BETWEEN = "between"  # a call failed; `requeue` or `cancel` decides
    ENDED = "ended"


class Event(StrEnum):
    DISPATCH = "dispatch"
    FIRST_TOKEN = "first-token"
    STOP = "stop"
    CALL_DONE = "call-done"  # the whole request was answered, or its answer no longer matters
    CALL_PART_DONE = "call-part-done"  # a slice ended, or a prefill was stopped: more to do
    CALL_DROPPED = "call-dropped"  # the replica failed it
    REQUEUE = "requeue"
    UNPARK = "unpark"  # its replica can't be used any more: it starts over
    CANCEL = "cancel"
    EVICT = "evict"


class LifecycleError(Exception):
    """An event that the request's state doesn't allow. Raised before anything was changed."""


_RUNNING = (State.CALLING, State.STREAMING, State.STOPPING)

TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.WAITING, Event.DISPATCH): State.CALLING,
    (State.WAITING, Event.EVICT): State.ENDED,
    (State.WAITING, Event.CANCEL): State.ENDED,
    (State.CALLING, Event.FIRST_TOKEN): State.STREAMING,
    (State.STOPPING, Event.FIRST_TOKEN): State.STREAMING,  # the token was quicker than our stop
    (State.CALLING, Event.STOP): State.STOPPING,
    (State.CALLING, Event.CALL_PART_DONE): State.PARKED,
    (State.STOPPING, Event.CALL_PART_DONE): State.PARKED,
    (State.PARKED, Event.DISPATCH): State.CALLING,
    (State.PARKED, Event.UNPARK): State.WAITING,
    (State.PARKED, Event.CANCEL): State.ENDED,
    **{(state, Event.CALL_DONE): State.ENDED for state in (*_RUNNING, State.LEAVING)},
    **{(state, Event.CALL_DROPPED): State.BETWEEN for state in _RUNNING},
    (State.LEAVING, Event.CALL_DROPPED): State.ENDED,
    (State.LEAVING, Event.CALL_PART_DONE): State.ENDED,
    **{(state, Event.CANCEL): State.LEAVING for state in _RUNNING},
    (State.LEAVING, Event.CANCEL): State.LEAVING,
    (State.LEAVING, Event.FIRST_TOKEN): State.LEAVING,
    (State.BETWEEN, Event.REQUEUE): State.WAITING,
    (State.BETWEEN, Event.CANCEL): State.ENDED,
}


def after(state: State, event: Event) -> State:
    """The state that follows; raises `LifecycleError` where there is none."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        allowed = ", ".join(event.value for known, event in TRANSITIONS if known is state) or "nothing"
        raise LifecycleError(f"{event.value} is not possible while {state.value} (possible: {allowed})") from None
