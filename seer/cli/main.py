"""From arguments to an exit code, and from an exception to one helpful line.

Exit codes: 0 done; 1 a stated threshold failed; 2 the command line or a spec is wrong; 3 a file is
unreadable; 4 the plan cannot run; 70 a defect of Seer; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from seer.errors import SeerError

DEFECT = 70
INTERRUPTED = 130
UNREADABLE = 3
"""As `UnreadableError`: standard output, a full disk for example, is a file as well."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; `argv` defaults to the process's arguments. Never raises."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        from seer.cli.app import command  # the schema of all commands costs 0.1 s to build
        from seer.cli.output import speak_unicode
        from seer.readers.files import keep_inputs

        speak_unicode(sys.stdout, sys.stderr)
        with keep_inputs():
            result = command().main(args=arguments, prog_name="seer", standalone_mode=False)
        sys.stdout.flush()
        if result == INTERRUPTED:  # the parser answers Ctrl-C with this code and no word
            return _say("interrupted", INTERRUPTED)
        return result if isinstance(result, int) else 0
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except (BrokenPipeError, SystemExit):  # the parser leaves when the reader of its output has
        return _reader_left()
    except OSError as error:
        if error.filename is not None:
            return _other(error, debug)
        _silence()
        return _say(f"error: the output cannot be written: {error.strerror or error}", UNREADABLE)
    except SeerError as error:
        if debug:
            _traceback()
        return _say(f"error: {error}", error.exit_code)
    except Exception as error:
        return _other(error, debug)


def _other(error: Exception, debug: bool) -> int:
    """Errors of the argument parser (they know how to tell themselves), and our own defects."""
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "seer"
        what = error.format_message().replace("Value error, ", "")  # how pydantic begins
        if not what:  # no command was given: its help is printed, and says all
            return 2
        return _say(f"error: {what}\n  try: {path} --help", 2)
    if type(error).__name__ == "Abort":
        return _say("interrupted", INTERRUPTED)
    if debug:
        _traceback()
    text = " ".join(str(error).split())[:200]
    hint = "" if debug else "; run it again with --debug for the traceback"
    what = f"error: this is a defect of Seer: {type(error).__name__}: {text}{hint}"
    return _say(what, DEFECT)


def _say(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code


def _traceback() -> None:
    import traceback

    traceback.print_exc()


def _reader_left() -> int:
    """The program that read our output is gone (`seer list | head -1`): that is no error."""
    _silence()
    return 0


def _silence() -> None:
    """Python flushes standard output once more at exit, which would fail again."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it is open until the end
