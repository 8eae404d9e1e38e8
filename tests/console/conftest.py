"""A folder for the command line to work in."""

# A fixture that is used by its name.
from tests.unit.cli.conftest import house  # noqa: F401
