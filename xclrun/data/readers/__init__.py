"""One reader for each layout of public data."""
