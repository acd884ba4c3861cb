"""Answers that are larger than what the SDK keeps unread."""

from __future__ import annotations

from server_fixture import PASSWORD, ServerThread

from tablecast import EARLIEST, Retry, connect
from tablecast.client.exchange import BUFFER_BYTES

ROWS = 600
WORD = "x" * (4 * BUFFER_BYTES // ROWS)


def test_an_answer_of_several_buffers_arrives_at_once() -> None:
    once = Retry(attempts=1)
    with ServerThread() as server, connect(server.url, user="system", password=PASSWORD, retry=once) as client:
        client.execute_all(
            "CREATE NAMESPACE app; CREATE TABLE app.t (id INT PRIMARY KEY, word TEXT); CREATE TOPIC app.told;"
            "ALTER TOPIC app.told ADD SOURCE app.t ON ANY WITH (payload = 'full')"
        )
        client.insert("app.t", [{"id": i, "word": WORD} for i in range(ROWS)])
        told = client.consume("app.told", start=EARLIEST, limit=ROWS)
        assert len(told.messages) == ROWS
        assert sum(len(message.payload) for message in told.messages) > 4 * BUFFER_BYTES - ROWS
        assert [row[1] for row in client.query("SELECT * FROM app.t").rows] == [WORD] * ROWS
