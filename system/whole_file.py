"""Files that appear under their names only when complete."""

import errno
import os
import secrets
from pathlib import Path

from kvferry.specs.errors import KvferryError


def write_file(path: Path, content: bytes) -> Path:
    """Write the whole file or nothing: readers see the old one or the new one, never a part.

    Folders are made where they are missing. Raises KvferryError, naming the file and the reason, when it cannot be
    written.
    """
    # Not the file's own name with something added, which might be longer than a name may be.
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            # Root would replace a device such as /dev/null for everybody.
            raise KvferryError(f"cannot write {path}: it is a device or a pipe; name a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # "x": never through a link or into a file that someone else put there.
            with open(partial, "xb") as file:
                file.write(content)
            os.replace(partial, path)
        finally:
            # Gone already when all went well; interrupted (Ctrl-C) or full, it must not stay behind.
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise KvferryError(f"cannot write {path}: {_reason(error)}") from error
    return path


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; free some space, or write to another folder"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "no permission to write there; write to another folder"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return "a part of this path is a file and not a folder; write to another folder"
    if error.errno == errno.ENAMETOOLONG:
        return "this name is longer than a file's may be; choose a shorter one"
    return error.strerror or str(error)
