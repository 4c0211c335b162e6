"""Chats made of dialogues: the same every time, and nothing of the evidence lost."""

from benchmarks.perturbed import PART, perturb

TALK = {
    "id": "c1",
    "questions": [],
    "sessions": [
        {
            "n": 1,
            "turns": [
                {
                    "id": f"D1:{number}",
                    "speaker": "Melanie" if number % 2 else "Ann",
                    "text": "Hello Melanie, how was the pottery class? It was wonderful, and I made a big blue bowl.",
                }
                for number in range(40)
            ],
        }
    ],
}


def test_a_seed_gives_the_same_chat_and_another_seed_another() -> None:
    assert perturb(TALK, 1) == perturb(TALK, 1)
    assert perturb(TALK, 1) != perturb(TALK, 2)


def test_every_turn_is_there_and_its_parts_lead_to_it() -> None:
    messages = perturb(TALK, 1)["sessions"][0]["turns"]
    ids = [message["id"] for message in messages]

    assert len(ids) == len(set(ids))
    assert {id_.partition(PART)[0] for id_ in ids} == {f"D1:{number}" for number in range(40)}
    assert len(ids) > 60, "turns are split"
    assert not any("Melanie" in message["text"] for message in messages), "nicknames"
