"""A folder of configuration as kubelet mounts a ConfigMap, for tests of what follows its changes."""

from __future__ import annotations

import shutil
from pathlib import Path


class MountedFolder:
    """Its names point into `..data`, a symbolic link that is swapped for another: all files change at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._versions = 0
        folder.mkdir()

    def put(self, **files: str) -> None:
        """Swap to these files (`pipelines` is `pipelines.yaml`)."""
        self._versions += 1
        version = self.folder / f"..2026_12_01_{self._versions}"
        version.mkdir()
        for name, text in files.items():
            (version / f"{name}.yaml").write_text(text)
        fresh = self.folder / "..data_tmp"
        fresh.symlink_to(version.name)
        before = (self.folder / "..data").resolve() if (self.folder / "..data").exists() else None
        fresh.rename(self.folder / "..data")
        for name in files:
            link = self.folder / f"{name}.yaml"
            if not link.is_symlink():
                link.symlink_to(f"..data/{name}.yaml")
        for link in self.folder.glob("*.yaml"):
            if link.stem not in files:
                link.unlink()
        if before is not None:
            shutil.rmtree(before)
