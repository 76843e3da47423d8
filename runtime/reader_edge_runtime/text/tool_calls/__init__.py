"""Tool calls: the forms in which models write them, read as they come, and what may come next in one."""
