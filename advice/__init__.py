"""Which system to build or to switch on for a device, a model and a use: a search over scenarios, and what its results
say."""
