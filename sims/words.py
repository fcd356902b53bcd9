"""Words for numbers, and sentences that are said in several places, wherever a person reads them."""


def counted(number: int, noun: str) -> str:
    """The number with its noun: 1 sum, 3 sums."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# Why a sum without noise is not private.
EXACT_TOTAL = "the total is exact, and whoever knows all other inputs knows the last one"
