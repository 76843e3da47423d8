"""Tool calls: the notations in which models write them, their parsers, and which tokens may come next in one."""
