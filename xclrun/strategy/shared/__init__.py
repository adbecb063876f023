"""What several strategies share: memory, Fisher information, parts of the model, adapters."""
