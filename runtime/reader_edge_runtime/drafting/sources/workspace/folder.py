"""Which files of a folder are drafted from: text that git would track, and no secrets. Its content is hostile."""

import os
import re
import stat
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.untrusted.user_input import as_text

MAX_FILE_BYTES = 1 << 20
MAX_ENTRIES = 200_000  # files and folders that are looked at
_PACED = 256  # of them, after which others get their turn
_MAX_RULES_BYTES = 1 << 16
_MAX_RULES = 2000
_MAX_STARS = 3  # of a rule: an expression of more may take hours to match
_MAX_STARRED = 100  # rules of so many: each may take milliseconds; those behind have one star less
_MAX_PATH, _MAX_DEPTH = 400, 32  # characters and folders of a path, for the same reason

# Who shares the server must not find them out by what is drafted fast.
_SECRETS = GitIgnoreSpec.from_lines(
    (
        *(".env", ".env.*", "!.env.example", "!.env.sample", "!.env.template", "*.pem", "*.key", "*.p12", "*.pfx"),
        *("*.jks", "*.keystore", "*.kdbx", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".netrc", ".npmrc"),
        *(".pypirc", ".git-credentials", ".htpasswd", ".pgpass", "credentials", "credentials.*", "secrets.*"),
        *("*.tfstate", "*.tfvars", ".ssh/", ".aws/", ".azure/", ".gnupg/", ".kube/", ".docker/"),
    ),
    backend="simple",
)
# By these, a link or a pipe that has come since it was listed does no harm.
_GUARDS = ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
_OPEN_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in _GUARDS)


class FileStamp(NamedTuple):
    """What tells that a file has changed. changed_ns: its time of modification. number: its inode."""

    changed_ns: int
    num_bytes: int
    number: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileStamp":
        return cls(status.st_mtime_ns, status.st_size, status.st_ino)


class _Rules(NamedTuple):
    """Those of one .gitignore. base: length of its folder's path, with the slash behind it."""

    base: int
    spec: GitIgnoreSpec


class WorkspaceFolder:
    """A folder, and what git ignores in it. Paths begin at the repository's top, else at the folder, and have slashes.

    left_out: how many files of the last scan were, by the reason. Raises ConfigError.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise ConfigError(f"There is no folder '{path}' to draft from: name the folder of your files.")
        root = path.resolve()
        self._top = next((each for each in (root, *root.parents) if (each / ".git").exists()), root)
        inner = root.relative_to(self._top).as_posix()
        self._start = "" if inner == "." else f"{inner}/"
        self._rules: dict[str, tuple[FileStamp, _Rules]] = {}  # by path of the file that has them
        self._verdicts: dict[str, bool] = {}  # whether what has this path is ignored
        self.left_out: Counter[str] = Counter()

    def scan(self, pace: Callable[[], None]) -> dict[str, FileStamp]:
        """The files there are, by path, from the outermost folder on. pace: called often, may take its time."""
        self.left_out = Counter()
        if len(self._verdicts) > 2 * MAX_ENTRIES or len(self._rules) > MAX_ENTRIES:  # most of what is gone
            self._verdicts.clear()
            self._rules.clear()
        found: dict[str, FileStamp] = {}
        waiting, room = deque([(self._start, self._rules_above())]), MAX_ENTRIES
        while waiting and room > 0:
            folder, above = waiting.popleft()
            entries = list(self._listed(folder, room))
            room -= len(entries)
            own = self._rules_in(f"{folder}.gitignore")
            rules = above if own is None else (*above, own)
            for number, entry in enumerate(entries):
                if number % _PACED == 0:
                    pace()
                path = folder + entry.name
                is_far = len(path) > _MAX_PATH or path.count("/") > _MAX_DEPTH
                if entry.name == ".git" or is_far or (status := _status(entry)) is None:
                    continue
                if stat.S_ISDIR(status.st_mode) and not self._is_ignored(f"{path}/", rules, pace):
                    waiting.append((f"{path}/", rules))
                elif stat.S_ISREG(status.st_mode) and status.st_size and not self._is_ignored(path, rules, pace):
                    if status.st_size > MAX_FILE_BYTES:
                        self.left_out["above 1 MiB"] += 1
                    else:
                        found[path] = FileStamp.of(status)
        if waiting:
            self.left_out[f"folders behind the first {MAX_ENTRIES:,} files"] = len(waiting)
        return found

    def read(self, path: str) -> str | None:
        """A file's text; None where it is none, or no longer what was found."""
        data = self._bytes_of(path, MAX_FILE_BYTES)
        if data is None or b"\0" in data:
            return None
        try:
            return as_text(data)
        except UnicodeDecodeError:
            return None

    def _listed(self, folder: str, room: int) -> Iterator["os.DirEntry[str]"]:
        with suppress(OSError), os.scandir(self._top / folder) as entries:  # it may be gone, or not for us
            yield from islice(entries, room)

    def _rules_above(self) -> tuple[_Rules, ...]:
        """Those that hold for the whole folder, the outermost first."""
        folders = self._start.split("/")[:-1]
        ends = ("/".join((*folders[:depth], ".gitignore")) for depth in range(len(folders)))
        return tuple(rules for path in (".git/info/exclude", *ends) if (rules := self._rules_in(path)) is not None)

    def _rules_in(self, path: str) -> _Rules | None:
        """The rules of an ignore file, read again when it has changed; then all verdicts are out of date."""
        known = self._rules.get(path)
        try:
            stamp = FileStamp.of(os.lstat(self._top / path))
        except OSError:
            if self._rules.pop(path, None) is not None:
                self._verdicts.clear()
            return None
        if known is None or known[0] != stamp:
            base = 0 if path.startswith(".git/") else len(path) - len(".gitignore")
            data = self._bytes_of(path, _MAX_RULES_BYTES)
            lines = [] if data is None else data.decode("utf-8", "replace").splitlines()
            is_bounded = data is not None and len(lines) <= _MAX_RULES
            known = self._rules[path] = stamp, _Rules(base, _spec(lines if is_bounded else ["*"]))
            self._verdicts.clear()
        return known[1]

    def _is_ignored(self, path: str, rules: tuple[_Rules, ...], pace: Callable[[], None]) -> bool:
        verdict = self._verdicts.get(path)
        if verdict is None:
            verdict = self._verdicts[path] = _SECRETS.match_file(path) or _matched(path, rules, pace)
        return verdict

    def _bytes_of(self, path: str, max_bytes: int) -> bytes | None:
        """What a regular file holds; None for anything else, and for what is larger."""
        try:
            descriptor = os.open(self._top / path, _OPEN_FLAGS)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
                return None
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(max_bytes + 1)
            return data if len(data) <= max_bytes else None
        except OSError:
            return None
        finally:
            os.close(descriptor)


def _status(entry: "os.DirEntry[str]") -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:
        return None


def _spec(rules: Sequence[str]) -> GitIgnoreSpec:
    patterns, num_starred = [], 0
    for rule in rules:
        num_starred += len(re.findall(r"\*+", rule)) >= _MAX_STARS
        with suppress(Exception):  # whatever it has against a rule that git would not take either
            patterns.append(GitIgnoreSpecPattern(_bounded(rule, _MAX_STARS - (num_starred > _MAX_STARRED))))
    return GitIgnoreSpec(patterns, backend="simple")


def _bounded(rule: str, max_stars: int) -> str:
    """A rule of no more than so many stars; of one with more its beginning, which leaves out no less."""
    parts = re.split(r"(\*+)", rule)
    if len(parts) // 2 <= max_stars:
        return rule
    return "" if rule.startswith("!") else "".join(parts[: 2 * max_stars])


def _matched(path: str, rules: tuple[_Rules, ...], pace: Callable[[], None]) -> bool:
    """Whether git ignores it: the innermost file that has a rule for it decides."""
    for base, spec in reversed(rules):
        if len(spec) > _PACED:  # so many rules take seconds, where they are made to
            pace()
        is_ignored = spec.check_file(path[base:]).include
        if is_ignored is not None:
            return is_ignored
    return False
