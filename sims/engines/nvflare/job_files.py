"""Which files a job may bring to a site: configuration, and no Python files to be loaded from."""

from __future__ import annotations

import io
import struct
from typing import Final
from zipfile import BadZipFile, ZipFile

from nvflare.apis.fl_constant import WorkspaceConstants

from sims.config_problems import shown

# NVFlare puts this directory of an unpacked job on the path of the job's process, and no other of it.
_CODE: Final = WorkspaceConstants.CUSTOM_FOLDER_NAME
_MOST_FILES: Final = 10_000
_MOST_BYTES: Final = 1 << 30  # of all files of a job, unpacked


def wrong_files(content: object) -> str | None:
    """Return what is wrong with the files of a job, or None. `content` is what NVFlare unpacks."""
    if type(content) is not bytes:
        return "the files of a job are no bytes"
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
    except (BadZipFile, ValueError, NotImplementedError, struct.error) as error:
        return f"the files of a job are no zip archive ({type(error).__name__})"
    if len(entries) > _MOST_FILES or sum(each.file_size for each in entries) > _MOST_BYTES:
        return f"a job has at most {_MOST_FILES} files and {_MOST_BYTES} bytes"
    code = next((each.filename for each in entries if _has_code(each.filename)), None)
    return None if code is None else f"a job may bring no code to this site, and has {shown(code)}"


def _has_code(name: str) -> bool:
    """Return whether a file is in a directory of code, or would be where upper case stands for lower case, or
    a backslash for "/"."""
    return any(part.casefold() == _CODE for part in name.replace("\\", "/").split("/"))
