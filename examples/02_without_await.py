"""The same without an event loop: `aftermind.sync` has every call, without `await`."""

from aftermind.sync import Memory

with Memory("inmemory") as memory:
    memory.remember("My dog is called Pixel.", user_id="alice").stored(timeout=10)

    for match in memory.recall_scored("What is my dog called?", user_id="alice"):
        print(f"{match.score:.2f}  {match.item}")
