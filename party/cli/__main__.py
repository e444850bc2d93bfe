"""The hospital's command line for `python -m party.cli`, as the systemd unit starts it."""

from party.cli.command import main

if __name__ == "__main__":
    main()
