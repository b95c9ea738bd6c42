"""A plugin of each kind, as ``kvferry new policy`` writes it under a name of the user's: examples to begin with."""
