"""A second reading of a source: its module computed by other code than transformers'."""
