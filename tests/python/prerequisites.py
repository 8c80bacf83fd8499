"""Tests that need what a machine may lack end with 77, which CTest shows as skipped."""
import sys
import unittest


def run_tests(*needs: tuple[bool, str]) -> None:
    """Runs the tests of the calling script, once each (is_missing, name of what) of `needs` is there."""
    for missing, what in needs:
        if missing:
            print(f"skipped: {what} is missing")
            sys.exit(77)
    unittest.main(verbosity=2)
