"""Where KV blocks lie in a file, and what becomes of them there: numpy only."""
