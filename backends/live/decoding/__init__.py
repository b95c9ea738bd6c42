"""Decoding with KV on storage for real: ops on a model, the file, what selects, the world."""
