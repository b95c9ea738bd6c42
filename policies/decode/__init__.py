"""Decoding with the KV cache on storage: what is selected, where it lies, what is kept, how it is tuned."""
