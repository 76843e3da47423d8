"""Numbers of a command line, separated by commas."""


def number_list(text: str) -> list[int]:
    return list(map(int, text.split(",")))
