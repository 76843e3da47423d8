"""What `launch` does: a server is found or started, and a coding agent is run on its model."""
