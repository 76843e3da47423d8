"""Everything hot, compiled, over flat arrays: the seam at which a native extension can take numba's place.

Entry points (the others are their parts):
    counts.learn, unlearn, relocate, move_keys    what followed which tokens
    successors.learn                              what the target thought likely after which tokens
    datastore.find, narrow, successors            look-ups in a corpus
    tree.draft, learning.observe                  the best tree for a text; learn how the text went on
"""
