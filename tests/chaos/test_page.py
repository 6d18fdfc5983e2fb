"""The run that the page shows is one: it ends by itself and finds nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "chaos.md"


@pytest.mark.long
@pytest.mark.timeout(240)
def test_the_run_of_the_page_finds_every_invariant_kept(tmp_path: Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    script = tmp_path / "run_of_the_page.py"
    script.write_text(source, "utf-8")
    finished = subprocess.run([sys.executable, script], capture_output=True, timeout=220, check=False, text=True)
    assert finished.returncode == 0, finished.stderr
    assert "every invariant holds" in finished.stdout
    assert finished.stdout.startswith("seed 7: ")
