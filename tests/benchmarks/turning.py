"""A turn that leaves a line in a file, and then does as it is told on its command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    with Path(wanted["file"]).open("a") as file:
        file.write(f"{wanted['name']}\n")
    if wanted.get("hangs"):
        child = subprocess.Popen(["sleep", "600"])
        Path(wanted["file"]).with_suffix(".pid").write_text(str(child.pid))
        child.wait()
    if "code" in wanted:
        sys.stderr.write("the reason\n")
        sys.exit(wanted["code"])
    sys.stdout.write(json.dumps(wanted["figures"]) + "\n")
