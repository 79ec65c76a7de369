"""`python -m dcnr_app` is the same program as `dcnr-app`."""

from dcnr_app.cli.main import main

if __name__ == "__main__":
    main()
