"""`python -m refold` is `refold`."""

from refold.cli.main import app

if __name__ == "__main__":
    app()
