"""Few-shot transfer: what only the runs that adapt to buckets have. docs/glossary.md."""
