"""A model over several boxes: stages in a ring, of which the client runs the last."""
