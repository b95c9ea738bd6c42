"""Which systems a command takes."""

from tiny import DECODING, LOADING, tiny

from kvferry.cli.checks import scenarios_under


def test_systems_of_one_paper_are_compared_unless_others_are_named() -> None:
    loading = tiny(LOADING)
    assert {"ferry", "cachegen", "local-prefill"} < scenarios_under(loading, None).keys()
    decoding = tiny(DECODING)
    of_kvswap = scenarios_under(decoding, None).keys()
    assert {"kvswap", "flexgen", "vllm"} < of_kvswap
    of_dynakv = scenarios_under(decoding.under("dynakv"), None).keys()
    assert of_dynakv == {"dynakv", "pqcache", "clusterkv", "no-cluster"}
    assert not of_kvswap & of_dynakv
    assert scenarios_under(decoding, "kvswap, dynakv").keys() == {"kvswap", "dynakv"}
