"""What `reader-edge datastore` does."""
