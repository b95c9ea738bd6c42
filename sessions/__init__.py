"""Turns of conversations: flows of loading and decoding as stages, and KV that lives on between them."""
