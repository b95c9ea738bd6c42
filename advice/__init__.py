"""Finds which system to build or to switch on for a device, a model and a use, by a search over scenarios."""
