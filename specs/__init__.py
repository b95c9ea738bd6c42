"""Records, units and errors that all other packages use."""
