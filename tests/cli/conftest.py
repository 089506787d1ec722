from __future__ import annotations

import pytest
from command_line import Outcome, Run

from tokentrail.cli import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("serve", "--port", "x")` in this process."""

    def call(*arguments: str) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        captured = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return call
