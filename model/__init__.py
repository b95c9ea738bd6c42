"""A real Transformer: loaded, taken apart by layers, and run chunk by chunk."""
