"""Tables in and out for `reader-edge series`, plots, and the bundled model."""
