"""The command from its first moment on: what it imports takes a tenth of a second, and Ctrl-C is quiet then too."""

import gc
import os
import signal
import threading

from kvferry.system.garbage import YOUNG


def main() -> None:
    """Run the command and leave with its exit code, as ``kvferry.cli.main`` does."""
    gc.set_threshold(YOUNG)
    # Pydantic would look through every package that is installed for one that watches its models.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Nothing is begun yet: the signal itself may end the process, where Python would show a stack trace. One that is
    # ignored stays so.
    quiet = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if quiet:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kvferry.cli.main import main as carry_out

    if quiet:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    carry_out()
