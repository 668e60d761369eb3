"""`python -m gateway.cli` is the command `pcg`."""

from gateway.cli.main import main

if __name__ == "__main__":
    main()
