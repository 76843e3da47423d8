"""Follows grammars in processes of their own, which the system bounds in time and memory; see grammar.py.

A program of its own, run as `python -m grammar_worker`: it imports nothing of this project outside this folder. It
reads a tokenizer, then forks a process for each grammar, so that no grammar waits for a tokenizer, and none ends with
another. A grammar is a program from outside: a line of a regular expression can ask for more states than there is
memory, and nothing stops it inside a process.

Messages (channel.py) are lists of int32, or texts, a length before each. From the process of a grammar: its number. To
it: the grammar as JSON, then messages whose first number says what they ask. From it, for the grammar and for each
message: what is wrong (empty for nothing) and, if nothing is, the reply. To the process that forks: a descriptor for
each grammar, or the number of a process, whose end it then tells.
"""
