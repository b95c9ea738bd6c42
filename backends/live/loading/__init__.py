"""Loading a stored context for real: the contexts of a scenario, ops on a session, the world."""
