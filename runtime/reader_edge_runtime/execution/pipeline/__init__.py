"""A model over several boxes: stages in a ring, of which the one who asks runs the last."""
