"""Files made by Go's bbolt in all its forms, read by ours: the same keys and values."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.interop.bolt import Operation, kept_told, make, maker, operation, put, read_all, relay_file

from posthouse.errors import BadFile
from posthouse.relay.importing.bbolt import BoltFile

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return maker(tmp_path_factory.mktemp("bbolt"))


def busy(seed: int, transactions: int, each: int) -> list[list[Operation]]:
    """Puts, deletes and dropped buckets in three levels, with values up to a megabyte."""
    rng = random.Random(seed)
    sizes = (0, 1, 40, 300, 300, 300, 5_000, 70_000)
    made: list[list[Operation]] = []
    keys: list[tuple[tuple[bytes, ...], bytes]] = []
    for number in range(transactions):
        operations: list[Operation] = []
        for _ in range(each):
            path = tuple(f"b{rng.randrange(3)}".encode() for _ in range(rng.choice((1, 2, 2, 3))))
            if keys and rng.random() < 0.25:
                operations.append(operation("delete", *keys.pop(rng.randrange(len(keys)))))
                continue
            size = 1_000_000 if number == 3 and rng.random() < 0.01 else rng.choice(sizes)
            key = rng.randbytes(rng.choice((1, 16, 16, 200))) + b"k"
            operations.append(put(path, key, rng.randbytes(8) * (size // 8)))
            keys.append((path, key))
        if number and rng.random() < 0.3:
            operations += [operation("bucket", (b"gone", b"inner")), operation("drop", (b"gone",), b"inner")]
        made.append(operations)
    return made


@pytest.mark.parametrize("page_size", [1_024, 4_096, 16_384])
@pytest.mark.parametrize("map_free_list", [False, True])
def test_files_of_every_form_are_read_alike(program: Path, tmp_path: Path, page_size: int, map_free_list: bool) -> None:
    recipe: dict[str, Any] = {
        "page_size": page_size,
        "map_free_list": map_free_list,
        "transactions": busy(page_size + map_free_list, 12, 150),
    }
    told = make(program, tmp_path / "a.db", recipe)
    assert len(told) > 500
    with BoltFile(tmp_path / "a.db") as file:
        assert read_all(file) == told


def test_a_large_tree_is_read_in_order(program: Path, tmp_path: Path) -> None:
    rng = random.Random(7)
    keys = [rng.randbytes(16) for _ in range(30_000)]
    batches = [[put((b"queue", b"one"), key, key * 20) for key in keys[n : n + 5_000]] for n in range(0, 30_000, 5_000)]
    told = make(program, tmp_path / "a.db", {"page_size": 1_024, "transactions": batches})
    with BoltFile(tmp_path / "a.db") as file:
        assert read_all(file) == told
        queue = file.root.bucket(b"queue")
        one = None if queue is None else queue.bucket(b"one")
        assert one is not None
        assert [entry.key for entry in one] == sorted(keys)


def test_the_file_of_the_fast_tests_is_what_its_recipe_makes(program: Path, tmp_path: Path) -> None:
    assert make(program, tmp_path / "a.db", relay_file()) == kept_told()


def test_a_file_that_go_has_open_is_refused(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with subprocess.Popen(
        [str(program), str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"hold": True, "transactions": [[put((b"queue",), b"k", b"v")]]}) + "\n")
        process.stdin.flush()
        assert any("held" in line for line in iter(process.stdout.readline, ""))
        with pytest.raises(BadFile, match="another program has it open"):
            BoltFile(path)
        process.stdin.close()
        assert process.wait(30) == 0
    BoltFile(path).close()
