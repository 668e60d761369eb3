"""The generic forward pass: any supported transformers model."""
