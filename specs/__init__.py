"""Records, units and errors that every other package speaks in."""
