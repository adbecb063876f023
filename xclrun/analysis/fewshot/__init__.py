"""Analysis of few-shot transfer runs, which adapt to buckets. docs/glossary.md."""
