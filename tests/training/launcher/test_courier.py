"""Documents that launchers transfer between their nodes' snapshot processes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tests.support.limits import scaled
from training.launcher import courier
from training.launcher.courier import Courier
from training.launcher.messages import parse_message
from training.program.snapshots import mailbox
from training.program.snapshots.mailbox import MISSING, Mailbox
from training.storage import StorageUnavailable

LARGE = json.dumps({"digests": [f"{number:064x}" for number in range(2000)]}).encode()


class Pair:
    """A main node and a child, whose launchers take turns when the test calls them."""

    def __init__(self, folder: Path) -> None:
        for name in ("main", "child"):
            (folder / name).mkdir()
        self.main = Courier(folder / "main", is_main=True)
        self.child = Courier(folder / "child", is_main=False)
        self.main_box = Mailbox(folder / "main", is_main=True)
        self.child_box = Mailbox(folder / "child", is_main=False)
        self.sizes: list[int] = []
        """Messages that the child has sent."""

    def turn(self) -> None:
        for message in self.child.outgoing():
            line = json.dumps(message).encode()
            self.sizes.append(len(line))
            assert not list(self.child.outgoing()), "a part before the answer to the last one"
            answer = self.main.receive(1, parse_message(line))
            assert answer is not None
            self.child.receive(0, parse_message(json.dumps(answer).encode()))
        for message in self.main.outgoing():
            self.child.receive(0, parse_message(json.dumps(message).encode()))

    def keep(self, name: str, text: str = "{}") -> bool:
        """Send the main node a document of node 1; return whether it was accepted."""
        mail = {"type": "mail", "name": name, "text": text, "first": True, "last": True}
        answer = self.main.receive(1, parse_message(json.dumps(mail).encode()))
        assert answer is not None
        return bool(answer["ok"])

    def tell(self, document: bytes) -> threading.Thread:
        """Send a document from the child's process to the main node, and wait until it is sent."""
        telling = threading.Thread(
            target=self.child_box.send_to_main, args=("node-1-x.json", document)
        )
        telling.start()
        while not any(self.child._outbox.glob("*-x.json")):
            telling.join(0.01)
        return telling


def test_a_large_document_is_sent_in_parts_and_its_sender_waits_for_the_last(
    tmp_path: Path,
) -> None:
    pair = Pair(tmp_path)
    telling = pair.tell(LARGE)
    turns = 0
    while not list(pair.main_box.received.list()):
        assert telling.is_alive()
        pair.turn()
        turns += 1
    telling.join(scaled(5))

    assert not telling.is_alive()
    assert pair.main_box.received.get("node-1-x.json") == LARGE
    assert turns == len(pair.sizes) == -(-len(LARGE) // (16 * 1024))
    assert max(pair.sizes) < 32 * 1024


def test_a_document_the_main_node_cannot_store_is_sent_again_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "_RETRY_S", 0.0)
    pair = Pair(tmp_path)
    telling = pair.tell(LARGE)
    pair.turn()
    moved = pair.main._inbox.rename(tmp_path / "elsewhere")
    pair.turn()
    assert telling.is_alive()
    moved.rename(pair.main._inbox)
    while telling.is_alive():
        pair.turn()

    assert pair.main_box.received.get("node-1-x.json") == LARGE


def test_a_message_of_the_main_node_to_all_reaches_a_child_and_itself(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.main_box.send_to_all(MISSING, b'{"digests": []}')
    pair.turn()

    for box in (pair.main_box, pair.child_box):
        assert box.received.get(MISSING) == b'{"digests": []}'
    assert not list(pair.main.outgoing())


@pytest.mark.parametrize("name", ["../x.json", "/x.json", ".part-1", "x", ""])
def test_a_name_that_is_not_a_document_is_not_a_message(name: str) -> None:
    message = {"type": "mail", "name": name, "text": "", "first": True, "last": True}
    with pytest.raises(ValueError, match="is not the name of a document"):
        parse_message(json.dumps(message).encode())


def test_a_node_can_write_documents_only_under_its_own_name(tmp_path: Path) -> None:
    pair = Pair(tmp_path)

    assert pair.keep("node-1-x.json")
    for name in (MISSING, "node-11-x.json", "node-9999-000000000000001.json"):
        assert not pair.keep(name), name
    assert [info.key for info in pair.main_box.received.list()] == ["node-1-x.json"]


def test_unwritable_text_does_not_end_the_launcher_and_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = Pair(tmp_path)

    assert not any([pair.keep("node-1-x.json", "\udc80") for _ in range(3)])

    assert capsys.readouterr().out.count("could not be stored") == 1


class Cut(Exception):
    """Leave the sender no time."""


def test_a_sender_that_gives_up_does_not_block_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(tmp_path)
    name = "node-1-y.json"
    monkeypatch.setattr(mailbox, "_LIMIT_S", 0.0)
    with pytest.raises(StorageUnavailable, match=name):
        pair.child_box.send_to_main(name, LARGE)

    def cut() -> None:
        pair.turn()  # a part has been sent
        raise Cut

    with pytest.raises(Cut):
        pair.child_box.send_to_main(name, LARGE, cut)
    monkeypatch.undo()
    telling = pair.tell(b"{}")
    pair.turn()
    telling.join(scaled(5))

    assert pair.main_box.received.get("node-1-x.json") == b"{}"
    assert not list(pair.child._outbox.iterdir())
