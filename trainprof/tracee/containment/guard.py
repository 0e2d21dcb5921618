"""What keeps a replaced function like the plain one, and a fault of ours from doing harm."""

from __future__ import annotations

import errno
import functools
import os
from _thread import get_ident
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar, cast

from trainprof.probes.patcher import hide_our_frame
from trainprof.tracee.containment.tree import NotAPath

REFUSED: Final = "trainprof could not keep this write from the user's files"
# The script's, wherever it meets them.
LIMITS: Final = (RecursionError, MemoryError)
PATH_NAMES: Final = ("path", "src", "dst", "file")

# Files of ours in which only the system objects to arguments.
CALLING_THE_SYSTEM: Final = ("functions.py", "guard.py")

Method = TypeVar("Method", bound=Callable[..., Any])


class Guarded(Protocol):
    """What has replaced functions as methods.

    Attributes:
        passing: Threads that are telling of a fault: they get the plain functions.
        report: Takes a fault of ours.
    """

    passing: set[int]

    def report(self, error: BaseException) -> None: ...


def replaces(
    plain: Callable[..., Any], *, paths: int = 1, writes: bool = True
) -> Callable[[Method], Method]:
    """Makes a method behave like the function that it replaces.

    Its errors name the paths as they were given, and have no frame of ours. After a fault of ours
    the plain function is called where it only reads; else the script gets an error: the trial may
    fail, the user's files may not change.

    Args:
        plain: The original; it is called where the arguments are no paths, and says so.
        paths: How many of the first arguments are paths that its errors name.
        writes: It changes something.
    """

    def decorate(method: Method) -> Method:
        def call(self: Guarded, *args: Any, **kwargs: Any) -> Any:
            try:
                if self.passing and get_ident() in self.passing:
                    return plain(*args, **kwargs)
                try:
                    return method(self, *args, **kwargs)
                except NotAPath:
                    pass
                except OSError as error:
                    _name_as_given(error, args, kwargs, paths)
                    if error.__traceback__ is not None:
                        error.__traceback__.tb_next = None
                    raise
                except Exception as error:
                    if not _is_wrong_call(error):
                        if isinstance(error, LIMITS) or not _is_ours(error):
                            raise
                        self.report(error)
                        if writes:
                            raise OSError(errno.EROFS, REFUSED, *args[:1]) from None
                return plain(*args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise

        functools.update_wrapper(call, method)
        call.__doc__ = plain.__doc__
        return cast(Method, call)

    return decorate


def reads(plain: Callable[..., Any]) -> Callable[[Method], Method]:
    return replaces(plain, writes=False)


def path_text(path: Any) -> str:
    """Returns a path as text.

    Raises:
        NotAPath: If the system would refuse it.
    """
    if type(path) is str:
        text = path
    elif isinstance(path, int):
        raise NotAPath
    else:
        try:
            text = os.fsdecode(path)
        except Exception:
            raise NotAPath from None
    if not text.isascii():
        try:
            os.fsencode(text)
        except UnicodeEncodeError:
            raise NotAPath from None
    if "\0" in text or not text:
        raise NotAPath
    return text


def _is_wrong_call(error: BaseException) -> bool:
    """Whether the script called with arguments that the function does not have."""
    traceback = error.__traceback__
    return isinstance(error, TypeError) and traceback is not None and traceback.tb_next is None


def _is_ours(error: BaseException) -> bool:
    """Whether it was raised in our code below; else the system did not like an argument."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return True
    directory, name = os.path.split(traceback.tb_frame.f_code.co_filename)
    return name not in CALLING_THE_SYSTEM and directory == os.path.dirname(__file__)


def _name_as_given(
    error: OSError, args: tuple[Any, ...], kwargs: dict[str, Any], paths: int
) -> None:
    given = [*args[:paths], *(kwargs[name] for name in PATH_NAMES if name in kwargs)][:paths]
    if paths == 0:
        error.filename = None
    if error.filename is None or not given:
        return
    error.filename = _shown(given[0])
    if len(given) == 2:
        error.filename2 = _shown(given[1])


def _shown(path: Any) -> Any:
    return path if isinstance(path, (int, str, bytes)) else os.fspath(path)
