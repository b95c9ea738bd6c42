"""How KV is encoded: sizes as modelled, and codecs as they are."""
