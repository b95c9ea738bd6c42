"""Recorded and generated inputs that vary over time or content."""
