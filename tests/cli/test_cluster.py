"""flyball cluster: a cluster is created, used, described, and one of its nodes is emptied."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from flyball import Message, connect
from flyball.cli import main

GUARD_S = 60.0


def flyball(*arguments: object) -> tuple[int, str, str]:
    """Run the command in this process: exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        main(["cluster", *map(str, arguments)])
    return int(end.value.code or 0), out.getvalue(), err.getvalue()


def document(*arguments: object) -> Any:
    code, out, err = flyball(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.fixture
def store(tmp_path: Path) -> str:
    store = f"sqlite:///{tmp_path}/cluster.db"
    nodes = [f"--node={name}=sqlite:///{tmp_path}/{name}.db" for name in "ab"]
    code, _, err = flyball("create", store, "shop", "--queue=orders", "--capacity=b=50", *nodes)
    assert (code, err) == (0, f"cluster shop has 2 nodes; use it as cluster://shop?store={store}\n")
    return store


def test_a_cluster_without_a_manager_says_so(store: str) -> None:
    assert flyball("status", store, "shop")[2] == (
        "cluster shop has had no manager yet: start a program that uses it\n"
    )
    code, out, _ = flyball("describe", store, "shop")
    assert code == 0
    assert out.startswith(
        "shop: the queue orders on 2 nodes, manager none, mode on; a client is gone after 6 s of s"
    )
    nodes = document("describe", store, "shop")["nodes"]
    assert [(node["node"], node["capacity"]) for node in nodes] == [("a", None), ("b", 50)]
    assert "no manager now" in flyball("drain", store, "shop", "b")[2]
    assert document("describe", store, "shop")["drains"] == ["b"]
    assert flyball("resume", store, "shop", "b")[2] == "b gets clients again\n"
    assert document("describe", store, "shop")["drains"] == []


def test_clients_messages_and_decisions_are_shown_and_a_node_is_emptied(store: str) -> None:
    async def until(verdicts: dict[str, str]) -> Any:
        async with asyncio.timeout(GUARD_S):
            while True:
                found = await asyncio.to_thread(document, "status", store, "shop")
                if {node["node"]: node["verdict"] for node in found["nodes"]} == verdicts:
                    return found
                await asyncio.sleep(0.1)

    async def scenario() -> None:
        async with await connect(f"cluster://shop?store={store}") as broker:
            senders = [await broker.sender("orders") for _ in range(2)]
            for sender in senders:
                await sender.send_batch([Message(b"x") for _ in range(10)])
            found = await until({"a": "serves", "b": "serves"})
            assert [(node["producers"], node["x"]) for node in found["nodes"]] == [(1, 0.5), (1, 0.5)]
            assert found["manager"] is not None
            assert [node["capacity"] for node in found["nodes"]] == [None, 50]
            assert found["nodes"][0]["estimate"].endswith("of 12 samples at full load")
            assert found["nodes"][1]["estimate"] == "configured"
            await asyncio.to_thread(flyball, "drain", store, "shop", "b")
            found = await until({"a": "serves", "b": "empty: it can be maintained"})
            assert [node["messages"] for node in found["nodes"]] == [20, 0]
            code, out, _ = await asyncio.to_thread(flyball, "describe", store, "shop")
            assert code == 0
            assert "b is to be free for maintenance: 10 messages move to other nodes" in out
            code, out, _ = await asyncio.to_thread(flyball, "status", store, "shop")
            assert out.startswith("shop: 2 producers, 0 consumers, 0 moving, 20 messages\n")
            assert "empty: it can be maintained" in out
            assert "of 12 samples at low load" in out

    asyncio.run(scenario())
    assert "messages; no program manages it: this was seen at 20" in flyball("status", store, "shop")[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("status", "ship"), "there is no cluster 'ship' in the store: it has shop"),
        (("drain", "shop", "c"), "there is no node 'c' in cluster 'shop': it has a, b"),
        (("create", "shop", "--node", "a=sqlite:///a.db"), "there is a cluster 'shop' in this store already"),
        (("create", "new", "--node", "sqlite:///a.db"), "a node must be written NAME=VALUE"),
        (("create", "new", "--node", "a=kafka://host"), "must be the URL of a broker with queues"),
        (("create", "new", "--node", "a=sqlite:///a.db", "--capacity", "b=3"), "--capacity must be NODE=CLIENTS"),
        (("create", "new", "--node", "a=x://1", "--node", "a=x://2"), "--node 'a' is given twice"),
    ],
)
def test_mistakes_are_one_sentence(store: str, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = flyball(arguments[0], store, *arguments[1:])
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_proposals_are_listed_approved_rejected_and_watched(store: str) -> None:
    async def proposal(kind: str) -> Any:
        async with asyncio.timeout(GUARD_S):
            while True:
                found = (await asyncio.to_thread(document, "propose", store, "shop"))["proposals"]
                pending = [one for one in found if (one["kind"], one["stage"]) == (kind, "pending")]
                if pending:
                    return pending[0]
                await asyncio.sleep(0.1)

    async def scenario() -> None:
        code, _, err = await asyncio.to_thread(flyball, "set", store, "shop", "--mode=advise", "--auto=none")
        assert (code, err) == (0, "cluster shop: mode advise, 2 to 2 nodes, without approval: none\n")
        async with await connect(f"cluster://shop?store={store}") as broker:
            sender = await broker.sender("orders")
            assert (
                "nothing is proposed for cluster shop, whose mode is advise"
                in flyball("propose", store, "shop")[2]
            )
            await asyncio.to_thread(flyball, "drain", store, "shop", "a")
            found = await proposal("drain")
            id = found["id"]
            assert (found["change"], found["goal"]) == ("empty a, move 1 sessions", {"rank": 2, "name": "no_loss"})
            assert found["sessions"][0]["target"] == "b"
            (node_a, node_b) = found["nodes"]
            assert (node_a["before"]["x"], node_a["after"]["x"]) == (1.0, 0.0)
            assert (node_b["before"]["load"], node_b["after"]["load"]) == (0.0, 0.02)
            code, out, _ = await asyncio.to_thread(flyball, "propose", store, "shop")
            assert out.startswith(
                f"{id} (pending): empty a, move 1 sessions\n  why: a is to be free for maintenance;"
            )
            assert "it serves goal 2, no loss\n  cost: 1 sessions and 0 messages move, about 0.5 s with" in out
            assert "1 → 0" in out
            code, out, err = await asyncio.to_thread(flyball, "approve", store, "shop", id)
            assert (code, out) == (2, "")
            assert err == "flyball: the mode is advise: nothing is carried out; set the mode to on\n"
            assert (await asyncio.to_thread(document, "status", store, "shop"))["proposals"] == [id]
            await asyncio.to_thread(flyball, "set", store, "shop", "--mode=on")
            watching = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "flyball", "cluster", "watch", store, "shop", "--seconds=8", "--json"),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            assert watching.stdout is not None
            assert watching.stderr is not None
            assert await watching.stderr.readline() == b"watching cluster shop for 8 s\n"
            await asyncio.sleep(2.0)  # the manager has read the mode by then
            code, out, _ = await asyncio.to_thread(flyball, "approve", store, "shop", id)
            assert (code, out.startswith(f"{id} ")) == (0, True)
            watched = [json.loads(line) for line in (await watching.stdout.read()).splitlines()]
            assert await watching.wait() == 0
            assert {"mark a: maintenance", f"approve {id}", f"close {id}"} <= {one["action"] for one in watched}
            assert all(one["reason"] for one in watched)
            assert sender.node == "b"  # type: ignore[attr-defined]
            found = await asyncio.to_thread(document, "status", store, "shop")
            assert found["size"] == {"verdict": "right", "reason": found["size"]["reason"]}
            assert found["size"]["reason"] == "1 clients, room for 50: a load of 0.02, and min_nodes is 2"

    asyncio.run(scenario())
    code, _, err = flyball("approve", store, "shop", "drain-1")
    assert (code, err) == (2, "flyball: cluster 'shop' has no manager now: start a program that uses it\n")
    assert "no program manages shop" in flyball("propose", store, "shop")[2]


def test_a_cluster_grows_into_a_host_shrinks_and_is_deleted(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/cluster.db"
    nodes = (f"--node=a=sqlite:///{tmp_path}/a.db", f"--host=b=sqlite:///{tmp_path}/b.db")
    capacities = ("--capacity=a=100", "--capacity=b=50")
    assert flyball("create", store, "shop", *nodes, *capacities)[0] == 0
    described = document("describe", store, "shop")
    assert [(node["node"], node["use"]) for node in described["nodes"]] == [("a", "member"), ("b", "free host")]
    assert (described["min_nodes"], described["max_nodes"], described["provisioner"]) == (1, 2, None)
    assert "it has 1 to 2 nodes" in flyball("describe", store, "shop")[1]

    async def until_size(verdict: str) -> str:
        async with asyncio.timeout(GUARD_S):
            while True:
                found = await asyncio.to_thread(document, "status", store, "shop")
                if found["size"]["verdict"] == verdict:
                    return str(found["size"]["reason"])
                await asyncio.sleep(0.1)

    async def ask(*words: str) -> tuple[int, str, str]:
        return await asyncio.to_thread(flyball, words[0], store, "shop", *words[1:])

    async def scenario() -> None:
        async with await connect(f"cluster://shop?store={store}"):
            await until_size("right")
            answer = await ask("grow")
            assert answer == (0, "b is added (grow-1); shrinking needs approval for 600 s\n", "")
            assert await until_size("one node too many") == (
                "0 clients fit without a: the others have room for 50, a load of 0"
            )
            code, _, err = await ask("grow")
            assert (code, err) == (2, "flyball: no node can be added: there are 2 nodes, and max_nodes is 2\n")
            code, _, err = await ask("delete")
            assert code == 2
            assert "end the programs that use it first" in err
            code, out, _ = await ask("shrink", "a")
            assert (code, out.startswith("a is emptied and removed (shrink-")) == (0, True)
            await until_size("right")
            code, _, err = await ask("shrink")
            assert (code, err) == (2, "flyball: no node can be removed: 1 serve, and min_nodes is 1\n")

    asyncio.run(scenario())
    assert flyball("delete", store, "shop") == (
        0,
        "",
        "cluster shop is deleted; what is at its nodes stays there\n",
    )
    assert "there is no cluster 'shop' in the store: it has none" in flyball("status", store, "shop")[2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--add-command", "./add {node}"), "--add-command and --remove-command must be given together"),
        (("--add-command", "x", "--remove-command", "y"), "max_nodes must be given with a provisioner"),
        (("--add-command", "'", "--remove-command", "y", "--max-nodes", "3"), "--add-command must be a command"),
        (("--process", "nodes", "--add-command", "x"), "--process and --add-command exclude each other"),
        (("--max-nodes", "3"), "max_nodes must be <= 1, the number of nodes and hosts, got 3"),
        (("--host", "a=sqlite:///b.db"), "nodes and hosts must have different names, got 'a' twice"),
        (("--auto", "groww"), "auto"),
        (("--mode", "of"), "mode"),
    ],
)
def test_mistakes_in_the_size_are_one_sentence(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    store = f"sqlite:///{tmp_path}/cluster.db"
    code, out, err = flyball("create", store, "new", "--node", "a=sqlite:///a.db", *options)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "cluster.db").exists()
