"""What the model is asked: prompt types, canonical text, rendering to token ids. Pure Python."""
