"""Indexes that a real machine keeps in memory to choose KV blocks with: one file per kind of index, one table of
them."""
