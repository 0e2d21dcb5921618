"""Settings from the command line: `epochs=1 learning_rate=0.01`, after nanoGPT's configurator."""

import sys


def override(settings, arguments):
    """Sets the dataclass's fields from `key=value` arguments, typed as their defaults are."""
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in vars(settings):
            sys.exit(f"no setting {key!r}; there are: {', '.join(vars(settings))}")
        setattr(settings, key, type(getattr(settings, key))(value))
    return settings
