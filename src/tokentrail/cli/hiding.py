"""Keys on a command line, taken out of what `ps` shows to everybody on the machine."""

from __future__ import annotations

from pathlib import Path

FLAG = b"--api-key"


def hide_keys() -> bool:
    """Write over the values of `--api-key` in this process's command line, where Linux keeps it: in the process's own
    memory. Until then, for the moment in which Python starts, they can be seen. False: there are some, and they could
    not be hidden.
    """
    try:
        line = Path("/proc/self/cmdline").read_bytes()
    except OSError:
        return False
    spans = secret_spans(line)
    if not spans:
        return True
    try:
        # proc_pid_stat(5): the name in parentheses may hold spaces; arg_start is the 48th field.
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start = int(fields[48 - 3])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            if memory.read(len(line)) != line:
                return False
            for first, end in spans:
                memory.seek(start + first)
                memory.write(b"*" * (end - first))
    except (OSError, ValueError, IndexError):
        return False
    return not secret_spans(Path("/proc/self/cmdline").read_bytes())


def secret_spans(line: bytes) -> list[tuple[int, int]]:
    """Where in a command line (words that end with NUL) keys stand that are not hidden: behind the flag, up to the next
    flag, and in `--api-key=KEY`.
    """
    spans: list[tuple[int, int]] = []
    at, behind = 0, False
    for word in line.split(b"\0"):
        end = at + len(word)
        if word.startswith(FLAG + b"="):
            spans.append((at + len(FLAG) + 1, end))
            behind = True
        elif word.startswith(b"-"):
            behind = word == FLAG
        elif behind:
            spans.append((at, end))
        at = end + 1
    return [(first, end) for first, end in spans if line[first:end].strip(b"*")]
