"""Loading a stored context and answering over it."""
