"""Everything hot, compiled, over flat arrays: the seam at which a native extension can take numba's place.

Entry points (the others are their parts):
    counts.learn, counts.unlearn, counts.move_keys   what followed which tokens
    request.new_request                              a request's arrays as one argument of the others
    tree.draft                                       the best tree for a text so far
    learning.observe                                 learn from what the target said, and go on with it
"""
