"""The real world of conversations: KV of their turns, in memory, on storage and between turns."""
