"""Machines: the protocol, and the worlds that implement it."""
