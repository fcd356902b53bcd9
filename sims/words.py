"""Words for numbers, wherever a person reads them."""


def counted(number: int, noun: str) -> str:
    """The number with its noun: 1 sum, 3 sums."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
