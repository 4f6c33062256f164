"""The programme of the small interpreter that makes jails for git: `python -I -S helper.py FUNCTION DESCRIPTOR PARENT`.

FUNCTION is one of `launcher.jail.confined`. Started by path, because `-I` knows no other directory than Python's own.
"""

import sys


def main() -> int:
    """Runs the function; returns the exit status."""
    sys.path.insert(0, __file__.rpartition("/")[0].rpartition("/")[0])
    from launcher import start

    # The finder of `launcher.start` halves the time to import what a jail is made of.
    sys.meta_path.insert(0, start.CompiledModules)
    from launcher.jail import confined

    function, descriptor, parent = sys.argv[1:]
    return {"main": confined.main, "serve": confined.serve}[function](int(descriptor), int(parent))


if __name__ == "__main__":
    sys.exit(main())
