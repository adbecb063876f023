"""Plausible mistakes, each of which a test must find."""
