"""The face of the lossy wing: tasks whose answers can be checked, and what rules do to them."""
