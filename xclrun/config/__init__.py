"""The typed config: its schema, which values are possible, where the YAML files lie."""
