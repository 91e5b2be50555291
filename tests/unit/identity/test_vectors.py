"""Vectors pinned once: a key that was written must be found by every later release.

A changed digest here means that ``ENCODING_VERSION`` must be raised.
"""

from __future__ import annotations

import numpy as np
import pytest

from prefold.identity.encoding import Field, digest, encode
from support.reference_encoding import reference_digest

KEY = bytes(range(32))

#: The first 16 bytes of each digest.
VECTORS: list[tuple[str, tuple[Field, ...], str]] = [
    ("t", (), "fe74fe95574a1ef6003eb7783cbe3df6"),
    ("t", (None,), "6c4da0c038f6876a0afcea72cab27095"),
    ("t", (None, None), "769b299940efbcb5573020d091de313b"),
    ("t", ("",), "0168f8d17757d178f2eedff968e73b13"),
    ("t", (b"",), "e3bbb3115f4106372405601987d94d05"),
    ("t", ((),), "bcd79071b093f3becf7e54984a95255c"),
    ("t", ((), ()), "9fc8c55e896a0e84ee4ef54bebba4b8b"),
    ("t", (((),),), "d0bb88084d36c16e9e92049ef8c76e94"),
    ("t", ((None,),), "158cba919f2558f2a6408e7f87478c20"),
    ("t", (False,), "e7870df6431790f2008b207ba9d8c55c"),
    ("t", (True,), "1f0e7e013bbc1323ccd3244badba7b6f"),
    ("t", (0,), "0465c860b92af7ced420b365f59f4f94"),
    ("t", (1,), "d69765995933289c4ca40c91f25df64b"),
    ("t", (-1,), "36a24d9d8bae7a1719a9c348b3332d7c"),
    ("t", (127,), "7cdfae07a23f76e6ba2bcf03af5052fb"),
    ("t", (128,), "214eb5a7b54ba7fad299c2be7c379c3e"),
    ("t", (-128,), "1134ed0aa48918c6397c3cd58d53984b"),
    ("t", (-129,), "07d9e7d6573881d1326998242aff671e"),
    ("t", (255,), "384f5aa8eaaeb7e44cdb10dac20d37c6"),
    ("t", (256,), "64ddc76326e0ddd70d83b649c7a77297"),
    ("t", (2**63,), "0544ca8cd47a236b998ca9cf60285b85"),
    ("t", (-(2**63) - 1,), "a97ed9e26535fb07f296f2e3f121e56e"),
    ("t", (0.0,), "8d0fd25b0f296c1334a953e8aca3e337"),
    ("t", (-0.0,), "7a83c1053ddd5a98be4cafba1c247c7c"),
    ("t", (1.0,), "99dddde7762f08ff2b88859caa1e0c72"),
    ("t", (10000.0,), "e851de59754f46f8e2697715fcc43b6e"),
    ("t", (float("inf"),), "4192a41a97b5211379f41107780cf666"),
    ("t", ("a",), "27920d5a16263bdf2df027ee23b4eb0f"),
    ("t", ("aa",), "926af4aa755ad94e8bf4095f47120987"),
    ("t", ("a", "a"), "84cd7d517e44ee2aef5d2ba08a1be425"),
    ("t", (("a", "a"),), "603675b76064073f288d6cb6fb95e880"),
    ("t", (("a",), "a"), "1bce8d9618f3c5915850f6a500b23ed1"),
    ("t", (b"a",), "d8e01e739770c8011746e2dc897bf5a9"),
    ("t", (b"a", b"a"), "3f8b49ed6feb59ae58ff5bf1f4342baf"),
    ("t", ("\0",), "352b718b45391ef6993f0f6de1d2a221"),
    ("t", ("\u00e4",), "d8ee793a681165545e456853d47c03c7"),
    ("t", ("a\u0308",), "9d32fe858eaf0682840e162c58d5bfa2"),
    ("t", ("\ud800",), "b39a6bf56eed38e71f1629437bd5ecb7"),
    ("t", ("\U0001f600",), "289d830cfd3de8ff7d55c3d57c227b49"),
    ("t", (np.array([], dtype=np.int64),), "6d23b7e013627e9e9be4784acf1806e1"),
    ("t", (np.array([0], dtype=np.int64),), "3eb502b2506792b399fe2517e1d7aea6"),
    ("t", (np.array([0, 0], dtype=np.int64),), "93e0f6f9f89c99942a44988eb5eba00a"),
    ("t", (np.array([1, -1, 2**62], dtype=np.int64),), "ecf25f4f96b6f85d6a16d907c4e80a47"),
    ("t", ((0, 0),), "77f9fde5841c99bbad28a8720073ae9d"),
    ("tenant", ("org_1", "2345"), "906442de723dca2c58d14b0526021720"),
    ("tenant", ("org_12345", ""), "0876fc711b90420edb577f25eabb141b"),
    ("tenant", ("org_12345", None), "34561ae74ee5b0932c2aa00ac859f93b"),
    ("tenant", ("org_12345",), "add397ec721e0c54352e3b0cf2f07d34"),
    ("tenant2", ("org_1", "2345"), "8d0ffe7eb75b0342ec405a578e3e8f0b"),
    ("request", (("lora", "summer"), ("salt", None)), "c5265731f226dcb50260dd542c107269"),
    ("request", (("lora", None), ("salt", "summer")), "3764bdaf9e4f6ae6e4fced46253422b0"),
    ("request", ("summer", None), "3ab5726e8b4be893b9526e87ca1b9efd"),
    ("request", (None, "summer"), "33993d28ed397deb67b08893e72843cf"),
]  # fmt: skip


@pytest.mark.parametrize(("tag", "fields", "pinned"), VECTORS)
def test_digest_is_the_pinned_one(tag: str, fields: tuple[Field, ...], pinned: str) -> None:
    assert digest(tag, *fields).hex()[:32] == pinned
    assert reference_digest(tag, *fields).hex()[:32] == pinned


def test_pinned_vectors_all_differ() -> None:
    assert len({pinned for *_, pinned in VECTORS}) == len(VECTORS) > 50


def test_keyed_digest_is_the_pinned_one() -> None:
    pinned = "dca2c99da9dc8a6427b88fb3af4ac76d57c2de649cf872b0eacbd2e1b8678b99"
    assert (
        digest("t", "a", key=KEY).hex()
        == reference_digest("t", "a", key=KEY).hex()
        == pinned
    )


def test_encoding_is_the_pinned_one() -> None:
    pinned = (
        "0100"  # the version
        "73 0100000000000000 74"  # the tag, framed as a text
        "6e 0000000000000000"
        "62 0100000000000000 01"
        "69 0200000000000000 8000"
        "66 0800000000000000 000000000000f03f"
        "73 0200000000000000 c3a4"
        "79 0100000000000000 61"
        "61 0800000000000000 ffffffffffffffff"
        "74 0900000000000000 6e0000000000000000"
    )
    minus_one = np.array([-1], dtype=np.int64)
    fields: tuple[Field, ...] = (None, True, 128, 1.0, "\u00e4", b"a", minus_one, (None,))
    assert encode("t", *fields) == bytes.fromhex(pinned)


def test_an_ambiguous_pair_stays_apart() -> None:
    assert digest("tenant", "org_1", "2345") != digest("tenant", "org_12345", "")


def test_an_adapter_named_like_a_salt_stays_apart() -> None:
    assert digest("request", "summer", None) != digest("request", None, "summer")
