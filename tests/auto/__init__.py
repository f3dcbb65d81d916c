"""`strategy="auto"`: by itself, and for a Keras model."""
