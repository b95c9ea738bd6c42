"""What to stream and what to compute when a context is loaded (the SparKV family)."""
