"""A wrong value in the sentence that refuses it."""


def shown(value: object) -> str:
    """The beginning of its `repr`."""
    try:
        return f"{value!r:.80}"
    except (ValueError, RecursionError):  # Python shows no number of more than 4300 digits
        return "too long to show"
    except Exception:  # an object of somebody else's
        return f"a {type(value).__name__} that cannot be shown"
