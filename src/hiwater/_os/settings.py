"""Settings outside the command line: `HIWATER_*`, then `[tool.hiwater]` of the nearest pyproject.toml."""

from __future__ import annotations

import os

import hiwater
from hiwater._os import trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_ENVIRONMENT_PREFIX = "HIWATER_"
_PROJECT_FILE = "pyproject.toml"
_TABLE = b"[tool.hiwater]"
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


class Settings:
    """Looks settings up in the order of precedence. The project's file is read once, and parsed only if it has our
    table."""

    def __init__(self, environment: Mapping[str, str], folder: str | None, marked: bytes = _TABLE) -> None:
        """Use `environment`, and the nearest pyproject.toml from `folder` upwards (None: no file), if it contains
        `marked`."""
        self._environment = environment
        self.file, self._table = _read_project(folder, marked)

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return the setting `name`, or `default`. Raises UsageError when it is set to something other than text."""
        value = self._find(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise hiwater.errors.UsageError(f"{name} in {self.file!r} is {value!r}", "write it as text, in quotes")
        return value

    def path(self, name: str) -> str | None:
        """Return the path in the setting `name`: in a file, relative to the file's folder. Raises UsageError as
        `text` does."""
        value = self.text(name)
        is_from_file = value is not None and not self._environment.get(_ENVIRONMENT_PREFIX + name.upper())
        return os.path.join(os.path.dirname(self.file), value or "") if is_from_file else value

    def flag(self, name: str, default: bool) -> bool:
        """Return the setting `name`, or `default`. Raises UsageError when it is neither yes nor no."""
        value = self._find(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        word = str(value).lower()
        if word not in _TRUE | _FALSE:
            raise hiwater.errors.UsageError(
                f"the setting {name} is {value!r}", "write 1 or 0 in the environment, true or false in the file"
            )
        return word in _TRUE

    def names(self, name: str) -> list[str]:
        """Return the names in the setting `name`: text with commas in the environment, a list in the file. Raises
        UsageError for anything else."""
        value = self._find(name) or []
        found = value.replace(",", " ").split() if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise hiwater.errors.UsageError(
                f"{name} in {self.file!r} is {value!r}", f'write a list of names: {name} = ["shop"]'
            )
        return found

    def table(self, name: str) -> dict[str, object]:
        """Return the table `[tool.hiwater.NAME]` of the file, empty if there is none. Raises UsageError when it is
        something else."""
        value = self._table.get(name, {})
        if not isinstance(value, dict):
            raise hiwater.errors.UsageError(f"{name} in {self.file!r} is not a table", f"write [tool.hiwater.{name}]")
        return value

    def _find(self, name: str) -> object:
        from_environment = self._environment.get(_ENVIRONMENT_PREFIX + name.upper())
        return from_environment or self._table.get(name)


def here(marked: bytes = _TABLE) -> Settings:
    """Return the settings for this process in its current folder. A file without `marked` has none: it is not
    parsed."""
    # To know whether to obey the environment, two files of the kernel are read: only if there is something to obey.
    has_some = any(name.startswith(_ENVIRONMENT_PREFIX) for name in os.environ)
    environment: Mapping[str, str] = os.environ if has_some and trust.obeys_environment() else {}
    try:
        folder = os.getcwd()
    except OSError:
        return Settings(environment, None, marked)
    return Settings(environment, folder, marked)


def _read_project(folder: str | None, marked: bytes) -> tuple[str, dict[str, object]]:
    """The nearest file that is no other user's: in the folders above, as /tmp, anybody may have put one, and it can
    name programs to run. The current folder's owner may be another user, as where a container has its project
    mounted."""
    trusted = {0, trust.user_id(), *_owners(folder or ".")}
    while folder is not None:
        file = os.path.join(folder, _PROJECT_FILE)
        try:
            with open(trust.open_regular(file, follows=True), "rb") as stream:
                is_trusted = {os.lstat(file).st_uid, os.fstat(stream.fileno()).st_uid} <= trusted
                content = stream.read() if is_trusted else None
        except OSError:
            content = None
        if content is not None:
            return file, _parse_project(file, content, marked)
        parent = os.path.dirname(folder)
        folder = parent if parent != folder else None
    return "", {}


def _owners(folder: str) -> tuple[int, ...]:
    try:
        return (os.stat(folder).st_uid,)
    except OSError:
        return ()


def _parse_project(file: str, content: bytes, marked: bytes) -> dict[str, object]:
    if marked not in content:
        return {}
    import tomllib

    try:
        tools = tomllib.loads(content.decode()).get("tool")
    except (ValueError, RecursionError) as error:
        raise hiwater.errors.UsageError(
            f"[tool.hiwater] in {file!r} cannot be read ({error})", "correct the file"
        ) from error
    table = tools.get("hiwater", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise hiwater.errors.UsageError(
            f"tool.hiwater in {file!r} is not a table", "write [tool.hiwater] and a line for each setting"
        )
    return table
