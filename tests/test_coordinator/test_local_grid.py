"""Flower's grid in one process, and a contract test for every internal call that it leans on."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import arrays_size_mod, message_size_mod
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from coordinator.flower.local_grid import LocalGrid

KIND = "query.exchange"
Handler = Callable[[Message, Context], Message]


def app_of(handler: Handler, **options: Any) -> ClientApp:
    app = ClientApp(**options)
    app.query("exchange")(handler)
    return app


def grid_of(handler: Handler, *, nodes: int = 3, **options: Any) -> LocalGrid:
    return LocalGrid(app_of(handler), nodes=nodes, workers=2, **options)


def message_to(node: int, **values: Any) -> Message:
    content = RecordDict({"numbers": ArrayRecord({"array": Array(np.arange(3))})})
    content["config"] = ConfigRecord(values)
    return Message(content, dst_node_id=node, message_type=KIND)


def echo(message: Message, _: Context) -> Message:
    return Message(message.content, reply_to=message)


class TestExchange:
    def test_every_node_has_its_own_partition(self) -> None:
        def who(message: Message, context: Context) -> Message:
            answer = ConfigRecord(
                {
                    "partition": context.node_config["partition-id"],
                    "of": context.node_config["num-partitions"],
                }
            )
            return Message(RecordDict({"who": answer}), reply_to=message)

        grid = grid_of(who)
        replies = grid.send_and_receive([message_to(node) for node in grid.get_node_ids()])
        assert [dict(reply.content["who"]) for reply in replies] == [
            {"partition": place, "of": 3} for place in range(3)
        ]

    def test_reply_names_the_message_that_it_answers(self) -> None:
        grid = grid_of(echo)
        [message_id] = grid.push_messages([message_to(1001)])
        while not (replies := list(grid.pull_messages([message_id]))):
            pass
        assert replies[0].metadata.reply_to_message_id == message_id

    def test_reply_is_given_once(self) -> None:
        grid = grid_of(echo)
        [message_id] = grid.push_messages([message_to(1001)])
        while not list(grid.pull_messages([message_id])):
            pass
        assert list(grid.pull_messages([message_id])) == []

    def test_what_is_not_done_is_not_pulled(self) -> None:
        gate = threading.Event()

        def wait(message: Message, context: Context) -> Message:
            gate.wait(60)
            return echo(message, context)

        grid = grid_of(wait)
        [message_id] = grid.push_messages([message_to(1001)])
        assert list(grid.pull_messages([message_id])) == []
        gate.set()

    def test_unknown_ids_are_ignored(self) -> None:
        assert list(grid_of(echo).pull_messages(["message-99"])) == []

    def test_state_of_a_node_stays_with_it(self) -> None:
        def count(message: Message, context: Context) -> Message:
            seen = int(context.state["seen"]["count"]) if "seen" in context.state else 0
            context.state["seen"] = ConfigRecord({"count": seen + 1})
            return Message(RecordDict({"seen": context.state["seen"]}), reply_to=message)

        grid = grid_of(count)
        for expected in (1, 2):
            [reply] = grid.send_and_receive([message_to(1000)])
            assert reply.content["seen"]["count"] == expected
        [other] = grid.send_and_receive([message_to(1001)])
        assert other.content["seen"]["count"] == 1

    def test_nodes_run_side_by_side(self) -> None:
        barrier = threading.Barrier(2, timeout=60)

        def meet(message: Message, context: Context) -> Message:
            barrier.wait()
            return echo(message, context)

        grid = grid_of(meet)
        replies = list(grid.send_and_receive([message_to(1000), message_to(1001)]))
        assert not any(reply.has_error() for reply in replies)


class TestCopies:
    def test_what_a_node_changes_does_not_reach_the_sender(self) -> None:
        def change(message: Message, context: Context) -> Message:
            message.content["config"]["word"] = "changed"
            message.content["more"] = ConfigRecord({"x": 1})
            return echo(message, context)

        sent = message_to(1000, word="kept")
        grid = grid_of(change)
        [reply] = grid.send_and_receive([sent])
        assert sent.content["config"]["word"] == "kept"
        assert "more" not in sent.content
        assert reply.content["config"]["word"] == "changed"

    def test_what_the_sender_changes_later_does_not_reach_the_node(self) -> None:
        gate = threading.Event()

        def wait(message: Message, context: Context) -> Message:
            gate.wait(60)
            return echo(message, context)

        grid = grid_of(wait)
        sent = message_to(1000, word="kept")
        [message_id] = grid.push_messages([sent])
        sent.content["config"]["word"] = "changed"
        gate.set()
        while not (replies := list(grid.pull_messages([message_id]))):
            pass
        assert replies[0].content["config"]["word"] == "kept"

    def test_what_a_node_keeps_is_not_what_the_coordinator_gets(self) -> None:
        kept: list[RecordDict] = []

        def keep(message: Message, context: Context) -> Message:
            kept.append(message.content)
            return echo(message, context)

        [reply] = grid_of(keep).send_and_receive([message_to(1000, word="kept")])
        kept[0]["config"]["word"] = "changed"
        assert reply.content["config"]["word"] == "kept"


class TestFailures:
    def test_down_node_is_an_error_and_its_app_is_not_run(self) -> None:
        ran: list[int] = []

        def note(message: Message, context: Context) -> Message:
            ran.append(int(context.node_config["partition-id"]))
            return echo(message, context)

        grid = grid_of(note, is_down=lambda partition: partition == 1)
        replies = list(grid.send_and_receive([message_to(node) for node in (1000, 1001, 1002)]))
        assert [reply.has_error() for reply in replies] == [False, True, False]
        assert replies[1].error.code == 5
        assert sorted(ran) == [0, 2]

    def test_node_may_come_back(self) -> None:
        down = {0}
        grid = grid_of(echo, is_down=lambda partition: partition in down)
        assert [r.has_error() for r in grid.send_and_receive([message_to(1000)])] == [True]
        down.clear()
        assert [r.has_error() for r in grid.send_and_receive([message_to(1000)])] == [False]

    def test_only_the_name_of_an_exceptions_type_leaves_a_node(self) -> None:
        def fail(message: Message, context: Context) -> Message:
            raise ZeroDivisionError("7919 votes of patient 4711")

        [reply] = grid_of(fail).send_and_receive([message_to(1000)])
        assert (reply.error.code, reply.error.reason) == (2, "ZeroDivisionError")
        assert not any(word in repr(reply.__dict__) for word in ("7919 votes", "patient"))

    def test_message_of_a_kind_that_no_node_knows_is_an_error(self) -> None:
        message = Message(RecordDict(), dst_node_id=1000, message_type="query.unknown")
        [reply] = grid_of(echo).send_and_receive([message])
        assert reply.has_error()


class TestServer:
    def test_server_app_gets_the_grid_and_its_exception_comes_out(self) -> None:
        app = ServerApp()

        @app.main()
        def main(grid: Grid, _: Context) -> None:
            assert list(grid.get_node_ids()) == [1000, 1001, 1002]
            raise LookupError("purpose")

        with pytest.raises(LookupError, match="purpose"):
            grid_of(echo).run_server(app)

    def test_threads_end_with_the_server(self) -> None:
        app = ServerApp()

        @app.main()
        def main(grid: Grid, _: Context) -> None:
            list(grid.send_and_receive([message_to(1000)]))

        # By name of thread, not by number: one of an earlier test may end meanwhile.
        before = set(threading.enumerate())
        grid_of(echo).run_server(app)
        assert set(threading.enumerate()) <= before

    def test_run_is_the_one_run(self) -> None:
        grid = grid_of(echo)
        grid.set_run(Run.create_empty(9))
        assert grid.run.run_id == 1


class TestFlowersOwnMods:
    @pytest.mark.parametrize("mod", [message_size_mod, arrays_size_mod])
    def test_mods_of_flower_wrap_our_messages(self, mod: Any) -> None:
        grid = LocalGrid(app_of(echo, mods=[mod]), nodes=1, workers=1)
        [reply] = grid.send_and_receive([message_to(1000, word="kept")])
        assert not reply.has_error()
        assert reply.content["config"]["word"] == "kept"

    def test_mods_of_ours_run_around_the_handler(self) -> None:
        seen: list[str] = []

        def mod(message: Message, context: Context, call_next: Handler) -> Message:
            seen.append(message.metadata.message_type)
            reply = call_next(message, context)
            seen.append("replied")
            return reply

        list(
            LocalGrid(app_of(echo, mods=[mod]), nodes=1, workers=1).send_and_receive(
                [message_to(1000)]
            )
        )
        assert seen == [KIND, "replied"]


class TestContractWithFlower:
    """Internal calls of Flower 1.41 that `local_grid` uses: a change must fail here, loudly."""

    def test_grid_asks_for_no_more_than_we_implement(self) -> None:
        assert Grid.__abstractmethods__ <= set(vars(LocalGrid))

    @pytest.mark.parametrize("name", sorted(Grid.__abstractmethods__))
    def test_our_methods_take_what_flowers_take(self, name: str) -> None:
        if isinstance(vars(Grid)[name], property):
            assert isinstance(vars(LocalGrid)[name], property)
            return
        theirs, ours = (inspect.signature(getattr(kind, name)) for kind in (Grid, LocalGrid))
        assert list(ours.parameters) == list(theirs.parameters)

    @pytest.mark.parametrize("name", ["run_id", "task_id", "node_id"])
    def test_task_identity_holds_what_a_message_reads(self, name: str) -> None:
        LocalGrid(ClientApp(), nodes=1, workers=1)
        assert getattr(TaskIdentity, name) == 1
        setattr(TaskIdentity, name, 1)

    def test_message_takes_run_and_sender_from_the_task_identity(self) -> None:
        LocalGrid(ClientApp(), nodes=1, workers=1)
        metadata = message_to(1000).metadata
        assert (metadata.run_id, metadata.src_node_id, metadata.dst_node_id) == (1, 1, 1000)
        assert metadata.message_type == KIND

    def test_message_id_lies_where_we_write_it(self) -> None:
        message = message_to(1000)
        message.metadata.__dict__["_message_id"] = "ours"
        assert message.metadata.message_id == "ours"
        assert Message(RecordDict(), reply_to=message).metadata.reply_to_message_id == "ours"

    def test_reply_goes_back_to_the_sender(self) -> None:
        message = message_to(1000)
        reply = Message(RecordDict(), reply_to=message)
        assert (reply.metadata.src_node_id, reply.metadata.dst_node_id) == (1000, 1)

    def test_error_reply_has_code_and_reason(self) -> None:
        reply = Message(Error(code=5, reason="why"), reply_to=message_to(1000))
        assert reply.has_error()
        assert (reply.error.code, reply.error.reason) == (5, "why")

    def test_time_to_live_is_what_was_asked_for(self) -> None:
        message = Message(RecordDict(), dst_node_id=1, message_type=KIND, ttl=7.0)
        assert message.metadata.ttl == 7.0

    def test_empty_run_has_its_number(self) -> None:
        assert Run.create_empty(7).run_id == 7

    def test_context_has_the_fields_we_fill(self) -> None:
        context = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})
        assert (context.run_id, context.node_id) == (1, 2)

    def test_arrays_keep_every_byte(self) -> None:
        data = np.arange(256, dtype=np.uint8)
        assert Array(data).numpy().tobytes() == bytes(range(256))
