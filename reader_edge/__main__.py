"""`python -m reader_edge`."""

from reader_edge.cli import main

if __name__ == "__main__":
    main(prog_name="reader-edge")
