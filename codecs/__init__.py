"""How KV is encoded: models of encoded sizes, and the codecs themselves."""
