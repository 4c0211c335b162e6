"""What a call returns is one line in a shell and in a notebook, whatever it holds."""

from pathlib import Path

from aftermind import Memory, Message, Settings

LONGEST = 250


async def test_what_calls_return_is_shown_in_a_line(tmp_path: Path) -> None:
    quick = Settings(
        state_dir=tmp_path, embedder="hash", extractor="rules", extract_quiet_seconds=0, summary_quiet_seconds=0
    )
    async with Memory("inmemory", settings=quick) as memory:
        turns = [
            Message.user(f"My name is Ann, I live in Oslo and I like tea number {n}. {'x' * 500}") for n in range(20)
        ]
        await memory.remember(turns, user_id="ann", session_id="s1")
        await memory.drain(user_id="ann", timeout=60)
        block = await memory.blocks.set("todo", "buy milk " * 100, user_id="ann")
        graph = await memory.facts.graph("user", user_id="ann")
        export = await memory.export(user_id="ann")
        recalled = await memory.recall("Where do I live?", user_id="ann")
        explained = await memory.explain("Where do I live?", user_id="ann")
        forgot = await memory.forget(user_id="ann", prove=True)

    assert forgot.proof is not None
    shown = [block, graph, export, recalled, explained, forgot, forgot.proof, forgot.proof.after, *export.facts[:1]]
    assert {type(each).__name__: len(repr(each)) for each in shown if len(repr(each)) > LONGEST} == {}
    assert "version 1: 'buy milk buy" in repr(block)
    assert "<FactGraph 'user': " in repr(graph)
    assert "<Export of 'ann': 20 episodes" in repr(export)
    assert "after <ErasureReport nothing remains" in repr(forgot)
