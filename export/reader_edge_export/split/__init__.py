"""A package cut into stages, each of them a package for a box of its own."""
