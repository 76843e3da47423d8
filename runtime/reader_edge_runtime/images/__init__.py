"""From an image to the inputs of a vision tower, and to the text that stands for it."""
