"""From a model's source to a checked runner."""
