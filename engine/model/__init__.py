"""The only package that imports torch: loading, running and sampling the model."""
