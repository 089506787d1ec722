"""Keys in memory: their form, what is compared, and who is let in when."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokentrail.gateway.config import ConfigError, KeysSettings, TenantSettings, parse
from tokentrail.gateway.keys import KeyRecord, KeyRing, TenantRecord, ring
from tokentrail.gateway.keys.secrets import id_of, keyed, new_key, plain_digest
from tokentrail.protocol import Unauthorized
from tokentrail.server.keys import Keys, bearer

KEY = new_key()
OTHER = new_key()


def record_of(made: Any, **fields: Any) -> KeyRecord:
    return KeyRecord(
        **{"id": made.id, "tenant": "acme", "digest": plain_digest(made.text.encode()), **fields}
    )


def ring_of(*records: KeyRecord, now: Callable[[], float] = lambda: 1000.0, **settings: Any) -> KeyRing:
    made = KeyRing(KeysSettings(**settings), clock=now)
    made.replace(records, [])
    return made


def refused(ring: KeyRing, key: str | bytes) -> str:
    with pytest.raises(Unauthorized) as caught:
        ring.find(key if isinstance(key, bytes) else key.encode())
    assert caught.value.status == 401
    return caught.value.code or ""


def test_a_key_is_256_random_bits_in_a_form_that_scanners_find() -> None:
    assert re.fullmatch(r"tt-[0-9A-Za-z]{59}", KEY.text)
    assert id_of(KEY.text.encode()) == KEY.id
    assert KEY.text[3:13] == KEY.id.removeprefix("key_")
    assert len({new_key().text for _ in range(100)}) == 100
    assert 62**43 > 2**256
    again = new_key(KEY.id)
    assert again.id == KEY.id
    assert again.text != KEY.text


@given(at=st.integers(0, 61), sign=st.sampled_from("0Az-_ é"))
def test_a_typo_is_told_without_a_lookup(at: int, sign: str) -> None:
    wrong = (KEY.text[:at] + sign + KEY.text[at + 1 :]).encode()
    if wrong == KEY.text.encode():
        return
    if wrong.startswith(b"tt-"):
        with pytest.raises(ValueError, match="check characters"):
            id_of(wrong)
    else:
        assert id_of(wrong) is None


@given(st.binary(max_size=200))
@example(b"tt-" + b"0" * 59)
def test_anything_may_be_sent_as_a_key(data: bytes) -> None:
    refused(ring_of(record_of(KEY)), data)


@given(st.binary(max_size=300))
@example(b"Bearer ")
@example(b"bearer\t" + KEY.text.encode())
@example(b"Bearer  " + KEY.text.encode() + b"  ")
def test_anything_may_stand_in_the_header(value: bytes) -> None:
    keys = Keys((), ring_of(record_of(KEY)))
    scheme, _, sent = value.partition(b" ")
    if scheme.lower() == b"bearer" and sent.strip(b" \t") == KEY.text.encode():
        assert keys.identify(value).key == KEY.id
    else:
        with pytest.raises(Unauthorized) as caught:
            keys.identify(value)
        assert KEY.text not in caught.value.message


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=100))
def test_what_stands_behind_bearer_is_the_key(key: str) -> None:
    for scheme in (b"Bearer ", b"bearer  ", b"BEARER "):
        assert bearer(scheme + key.encode() + b" ") == key.encode()
    for scheme in (b"Basic ", b"Bearer", b""):
        with pytest.raises(Unauthorized):
            bearer(scheme + key.encode())


def test_who_asks_is_what_the_key_says() -> None:
    record = record_of(KEY, models=("llama-*", "demo"), endpoints=("chat",), admin=True)
    known = ring_of(record)
    known.replace([record], [TenantRecord(name="acme", weight=2.5)])
    identity = known.find(KEY.text.encode())
    assert (identity.tenant, identity.key, identity.admin, identity.weight) == ("acme", KEY.id, True, 2.5)
    assert identity.endpoints == {"chat"}
    assert [identity.may_ask(name) for name in ("llama-3", "demo", "demo2", "LLAMA-3")] == [
        True,
        True,
        False,
        False,
    ]
    assert known.used == {KEY.id: 1000.0}


def test_keys_end_by_time_revocation_and_their_tenant() -> None:
    now = [1000.0]
    clock = lambda: now[0]  # noqa: E731
    known = ring_of(record_of(KEY, expires=1001.0), now=clock)
    assert known.find(KEY.text.encode()).key == KEY.id
    now[0] = 1001.0
    assert refused(known, KEY.text) == "expired_api_key"
    assert known.identity_of(KEY.id) is None
    assert refused(ring_of(record_of(KEY, revoked=5.0)), KEY.text) == "revoked_api_key"
    disabled = ring_of(record_of(KEY))
    assert disabled.identity_of(KEY.id) is not None
    disabled.replace([record_of(KEY)], [TenantRecord(name="acme", disabled=True)])
    assert refused(disabled, KEY.text) == "disabled_tenant"
    # Who does not have the key learns nothing of it.
    revoked = ring_of(record_of(KEY, revoked=5.0))
    assert refused(revoked, new_key(KEY.id).text) == "invalid_api_key"
    assert refused(revoked, OTHER.text) == "invalid_api_key"


def test_after_a_rotation_the_old_secret_is_good_for_a_while() -> None:
    now = [1000.0]
    new = new_key(KEY.id)
    record = record_of(new, old_digest=plain_digest(KEY.text.encode()), old_until=1100.0)
    known = ring_of(record, now=lambda: now[0])
    assert known.find(KEY.text.encode()) == known.find(new.text.encode())
    now[0] = 1100.0
    assert refused(known, KEY.text) == "invalid_api_key"
    assert known.find(new.text.encode()).key == KEY.id
    # A digest that is left without its time lets nobody in.
    without = msgspec.structs.replace(record, old_until=None)
    assert refused(ring_of(without), KEY.text) == "invalid_api_key"


def test_as_much_is_compared_for_ids_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    real = hmac.compare_digest

    def counting(a: bytes, b: bytes) -> bool:
        assert len(a) == len(b) == 32
        compared.append(1)
        return real(a, b)

    listed = [{"name": "a", "key": "a-key-of-the-file"}, {"name": "b", "key": "b-key-of-the-file"}]
    known = ring_of(record_of(KEY), listed=listed)
    monkeypatch.setattr(ring.hmac, "compare_digest", counting)
    counts = []
    for key in (KEY.text, new_key(KEY.id).text, OTHER.text, "something else"):
        compared.clear()
        with contextlib.suppress(Unauthorized):
            known.find(key.encode())
        counts.append(len(compared))
    assert counts == [4, 4, 4, 4]


def test_digests_are_keyed_where_there_is_a_pepper() -> None:
    pepper = "a pepper of some length"
    plain = plain_digest(KEY.text.encode())
    assert keyed(plain, pepper.encode()) == hmac.new(pepper.encode(), plain, hashlib.sha256).digest()
    assert refused(ring_of(record_of(KEY), pepper=pepper), KEY.text) == "invalid_api_key"
    peppered = ring_of(record_of(KEY, digest=keyed(plain, pepper.encode())), pepper=pepper)
    assert peppered.find(KEY.text.encode()).key == KEY.id


def test_keys_and_tenants_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_KEY", "the-key-of-the-app")
    settings = parse(
        f"""
keys:
  listed:
    - {{name: app, key: "${{APP_KEY}}", tenant: acme, models: [demo], limits: {{requests_per_minute: 5}}}}
    - {{name: ci, hash: "sha256:{hashlib.sha256(b"the-key-of-the-ci").hexdigest()}", expires: 2000-01-01}}
    - {{name: ops, key: "{OTHER.text}", admin: true}}
tenants:
  - {{name: acme, weight: 3, limits: {{tokens_per_day: null}}}}
"""
    )
    assert "the-key-of-the-app" not in repr(settings) + str(settings) + str(settings.model_dump())
    assert settings.keys is not None
    known = KeyRing(settings.keys, settings.tenants)
    identity = known.find(b"the-key-of-the-app")
    assert (identity.key, identity.tenant, identity.weight) == ("app", "acme", 3)
    assert known.find(OTHER.text.encode()).admin
    assert refused(known, "the-key-of-the-ci") == "expired_api_key"
    app = known.key("app")
    assert app is not None
    assert app.limits == {"requests_per_minute": 5}
    assert known.tenant("acme").limits == {"tokens_per_day": None}
    assert known.tenant("nobody") == TenantRecord(name="nobody")
    # What the file says of a tenant goes before the database; the file's keys are not noted as used in it.
    known.replace([record_of(KEY)], [TenantRecord(name="acme", disabled=True)])
    assert known.find(KEY.text.encode()).weight == 3
    assert known.used.keys() == {KEY.id}
    known.apply(KeysSettings(listed=[{"name": "new", "key": "another key of the app"}]), [])
    assert refused(known, "the-key-of-the-app") == "invalid_api_key"
    assert refused(known, KEY.text) == "disabled_tenant"
    assert known.find(b"another key of the app").key == "new"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("{stored: false}", "keys: nobody could ask: list keys, or leave out stored: false."),
        ("{listed: [{name: a}]}", "keys.listed[0]: give one of key and hash."),
        ("{listed: [{name: a, hash: abc}]}", "keys.listed[0]: hash must be sha256: and 64 hexadecimal digits"),
        ("{listed: [{name: key_a, key: 0123456789abcdef}]}", "keys.listed[0].name: must not begin with key_"),
        ("{listed: [{name: a, key: short-secret}]}", "keys.listed[0].key: must have 16 to 512 characters, and has 12."),
        ("{listed: [{name: a, key: 0123456789abcdef, endpoints: [all]}]}", "keys.listed[0].endpoints[0]: must be"),
        ("{pepper: short-secret}", "keys.pepper: "),
        ("{listed: [{name: a, key: 0123456789abcdef}, {name: a, key: 0123456789abcdef}]}", "keys: two keys are called"),
        ("{listed: [{name: a, key: [secret-in-a-list]}]}", "keys.listed[0].key: "),
        ("{listed: {name: a, key: secret-in-a-map}}", "keys.listed: must be list"),
        ('{listed: "${A_SECRET}"}', "keys.listed: must be list"),
        ('{listed: ["${A_SECRET}"]}', "keys.listed[0]: "),
    ],
)  # fmt: skip
def test_mistakes_are_told_without_secrets(keys: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "secret-of-the-environment")
    with pytest.raises(ConfigError) as caught:
        parse(f"keys: {keys}\n")
    assert str(caught.value).startswith(f"deploy.yaml:1: {said}")
    assert not re.search("secret(?!s)|0123456789abcdef", str(caught.value))


def test_two_tenants_of_one_name() -> None:
    with pytest.raises(ConfigError, match="two tenants are called 'a'"):
        parse("tenants: [{name: a}, {name: a}]\n")
    assert TenantSettings(name="a").weight == 1
