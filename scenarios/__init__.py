"""Scenarios: schema, units, names resolved to YAML files."""
