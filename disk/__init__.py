"""Real storage: a file read and written past the page cache."""
