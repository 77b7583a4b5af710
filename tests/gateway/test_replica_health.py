"""Ejection: when failing calls take a replica out, for how long, and what brings it back. No clock but the test's."""

from gateway.replica_health import Ejection, EjectionRule, Rotation

RULE = EjectionRule(num_failures=3, first_s=5.0, longest_s=15.0)


def ejected_at(now_s: float) -> Ejection:
    ejection = Ejection(RULE)
    for _ in range(3):
        ejection.failed(now_s)
    return ejection


def test_only_failures_in_a_row_eject() -> None:
    """A success between them starts the count again."""
    ejection = Ejection(RULE)
    for _ in range(5):
        ejection.failed(0.0)
        ejection.failed(0.0)
        ejection.succeeded(0.0)
    assert ejection.state(0.0) is Rotation.IN
    assert ejection.until_s is None
    assert ejected_at(0.0).state(0.0) is Rotation.EJECTED


def test_calls_from_before_the_ejection_change_nothing() -> None:
    """Their failures don't lengthen it, their successes don't end it."""
    ejection = ejected_at(0.0)
    for _ in range(10):
        ejection.failed(1.0)
        ejection.succeeded(2.0)
    assert ejection.until_s == 5.0
    assert ejection.state(4.999) is Rotation.EJECTED


def test_an_answer_that_begins_ends_the_trial_and_forgives_nothing() -> None:
    """Everybody may go there; one failure before a whole answer ejects again, for twice as long."""
    ejection = ejected_at(0.0)
    ejection.answered(1.0)
    assert ejection.state(1.0) is Rotation.EJECTED  # it was sent before
    ejection.answered(5.0)
    assert ejection.state(5.0) is Rotation.IN
    assert not ejection.is_clean
    ejection.failed(6.0)
    assert ejection.until_s == 16.0
    ejection.answered(16.0)
    ejection.succeeded(17.0)
    assert ejection.is_clean


def test_each_failed_trial_doubles_the_wait_up_to_a_bound() -> None:
    """5, 10, 15, 15 seconds; one failure is enough on trial."""
    ejection = ejected_at(0.0)
    now_s = 0.0
    for wait_s in (5.0, 10.0, 15.0, 15.0):
        assert ejection.until_s == now_s + wait_s
        now_s += wait_s
        assert ejection.state(now_s) is Rotation.TRIAL
        ejection.failed(now_s)


def test_a_trial_that_succeeds_forgives_everything() -> None:
    """The next ejection needs as many failures again, and is short again."""
    ejection = ejected_at(0.0)
    ejection.failed(5.0)
    ejection.succeeded(15.0)
    assert ejection.state(15.0) is Rotation.IN
    ejection.failed(16.0)
    assert ejection.state(16.0) is Rotation.IN
    ejection.failed(16.0)
    ejection.failed(16.0)
    assert ejection.until_s == 21.0
