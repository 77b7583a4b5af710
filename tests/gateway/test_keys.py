"""API keys: how they are found in a request, recognised, and what they allow."""

import timeit

import pytest

from gateway.errors import Forbidden, Headers, Unauthorized
from gateway.keys import EVERYBODY, Key, KeyTable, digest_of, new_salt, new_secret, presented
from policies.types import Lane

SALT = bytes(range(32))


def key_of(secret: str, salt: bytes = SALT, name: str = "k1") -> Key:
    return Key(name, "acme", digest=digest_of(secret.encode(), salt))


class TestRecognising:
    def test_a_key_is_found_by_its_hash(self) -> None:
        """The right one among others, and nothing that only resembles one."""
        secrets = [new_secret() for _ in range(50)]
        table = KeyTable([key_of(secret, name=f"k{index}") for index, secret in enumerate(secrets)], SALT)
        for index, secret in enumerate(secrets):
            found = table.find(secret.encode())
            assert found is not None
            assert found.key_id == f"k{index}"
            for wrong in (
                secret[:-1],
                secret + "x",
                secret.upper(),
                " " + secret,
                digest_of(secret.encode(), SALT).hex(),
            ):
                assert table.find(wrong.encode()) is None
        assert table.find(b"") is None
        assert KeyTable([], SALT).find(secrets[0].encode()) is None

    def test_the_beginning_of_a_hash_is_not_enough(self) -> None:
        """Keys are found by eight bytes of the hash and compared over all of it."""
        secret = new_secret()
        digest = digest_of(secret.encode(), SALT)
        almost = Key("k1", "acme", digest=digest[:-1] + bytes([digest[-1] ^ 1]))
        assert KeyTable([almost], SALT).find(secret.encode()) is None

    def test_a_hash_is_worth_nothing_in_another_file(self) -> None:
        """The salt of the file is part of it."""
        secret = new_secret()
        other = new_salt()
        assert digest_of(secret.encode(), SALT) != digest_of(secret.encode(), other)
        assert KeyTable([key_of(secret)], other).find(secret.encode()) is None

    def test_new_keys_are_long_random_and_recognisable(self) -> None:
        """256 bits behind a prefix that leak scanners find."""
        made = {new_secret() for _ in range(100)}
        assert len(made) == 100
        assert all(secret.startswith("tg-") and len(secret) == 46 for secret in made)

    def test_a_look_up_takes_microseconds(self) -> None:
        """With 10,000 keys, header scan included: far from what a request costs."""
        secrets = [new_secret() for _ in range(10_000)]
        table = KeyTable([key_of(secret) for secret in secrets], SALT)
        filler: Headers = [(b"x-header-%d" % index, b"value") for index in range(8)]
        headers = [*filler, (b"authorization", b"Bearer " + secrets[77].encode())]
        assert min(timeit.repeat(lambda: table.find(presented(headers)), number=1000, repeat=7)) / 1000 < 10e-6


class TestPresenting:
    @pytest.mark.parametrize(
        "headers",
        [
            [(b"authorization", b"Bearer KEY")],
            [(b"authorization", b"bearer   KEY ")],
            [(b"x-api-key", b" KEY")],
            [(b"x-api-key", b"KEY"), (b"authorization", b"Basic abc")],
            [(b"x-api-key", b"OTHER"), (b"authorization", b"Bearer KEY")],
            [(b"authorization", b"Bearer KEY"), (b"authorization", b"Bearer KEY")],
            [(b"x-api-key", b"KEY"), (b"authorization", b"Bearer ")],
        ],
    )
    def test_where_a_key_may_be(self, headers: Headers) -> None:
        """As a bearer in any spelling, or in x-api-key; the bearer goes first."""
        assert presented([(b"host", b"g"), *headers, (b"x-other", b"y")]) == b"KEY"

    @pytest.mark.parametrize(
        "headers",
        [
            [],
            [(b"authorization", b"Bearer ")],
            [(b"authorization", b"bearer")],
            [(b"authorization", b"KEY")],
            [(b"authorization", b"Basic S0VZ")],
            [(b"x-api-key", b"")],
            [(b"proxy-authorization", b"Bearer KEY")],
            [(b"cookie", b"authorization=Bearer KEY")],
            [(b"authorization", b"Bearer KEY"), (b"authorization", b"Bearer OTHER")],
            [(b"x-api-key", b"KEY"), (b"x-api-key", b"OTHER")],
        ],
    )
    def test_where_there_is_none(self, headers: Headers) -> None:
        """Nothing, another scheme, or two that differ: refused, and nothing of them is repeated."""
        with pytest.raises(Unauthorized) as caught:
            presented(headers)
        assert b"OTHER" not in caught.value.body()
        assert b"S0VZ" not in caught.value.body()
        assert (b"www-authenticate", b"Bearer") in caught.value.headers()

    def test_a_key_never_shows_its_hash(self) -> None:
        """Neither printed nor formatted."""
        key = key_of("tg-secret")
        assert key.digest.hex() not in repr(key)
        assert repr(key.digest) not in repr(key)


class TestModels:
    def test_by_name_or_by_alias(self) -> None:
        """The list may hold either; what it doesn't hold is refused with what it does."""
        key = Key("k1", "acme", models=frozenset({"org/m", "gpt"}))
        key.check_model("org/m", "org/m")
        key.check_model(None, "org/m")
        key.check_model("gpt", "org/other")
        with pytest.raises(Forbidden, match=r"`org/other`.*Allowed: `gpt`, `org/m`") as caught:
            key.check_model("org/other", "org/other")
        assert (caught.value.status, caught.value.code, caught.value.param) == (403, "model_not_allowed", "model")
        assert [key.may_use(name) for name in ("gpt", "org/other")] == [True, False]

    def test_everybody_may_use_everything(self) -> None:
        """While there are no keys."""
        EVERYBODY.check_model(None, "m")
        assert EVERYBODY.may_use("m")
        assert EVERYBODY.declared_lane(None, 5) is Lane.INTERACTIVE
        assert (EVERYBODY.has_diagnostics, EVERYBODY.sees_cached_tokens, EVERYBODY.is_admin) == (True, True, True)


def lanes_key(*lanes: Lane, ceiling: int | None = None) -> Key:
    return Key("k1", "acme", lanes=frozenset(lanes) or None, priority_ceiling=ceiling)


class TestLanes:
    @pytest.mark.parametrize("lane", [None, Lane.INTERACTIVE, Lane.BACKGROUND])
    def test_without_restrictions_what_was_asked(self, lane: Lane | None) -> None:
        """A named lane goes before the priority's sign."""
        assert lanes_key().declared_lane(lane, 0) is lane
        assert lanes_key().declared_lane(lane, 3) is (lane or Lane.INTERACTIVE)
        assert lanes_key().declared_lane(lane, -3) is (lane or Lane.BACKGROUND)

    def test_a_named_lane_that_is_not_allowed(self) -> None:
        """Refused, with those that are, best first."""
        with pytest.raises(Forbidden, match=r"lane interactive\. Allowed: standard, background\.") as caught:
            lanes_key(Lane.BACKGROUND, Lane.STANDARD).declared_lane(Lane.INTERACTIVE, 0)
        assert (caught.value.code, caught.value.param) == ("lane_not_allowed", "x-tailgate-lane")

    def test_without_interactive_the_best_that_is_allowed(self) -> None:
        """So that a small budget doesn't bring a request into a lane its key may not use."""
        key = lanes_key(Lane.BACKGROUND, Lane.LONG)
        assert key.declared_lane(None, 0) is Lane.LONG
        assert key.declared_lane(None, 9) is Lane.LONG
        assert key.declared_lane(None, -9) is Lane.BACKGROUND
        assert lanes_key(Lane.INTERACTIVE).declared_lane(None, 0) is None
        assert lanes_key(Lane.INTERACTIVE).declared_lane(None, -1) is Lane.INTERACTIVE

    @pytest.mark.parametrize(("ceiling", "lane"), [(0, None), (-1, Lane.BACKGROUND), (1, Lane.INTERACTIVE)])
    def test_a_priority_over_the_ceiling_is_lowered_to_it(self, ceiling: int, lane: Lane | None) -> None:
        """A key of a batch job has one below zero."""
        assert lanes_key(ceiling=ceiling).declared_lane(None, 7) is lane
        assert lanes_key(ceiling=ceiling).declared_lane(None, -7) is Lane.BACKGROUND
