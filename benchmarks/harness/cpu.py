"""CPU seconds of a run's processes, by group. They depend far less on the load of the machine than latencies do."""

import os
from collections.abc import Mapping
from contextlib import suppress

import psutil

OWN = "victim's agent and benchmark"  # the process that measures


class ProcessGroups:
    """Groups of processes by the process at their root; the others are its descendants. `roots` may change."""

    def __init__(self, roots: Mapping[str, int]) -> None:
        self.roots = dict(roots)

    def seconds(self) -> dict[str, float]:
        """CPU seconds so far. Processes that have ended count with their parents, a group without a root not at all.

        Processes with a lower priority than their root are a group of their own: they take what the others leave.
        """
        found = {OWN: _seconds(psutil.Process(os.getpid()), with_ended=False)}
        for name, root in self.roots.items():
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(root)
                for each in [process, *process.children(recursive=True)]:
                    with suppress(psutil.NoSuchProcess):
                        group = f"{name}, low priority" if each.nice() > process.nice() else name
                        found[group] = found.get(group, 0.0) + _seconds(each)
        return found

    def since(self, before: Mapping[str, float]) -> dict[str, float]:
        """CPU seconds of each group since an earlier call of `seconds`."""
        return {name: total - before.get(name, 0.0) for name, total in self.seconds().items()}


def _seconds(process: psutil.Process, *, with_ended: bool = True) -> float:
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        ended = times.children_user + times.children_system if with_ended else 0.0
        return float(times.user + times.system + ended)
    return 0.0
