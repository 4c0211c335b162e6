"""The Python of a documentation page, run in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs/integrations"
# A busy machine must not change what an example shows.
UNHURRIED = {"AFTERMIND_RECALL_BUDGET_SECONDS": "30", "AFTERMIND_REMEMBER_BUDGET_SECONDS": "30"}


def run_examples(page: str, folder: Path) -> list[str]:
    """What each example of the page prints. Raises `AssertionError` for one that fails or prints nothing."""
    shown = []
    for code in re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
            cwd=folder,
            env=os.environ | UNHURRIED,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip(), code
        shown.append(done.stdout)
    return shown
