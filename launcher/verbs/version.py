"""`paddock --version`."""

from importlib.metadata import PackageNotFoundError, version


def installed() -> str:
    """The installed version."""
    try:
        return version("paddock-launcher")
    except PackageNotFoundError:
        return "unknown (not installed)"


def main(argv: list[str]) -> int:
    """Prints the installed version."""
    del argv
    print(f"paddock {installed()}")
    return 0
