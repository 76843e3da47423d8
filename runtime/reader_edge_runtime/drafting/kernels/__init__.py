"""The hot code of drafting over flat arrays: Python that is called as machine code (kernel.py).

Entry points:
    counts.learn, unlearn, relocate, move_keys    what followed which tokens
    successors.learn                              what the target thought likely after which tokens
    datastore.find, narrow, successors            look-ups in a corpus
    tree.draft, learning.observe                  the best tree for a text; learn how the text went on
"""
