"""`paddock --version`."""

from importlib.metadata import PackageNotFoundError, version


def main(argv: list[str]) -> int:
    """Prints the installed version."""
    del argv
    try:
        found = version("paddock-launcher")
    except PackageNotFoundError:
        found = "unknown (not installed)"
    print(f"paddock {found}")
    return 0
