"""Places of KV blocks in a file, and what becomes of them there: numpy only."""
