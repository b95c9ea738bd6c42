"""Metrics, tables, plots, timelines, and the comparison with the papers."""
