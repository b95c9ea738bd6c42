"""Decoding from long contexts with the KV on storage or in memory."""
