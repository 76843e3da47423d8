"""The graph by which a model sees images: its tower and projector, traced and stored; the rules of its pixels."""
