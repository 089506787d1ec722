from __future__ import annotations

import pytest

from tokentrail.cli.units import Lengths, format_size, parse_count, parse_lengths, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("2GiB", 2 * 2**30),
        ("2gib", 2 * 2**30),
        ("2G", 2 * 2**30),
        ("2GB", 2 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1.5 GiB", 3 * 2**29),
        ("64kb", 64_000),
        ("100b", 100),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "2XB", "1e9", "0", "2 GiB extra", "nan"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("8192", 8192), ("8k", 8000), ("8K", 8192), ("1m", 10**6), ("1M", 2**20), ("0.5K", 512)],
)
def test_counts_as_vllm_reads_them(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "k", "8.5", "-2", "0", "8kk", "0x10"])
def test_counts_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        parse_count(text)


def test_lengths() -> None:
    assert parse_lengths("128") == Lengths(128, 128)
    assert parse_lengths("64-256") == Lengths(64, 256)
    assert str(Lengths(64, 256)) == "64-256"
    for text in ("0", "5-3", "a", "1-2-3", ""):
        with pytest.raises(ValueError, match="length"):
            parse_lengths(text)


def test_format_size() -> None:
    assert format_size(0) == "0 B"
    assert format_size(1536) == "1.5 KiB"
    assert format_size(98.45 * 2**20) == "98.5 MiB"
    assert format_size(140 * 2**30) == "140 GiB"
    assert format_size(3 * 2**40) == "3 TiB"
