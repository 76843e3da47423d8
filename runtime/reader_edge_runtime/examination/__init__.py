"""What keeps a machine, an installation or a package from running well: what `reader-edge doctor` tells.

machine/ looks at the surroundings with Python alone. steps/ loads engines and packages, in a process of its own.
"""
