"""A real Kafka broker: started, found again, killed, restarted on its data; and what is said when it cannot be."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from flyball.servers import ServerFailed, ServerMissing
from flyball.servers.kafka import KafkaPorts, KafkaServer
from flyball.servers.kafka_jars import KAFKA_VERSION, kafka_jars
from flyball.servers.ports import LOOPBACK, accepts


def address(server: KafkaServer) -> str:
    return f"127.0.0.1:{server.ports.client}"


def test_its_data_survive_kill_and_restart_and_are_removed_by_stop(kafka: KafkaServer) -> None:
    del kafka  # only so that a machine without Kafka skips this too
    server = KafkaServer()
    server.start()
    try:
        folder = server.folder
        assert folder is not None
        admin = AdminClient({"bootstrap.servers": address(server)})
        admin.create_topics([NewTopic("t", 1, 1, config={"flush.messages": "1"})])["t"].result()
        producer = Producer({"bootstrap.servers": address(server)})
        producer.produce("t", b"kept")
        assert producer.flush(30) == 0
        (before,) = server.pids
        server.kill()
        assert server.pids == []
        assert not accepts(server.ports.client)
        server.start()
        (after,) = server.pids
        assert after != before
        found = KafkaServer.from_record(server.record())
        assert (found.pids, found.url) == (server.pids, server.url)
        consumer = Consumer({"bootstrap.servers": address(server), "group.id": "g"})
        consumer.assign([TopicPartition("t", 0, 0)])
        (record,) = consumer.consume(1, 60)
        assert record.value() == b"kept"
        consumer.close()
    finally:
        server.stop()
    assert server.pids == []
    assert not folder.exists()


def test_a_port_in_use_is_replaced(kafka: KafkaServer) -> None:
    del kafka
    with socket.create_server((LOOPBACK, 0)) as other:
        used_port = other.getsockname()[1]
        server = KafkaServer(ports=KafkaPorts.free(used_port))
        try:
            server.start()
            assert server.ports.client != used_port
            assert accepts(server.ports.client)
        finally:
            server.stop()


def test_jars_are_fetched_once_by_the_first_process(kafka: KafkaServer) -> None:
    del kafka
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(kafka_jars())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert (found[0] / f"kafka_2.13-{KAFKA_VERSION}.jar").exists()


def test_without_maven_and_pyspark_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLYBALL_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ServerMissing, match="install Maven, or PySpark"):
        kafka_jars()
    assert list((tmp_path / "kafka").glob("*/")) == []  # nothing half-made is left


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    monkeypatch.setenv("FLYBALL_CACHE", str(occupied))
    with pytest.raises(ServerMissing, match="set FLYBALL_CACHE"):
        kafka_jars()


def test_the_error_of_a_broken_setting_shows_the_log(kafka: KafkaServer) -> None:
    del kafka
    server = KafkaServer(settings={"log.retention.hours": "never"})
    with pytest.raises(ServerFailed, match="never"):
        server.start()
    assert server.pids == []
    assert server.folder is None


def test_passwords_do_not_show() -> None:
    assert "s3cret" not in repr(KafkaServer(users={"me": "s3cret"}))
