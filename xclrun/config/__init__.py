"""Typed config: schema, validation, and locations of the YAML files."""
