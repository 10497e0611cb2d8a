"""Libraries in the cache that are damaged, or that another user may have put there, are never loaded."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.kernels.cpu import compile, library
from slipstream.kernels.cpu.compile import Unavailable, build

CODE = 'extern "C" int answer() {{ return {}; }}'
needs_root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small source, with an empty cache."""
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.cpp"
    path.write_text(CODE.format(42))
    try:
        build(path)
    except Unavailable as error:
        pytest.skip(str(error))
    return path


def answer(path: Path) -> int:
    return int(ctypes.CDLL(str(path)).answer())


HARMS = {
    "empty": lambda data: b"",
    "cut": lambda data: data[:4096],
    "cut within the trailer": lambda data: data[:-1],
    "text": lambda data: b"not a library",
    "flipped": lambda data: data[:99] + bytes([data[99] ^ 1]) + data[100:],
    "longer": lambda data: data + b"\0",
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_library_is_compiled_again(source: Path, harm: str) -> None:
    path = build(source)
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(HARMS[harm](whole))
    assert build(source) == path
    assert library.is_intact(path)
    assert answer(path) == 42


def test_a_truncated_library_does_not_end_the_process(source: Path) -> None:
    path = build(source)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    code = (
        "import sys; from pathlib import Path; from slipstream.kernels.cpu import compile\n"
        "compile.function(compile.build(Path(sys.argv[1])), 'answer')\nprint('loaded')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(source)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "loaded\n"), done.stderr


def test_a_library_is_on_the_disk_before_it_has_its_name(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, calls = build(source), list[str]()
    path.unlink()
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append("fsync"), sync(file)))
    monkeypatch.setattr(os, "replace", lambda *names: (calls.append("replace"), replace(*names)))
    build(source)
    assert calls == ["fsync", "replace"]


def planted(source: Path) -> Path:
    """The library of `source`, replaced by whole one with other code."""
    other = source.with_name("other.cpp")
    other.write_text(CODE.format(666))
    os.replace(build(other), path := build(source))
    assert library.is_intact(path)
    return path


@needs_root
def test_the_library_of_another_user_is_compiled_again(source: Path) -> None:
    path = planted(source)
    os.chown(path, 12345, -1)
    assert answer(build(source)) == 42
    assert path.stat().st_uid == os.geteuid()


def test_a_library_that_others_can_write_to_is_compiled_again(source: Path) -> None:
    planted(source).chmod(0o757)
    assert answer(build(source)) == 42


@needs_root
@pytest.mark.parametrize("name", ["kernels", "."])
def test_nothing_is_loaded_from_the_folder_of_another_user(source: Path, name: str) -> None:
    folder = compile.folder() if name == "kernels" else compile.folder().parent
    os.chown(folder, 12345, -1)
    with pytest.raises(Unavailable, match=r"belongs to another user \(uid 12345\); set SLIPSTREAM_CACHE"):
        build(source)


def test_nothing_is_loaded_from_a_folder_that_others_can_write_to(source: Path) -> None:
    folder = compile.folder()
    for mode in (0o777, 0o1777):
        folder.chmod(mode)
        with pytest.raises(Unavailable, match=rf"other users can write to .*kernels \(mode {mode:o}\)"):
            build(source)
    folder.chmod(0o755)
    folder.parent.chmod(0o777)
    with pytest.raises(Unavailable, match=r"other users can write to .*cache \(mode 777\)"):
        build(source)
    folder.parent.chmod(0o1777)
    assert answer(build(source)) == 42, "in a sticky folder nobody can rename what belongs to others"


def test_a_group_may_write_if_it_is_the_users_own(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many systems give every user a group and make new files writable by it."""
    compile.folder().chmod(0o775)
    for private in (True, False):
        monkeypatch.setattr(library, "_is_private", lambda group, private=private: private)
        if private:
            assert answer(build(source)) == 42
        else:
            with pytest.raises(Unavailable, match="other users can write"):
                build(source)


def test_new_folders_and_libraries_are_safe_whatever_the_umask(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(source.parent / "a" / "b"))
    before = os.umask(0)
    try:
        assert answer(build(source)) == 42
        assert build(source).stat().st_mode & 0o777 == 0o755
    finally:
        os.umask(before)


def test_a_cache_that_cannot_be_written_is_the_reason(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE", "/dev/null/cache")
    with pytest.raises(Unavailable, match=r"/dev/null/cache/kernels cannot be used \(Not a directory\)"):
        build(source)
