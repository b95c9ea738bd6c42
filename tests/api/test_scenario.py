"""Which systems a command takes."""

from tiny import DECODING, LOADING, tiny

from kvferry.api.scenario import under_systems


def test_systems_of_one_paper_are_compared_unless_others_are_named() -> None:
    loading = tiny(LOADING)
    assert {"ferry", "cachegen", "local-prefill"} < under_systems(loading, None).keys()
    decoding = tiny(DECODING)
    of_kvswap = under_systems(decoding, None).keys()
    assert {"kvswap", "flexgen", "vllm"} < of_kvswap
    of_dynakv = under_systems(decoding.under("dynakv"), None).keys()
    assert of_dynakv == {"dynakv", "pqcache", "clusterkv", "no-cluster"}
    assert not of_kvswap & of_dynakv
    assert under_systems(decoding, ["kvswap", "dynakv"]).keys() == {"kvswap", "dynakv"}
