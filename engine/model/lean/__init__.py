"""The lean forward pass of Llama-shaped decoders on the CPU."""
